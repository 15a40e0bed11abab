"""Describes the API from its declarations: an OpenAPI 3.1 document with JSON Schemas (draft 2020-12).

All keys of a value are there: one without a value is null. Keys are only ever added, so readers ignore unknown
ones. Values that a caller sends may have no unknown keys: kurmad would ignore
their wishes.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from kurma_core import VERSION
from kurma_core import schema as shapes
from kurma_core.api.operations import BODY_LIMIT, NDJSON, OPERATIONS, Operation, Parameter, resolve
from kurma_core.api.wire import PROTOCOL
from kurma_core.schema import JsonValue, Maybe, Shape, members

Json = Any
_JSON = "application/json"
_BYTES = "bytes that are no UTF-8 are U+DC80 and on, as Python has them"
_NULL: Json = {"type": "null"}
#: Names in braces in paths.
_PLACES = {
    "pod": "UUID, unique prefix of one of four characters or more, or name",
    "app": "name of an app of the pod",
    "image": "ID, unique prefix of one, or name with labels",
    "network": "name of the network",
    "volume": "name of the volume",
    "stager": "name that pods may ask for",
    "key": "fingerprint of the key, or its beginning or end",
    "answer": "the id of what was asked",
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
    505: "only HTTP/1.1 is supported",
}
#: Values that the command line prints, and no operation gives.
_OF_COMMANDS = ("AppRow", "ImageSigned", "ImageVerified", "PluginPage")


# --- JSON Schema -----------------------------------------------------------------------------------------------


def json_schema(shape: Shape, *, asked: bool = False) -> Json:
    """The JSON Schema of a shape; named classes are referenced.

    :param asked: the schema is for values that a caller sends, in which a :attr:`JsonValue.PARTIAL` class may lack
        keys.
    """

    def of(inner: Shape) -> Json:
        return json_schema(inner, asked=asked)

    match shape:
        case shapes.Bytes():
            return {"type": "string", "description": _BYTES}
        case shapes.Text():
            return {"type": "string", **({"description": shape.title} if shape.title else {})}
        case shapes.Flag():
            return {"type": "boolean"}
        case shapes.Whole():
            return {"type": "integer", **_bounds(minimum=shape.least, maximum=shape.most)}
        case shapes.Number():
            return {"type": "number", **_bounds(minimum=shape.least, exclusiveMaximum=shape.below)}
        case shapes.Words():
            return {"type": "string", "enum": list(shape.words)}
        case shapes.Null():
            return _NULL
        case shapes.Plain():
            return {"type": "object" if shape.kind is dict else "array"}
        case shapes.Maybe():
            return _or_null(of(shape.inner))
        case shapes.Either():
            return {"anyOf": [of(one) for one in shape.shapes]}
        case shapes.List():
            return {"type": "array", "items": of(shape.inner)}
        case shapes.Row():
            return {"type": "array", "prefixItems": [of(one) for one in shape.shapes]}
        case shapes.Map():
            inner = of(shape.inner)
            return {"type": "object", **({"additionalProperties": inner} if inner else {})}
        case shapes.Keys():
            needed = [key for key in shape.shapes if key not in shape.optional]
            return {**_object({key: of(one) for key, one in shape.shapes.items()}), "required": needed}
        case shapes.Pairs():
            pair = {key: of(one) for key, one in zip(shape.keys, shape.shapes, strict=True)}
            found = _object(pair)
            if asked:
                optional = (shapes.Maybe, shapes.Any_)
                given = zip(shape.keys, shape.shapes, strict=True)
                found["required"] = [key for key, one in given if not isinstance(one, optional)]
                found["additionalProperties"] = False
            return {"type": "array", "items": found}
        case shapes.Object():
            found = _reference(shape.kind, asked)
            return found if shape.by is None else {"type": "object", "additionalProperties": found}
        case shapes.Parsed():
            title = (shape.kind.__doc__ or "").partition("\n")[0]
            return {"type": "object", **({"description": title} if title else {})}
    return {}


def _bounds(**bounds: float | None) -> Json:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _or_null(schema: Json) -> Json:
    if "type" in schema and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, _NULL]} if schema else schema


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _reference(kind: type[JsonValue], asked: bool) -> Json:
    if kind.JSON_NAME:
        return {"$ref": f"#/components/schemas/{kind.JSON_NAME}"}
    return class_schema(kind, asked=asked)


def class_schema(kind: type[JsonValue], *, asked: bool | None = None) -> Json:
    """Of a class, with all its keys, described by the ``:param x:`` lines of its documentation.

    :param asked: as of :func:`json_schema`; None: if callers send values of that class.
    """
    asked = kind.PARTIAL if asked is None else asked
    partial = kind.PARTIAL and asked
    help_of = class_help(kind)
    own, inline = {}, []
    for one in members(kind):
        if one.key is None:
            assert isinstance(one.shape, shapes.Object)
            inline.append(one.shape.kind)
            continue
        schema = json_schema(one.shape if partial else one.written, asked=asked)
        about = help_of.get(one.name)
        form = getattr(one.written.inner if isinstance(one.written, Maybe) else one.written, "title", "")
        about = f"{form}: {about}" if about and form else about
        own[one.key] = {**schema, "description": about} if about and "$ref" not in schema else schema
    found = _object(own)
    if partial:
        needed = [one.key for one in members(kind) if one.needed and one.key is not None]
        found = {**found, "required": needed, "additionalProperties": False}
        if not needed:
            del found["required"]
    if not inline:
        return found
    if all(other.JSON_NAME for other in inline):
        return {"allOf": [*(_reference(other, asked) for other in inline), found]}
    for other in inline:
        inner = class_schema(other)
        found = _object({**inner["properties"], **found["properties"]})
    return found


def _body_schema(operation: Operation) -> Json:
    """The schema of a body whose keys are the operation's parameters."""
    parameters = [one for one in operation.parameters if one.place == "body"]
    help_of = parameter_help(operation.documentation)
    properties = {}
    for one in parameters:
        shape = one.shape if one.required or isinstance(one.shape, Maybe) else Maybe(one.shape)
        about = {"description": help_of[one.name]} if one.name in help_of else {}
        properties[one.key] = {**json_schema(shape, asked=True), **about}
    needed = {"required": [one.key for one in parameters if one.required]}
    return {
        "type": "object",
        "properties": properties,
        **(needed if needed["required"] else {}),
        "additionalProperties": False,
    }


