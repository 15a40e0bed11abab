"""Operations on keys: whose signatures count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.daemon.operations import Call, Query, operation
from kurma_core.daemon.queries import DRY_RUN
from kurma_core.errors import UsageError

if TYPE_CHECKING:
    pass

Json = Any


@operation("GET", "/v1/trust", "List the keys of the keystores.", rights="read", result="TrustedKeys")
def trust(call: Call) -> Json:
    return [key.to_json() for key in call.client.trust_list()]


@operation(
    "POST",
    "/v1/trust/find",
    "Get the keys at an address, or those that the owner of a name publishes. They are not trusted by that.",
    body="KeySearch",
    result="Keys",
    given_up=True,
)
def trust_find(call: Call) -> Json:
    reader = Reader(call.body, "$", None)
    address, name = reader.optional("address", types.nonempty), reader.optional("name", types.nonempty)
    insecure = frozenset(reader.strings("insecure", types.nonempty))
    if (address is None) == (name is None):
        raise UsageError("expected either an address or a name")
    if name is not None:
        return [key.to_json() for key in call.client.trust_discover(name, insecure)]
    assert address is not None
    if not address.lower().startswith(("http://", "https://")):
        raise UsageError(f"{address}: no address of a key", hint="https://…; a file is read by who has it")
    return [key.to_json() for key in call.client.trust_read(address, insecure)]


@operation("POST", "/v1/trust", "Trust a key.", body="KeyWish", result="TrustChange")
def trust_add(call: Call) -> Json:
    reader = Reader(call.body, "$", None)
    material = reader.string("key", types.nonempty).encode()
    found = call.client.trust_parse(material, reader.optional("source", types.text) or "the request")
    if len(found) != 1:
        raise UsageError(f"expected one key, found {len(found)}")
    return call.client.trust_add(found[0], reader.optional("prefix", types.ac_identifier)).to_json()


@operation(
    "DELETE",
    "/v1/trust/{key}",
    "Trust a key no longer.",
    query=(
        Query("prefix", "text", "for images of that name; without it: for all images"),
        DRY_RUN,
    ),
    result="TrustChange",
)
def trust_remove(call: Call) -> Json:
    query = call.query
    return call.client.trust_rm(call.path["key"], query["prefix"], dry_run=query["dryRun"]).to_json()
