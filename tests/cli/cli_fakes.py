"""A client that writes down what it is asked for, and answers with records made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kurma_core.client import Settings
from kurma_core.models.network import AddressResult, Attachment, NetworkRequest, NetworkResult
from kurma_core.models.pod import AppStatus, PodRecord
from kurma_core.models.streams import LogText
from kurma_core.models.summary import NetworkSummary, PodSummary

UUID = "0f8c1b5e-6d7a-4a53-9a32-4be0cfa7d0c1"


def record(**changes: Any) -> PodRecord:
    """A pod with one app that runs, on one network."""
    values: dict[str, Any] = {
        "uuid": UUID,
        "name": "web",
        "state": "running",
        "created_at": "2024-05-31T12:00:00Z",
        "apps": (AppStatus("nginx", pid=77, started_at="2024-05-31T12:00:01Z"),),
        "images": {"nginx": "sha512-" + "ab" * 64},
        "image_names": {"nginx": "registry://nginx:1.27"},
        "stager": "default",
        "renderer": "overlay",
        "attachments": (
            Attachment("lo", "lo", "lo", {}, NetworkRequest("lo"), base=True),
            Attachment(
                "default",
                "cni",
                "eth0",
                {},
                NetworkRequest("default"),
                result=NetworkResult((AddressResult("10.1.0.2/16", "10.1.0.1"),)),
            ),
        ),
        "manifest": {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": []},
    }
    return PodRecord(**{**values, **changes})


def summary(**changes: Any) -> PodSummary:
    """The same pod, as a listing has it."""
    values: dict[str, Any] = {
        "uuid": UUID,
        "name": "web",
        "state": "running",
        "created_at": "2024-05-31T12:00:00Z",
        "apps": ("nginx",),
        "networks": (
            NetworkSummary("lo", "lo", (), base=True),
            NetworkSummary("default", "eth0", ("10.1.0.2/16",)),
        ),
        "images": {"nginx": "sha512-" + "ab" * 64},
        "image_names": {"nginx": "registry://nginx:1.27"},
        "ports": ("8080:80/tcp",),
        "started_at": "2024-05-31T12:00:01Z",
    }
    return PodSummary(**{**values, **changes})


ENDED = record(
    state="stopped", exit_code=42, apps=(AppStatus("nginx", exited=True, exit_code=42, reason="exited"),)
)


@dataclass
class FakeClient:
    """:param answers: what a method returns, or raises, by its name. :param lines: what the pod's apps write."""

    answers: dict[str, Any] = field(default_factory=dict)
    lines: Sequence[LogText] = ()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    settings: Settings | None = None
    closed: bool = False
    #: Whether it stands for one that goes by way of a daemon.
    remote: bool = False

    @property
    def here(self) -> Any:
        """What stands for the managers of this process: asked for by the same names."""
        return self

    @staticmethod
    def way_to_power() -> str:
        return "run it as root"

    def connect(self, settings: Settings) -> Any:
        self.settings = settings
        return self

    def close(self) -> None:
        self.closed = True

    def _answer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((name, args, kwargs))
        answer = self.answers.get(name, ENDED if name in ("run", "start", "restart", "wait") else record())
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def run(self, request: Any, stdio: Any, output: Any, progress: Any = None, prepared: Any = None) -> Any:
        result = self._answer("run", (request, stdio), {})
        prepared(self.answers.get("prepare", record()))
        for line in self.lines:
            output(line)
        return result

    def summaries(self) -> Any:
        """Not a call unless it is to be answered: a pod with a ``/`` is looked for by its display name."""
        return self._answer("summaries", (), {}) if "summaries" in self.answers else ()

    def start(self, reference: str, stdio: Any, output: Any, managed: bool = False) -> Any:
        for line in self.lines:
            output(line)
        return self._answer("start", (reference, stdio), {})

    def logs(self, *args: Any, **kwargs: Any) -> Iterator[LogText]:
        self._answer("logs", args, kwargs)
        yield from self.lines

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._answer(name, args, kwargs)