def schemas() -> dict[str, Json]:
    """The named ones, by name: of all that operations take and give, and that commands print."""
    found: dict[str, Json] = {}
    pending: list[Shape] = [resolve(name) for name in (*_OF_COMMANDS, "ErrorBody")]
    for operation in OPERATIONS.values():
        if operation.body is not None:
            found[operation.body] = _body_schema(operation)
        pending += [one.shape for one in operation.parameters]
        if operation.result is not None:
            pending.append(operation.result)
    while pending:
        shape = pending.pop()
        for kind in _classes(shape):
            if kind.JSON_NAME and kind.JSON_NAME not in found:
                found[kind.JSON_NAME] = class_schema(kind)
                pending += [one.shape for one in members(kind)]
    return {**dict(sorted(found.items())), "Message": _MESSAGE}


def _classes(shape: Shape) -> list[type[JsonValue]]:
    """The classes that a shape refers to, those of nameless classes too."""
    found: list[type[JsonValue]] = []
    pending = [shape]
    while pending:
        one = pending.pop()
        if isinstance(one, shapes.Object):
            found.append(one.kind)
            if not one.kind.JSON_NAME:
                pending += [each.shape for each in members(one.kind)]
        pending += [one.inner] if isinstance(one, (shapes.Maybe, shapes.List, shapes.Map)) else []
        pending += list(one.shapes) if isinstance(one, (shapes.Either, shapes.Row, shapes.Pairs)) else []
        pending += list(one.shapes.values()) if isinstance(one, shapes.Keys) else []
    return found


_MESSAGE = {
    "description": "one line of an answer that tells what happens on the way; the last is result or error",
    **_object(
        {"is": {"type": "string", "enum": ["note", "problem", "progress", "ask", "line", "result", "error"]}}
    ),
}


# --- OpenAPI ---------------------------------------------------------------------------------------------------


@functools.cache
def openapi() -> dict[str, Json]:
    """The document; callers do not change it."""
    paths: dict[str, dict[str, Json]] = {}
    for operation in OPERATIONS.values():
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "kurmad", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "http://kurmad/", "description": "the unix socket; the host's name is not looked at"}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": {str(status): _failure(status, when) for status, when in _FAILURES.items()},
        },
    }


