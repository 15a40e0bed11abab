"""The API's description, an OpenAPI 3.1 document: written from the table of operations and their schemas."""

from __future__ import annotations

import re
from typing import Any

from kurma_core.client.frames import PROTOCOL
from kurma_core.daemon.http.exchange import BODY_LIMIT, NDJSON
from kurma_core.daemon.operations import TABLE, Call, Query, Spec, operation
from kurma_core.daemon.schemas import NOTHING, SCHEMAS
from kurma_core.version import VERSION

Json = Any
_JSON = "application/json"

#: What stands in braces in paths.
_PLACES = {
    "pod": "UUID, unique prefix of one of four characters or more, or name",
    "app": "name of an app of the pod",
    "image": "ID, unique prefix of one, or name with labels",
    "network": "name of the network",
    "name": "its name",
    "stager": "name that pods may ask for",
    "key": "fingerprint of the key, or its beginning or end",
    "answer": "the id of what was asked",
    "kind": "kind of plugin: fetchers, renderers, stagers, networks, isolators, observers",
}
_KINDS: dict[str, Json] = {
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "whole": {"type": "integer"},
    "seconds": {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9},
}
#: Status: when.
_FAILURES = {
    400: "the request is wrong: its parameters, its body, or what it asks for",
    403: "it is not allowed: by the rights of the socket, by a trust policy, or by the host",
    404: "there is no such thing",
    405: "the path takes other methods: Allow says which",
    408: "the request did not come in time",
    409: "it cannot be done to the thing as it is",
    413: f"the body is longer than {BODY_LIMIT} bytes",
    431: "the request's line and headers are too long",
    500: "the host, a plugin or Kurma failed",
    501: "the body comes in a transfer encoding that is not known",
    503: "there are too many connections: try again",
    505: "HTTP/1.1 is spoken here",
}


@operation("GET", "/v1/openapi.json", "This description of the API.", rights="read", result="OpenAPI")
def openapi(call: Call) -> Json:
    return document(TABLE)


def document(table: list[Spec]) -> dict[str, Json]:
    """:param table: the operations."""
    paths: dict[str, dict[str, Json]] = {}
    for spec in table:
        paths.setdefault(spec.path, {})[spec.method.lower()] = _operation(spec)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kurmad", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "http://kurmad/", "description": "the unix socket; the host's name is not looked at"}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {str(status): _failure(status, when) for status, when in _FAILURES.items()},
        },
    }


def _operation(spec: Spec) -> dict[str, Json]:
    found: dict[str, Json] = {
        "operationId": spec.name,
        "summary": spec.summary,
        "tags": [_tag(spec.path)],
        "x-rights": spec.rights,
        "parameters": [_place(name) for name in re.findall(r"\{(\w+)\}", spec.path)]
        + [_query(query) for query in spec.query],
        "responses": {**_answers(spec), **_failures(spec)},
    }
    if spec.kind == "stream":
        found["description"] = f"Asked for with `Connection: Upgrade` and `Upgrade: {PROTOCOL}`; see docs/api.md."
        found["x-upgrade"] = PROTOCOL
    if spec.body is not None:
        found["requestBody"] = {"required": spec.body_needed, "content": {_JSON: {"schema": _named(spec.body)}}}
    elif spec.takes is not None:
        found["requestBody"] = {"required": True, "content": {spec.takes: {}}}
    return found


def _tag(path: str) -> str:
    return path.removeprefix("/v1/").split("/", 1)[0].removesuffix(".json").strip("/")


def _place(name: str) -> Json:
    about = _PLACES.get(name, "which one")
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _query(query: Query) -> Json:
    schema = dict(_KINDS[query.kind])
    if query.kind == "whole":
        schema |= {"minimum": query.least, "maximum": query.most}
    if query.choices:
        schema["enum"] = list(query.choices)
    if query.default is not None:
        schema["default"] = query.default
    if query.many:
        schema = {"type": "array", "items": schema}
    return {"name": query.name, "in": "query", "description": query.help, "schema": schema}


def _answers(spec: Spec) -> dict[str, Json]:
    result = _named(spec.result) if spec.result is not None else NOTHING
    if spec.kind == "stream":
        about = f"frames of {PROTOCOL} from here on; the last message has the result"
        return {"101": {"description": about, "x-result": result}}
    if spec.kind == "bytes":
        lines: dict[str, Json] = {}
        if spec.result is not None:
            lines = {NDJSON: {"schema": {"description": "each line", **result}}, _JSON: {"schema": result}}
        content: dict[str, Json] = {kind: lines.get(kind, {}) for kind in spec.gives}
    elif spec.kind == "lines":
        content = {NDJSON: {"schema": {"description": "each line", **result}}}
    else:
        content = {
            _JSON: {"schema": result},
            NDJSON: {"schema": {"description": "each line", **_named("Message")}},
        }
    return {"200": {"description": "done", "content": content}}


def _failures(spec: Spec) -> dict[str, Json]:
    statuses = set(_FAILURES)
    if spec.body is None and spec.takes is None:
        statuses.discard(413)
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def _failure(status: int, when: str) -> Json:
    return {"description": when, "content": {_JSON: {"schema": _named("Error")}}}


def _named(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


__all__ = ["document"]
