"""Pods and their apps: states, statuses, executions, records and events."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.models.isolator import IsolatorReport
from kurma_core.models.network import Attachment
from kurma_core.models.userns import IdRange
from kurma_core.schema import COUNT, fit
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from kurma_core.schema import Form

    Json = Any

#: States of a pod, in the order of its life (``preparing prepared starting running stopping stopped errored``).
STATES = ("preparing", "prepared", "starting", "running", "stopping", "stopped", "errored")

#: States in which nothing of the pod runs and its teardown is complete.
ENDED_STATES = ("stopped", "errored")

_SIGSYS = 31


def _told(message: str | None, signal: int | None) -> str:
    if message is None and signal == _SIGSYS:
        # Nobody knows its number by heart, and it is hardly ever anything else.
        return "killed by SIGSYS: it made a system call that its filter does not allow"
    return message or ""


@frozen
class AppExecution:
    """One execution of an app that was followed by another.

    :param instance: counted from 1, over all runs of its pod.
    :param run: of the pod, counted from 1: a pod that is started again begins a new one.

    The rest as in :class:`AppStatus`.
    """

    instance: int
    run: int = 1
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    log: str | None = None
    signal: int | None = None

    SHAPE: ClassVar[Form] = {
        "instance": COUNT,
        "run": COUNT,
        "exitCode": (range(256), None),
        "exitReason": (str, None),
        "message": (str, None),
        "startedAt": (str, None),
        "finishedAt": (str, None),
        "log": (str, None),
        "signal": (range(1, 65), None),
    }

    @property
    def told(self) -> str:
        """As :attr:`AppStatus.told`."""
        return _told(self.message, self.signal)

    def to_json(self) -> dict[str, Json]:
        return {
            "instance": self.instance,
            "run": self.run,
            "exitCode": self.exit_code,
            "exitReason": self.reason,
            "signal": self.signal,
            "message": self.message,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "log": self.log,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> AppExecution:
        fit(value, cls.SHAPE, "execution")
        return cls(
            instance=value["instance"],
            run=value["run"],
            exit_code=value["exitCode"],
            reason=value["exitReason"],
            message=value["message"],
            started_at=value["startedAt"],
            finished_at=value["finishedAt"],
            log=value["log"],
            signal=value["signal"],
        )


#: Files below an app's ``/etc`` that a stager writes, and whose content each may have: Kurma's, the image's, the
#: image's with the pod's own name, a volume's.
ETC_FILES = ("hosts", "hostname", "resolv.conf")

ETC_CONTENTS = ("kurma", "image", "image+name", "volume")


@frozen
class AppStatus:
    """What is known of one app of a pod.

    :param pid: on the host; None when it does not run.
    :param exit_code: 0–255; 128+N where signal N ended it; None while it has not ended.
    :param reason: ``exited``, ``killed``, ``oom`` or ``start-failed``; None while it has not ended.
    :param signal: the number of the signal that ended its main process; None: none did.
    :param message: for people: why it could not be started.
    :param log: name of its log file under the pod's ``logs/``.
    :param log_dropped: bytes of its output that could not be written there.
    :param instance: which execution this is, counted from 1; None: it was never executed.
    :param run: of the pod, counted from 1.
    :param restarts: how often its restart policy has started it again, since somebody did.
    :param restarting: it has ended and will be started again.
    :param ready: whether it has said that it is ready; None: it is none that says so.
    :param status_text: how it says that it is, for people.
    :param earlier: executions before this one, oldest first, as far as they are kept.
    :param files: of :data:`ETC_FILES`, which of :data:`ETC_CONTENTS` each has. Empty: not known.
    """

    name: str
    pid: int | None = None
    exited: bool = False
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    log: str | None = None
    signal: int | None = None
    log_dropped: int = 0
    instance: int | None = None
    run: int = 1
    restarts: int = 0
    restarting: bool = False
    ready: bool | None = None
    status_text: str | None = None
    earlier: tuple[AppExecution, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def says(self) -> str:
        """For people: how it ended, or what it says of itself."""
        if self.message or self.exited or self.ready is None:
            return self.told
        return ": ".join(filter(None, ("ready" if self.ready else "not ready", self.status_text)))

    @property
    def told(self) -> str:
        """For people: what its exit code does not tell of its end; empty: nothing."""
        return _told(self.message, self.signal)

    @property
    def lost(self) -> str:
        """For people: what its log lacks; empty: nothing (H7)."""
        if not self.log_dropped:
            return ""
        return (
            f"app {self.name}: {self.log_dropped} bytes of its output were dropped: its log could not be written"
        )

    @property
    def state(self) -> str:
        """In a word: ``created`` (never started), ``starting``, ``running``, ``restarting``, or how it ended."""
        if self.exited:
            return self.reason or "exited"
        if self.restarting:
            return "restarting"
        if self.pid is None and self.started_at is None:
            return "created" if self.instance is None else "starting"
        return "running"

    def to_json(self) -> dict[str, Json]:
        return {
            "pid": self.pid,
            "exited": self.exited,
            "exitCode": self.exit_code,
            "exitReason": self.reason,
            "signal": self.signal,
            "message": self.message,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "log": self.log,
            "logDropped": self.log_dropped,
            "instance": self.instance,
            "run": self.run,
            "restarts": self.restarts,
            "restarting": self.restarting,
            "ready": self.ready,
            "statusText": self.status_text,
            "earlier": [one.to_json() for one in self.earlier],
            "files": dict(self.files),
        }

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Json]) -> AppStatus:
        return cls(
            name=name,
            pid=value["pid"],
            exited=value["exited"],
            exit_code=value["exitCode"],
            reason=value["exitReason"],
            message=value["message"],
            started_at=value["startedAt"],
            finished_at=value["finishedAt"],
            log=value["log"],
            signal=value["signal"],
            log_dropped=value["logDropped"],
            instance=value["instance"],
            run=value["run"],
            restarts=value["restarts"],
            restarting=value["restarting"],
            ready=value["ready"],
            status_text=value["statusText"],
            earlier=tuple(AppExecution.from_json(one) for one in value["earlier"]),
            files=value["files"],
        )


@frozen
class PodRecord:
    """One pod as ``list`` and ``show`` tell it.

    :param state: one of :data:`STATES`.
    :param reason: for people: why it is errored; None otherwise.
    :param exit_code: the pod's: the first non-zero of its apps in manifest order; None while it has not ended.
    :param owner: PID of the process that owns it; None: nobody does.
    :param images: image ID by app.
    :param userns: ids of the host that its user namespace has; None: it has none of its own.
    :param metadata: where its metadata service is, in its network namespace: ``address``, ``port``, and
        ``tokenFile``, which holds what its URL needs besides. None: it does not run.
    :param restart: ``policy``; ``count``: how often it was started again by that; ``next``: when it will be.
    """

    uuid: str
    name: str
    state: str
    created_at: str
    apps: tuple[AppStatus, ...]
    images: Mapping[str, str]
    stager: str
    renderer: str
    attachments: tuple[Attachment, ...] = ()
    isolators: tuple[IsolatorReport, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str | None = None
    exit_code: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    owner: int | None = None
    stager_pid: int | None = None
    network_namespace: str | None = None
    manifest: Mapping[str, Json] = field(default_factory=dict)
    userns: IdRange | None = None
    metadata: Mapping[str, Json] | None = None
    restart: Mapping[str, Json] = field(default_factory=lambda: {"policy": "never", "count": 0, "next": None})

    @property
    def unstarted(self) -> tuple[AppStatus, ...]:
        """Those of its apps whose program could not be executed, in manifest order."""
        return tuple(app for app in self.apps if app.reason == "start-failed")

    def to_json(self) -> dict[str, Json]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "exitCode": self.exit_code,
            "createdAt": self.created_at,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "owner": self.owner,
            "stager": self.stager,
            "stagerPid": self.stager_pid,
            "renderer": self.renderer,
            "networkNamespace": self.network_namespace,
            "userNamespace": None if self.userns is None else self.userns.to_json(),
            "metadata": None if self.metadata is None else dict(self.metadata),
            "restart": dict(self.restart),
            "apps": {app.name: app.to_json() for app in self.apps},
            "images": dict(self.images),
            "networks": [attachment.to_json() for attachment in self.attachments],
            "isolators": [report.to_json() for report in self.isolators],
            "notes": list(self.notes),
            "manifest": dict(self.manifest),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> PodRecord:
        ids = value["userNamespace"]
        return cls(
            uuid=value["uuid"],
            name=value["name"],
            state=value["state"],
            created_at=value["createdAt"],
            apps=tuple(AppStatus.from_json(name, app) for name, app in value["apps"].items()),
            images=value["images"],
            stager=value["stager"],
            renderer=value["renderer"],
            attachments=tuple(Attachment.from_json(one) for one in value["networks"]),
            isolators=tuple(IsolatorReport.from_json(one) for one in value["isolators"]),
            notes=tuple(value["notes"]),
            reason=value["reason"],
            exit_code=value["exitCode"],
            started_at=value["startedAt"],
            finished_at=value["finishedAt"],
            owner=value["owner"],
            stager_pid=value["stagerPid"],
            network_namespace=value["networkNamespace"],
            manifest=value["manifest"],
            userns=None if ids is None else IdRange.from_json(ids),
            metadata=value["metadata"],
            restart=value["restart"],
        )


@frozen
class PodEvent:
    """Something that happened to a pod, told to observers.

    :param kind: ``prepared``, ``starting``, ``running``, ``stopping``, ``stopped``, ``errored``, ``adopted`` (by
        a daemon, for its owner has died), ``restarting`` (by its policy) or ``removed``.
    :param at: RFC 3339, UTC.
    """

    kind: str
    pod: str
    name: str
    at: str
    detail: Mapping[str, Json] = field(default_factory=dict)
