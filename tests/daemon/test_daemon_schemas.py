"""The API's schemas: each that an operation names is there, they say what ``docs/json.md`` says, and what values
write of themselves is what they say."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kurma_core import errors
from kurma_core.api.host import IsolatorInfo
from kurma_core.api.pods import AppOverrides, DnsRequest, PodRequest, Process, ResourceUsage, Usage
from kurma_core.appc.template import PodTemplate
from kurma_core.client import values
from kurma_core.daemon import dispatch, kurmad  # noqa: F401 (all operations)
from kurma_core.daemon.access import shown
from kurma_core.daemon.bodies import check_keys
from kurma_core.daemon.failures import error_json
from kurma_core.daemon.openapi import document
from kurma_core.daemon.operations import TABLE
from kurma_core.daemon.schemas import SCHEMAS
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.models.pod import AppExecution, AppStatus
from tests.cli import cli_fakes, json_fields

#: Page of docs/json.md → schema.
PAGES = {
    "list": "Pods",
    "show": "Pod",
    "top": "Processes",
    "app list": "Apps",
    "events": "Event",
    "image list": "Images",
    "image show": "ImagePage",
    "image sign": "ImageSigned",
    "image verify": "ImageVerified",
    "image render": "ImageRendered",
    "image gc": "ImageGc",
    "trust list": "TrustedKeys",
    "stager list": "Stagers",
    "stager check": "StagerCheckLine",
    "network list": "Networks",
    "network show": "Network",
    "network check": "NetworkFindings",
    "isolators list": "Isolators",
    "plugins list": "Plugins",
    "plugins show": "PluginPage",
    "info": "Info",
}
#: Pages of what no operation tells.
WITHOUT = {"status", "stats", "config show"}


def resolved(schema: Any) -> Any:
    """The schema itself: what it refers to, all that it is made of, what it is when it is not null."""
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return resolved(next(one for one in schema["anyOf"] if one.get("type") != "null"))
    if "allOf" in schema:
        parts = [resolved(part) for part in schema["allOf"]]
        return {
            "type": "object",
            "properties": {key: one for part in parts for key, one in part["properties"].items()},
        }
    return schema


def keys(schema: Any, way: str, known: set[str]) -> set[str]:
    """As :func:`json_fields._keys` has them of a value."""
    schema = resolved(schema)
    if way and not any(key.startswith((f"{way}[].", f"{way}.*.", f"{way}.")) for key in known):
        return {way}
    if "items" in schema:
        return keys(schema["items"], f"{way}[]" if way else "", known)
    if "additionalProperties" in schema:
        return keys(schema["additionalProperties"], f"{way}.*", known)
    prefix = f"{way}." if way else ""
    return {key for name, one in schema["properties"].items() for key in keys(one, prefix + name, known)}


def validator(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    )


def test_every_page_of_the_documentation_has_a_schema_with_its_keys() -> None:
    pages = set(json_fields.sections())
    assert pages == set(PAGES) | WITHOUT
    for page, name in PAGES.items():
        known = json_fields.documented(page)
        assert keys(SCHEMAS[name], "", known) == known, page


def test_usage_is_documented_with_what_the_command_makes_of_it() -> None:
    known = json_fields.documented("stats")
    assert keys(SCHEMAS["Usages"], "", known) == known - {"cpuPercent", "apps.*.cpuPercent"}


def test_every_operation_names_schemas_that_there_are() -> None:
    named = {name for spec in TABLE for name in (spec.body, spec.result) if name is not None}
    assert named - set(SCHEMAS) == set()


def test_every_name_of_an_operation_and_its_place_is_its_own() -> None:
    assert len({spec.name for spec in TABLE}) == len(TABLE)
    assert len({(spec.method, spec.path) for spec in TABLE}) == len(TABLE)


def test_the_schemas_are_schemas() -> None:
    for name in SCHEMAS:
        jsonschema_rs.meta.validate({**SCHEMAS[name], "$schema": "https://json-schema.org/draft/2020-12/schema"})
        validator(name)


def test_a_pod_as_it_is_written() -> None:
    pod = cli_fakes.record()
    validator("Pods").validate([pod.to_json()])
    wrong = {**pod.to_json(), "state": "asleep"}
    assert not validator("Pod").is_valid(wrong)
    assert not validator("Pod").is_valid({key: one for key, one in pod.to_json().items() if key != "reason"})


NUMBERS = st.none() | st.integers(0, 255)
WORDS = st.none() | st.text(max_size=8)


@settings(deadline=None)
@given(
    pid=NUMBERS,
    exited=st.booleans(),
    code=NUMBERS,
    reason=st.sampled_from([None, "exited", "killed", "oom", "start-failed"]),
    words=WORDS,
    ready=st.none() | st.booleans(),
)
def test_any_app_is_as_the_schema_says(
    pid: int | None, exited: bool, code: int | None, reason: str | None, words: str | None, ready: bool | None
) -> None:
    end = {"exit_code": code, "reason": reason, "message": words, "started_at": words, "log": words}
    files = {"hosts": "image+name", "resolv.conf": "kurma"} if exited else {}
    earlier = (AppExecution(1, **end),)
    app = AppStatus("a", pid, exited, ready=ready, status_text=words, earlier=earlier, files=files, **end)
    validator("AppStatus").validate(app.to_json())


@settings(deadline=None)
@given(
    words=st.none() | st.text(min_size=1, max_size=8),
    labels=st.dictionaries(st.text(max_size=4), st.text(max_size=4)),
)
def test_any_image_is_as_the_schema_says(words: str | None, labels: dict[str, str]) -> None:
    came = Provenance("a", "2024-05-31T12:00:00Z", "digest", url=words, digest=words, fingerprint=words)
    image = ImageRecord("sha512-ab", "a", words, labels, 5, ("l",), (came,), words, words)
    validator("Images").validate([image.to_json()])


@settings(deadline=None)
@given(flag=st.booleans(), words=st.none() | st.text("abc", min_size=1, max_size=8), number=st.integers(1, 65535))
def test_a_request_for_a_pod_is_what_the_schema_says(flag: bool, words: str | None, number: int) -> None:
    template = PodTemplate.parse({"apps": [{"name": "a", "image": "x.aci"}]})
    request = PodRequest(
        template,
        name=words,
        overrides={"a": AppOverrides(user=words, environment=(("A", "b"),), isolators=(("x", {"y": 1}),))},
        networks=(NetworkRequest("default", words),) if flag else None,
        ports=(PortMapping(number, 80, "tcp", ""), PortMapping(80, number, "sctp")),
        ephemeral=flag,
        dns=DnsRequest(("1.1.1.1",)) if flag else None,
        hosts=(("10.0.0.1", ("a",)),),
    )
    asked = request.to_json()
    validator("PodRequest").validate(asked)
    assert set(asked) == set(SCHEMAS["PodRequest"]["properties"])
    of_app = SCHEMAS["PodRequest"]["properties"]["apps"]["additionalProperties"]["properties"]
    assert set(asked["apps"]["a"]) == set(of_app)
    check_keys("PodRequest", asked)
    assert PodRequest.from_json(asked).ports == request.ports
    assert not validator("PodRequest").is_valid({**asked, "zork": 1})


@settings(deadline=None)
@given(number=st.none() | st.integers(0, 1 << 60), seconds=st.none() | st.floats(0, 1e9), words=WORDS)
def test_what_is_measured(number: int | None, seconds: float | None, words: str | None) -> None:
    counted = ResourceUsage(number, number, number, seconds, number, number, number, number)
    one = Usage("u", "n", seconds or 0.0, counted, number, number, {"a": counted})
    validator("Usages").validate([one.to_json()])
    assert Usage.from_json(one.to_json()) == one
    process = Process(1, 2, 3, words, number, words, "S", 1, 0.5, 1.5, 4096, "a", ("a", "b"))
    validator("Processes").validate([process.to_json()])
    assert shown(process.to_json())["command"] == []


def test_what_an_isolator_tells() -> None:
    info = IsolatorInfo("a", "linux", ("app",), "a number", 5, "enforced", "", None)
    validator("Isolators").validate([info.to_json()])


@pytest.mark.parametrize(
    "error",
    [
        errors.PodNotFoundError("no pod x", hint="see: kurma list", pod="x"),
        errors.UsageError("x"),
        errors.ManifestError("$.x", "a number", "text"),
    ],
)
def test_an_error_is_what_the_schema_says_and_comes_back_as_it_was(error: errors.KurmaError) -> None:
    said = error_json(error)
    validator("Error").validate(said)
    back = values.error(said["error"])
    assert (type(back), back.message, back.hint, back.exit_code) == (
        type(error),
        error.message,
        error.hint,
        error.exit_code,
    )


def test_the_document_names_every_operation_with_all_that_it_takes() -> None:
    written = document(TABLE)
    count = 0
    for path, methods in written["paths"].items():
        for method, said in methods.items():
            count += 1
            (spec,) = [one for one in TABLE if (one.path, one.method.lower()) == (path, method)]
            places = [one["name"] for one in said["parameters"] if one["in"] == "path"]
            assert all(f"{{{name}}}" in path for name in places)
            assert path.count("{") == len(places)
            given_ = {one["name"] for one in said["parameters"] if one["in"] == "query"}
            assert given_ == {query.name for query in spec.query}
            assert said["x-rights"] == spec.rights
            assert ("requestBody" in said) == (spec.body is not None or spec.takes is not None)
            assert {"400", "404", "500", "503"} < set(said["responses"])
            assert ("101" if spec.kind == "stream" else "200") in said["responses"]
    assert count == len(TABLE)


def test_the_document_names_the_failures_that_there_are() -> None:
    responses = document(TABLE)["components"]["responses"]
    of_http = {405, 431, 501, 505}
    assert {int(status) for status in responses} == {500, *of_http, *(status for _, status in dispatch._STATUS)}
