"""Values of the API about pods: requests for a pod or a command, resource usage, processes, log lines."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.api.images import ImageGc, PullPolicy, Removal
from kurma_core.api.usage_details import InterfaceUsage, UsageDetails
from kurma_core.appc.overrides import AppOverrides as AppOverrides
from kurma_core.appc.overrides import DnsRequest as DnsRequest
from kurma_core.appc.types import absolute_path, environment_name, nonempty, word
from kurma_core.models.health import AppHealth, HealthResult
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.models.pod import REASONS, AppEnd, AppStatus, EtcContent, PodRecord
from kurma_core.schema import (
    Count,
    ExitCode,
    JsonValue,
    List,
    Map,
    Maybe,
    Pairs,
    Parsed,
    Pid,
    Seconds,
    Text,
    Words,
    shape,
)
from kurma_core.value import field, fields, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.appc.template import PodTemplate

    AppState = str
    ChangeKind = str
    Nonempty = str
    OutputStream = str
    Path = str
    WaitCondition = str
else:
    PodTemplate = Parsed("kurma_core.appc.template.PodTemplate")
    AppState = Words("created", "starting", "running", "restarting", *REASONS)
    ChangeKind = Words("added", "changed", "deleted")
    Nonempty = Text(nonempty)
    OutputStream = Words("stdout", "stderr")
    Path = Text(absolute_path)
    WaitCondition = Words("ended", "healthy", "unhealthy")


class _Names(Maybe):
    """A list of names; null is an empty one."""

    __slots__ = ()

    def read(self, value: Any, path: str) -> Any:
        return super().read(value, path) or ()


_ENVIRONMENT = Pairs(("name", "value"), Text(environment_name), Text(word))
_ISOLATORS = Pairs(("name", "value"), Nonempty, object)
_HOSTS = Pairs(("address", "names"), Nonempty, _Names(List(shape(Nonempty), tuple)))


# --- requests --------------------------------------------------------------------------------------------------


class _Overrides(Map):
    """Overrides by app; null means none."""

    __slots__ = ()

    def read(self, value: Any, path: str) -> dict[str, Any]:
        given = value
        if isinstance(value, dict):
            given = {app: one for app, one in value.items() if one is not None}
        return super().read(given, path)


@frozen
class PodRequest(JsonValue):
    """A request for a pod: a template, and additions to it.

    :param template: the pod manifest, or a template of one, in which images may be locators.
    :param uuid: null: a new random one.
    :param name: null: the template's, else the first app's name and the head of the UUID.
    :param interactive: the app that gets the caller's standard input.
    :param terminal: the app that gets a terminal, besides those whose annotations say so.
    :param userns: ``none``, ``auto`` or ``UID:COUNT``; null: as the template's annotation says, else as
        configured.
    :param ephemeral: remove the pod once it has ended.
    :param foreground: the pod is made to run in the foreground of a command; ``start`` and ``restart`` then run it
        there again.
    :param overrides: by app; they replace those of the template.
    :param networks: null: as the template says, else the default ones.
    :param ports: added to the manifest's.
    :param dns: null: the template's, else from the networks, else the host's.
    :param hostname: null: the template's, else the pod's name.
    :param hosts: further lines of ``/etc/hosts``.
    :param isolators: for the pod: the caller's own word, as those of ``apps`` are.
    :param grants: powers that the caller gives to all that ask for them, spelt as in ``grants`` of ``kurma.yml``.
    :param configured: the template stands in ``kurma.yml``, so that its own isolators are root's word, too. No
        caller can say so.
    """

    JSON_NAME = "PodRequest"
    PARTIAL = True

    template: PodTemplate = field(key="pod")
    uuid: Nonempty | None = None
    name: Nonempty | None = None
    stager: Nonempty | None = None
    renderer: Nonempty | None = None
    interactive: Nonempty | None = None
    terminal: Nonempty | None = None
    hostname: Nonempty | None = None
    userns: Nonempty | None = None
    verify: bool = False
    ephemeral: bool = False
    foreground: bool = False
    strict_isolators: bool = False
    strict_volumes: bool = False
    allow_volume_links: bool = False
    overrides: Mapping[str, AppOverrides] = field(
        default_factory=dict, key="apps", shape=_Overrides(shape(AppOverrides))
    )
    networks: tuple[NetworkRequest, ...] | None = None
    ports: tuple[PortMapping, ...] = ()
    pull: PullPolicy = "new"
    insecure: frozenset[Nonempty] = frozenset()
    dns: DnsRequest | None = None
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), shape=_HOSTS)
    isolators: tuple[tuple[str, Any], ...] = field(default=(), shape=_ISOLATORS)
    grants: tuple[Nonempty, ...] = ()
    configured: bool = field(default=False, in_json=False)


@frozen
class EnterRequest(JsonValue):
    """A command to be run in an app. Null: as the app has it.

    :param exec: the command and its arguments.
    :param app: may be left out where the pod has one.
    :param tty: it gets a terminal.
    :param timeout: seconds; after that the command is killed with all that it has started. Null: there is no
        limit.
    :param contained: the command is killed, with all that it has started, also when the caller goes away.
    """

    JSON_NAME = "Command"
    PARTIAL = True

    exec: tuple[str, ...]
    app: Nonempty | None = None
    user: Nonempty | None = None
    group: Nonempty | None = None
    environment: tuple[tuple[str, str], ...] = field(default=(), shape=_ENVIRONMENT)
    working_directory: Path | None = None
    tty: bool = False
    timeout: Seconds | None = None
    contained: bool = False


# --- answers ---------------------------------------------------------------------------------------------------


@frozen
class Exit(JsonValue):
    """:param exit_code: of a command."""

    JSON_NAME = "Exit"

    exit_code: ExitCode


@frozen(kw_only=True)
class AppRow(AppEnd):
    """One app of a pod, as ``kurma app list`` prints it. Many of its fields are those of :class:`AppStatus`.

    :param name: name of the app.
    :param image: ID of its image; null: not known.
    :param image_name: the image as the caller named it; null: not known.
    :param state: the present phase of its life, or how it ended.
    :param pid: as ``kurma show`` prints it.
    :param exited: as ``kurma show`` prints it.
    :param log_dropped: as ``kurma show`` prints it.
    :param instance: as ``kurma show`` prints it.
    :param restarts: as ``kurma show`` prints it.
    :param ready: as ``kurma show`` prints it.
    :param status_text: as ``kurma show`` prints it.
    :param files: as ``kurma show`` prints it.
    """

    JSON_NAME = "App"

    name: str
    image: str | None
    image_name: str | None
    state: AppState
    pid: Pid | None
    exited: bool
    log_dropped: Count
    instance: Count | None
    restarts: Count
    ready: bool | None
    status_text: str | None
    files: Mapping[str, EtcContent]

    @classmethod
    def of(cls, record: PodRecord, app: AppStatus) -> AppRow:
        own = {each.name: getattr(app, each.name) for each in fields(cls) if hasattr(app, each.name)}
        return cls(**own, image=record.images.get(app.name, ""), image_name=record.image_names.get(app.name))


@frozen
class HealthRun(JsonValue):
    """A health check of an app that a caller has run.

    :param app: name of the app. :param result: of the check.
    :param health: the app's health with this result; null: the app has ended meanwhile, and the result does not
        count.
    """

    JSON_NAME = "HealthRun"

    app: str
    result: HealthResult
    health: AppHealth | None


@frozen
class Collected(JsonValue):
    """The result of a garbage collection, done or planned.

    :param removed: pods that were removed, or would be.
    :param lines: one for each other thing that was done, or would be, for people.
    :param left: one for each thing that is left, with the reason, for people.
    :param failed: something was left because of an error.
    """

    JSON_NAME = "Collected"

    removed: tuple[Removal, ...] = ()
    lines: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    failed: bool = False


@frozen
class Pruned(JsonValue):
    """Things that were pruned, or would be.

    :param pods: of pods, and what remained of them. :param images: of the image store.
    :param volumes: named volumes.
    :param freed: bytes on disk of all of them.
    """

    JSON_NAME = "Pruned"
    COMPUTED = {"freed": Count}  # noqa: RUF012 - of the class

    pods: Collected
    images: ImageGc
    volumes: tuple[Removal, ...] = ()

    @property
    def removed(self) -> tuple[Removal, ...]:
        """The pods, the volumes, and the things of the image store."""
        return (*self.pods.removed, *self.volumes, *self.images.removed)

    @property
    def freed(self) -> int:
        """Bytes of all of them on disk."""
        return sum([removal.size for removal in self.removed])


@frozen
class ResourceUsage(JsonValue):
    """Resource usage of a cgroup, with all below it. Null: the host's cgroups do not report it; for a limit: there
    is none.

    :param memory: bytes, including the kernel's cache of files.
    :param memory_reclaimable: bytes of ``memory`` that the kernel can reclaim at once.
    :param memory_limit: bytes; null: there is no limit.
    :param cpu: processor time in seconds.
    :param pids: processes and threads.
    :param pids_limit: greatest number of processes and threads; null: there is no limit.
    :param block_read: bytes from block devices.
    :param block_written: bytes to block devices.
    :param details: null: the caller did not want them.
    """

    memory: Count | None
    memory_reclaimable: Count | None
    memory_limit: Count | None
    cpu: float | None
    pids: Count | None
    pids_limit: Count | None
    block_read: Count | None
    block_written: Count | None
    details: UsageDetails | None = None


@frozen
class Usage(JsonValue):
    """Resource usage of a pod. Bytes and times count from its start.

    :param uuid: UUID of the pod. :param name: name of the pod.
    :param clock: seconds of a monotonic clock: subtract two to get the time between them.
    :param network_received: bytes over the interfaces of its networks; null: it is in the host's network
        namespace.
    :param network_sent: likewise.
    :param apps: those that run and have a cgroup of their own, by name.
    :param display_name: its name for people; null: ``name`` is the only one.
    :param interfaces: of its networks; empty: it is in the host's network namespace, or the caller did not want
        details.
    """

    uuid: str
    name: str
    clock: float
    total: ResourceUsage = field(inline=True)
    network_received: Count | None
    network_sent: Count | None
    apps: Mapping[str, ResourceUsage]
    display_name: str | None = None
    interfaces: tuple[InterfaceUsage, ...] = ()


@frozen
class Process(JsonValue):
    """A process of a pod.

    :param pid: number of the process on the host. :param inner_pid: number of the process in its own PID
        namespace.
    :param parent: number of the parent process on the host.
    :param app: its name; null: the process is the stager's, or works for a caller.
    :param uid: its user inside the pod; null: a user of the host that the pod's user namespace does not have.
    :param user: name of this user in the app's /etc/passwd; null: it has no name there.
    :param state: one letter: ``R``, ``S``, ``D``, ``Z`` …
    :param threads: number of threads.
    :param cpu: processor time in seconds. :param elapsed: seconds since it was started.
    :param memory: resident memory in bytes.
    :param name: command name in the kernel, at most 15 bytes.
    :param command: arguments, at most 4096 bytes in all; empty if the process has ended, and for read-only
        callers.
    """

    pid: Pid
    inner_pid: Pid
    parent: Pid
    app: str | None
    uid: int | None
    user: str | None
    state: str
    threads: int
    cpu: float
    elapsed: float
    memory: Count
    name: str
    command: tuple[str, ...]


@frozen
class LogLine(JsonValue):
    """Output of an app to one stream at one moment.

    :param at: RFC 3339 with nanoseconds.
    :param partial: the line continues in the next text of that app and stream.
    :param text: bytes that are not UTF-8 are U+DC80 and on, as Python represents them.
    """

    JSON_NAME = "LogLine"

    app: str
    at: str
    stream: OutputStream
    partial: bool
    text: bytes


@frozen
class RootChange(JsonValue):
    """A file of an app's root that differs from the app's image.

    :param path: from the root. :param kind: what has happened to it.
    """

    path: str
    kind: ChangeKind
