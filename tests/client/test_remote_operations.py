"""What the API can do and what the client asks for are the same, but for what is named here, and why."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from kurma_core.client import Settings
from kurma_core.client.local import LocalClient
from kurma_core.client.remote import RemoteClient
from kurma_core.config import load
from kurma_core.daemon import kurmad  # noqa: F401 (all operations)
from kurma_core.daemon.dispatch import Dispatcher
from kurma_core.errors import UsageError

#: Of the client, what it does in process whichever way it is: why.
STAYS = {
    "archive_path": "it is about the words of the caller, and its files",
    "copy_in": "the files are the caller's, and the app's root is there for root",
    "copy_out": "the files are the caller's, and the app's root is there for root",
    "image_export": "the file is the caller's; what goes into it comes by image_archive",
    "plugins": "they are this installation's",
    "trust_parse": "what is parsed is the caller's",
    "way_to_power": "it is about this process",
    "warm": "for the daemon's own client",
    "journal": "for what is done in process",
    "log_files": "for the daemon's own client",
    "last_words": "for the daemon's own client",
    "read_logs": "for the daemon's own client",
    "manager": "for the daemon's own client",
    "probe": "for the daemon's own client",
    "successor": "for the daemon's own client",
    "services": "for the daemon's own client",
    "stager_export": "of this installation's plugins, into a file of the caller's",
    "registry": "this installation's plugins",
    "config": "of what is done in process",
    "images": "of what is done in process",
    "networks": "of what is done in process",
}
#: Operations that the client has no need of: why.
API_ONLY = {
    "healthz": "for those who watch the daemon",
    "metrics": "for those who watch the daemon",
    "openapi": "for those who write clients",
    "version": "every answer has it",
    "pod_logs": "lines of JSON, for those who have no frames",
    "plugins": "kurma plugins is about its own installation; those of a daemon may be others",
    "answer": "asked by the way (tests of passphrases)",
}


class Wire:
    """A connection that writes down what is asked for, and fails."""

    path = "/run/x.sock"
    version = "1"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def request(self, method: str, target: str, body: object = None, headers: object = None) -> Any:
        self.asked.append((method, target.partition("?")[0]))
        raise UsageError("written down")

    def again(self) -> Wire:
        return self

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def close(self) -> None:
        return

    let_go = let_go_unless_whole = close


def own_methods() -> set[str]:
    found = {name for name in dir(LocalClient) if not name.startswith("_")}
    return {name for name in found if getattr(RemoteClient, name) is not getattr(LocalClient, name)}


def test_what_concerns_the_state_directory_goes_by_way_of_the_daemon() -> None:
    public = {name for name in dir(LocalClient) if not name.startswith("_")} - {"remote"}
    left = public - own_methods() - set(STAYS)
    assert left == set()
    assert own_methods() & set(STAYS) <= {"image_export"}


def _argument(name: str, parameter: inspect.Parameter, files: Any) -> Any:
    given = {
        "request": files.request,
        "path": files.archive,
        "key": SimpleNamespace(material=b"key", source="x"),
        "source": "https://example.com/key",
        "signal": 15,
        "tell": print,
        "command": ("true",),
        "stdio": SimpleNamespace(stdin=0, stdout=1, stderr=2, terminal=False),
        "output": print,
        "grace": 1.0,
    }
    return given.get(name, name)


@pytest.fixture
def asked(tmp_path: Any) -> set[str]:
    """Names of the operations that the client's methods ask for."""
    from kurma_core.api.pods import PodRequest
    from kurma_core.appc.template import PodTemplate

    (tmp_path / "kurma.json").write_text("{}")
    (tmp_path / "x.aci").write_bytes(b"x")
    config = load(str(tmp_path / "kurma.json"), str(tmp_path / "state"))
    document = {"apps": [{"name": "a", "image": "example.com/a"}]}
    files = SimpleNamespace(request=PodRequest(PodTemplate.parse(document)), archive=str(tmp_path / "x.aci"))
    wire: Any = Wire()
    client = RemoteClient(Settings(signals=False), config, wire)
    for name in sorted(own_methods() - {"remote", "close"}):
        method = getattr(client, name)
        needed = {
            each: _argument(each, parameter, files)
            for each, parameter in inspect.signature(method).parameters.items()
            if parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        before = len(wire.asked)
        if name == "events":
            needed["since"] = 1
        with contextlib.suppress(UsageError):
            result = method(**needed)
            if inspect.isgenerator(result):
                next(result)
        assert len(wire.asked) > before, f"{name} asks for nothing"
    dispatcher = Dispatcher(SimpleNamespace())  # type: ignore[arg-type]
    found = set()
    for method, target in wire.asked:
        exchange: Any = SimpleNamespace(method=method, raw_path=target, path=target)
        found.add(dispatcher._find(exchange)[0].name)
    return found


def test_every_operation_is_asked_for_or_named(asked: set[str]) -> None:
    every = {spec.name for spec in kurmad_table()}
    assert asked <= every
    assert every - asked == set(API_ONLY)


def kurmad_table() -> Any:
    from kurma_core.daemon.operations import TABLE

    return TABLE
