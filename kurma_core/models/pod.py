"""Pods and their apps: states, statuses, executions, records and events."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.models.health import AppHealth, HealthWord
from kurma_core.models.isolator import IdRange, IsolatorReport
from kurma_core.models.network import Attachment
from kurma_core.models.summary import STATES as STATES
from kurma_core.models.summary import State
from kurma_core.schema import Count, ExitCode, JsonValue, List, Pairs, Pid, Port, Timestamp, Whole, Words, shape
from kurma_core.value import field, frozen

#: An app's annotations that give it a terminal (``true`` or ``false``), or a standard input for attached clients:
#: ``true``: it ends when the input of all attached clients has ended; ``keep``: it stays open; ``once``: it ends
#: with the first client's input.
TERMINAL, STDIN = "kurma.io/terminal", "kurma.io/stdin"
#: An app's annotation for its supplementary groups: ``merge`` (those that the image's ``/etc/group`` lists its
#: user in, besides the given ones) or ``strict`` (the given ones alone).
GROUP_POLICY = "kurma.io/group-policy"
GROUP_POLICIES = ("merge", "strict")

#: A pod's annotation with the directory of the host for its apps' logs, and an app's with the path of its log
#: below that directory: empty: the app has no log.
LOG_DIRECTORY, LOG_PATH = "kurma.io/log-dir", "kurma.io/log-path"
#: Annotation of a pod: with ``true``, the changes that its apps made to their roots stay after its end.
KEEP_ROOT = "kurma.io/keep-root"

#: An app's annotation with the signal that asks it to end, by name or number; else the image's.
STOP_SIGNAL = "kurma.io/stop-signal"
#: The annotation of a pod with the time between the stop signal and SIGKILL.
STOP_TIMEOUT = "kurma.io/stop-timeout"
#: The annotation that says which PID namespace an app has, and its values; the last is the beginning of one.
PID = "kurma.io/pid"
PID_POD, PID_OWN, PID_HOST, PID_OF_APP = "pod", "own", "host", "app:"

#: An app's annotation: a missing working directory is made, as for images whose format expects it.
MAKE_WORKING_DIRECTORY = "kurma.io/make-working-directory"

#: States in which nothing of the pod runs and its teardown is complete.
ENDED_STATES = ("stopped", "errored")

#: How an app ended; ``unknown``: while no process watched it, as when the host lost its power.
REASONS = ("exited", "killed", "oom", "start-failed", "unknown")

#: Files below an app's ``/etc`` that a stager writes, and the possible sources of their content: Kurma, the image,
#: the image with the pod's own name added, a volume.
ETC_FILES = ("hosts", "hostname", "resolv.conf")

ETC_CONTENTS = ("kurma", "image", "image+name", "volume")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.appc.pod import PodManifest

    Json = Any
    EtcContent = str
    Policy = str
    Reason = str
    Signal = int
else:
    EtcContent = Words(*ETC_CONTENTS)
    Policy = Words("never", "on-failure", "always")
    Reason = Words(*REASONS)
    Signal = Whole(1, 64)

_HOSTS = Pairs(("address", "names"), str, List(shape(str), tuple))
#: Signals by which programs crash; other signals are mostly sent by people and by ``kurma stop``.
_CRASHES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV", 31: "SIGSYS"}


#: Seconds.
_LONGEST_STOP = 86400


def stop_timeout_of(pod: PodManifest) -> float | None:
    """Seconds between the stop signal and SIGKILL for the pod's apps; None: as configured.

    :raises ManifestError: the annotation has another form.
    """
    text = pod.annotation(STOP_TIMEOUT)
    if text is None:
        return None
    from kurma_core.errors import ManifestError  # few pods have the annotation
    from kurma_core.formats.timestamps import duration

    try:
        seconds = float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else duration(text) / 1e9
    except (ValueError, OverflowError):
        seconds = _LONGEST_STOP + 1
    if seconds > _LONGEST_STOP:
        expected = "seconds, or text such as 1m30s; at most a day"
        raise ManifestError(f"annotation {STOP_TIMEOUT}", expected, repr(text[:40]))
    return seconds


@frozen
class MountSetup(JsonValue):
    """The mount of one volume in one app.

    :param volume: its name. :param path: in the app's root, absolute and normalized.
    :param read_only: the app cannot write to it.
    :param seed: an empty volume is first filled with the image's files at that path.
    """

    volume: str
    path: str
    read_only: bool
    seed: bool = False


@frozen(kw_only=True)
class AppEnd(JsonValue):
    """One execution of an app, running or ended.

    :param exit_code: 128+N if signal N ended it; null: it has not ended, or that is not known.
    :param reason: how it ended; null: it has not ended.
    :param signal: number of the signal that ended its main process; null: no signal did.
    :param message: the stager's message about its end, for people; null: there is none.
    :param started_at: when it was started; null: it was not.
    :param finished_at: when it ended, or when its end was found; null: it has not ended.
    :param log: name of its log file under the pod's ``logs/``; null: there is no log.
    """

    exit_code: ExitCode | None = None
    reason: Reason | None = field(default=None, key="exitReason")
    signal: Signal | None = None
    message: str | None = None
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    log: str | None = None

    @property
    def told(self) -> str:
        """Explains its end beyond the exit code, for people; empty: there is nothing to add."""
        if self.message is None and self.signal in _CRASHES:
            name = _CRASHES[self.signal]
            # A filter is almost always the cause of SIGSYS.
            return f"killed by {name}" + (
                ": it made a system call that its filter does not allow" if name == "SIGSYS" else ""
            )
        return self.message or ""


@frozen
class AppExecution(AppEnd):
    """One execution of an app that was followed by another.

    :param instance: number of the execution, counted from 1 over all runs of the pod.
    :param run: number of the pod's run, counted from 1: each start of the pod begins a new one.
    """

    JSON_NAME = "Execution"

    instance: Count
    run: Count = 1


@frozen
class AppStatus(AppEnd):
    """The status of one app of a pod.

    :param name: name of the app.
    :param pid: PID of its main process on the host; null: it does not run.
    :param exited: true: it has ended.
    :param log_dropped: bytes of its output that could not be written to its log.
    :param instance: number of the execution, counted from 1 over all runs of the pod; null: it was never executed.
    :param run: number of the pod's run, counted from 1: each start of the pod begins a new one.
    :param restarts: how often its restart policy has started it again since a caller started it.
    :param restarting: true: it has ended, and its restart policy will start it again.
    :param ready: whether it has reported that it is ready; null: it does not report readiness, or has ended.
    :param status_text: its own status message, for people; null: it sends none, or has ended.
    :param earlier: the recorded earlier executions, the oldest first.
    :param files: by file name, the source of the content of ``/etc/hosts``, ``/etc/hostname`` and
        ``/etc/resolv.conf``: Kurma, the image, the image with the pod's own name added (``image+name``), or
        a volume. Empty: not known.
    :param created_at: when it came into the pod; null: not known.
    :param health: by the checks of its last execution; null: it has no health check, or has never run.
    """

    JSON_NAME = "AppStatus"
    NAMED_BY = "name"

    name: str
    pid: Pid | None = None
    exited: bool = False
    log_dropped: Count = 0
    instance: Count | None = None
    run: Count = 1
    restarts: Count = 0
    restarting: bool = False
    ready: bool | None = None
    status_text: str | None = None
    earlier: tuple[AppExecution, ...] = ()
    files: Mapping[str, EtcContent] = field(default_factory=dict)
    created_at: Timestamp | None = None
    health: AppHealth | None = None

    @property
    def says(self) -> str:
        """Describes its end, or repeats its own status message, for people."""
        if self.message or self.exited or self.ready is None:
            return self.told
        return ": ".join(filter(None, ("ready" if self.ready else "not ready", self.status_text)))

    @property
    def lost(self) -> str:
        """Reports output that its log lacks, for people; empty: the log is complete."""
        if not self.log_dropped:
            return ""
        return (
            f"app {self.name}: {self.log_dropped} bytes of its output were dropped: its log could not be written"
        )

    @property
    def state(self) -> str:
        """Its state: ``created`` (never started), ``starting``, ``running``, ``restarting``, or how it ended."""
        if self.exited:
            return self.reason or "exited"
        if self.restarting:
            return "restarting"
        if self.pid is None and self.started_at is None:
            return "created" if self.instance is None else "starting"
        return "running"

    @property
    def condition(self) -> str:
        """Its state, and the health of a running app, for people."""
        state = self.state
        return state if self.health is None or state != "running" else f"{state} ({self.health.status})"


@frozen
class MetadataAddress(JsonValue):
    """The address of a pod's metadata service, in the pod's network namespace.

    :param address: its IP address. :param port: its TCP port.
    :param token_file: file of the host that holds the token, which the service's URL needs.
    """

    address: str
    port: Port
    token_file: str


@frozen
class PodRestart(JsonValue):
    """The restart policy of a pod, and its restarts.

    :param policy: after which ends kurmad starts the pod again.
    :param count: how often kurmad has started it again since a caller started it.
    :param next: when kurmad will start it again; null: it will not.
    """

    policy: Policy = "never"
    count: Count = 0
    next: Timestamp | None = None


@frozen(kw_only=True)
class PodRecord(JsonValue):
    """One pod, as ``list`` and ``show`` print it.

    :param uuid: UUID of the pod. :param name: name of the pod.
    :param state: its state.
    :param reason: why it is ``errored``, for people; null: it is not.
    :param exit_code: the first of its apps' that is not 0, in manifest order; null: it has not ended.
    :param created_at: when it was made.
    :param started_at: when it was started; null: it was not.
    :param finished_at: when it ended; null: it has not ended.
    :param foreground: it was made to run in the foreground of a command, and ``start`` runs it there again.
    :param owner: PID of the process that owns it; null: no process does.
    :param stager: name of its stager. :param stager_pid: PID of its stager; null: the stager does not run.
    :param stager_version: version of Kurma that started its stager, which may be older than the present one; null:
        the stager does not run.
    :param renderer: name of its renderer.
    :param network_namespace: path; null: the host's, or the pod does not run.
    :param userns: ids of the host that its user namespace has; null: it has no user namespace of its own.
    :param cgroup: path of its cgroup, relative to the root of each hierarchy. It exists while the pod runs.
    :param metadata: address of its metadata service, in its network namespace; null: the service does not run.
    :param restart: its restart policy and its restarts.
    :param apps: by name.
    :param images: image ID by app.
    :param image_names: by app, the image as the caller named it.
    :param labels: by name, as the manifest's ``userLabels`` has them.
    :param attachments: the networks that it is joined to.
    :param isolators: a report of each.
    :param notes: for people.
    :param manifest: the pod manifest as it runs.
    :param hostname: its host name.
    :param dns: ``nameservers``, ``search`` and ``options`` that its caller has set; null: none.
    :param dns_exact: these are all of ``/etc/resolv.conf``.
    :param hosts: lines of ``/etc/hosts`` that its caller has set.
    :param manager: name of the program that manages it; null: none does.
    :param display_name: its name for people, as its manager gave it; null: ``name`` is the only one.
    :param health: the worst health of its running apps; null: none of them has a health check.
    """

    JSON_NAME = "Pod"

    uuid: str
    name: str
    state: State
    reason: str | None = None
    exit_code: ExitCode | None = None
    created_at: Timestamp
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    foreground: bool = False
    owner: Pid | None = None
    stager: str
    stager_pid: Pid | None = None
    stager_version: str | None = None
    renderer: str
    network_namespace: str | None = None
    userns: IdRange | None = field(default=None, key="userNamespace")
    cgroup: str = ""
    metadata: MetadataAddress | None = None
    restart: PodRestart = PodRestart()
    apps: tuple[AppStatus, ...]
    images: Mapping[str, str]
    image_names: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = field(default=(), key="networks")
    isolators: tuple[IsolatorReport, ...] = ()
    notes: tuple[str, ...] = ()
    manifest: Mapping[str, Json] = field(default_factory=dict)
    hostname: str = ""
    dns: Mapping[str, tuple[str, ...]] | None = None
    dns_exact: bool = False
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), shape=_HOSTS)
    manager: str | None = None
    display_name: str | None = None
    health: HealthWord | None = None

    @property
    def condition(self) -> str:
        """Its state, and its health, for people."""
        return self.state if self.health is None else f"{self.state} ({self.health})"

    def annotation(self, name: str) -> str | None:
        """The value of an annotation of the pod; None: it has none of that name."""
        notes = self.manifest.get("annotations") or ()
        return next((note["value"] for note in notes if note["name"] == name), None)

    @property
    def keeps_root(self) -> bool:
        """Whether what its apps wrote to their roots stays after its end."""
        return self.annotation(KEEP_ROOT) == "true"

    @property
    def unstarted(self) -> tuple[AppStatus, ...]:
        """The apps whose program could not be executed, in manifest order."""
        return tuple(app for app in self.apps if app.reason == "start-failed")


@frozen
class PodEvent:
    """A change of a pod's state, passed to observers.

    :param kind: ``prepared``, ``starting``, ``running``, ``stopping``, ``stopped``, ``errored``, ``adopted`` (by
        a daemon, after its owner died), ``restarting`` (by its policy) or ``removed``.
    :param pod: the pod's UUID. :param name: the pod's name.
    :param at: RFC 3339, UTC.
    :param detail: further facts, by the kind; for people and logs.
    """

    kind: str
    pod: str
    name: str
    at: str
    detail: Mapping[str, Json] = field(default_factory=dict)


@frozen
class AppEvent:
    """A change of one app of a pod, passed to observers.

    :param kind: ``created``, ``started``, ``stopped`` (also if its restart policy starts it again), ``removed``;
        ``healthy`` or ``unhealthy``, when its health has become that.
    :param app: the app's name.
    :param pod: the pod's UUID. :param name: the pod's name.
    :param at: RFC 3339, UTC.
    :param detail: ``instance``: the number of the execution; of ``stopped`` also ``exitCode``, ``reason`` and
        ``message``, as an app's status has them; of a change of health ``failingStreak``.
    """

    kind: str
    app: str
    pod: str
    name: str
    at: str
    detail: Mapping[str, Json] = field(default_factory=dict)
