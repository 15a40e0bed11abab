"""Operations on stagers, and on the daemon's plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.daemon.operation import current
from kurma_core.daemon.operations import Call, Query, operation

if TYPE_CHECKING:
    from kurma_core.api.host import CheckLine

Json = Any


@operation("GET", "/v1/stagers", "List the stagers that pods may name.", rights="read", result="Stagers")
def stagers(call: Call) -> Json:
    return [dict(stager) for stager in call.client.stagers()]


@operation(
    "POST",
    "/v1/stagers/{stager}/build",
    "Build, or fetch, and verify a stager's image.",
    query=(Query("force", "flag", "anew, even if it is there", default=False),),
    result="HostImage",
    given_up=True,
)
def stager_build(call: Call) -> Json:
    return call.client.stager_build(call.path["stager"], force=call.query["force"]).to_json()


@operation(
    "POST",
    "/v1/stagers/check",
    "Run the contract suite on a stager; each line is told as soon as it is known.",
    body="StagerWish",
    result="StagerCheck",
    given_up=True,
)
def stager_check(call: Call) -> Json:
    asked = current()

    def tell(line: CheckLine) -> None:
        asked.tell({"is": "line", "line": line.to_json()})

    image = Reader(call.body, "$", None).string("image", types.nonempty)
    return [line.to_json() for line in call.client.stager_check(image, tell)]


@operation(
    "GET", "/v1/isolators", "List isolators, and what this host makes of each.", rights="read", result="Isolators"
)
def isolators(call: Call) -> Json:
    return [one.to_json() for one in call.client.isolators()]


@operation(
    "GET",
    "/v1/plugins",
    "List the daemon's plugins, and why one does not work.",
    rights="read",
    query=(Query("load", "flag", "load them, to know", default=True),),
    result="Plugins",
)
def plugins(call: Call) -> Json:
    return [one.to_json() for one in call.client.plugins(load=call.query["load"])]
