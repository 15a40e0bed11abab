"""Refuses unknown keys in requests' bodies."""

from __future__ import annotations

from typing import Any, TypeVar

from kurma_core.daemon.schemas import SCHEMAS
from kurma_core.errors import ManifestError, UsageError
from kurma_core.schema import JsonValue, SchemaError

Json = Any
V = TypeVar("V", bound=JsonValue)
#: Characters of somebody's own words in an error.
_MOST = 60


def check_keys(name: str, value: Json) -> None:
    """:param name: of the schema. :raises UsageError: there is a key that it does not have."""
    pending: list[tuple[Json, Json, str]] = [(SCHEMAS[name], value, "$")]
    while pending:
        schema, one, way = pending.pop()
        if isinstance(one, list):
            pending.extend((schema.get("items", {}), item, f"{way}[{at}]") for at, item in enumerate(one))
        if not isinstance(one, dict):
            continue
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, item in one.items():
            if key not in known and others is False:
                raise UsageError(
                    f"the request's body: {way} has an unknown key {key[:_MOST]!r}",
                    hint=f"the keys that there are: {', '.join(known)}; see /v1/openapi.json",
                    unknown=True,
                )
            pending.append((known.get(key, others), item, f"{way}.{key[:_MOST]}"))


def read(kind: type[V], value: Json) -> V:
    """:raises ManifestError: it is not such a value."""
    try:
        return kind.from_json(value, "$")
    except SchemaError as error:
        raise ManifestError(error.path, error.expected, error.found) from None
