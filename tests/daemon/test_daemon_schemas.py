"""The OpenAPI document: it has every operation and every named value, and values write what it says."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kurma_core import errors
from kurma_core.api.describe import class_schema, openapi, schemas
from kurma_core.api.host import IsolatorInfo
from kurma_core.api.operations import OPERATIONS
from kurma_core.api.pods import AppOverrides, PodRequest, Process, ResourceUsage, Usage
from kurma_core.api.usage_details import (
    DeviceUsage,
    HugePageUsage,
    InterfaceUsage,
    Pressure,
    PressureUsage,
    UsageDetails,
)
from kurma_core.api.wire import error_from_json, error_to_json
from kurma_core.appc.template import PodTemplate
from kurma_core.daemon.http import error_status
from kurma_core.daemon.http.caller_rights import redacted
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.models.pod import AppExecution, AppStatus
from kurma_core.value import fields, frozen, replace
from tests.cli import cli_fakes

SCHEMAS = schemas()


def validator(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    )


def test_the_schemas_are_schemas() -> None:
    for name in SCHEMAS:
        jsonschema_rs.meta.validate({**SCHEMAS[name], "$schema": "https://json-schema.org/draft/2020-12/schema"})
        validator(name)


def test_a_field_is_described_wherever_it_is_declared() -> None:
    """An edit in one place: the class."""

    @frozen
    class Wider(AppExecution):
        core_dumped: bool = False

    assert class_schema(Wider)["properties"]["coreDumped"] == {"type": "boolean"}
    assert "coreDumped" in class_schema(Wider)["required"]
    assert Wider.from_json(Wider(1, core_dumped=True).to_json()) == Wider(1, core_dumped=True)


def test_a_pod_as_it_is_written() -> None:
    pod = cli_fakes.record()
    validator("Pod").validate(pod.to_json())
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
    earlier = (AppExecution(1, exit_code=code, message=words),)
    app = AppStatus("a", pid=pid, exited=exited, exit_code=code, message=words, ready=ready, status_text=words)
    app = replace(app, earlier=earlier, files={"hosts": "image+name", "resolv.conf": "kurma"} if exited else {})
    validator("AppStatus").validate({**app.to_json(), "exitReason": reason})


@settings(deadline=None)
@given(
    words=st.none() | st.text(min_size=1, max_size=8),
    labels=st.dictionaries(st.text(max_size=4), st.text(max_size=4)),
)
def test_any_image_is_as_the_schema_says(words: str | None, labels: dict[str, str]) -> None:
    came = Provenance("a", "2024-05-31T12:00:00Z", "digest", url=words, digest=words, fingerprint=words)
    image = ImageRecord("sha512-ab", "a", words, labels, 5, ("l",), (came,), words, words)
    validator("Image").validate(image.to_json())


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
        hosts=(("10.0.0.1", ("a",)),),
    )
    asked = request.to_json()
    validator("PodRequest").validate(asked)
    assert set(asked) == set(SCHEMAS["PodRequest"]["properties"])
    assert PodRequest.from_json(asked) == request
    assert not validator("PodRequest").is_valid({**asked, "zork": 1})


def measured_details(number: int | None, seconds: float | None) -> UsageDetails:
    stall = Pressure(seconds or 0.0, 0.5, 0.25, 0.0)
    own: dict[str, Any] = {
        "cpu_pressure": None if number is None else PressureUsage(stall, stall),
        "huge_pages": {"2MB": HugePageUsage(number or 0, number)},
        "devices": (DeviceUsage("8:0", 1, 2, 3, 4),),
        **dict.fromkeys(("cpu_user", "cpu_system", "cpu_throttled"), seconds),
        **dict.fromkeys(("memory_pressure", "io_pressure")),
        **dict.fromkeys(("processes", "threads", "descriptors", "sockets"), number or 0),
    }
    return UsageDetails(**{each.name: own.get(each.name, number) for each in fields(UsageDetails)})


@settings(deadline=None)
@given(number=st.none() | st.integers(0, 1 << 60), seconds=st.none() | st.floats(0, 1e9), words=WORDS)
def test_what_is_measured(number: int | None, seconds: float | None, words: str | None) -> None:
    details = measured_details(number, seconds)
    counted = ResourceUsage(number, number, number, seconds, number, number, number, number, details)
    plain = replace(counted, details=None)
    interface = InterfaceUsage("eth0", *[number or 0] * 8)
    one = Usage("u", "n", seconds or 0.0, counted, number, number, {"a": plain}, words, (interface,))
    jsonschema_rs.Draft202012Validator({**class_schema(Usage), "components": {"schemas": SCHEMAS}}).validate(
        one.to_json()
    )
    assert Usage.from_json(one.to_json()) == one
    process = Process(1, 2, 3, words, number, words, "S", 1, 0.5, 1.5, 4096, "a", ("a", "b"))
    jsonschema_rs.Draft202012Validator(class_schema(Process)).validate(process.to_json())
    assert redacted(process.to_json())["command"] == []


def test_what_an_isolator_tells() -> None:
    info = IsolatorInfo("a", "linux", ("app",), "a number", 5, "enforced", "", None)
    validator("Isolator").validate(info.to_json())


@pytest.mark.parametrize(
    "error",
    [
        errors.PodNotFoundError("no pod x", hint="see: kurma list", pod="x"),
        errors.UsageError("x"),
        errors.ManifestError("$.x", "a number", "text"),
    ],
)
def test_an_error_is_what_the_schema_says_and_comes_back_as_it_was(error: errors.KurmaError) -> None:
    said = error_to_json(error)
    validator("Error").validate(said)
    back = error_from_json(said)
    assert (type(back), back.message, back.hint, back.exit_code) == (
        type(error),
        error.message,
        error.hint,
        error.exit_code,
    )


def test_the_document_names_every_operation_with_all_that_it_takes() -> None:
    count = 0
    for path, ways in openapi()["paths"].items():
        for method, said in ways.items():
            count += 1
            (one,) = [each for each in OPERATIONS.values() if (each.path, each.verb.lower()) == (path, method)]
            for place in ("path", "query"):
                keys = {each.key for each in one.parameters if each.place == place}
                assert {each["name"] for each in said["parameters"] if each["in"] == place} == keys
            assert all(each["description"] for each in said["parameters"]), one.name
            assert said["x-rights"] == one.rights
            takes = one.takes is not None or any("body" in each.place for each in one.parameters)
            assert ("requestBody" in said) == takes
            assert {"400", "404", "500", "503"} < set(said["responses"])
            assert ("101" if one.kind == "stream" else "200") in said["responses"]
    assert count == len(OPERATIONS)


def test_the_document_refers_to_nothing_that_it_lacks() -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    document = openapi()
    for reference in references(document):
        _, _, kind, name = reference.removeprefix("#").split("/")
        assert name in document["components"][kind], reference


def test_the_document_names_the_failures_that_there_are() -> None:
    responses = openapi()["components"]["responses"]
    of_http = {405, 431, 501, 505}
    of_errors = {status for _, status in error_status._STATUS}
    assert {int(status) for status in responses} == {500, *of_http, *of_errors}
