"""``state.json``: the state of a pod: start steps, owner, stager, exit code, restarts, unfinished changes.

Times on which a wait depends are stored as marks of CLOCK_BOOTTIME, which cannot be set. It starts at zero when
the host boots: after a reboot, earlier marks cannot be compared.
"""

from __future__ import annotations

import time
from _collections_abc import Mapping  # without collections

from kurma_core.linux.process import boot_id
from kurma_core.models import LIVE_STATES
from kurma_core.models.network import Attachment
from kurma_core.models.pod import ENDED_STATES, AppExecution, AppStatus
from kurma_core.models.summary import State
from kurma_core.schema import Count, JsonValue, Port, Whole, Words
from kurma_core.value import field, frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    Object = Mapping[str, Any]
    Owner = int
    Status = int
    ChangeKind = str
else:
    Object = dict
    Owner = Whole(1, (1 << 31) - 1)
    Status = Whole(-(1 << 31), (1 << 31) - 1)
    ChangeKind = Words("add", "rm", "update")

#: States in which a pod has a stager, or is about to have one: a pod that is being prepared lives without.
STARTED_STATES = tuple(state for state in LIVE_STATES if state != "preparing")


@frozen
class Mark(JsonValue):
    """A moment. :param boot: ID of the host's boot. :param uptime: seconds since that boot."""

    boot: str
    uptime: float


def mark(later: float = 0.0) -> Mark:
    """The present moment. :param later: seconds to add."""
    return Mark(boot_id(), round(time.clock_gettime(time.CLOCK_BOOTTIME) + later, 3))


def between(first: Mark | None, last: Mark | None) -> float | None:
    """Seconds from one mark to another; None: one is missing, or the host was rebooted in between."""
    if first is None or last is None or first.boot != last.boot:
        return None
    return last.uptime - first.uptime


def seconds(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time. :raises ValueError: the text is not such a time."""
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def age(text: str | None) -> float:
    """Seconds since that RFC 3339 time; infinite if it cannot be parsed."""
    if not text:
        return float("inf")
    try:
        return time.time() - seconds(text)
    except ValueError:
        return float("inf")


@frozen
class ServiceAddress(JsonValue):
    """The address of the pod's metadata service. :param early: why it cannot see the traffic of apps that start
    early."""

    PARTIAL = True

    address: str
    port: Port
    early: str | None = None


@frozen
class RestartRecord(JsonValue):
    """Restarts by the pod's policy.

    :param count: restarts since a user started the pod.
    :param tries: restarts in a row, without a long run between them.
    :param next: RFC 3339 time of the next one; ``due``: the same as a mark. None: none is planned.
    """

    PARTIAL = True

    count: Count = 0
    tries: Count = 0
    next: str | None = None
    due: Mark | None = None


@frozen
class AppChange(JsonValue):
    """A change of the pod's apps that has begun, and may be unfinished.

    :param volumes: empty volumes that are added or removed with the app.
    :param named: named volumes of an app that is added, which is not in the definition yet.
    :param traffic: whether the app has traffic limits; ``memory``: whether it requests memory.
    """

    PARTIAL = True

    do: ChangeKind
    app: str
    volumes: tuple[str, ...] = ()
    traffic: bool = False
    memory: bool = False
    named: tuple[str, ...] = ()


@frozen
class PodState(JsonValue):
    """The state of a pod, as ``state.json`` has it.

    :param steps: start steps that may have to be undone.
    :param owner: PID of the process that owns the pod.
    :param begun: mark of its start (``started_at``); ``over``: mark of its end (``finished_at``).
    :param cause: why it was stopped (see :mod:`kurma_core.pods.run.pod_restarts`); ``forced``: by SIGKILL.
    :param stager: identity of the stager's process; None: it was not started.
    :param stager_version: version of Kurma that started the stager, which may be older than the present one.
    :param stager_image: of a prestarted pod, the image that garbage collection must keep.
    :param attachments: its networks, with their results once they are joined.
    :param apps: by name, how each ended, as the stager's ``status.json`` has it; None: the pod has not ended.
    :param layers: IDs of images and layers in use, by app.
    :param run: number of the present run; ``earlier``: by app, executions of runs before it.
    :param boot: ID of the host's boot in which the pod was started.
    """

    PARTIAL = True

    state: State
    steps: tuple[str, ...] = ()
    owner: Owner | None = None
    reason: str | None = None
    exit_code: Status | None = None
    started_at: str | None = None
    finished_at: str | None = None
    begun: Mark | None = None
    over: Mark | None = None
    cause: str | None = None
    forced: bool | None = None
    stager: Object | None = None
    stager_version: str | None = None
    stager_image: str | None = None
    attachments: tuple[Attachment, ...] = ()
    metadata: ServiceAddress | None = None
    notes: tuple[str, ...] = ()
    apps: Mapping[str, Object] | None = None
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    run: Count = 1
    earlier: Mapping[str, tuple[AppExecution, ...]] = field(default_factory=dict)
    restart: RestartRecord | None = None
    change: AppChange | None = None
    boot: str | None = None

    @property
    def live(self) -> bool:
        """Whether it has a stager, or is about to."""
        return self.state in STARTED_STATES

    @property
    def startable(self) -> bool:
        """Whether it is prepared or has ended: it may be started, or removed."""
        return self.state in ("prepared", *ENDED_STATES)

    @property
    def unsettled(self) -> bool:
        """Whether a process must own the pod, or its teardown is not complete."""
        return self.live or self.state == "preparing" or bool(self.steps)


@frozen
class PodEnd:
    """The end of a pod, for its record. ``notes``, ``apps`` and ``cause``: None keeps the recorded value."""

    state: str
    reason: str | None = None
    exit_code: int | None = None
    notes: tuple[str, ...] | None = None
    apps: Mapping[str, Json] | None = None
    cause: str | None = None

    def changes(self) -> dict[str, Any]:
        """Arguments for :meth:`PodDirectory.change_state`."""
        kept = {"notes": self.notes, "apps": self.apps, "cause": self.cause}
        given = {name: value for name, value in kept.items() if value is not None}
        return {"state": self.state, "reason": self.reason, "exit_code": self.exit_code, **given}


def numbered(state: PodState, status: AppStatus) -> AppStatus:
    """The status with its executions counted from 1 over all runs of the pod, including those of earlier runs.

    :param status: as the stager reports it, with executions counted from 0 in this run.
    """
    before = state.earlier.get(status.name, ())
    base = before[-1].instance if before else 0
    run = state.run
    of_run = [replace(one, instance=base + one.instance + 1, run=run) for one in status.earlier]
    own = len(of_run) if status.instance is None else status.instance
    return replace(
        status,
        instance=None if status.instance is None and status.state == "created" else base + own + 1,
        run=run,
        earlier=(*before, *of_run),
    )
