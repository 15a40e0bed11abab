"""Each operation is declared once: both transports have it, or say that they lack it."""

from __future__ import annotations

import contextlib
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.api.operations import OPERATIONS, Operation, Transport
from kurma_core.api.pods import EnterRequest, PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.cancellation import Cancellation, current, governing
from kurma_core.client import Settings, in_process
from kurma_core.client.client import Client
from kurma_core.client.local.managers import Managers
from kurma_core.client.remote.transport import Remote
from kurma_core.config import load
from kurma_core.errors import UsageError
from kurma_core.schema import List, Maybe, Shape

#: Operations that only kurmad does.
OF_KURMAD = {"answer", "healthz", "metrics", "openapi", "reload"}


class Wire:
    """A connection that writes down what is asked for, and fails."""

    path = "/run/x.sock"
    version = "1"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, target: str, body: object = None, headers: object = None) -> Any:
        self.asked.append((method, target.partition("?")[0]))
        raise UsageError("written down")

    def closed(self) -> bool:
        return False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        return


@pytest.fixture
def managers(tmp_path: Any) -> Managers:
    (tmp_path / "kurma.json").write_text("{}")
    return Managers(Settings(signals=False), load(str(tmp_path / "kurma.json"), str(tmp_path / "state")))


def given(operation: Operation, tmp_path: Any) -> dict[str, Any]:
    """Arguments for each parameter that has no default."""
    archive = tmp_path / "x.aci"
    archive.write_bytes(b"x")
    request: Any = PodRequest(PodTemplate.parse({"apps": [{"name": "a", "image": "example.com/a"}]}))
    if operation.method == "enter":
        request = EnterRequest(exec=("true",))
    known = {
        "request": request,
        "path": str(archive),
        "stdio": SimpleNamespace(stdin=0, stdout=1, stderr=2, terminal=False),
        "tell": print,
        "output": print,
        "since": 1,
        "isolators": {"os/linux/oom-score-adj": 5},
    }
    names = [name for name in operation.names if name not in operation.defaults or name == "since"]
    return {name: known.get(name, name) for name in names}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_remote_transport_asks_for_it_as_it_is_declared(name: str, managers: Managers, tmp_path: Any) -> None:
    operation, wire = OPERATIONS[name], Wire()
    connection: Any = wire
    client = Client(managers.settings, Remote(managers.settings, connection, lambda: managers), lambda: managers)
    with contextlib.suppress(UsageError):
        result = getattr(client, operation.method)(**given(operation, tmp_path))
        if inspect.isgenerator(result):
            next(result)
    ((verb, target),) = wire.asked
    assert verb == operation.verb
    assert re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", operation.path), target)


@pytest.mark.parametrize("name", OPERATIONS)
def test_this_process_has_it_or_says_that_it_lacks_it(name: str, managers: Managers, tmp_path: Any) -> None:
    operation = OPERATIONS[name]
    client = in_process(managers)
    transport: Any = client.transport
    if name in OF_KURMAD:
        with pytest.raises(UsageError, match="needs kurmad, and none serves"):
            getattr(client, operation.method)(**given(operation, tmp_path))
        return
    method = getattr(transport.operations(operation), operation.method)
    assert set(inspect.signature(method).parameters) <= set(operation.names) | {"options"}


def test_a_transport_that_lacks_an_operation_fails() -> None:
    class Nothing(Transport):
        pass

    here: Any = None
    with pytest.raises(NotImplementedError):
        Client(Settings(), Nothing(), here).pods()


def _is_list(shape: Shape) -> bool:
    return isinstance(shape.inner if isinstance(shape, Maybe) else shape, List)


def test_names_places_and_types() -> None:
    assert len({(one.verb, one.path) for one in OPERATIONS.values()}) == len(OPERATIONS)
    assert len({one.method for one in OPERATIONS.values()}) == len(OPERATIONS)
    for operation in OPERATIONS.values():
        assert operation.summary.endswith("."), operation.name
        assert set(re.findall(r"\{(\w+)\}", operation.path)) == {
            one.name for one in operation.parameters if one.place == "path"
        }
        for one in operation.parameters:
            assert one.shape is not None
            # A query has no empty list: an absent key is the default.
            assert one.place != "query" or not _is_list(one.shape) or one.default == ()
        assert operation.result is None or operation.result is not None  # it can be resolved
    assert OPERATIONS["pod_stop"].arguments(("a",), {"force": True}) == {
        "pod": "a",
        "force": True,
        "timeout": None,
        "again": False,
        "managed": False,
    }
    for wrong in (((), {}), (("a", "b"), {}), (("a",), {"zork": 1})):
        with pytest.raises(TypeError):
            OPERATIONS["pod_stop"].arguments(*wrong)


def test_the_managers_of_a_draft_leave_the_progress_of_the_client(managers: Managers) -> None:
    """As of ``kurma network create``, which checks a configuration before it writes it."""
    settings = Settings(signals=False, progress=lambda: None)
    with governing(Cancellation()):
        here = Managers(settings, managers.config)
        assert here.images
        with contextlib.closing(Managers(settings, managers.config)) as draft:
            assert draft.images
        assert current().reporter is settings.progress
        here.close()
        assert current().reporter is None
