"""What a request's body says: JSON, strictly read, with no key that there is not."""

from __future__ import annotations

import json
from typing import Any

from kurma_core.appc.nesting import bounded
from kurma_core.daemon.schemas import SCHEMAS
from kurma_core.errors import UsageError

Json = Any
#: Characters of somebody's own words in an error.
_MOST = 60


def parse(data: bytes) -> Json:
    """One JSON value. :raises ValueError: it is none, or says a key twice, in words of our own."""
    try:
        return json.loads(bounded(data), object_pairs_hook=_once, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at")
        raise ValueError(f"{said[:1].lower()}{said[1:]} at line {error.lineno}, column {error.colno}") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("a number of too many digits") from None
        raise


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:_MOST]!r} stands twice in one object")
            seen.add(name)
    return value


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is no number that JSON has")


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


__all__ = ["check_keys", "parse"]
