"""Operations on networks."""

from __future__ import annotations

from typing import Any

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.daemon.operations import Call, operation

Json = Any


@operation("GET", "/v1/networks", "List networks.", rights="read", result="Networks")
def networks(call: Call) -> Json:
    return [network.to_json() for network in call.client.networks_list()]


@operation("GET", "/v1/networks/{network}", "Show a network.", rights="read", result="Network")
def network(call: Call) -> Json:
    return call.client.network(call.path["network"]).to_json()


@operation(
    "POST",
    "/v1/networks/check",
    "Tell what is wrong with networks, and what pods have left; with repair, mend it.",
    body="NetworkCheck",
    body_needed=False,
    result="NetworkFindings",
)
def network_check(call: Call) -> Json:
    reader = Reader(call.body or {}, "$", None)
    names = reader.strings("names", types.nonempty)
    found = call.client.network_check(names, repair=reader.boolean("repair", False))
    return [one.to_json() for one in found]


@operation("DELETE", "/v1/networks/{network}", "Take from the host what pods share of a network.")
def network_remove(call: Call) -> None:
    call.client.network_rm(call.path["network"])