def _operation(operation: Operation) -> dict[str, Json]:
    help_of = parameter_help(operation.documentation)
    found: dict[str, Json] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.parts[0].removesuffix(".json")],
        "x-rights": operation.rights,
        "parameters": [
            _parameter(one, help_of)
            for place in ("path", "query")
            for one in operation.parameters
            if one.place == place
        ],
        "responses": {**_answers(operation), **_failures(operation)},
    }
    if operation.kind == "stream":
        found["description"] = (
            f"Asked for with `Connection: Upgrade` and `Upgrade: {PROTOCOL}`; see docs/reference/api.md."
        )
        found["x-upgrade"] = PROTOCOL
    whole = [one for one in operation.parameters if one.place == "whole body"]
    if operation.takes is not None:
        found["requestBody"] = {"required": True, "content": {operation.takes: {}}}
    elif operation.body is not None:
        schema = {"$ref": f"#/components/schemas/{operation.body}"}
        found["requestBody"] = {"required": operation.body_needed, "content": {_JSON: {"schema": schema}}}
    elif whole:
        found["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": json_schema(whole[0].shape, asked=True)}},
        }
    return found


def _parameter(one: Parameter, help_of: dict[str, str]) -> Json:
    if one.place == "path":
        schema = {"type": "string", "minLength": 1}
        about = _PLACES.get(one.key, "which one")
        return {"name": one.key, "in": "path", "required": True, "description": about, "schema": schema}
    inner = one.shape.inner if isinstance(one.shape, Maybe) else one.shape
    schema = json_schema(inner)
    if one.default not in (None, ()) and not one.required:
        schema["default"] = one.default
    about = help_of.get(one.name) or one.help
    return {"name": one.key, "in": "query", "description": about, "schema": schema}


def documentation_parts(documentation: str) -> list[tuple[str, str, str]]:
    """Splits a docstring into its parts: (word, name, text).

    A field, ``:param x:``, ``:returns:``, ``:raises SomeError:`` or ``:called:``, has its word, its name or "",
    and its text without a full stop. A paragraph has the word "".
    """
    found = []
    for paragraph in _PARAGRAPHS.split(documentation):
        prose, *fields = _FIELDS.split(paragraph)
        if prose.strip():
            found.append(("", "", _in_markdown(prose)))
        for word, name, text in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
            found.append((word, name or "", _in_markdown(text).removesuffix(".")))
    return found


def _in_markdown(text: str) -> str:
    return re.sub(r":\w+:`[~.]?([^`]*)`", r"`\1`", " ".join(text.split())).replace("``", "`")


_PARAGRAPHS = re.compile(r"\n\s*\n")
_FIELDS = re.compile(r":(param|returns|raises|called)(?: (\w+(?:, \w+)*))?:(?=\s|$)")


def parameter_help(documentation: str) -> dict[str, str]:
    """The texts of the ``:param x:`` lines of a docstring, by name in Python."""
    return {name: text for word, name, text in documentation_parts(documentation) if word == "param"}


def class_help(kind: type[JsonValue]) -> dict[str, str]:
    """The documentation of the fields of a class and its bases, by name in Python."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        found |= parameter_help(one.__doc__ or "")
    return found


def _answers(operation: Operation) -> dict[str, Json]:
    result = operation.result
    schema = _NULL if result is None else json_schema(result)
    if operation.kind == "stream":
        about = f"frames of {PROTOCOL} from here on; the last message has the result"
        return {"101": {"description": about, "x-result": schema}}
    if operation.kind == "bytes":
        known: dict[str, Json] = {}
        if result is not None:
            known = {NDJSON: {"schema": {"description": "each line", **schema}}, _JSON: {"schema": schema}}
        content: dict[str, Json] = {kind: known.get(kind, {}) for kind in operation.gives}
    elif operation.kind == "lines":
        content = {NDJSON: {"schema": {"description": "each line", **schema}}}
    else:
        message = {"description": "each line", "$ref": "#/components/schemas/Message"}
        content = {_JSON: {"schema": schema}, NDJSON: {"schema": message}}
    return {"200": {"description": "done", "content": content}}


def _failures(operation: Operation) -> dict[str, Json]:
    statuses = set(_FAILURES)
    if operation.takes is None and not any("body" in one.place for one in operation.parameters):
        statuses.discard(413)
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def _failure(status: int, when: str) -> Json:
    return {"description": when, "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
