"""Isolator plans, which stagers apply, reports on each isolator, and id ranges of user namespaces."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping  # without collections

from kurma_core.schema import Count, JsonValue, Map, Row, SchemaError, Text, Whole, Words, describe, members
from kurma_core.value import field, frozen

#: The largest id there is; the one above it means "none".
MAX_ID = (1 << 32) - 2
#: A pod's annotation that says which user namespace it has.
USERNS_ANNOTATION = "kurma.io/userns"
#: A pod's annotation that names the cgroup of the host in which the pod's own cgroup is made.
CGROUP_PARENT = "kurma.io/cgroup-parent"
#: Hint of the error for a malformed value of ``--userns``.
USERNS_WORDS = "none, auto, or UID:COUNT with a UID from 1 on"
#: The kernel's resource limits, each at the index that is its number.
RLIMITS = (
    *("cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile"),
    *("memlock", "as", "locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime"),
)
#: The sysctls that belong to a namespace, by its kind.
_SYSCTLS = {
    "net": ("net.*",),
    "ipc": (
        *("fs.mqueue.*", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem"),
        *("kernel.shm_rmid_forced", "kernel.shmall", "kernel.shmmax", "kernel.shmmni"),
    ),
    "uts": ("kernel.domainname",),
    "pid": ("vm.memfd_noexec",),
    "user": ("user.*",),
}
#: All sysctls that can be a pod's own, for messages.
OWN_SYSCTLS = ", ".join(name for names in _SYSCTLS.values() for name in names)
#: Files of a cgroup that hold or move processes, or that Kurma and its stagers write to themselves.
_CLOSED_FILES = frozenset(
    (
        *(
            "cgroup.procs",
            "cgroup.threads",
            "cgroup.subtree_control",
            "cgroup.type",
            "cgroup.kill",
            "cgroup.freeze",
        ),
        *("tasks", "cgroup.event_control", "release_agent", "notify_on_release", "freezer.state"),
        *("devices.allow", "devices.deny"),
    )
)


def sysctl_namespace(name: str) -> str | None:
    """Returns the kind of namespace that a sysctl belongs to: ``net``, ``ipc``, ``uts``, ``pid`` or ``user``.
    None: it is the whole host's, or the core's (``kernel.hostname``), or not a name.

    :param name: with dots; a slash stands for a dot in a part, as in sysctl(8).
    """
    if not all(part.strip("/") and part.isprintable() and not set(part) & set(" \\") for part in name.split(".")):
        return None
    for kind, names in _SYSCTLS.items():
        for known in names:
            if name == known or (known[-1] == "*" and name.startswith(known[:-1])):
                return kind
    return None


class FilterText(Text):
    """A compiled filter of system calls, in hex digits."""

    __slots__ = ()
    plain = False
    expected = "a compiled filter"

    def read(self, value: Json, path: str) -> Any:
        try:
            found = bytes.fromhex(super().read(value, path))
        except ValueError as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(path, "hex digits", describe(value)) from None
        if not found or len(found) % 8 or len(found) > 8 * _INSTRUCTIONS:
            raise SchemaError(path, f"1 to {_INSTRUCTIONS} instructions of 8 bytes", f"{len(found)} bytes")
        return found

    def write(self, value: Any) -> Json:
        return value.hex()


def _cgroup_file(value: object, path: str) -> str:
    if (
        not isinstance(value, str)
        or not value.isascii()
        or not value[:1].isalpha()
        or not value.replace(".", "_").replace("-", "_").isidentifier()
        or value in _CLOSED_FILES
    ):
        raise SchemaError(path, "the name of a cgroup's file that holds a setting", describe(value))
    return value


def inner_path(value: object, path: str) -> str:
    """Checks an absolute path in an app's root, without ``.`` and ``..``. :raises SchemaError: it is none."""
    if (
        not isinstance(value, str)
        or not value.startswith("/")
        or value == "/"
        or not value.isprintable()
        or len(value) >= _LONGEST_PATH
        or any(part in (".", "..") for part in value.split("/"))
    ):
        raise SchemaError(path, "an absolute path below /", describe(value))
    return value


def _memory_nodes(value: object, path: str) -> str:
    if not isinstance(value, str) or not all(_is_range(part) for part in value.split(",") if value):
        raise SchemaError(path, "NUMA nodes such as 0-3,6", describe(value))
    return value


def _is_range(text: str) -> bool:
    first, dash, last = text.partition("-")
    if not all(one.isascii() and one.isdecimal() and len(one) < 5 for one in (first, last if dash else first)):
        return False
    return int(first) <= int(last if dash else first) < _NODES


#: PATH_MAX.
_LONGEST_PATH = 4096
#: The longest program of classic BPF that the kernel takes (``BPF_MAXINSNS``).
_INSTRUCTIONS = 4096
#: The largest number of NUMA nodes that a kernel can be made for.
_NODES = 1024

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Json = Any
    Access = str
    CgroupFile = str
    DeviceKind = str
    Direction = str
    Filter = bytes
    Id = int
    InnerPath = str
    IoClass = str
    IoLevel = int
    Limit = int
    MemoryMode = str
    MemoryNodes = str
    Mode = int
    NamespaceId = int
    Nanoseconds = int
    Nice = int
    OomScore = int
    Outcome = str
    Policy = str
    Priority = int
    Umask = int
else:
    Access = Words("full", "read")
    CgroupFile = Text(_cgroup_file)
    DeviceKind = Words("c", "b")
    Direction = Words("in", "out")
    Filter = FilterText()
    Id = Whole(0, MAX_ID)
    InnerPath = Text(inner_path)
    IoClass = Words("realtime", "best-effort", "idle")
    IoLevel = Whole(0, 7)
    Limit = Whole(-1, (1 << 63) - 1)
    MemoryMode = Words("bind", "preferred", "preferred-many", "interleave", "local")
    MemoryNodes = Text(_memory_nodes)
    Mode = Whole(0, 0o7777)
    NamespaceId = Whole(1, MAX_ID)
    Nanoseconds = Whole(0, (1 << 63) - 1)
    Nice = Whole(-20, 19)
    OomScore = Whole(-1000, 1000)
    Outcome = Words("enforced", "modified", "ignored")
    Policy = Words("other", "batch", "idle", "fifo", "rr", "deadline")
    Priority = Whole(0, 99)
    Umask = Whole(0, 0o777)


_RLIMITS = Map(Row(Limit, Limit), Words(*RLIMITS)) if not TYPE_CHECKING else None


@frozen
class CgroupSetting(JsonValue):
    """One write into the cgroup of the app, or of the pod if the plan is the pod's.

    :param controller: as the kernel calls it; ``cgroup``: the v2 hierarchy itself, for files such as
        ``cgroup.max.descendants``.
    :param file: any file of the group, except those by which Kurma moves, freezes and kills processes, and those
        of devices (:attr:`IsolatorPlan.devices`).
    :param value: the text to write.
    """

    controller: str
    file: CgroupFile
    value: str


@frozen
class Device(JsonValue):
    """A device node that an app may have.

    :param path: in the app's root, absolute.
    :param kind: ``c`` (character) or ``b`` (block).
    :param major: number of the driver. :param minor: number of the device.
    :param access: letters of ``rwm``: read, write, make the node.
    :param mode: permission bits of the node. :param uid: its owner, as the app sees it. :param gid: its group.
    """

    path: str
    kind: DeviceKind
    major: Count
    minor: Count
    access: str = "rwm"
    mode: Mode = 0o666
    uid: Id = 0
    gid: Id = 0


@frozen
class TrafficLimit(JsonValue):
    """A limit of the traffic over each of the pod's interfaces; loopback is not limited.

    :param direction: ``in`` or ``out``, as the pod sees it.
    :param rate: bytes per second.
    :param interface: name of the limited interface; "": each.
    """

    direction: Direction
    rate: Count
    interface: str = ""


@frozen
class HostMount(JsonValue):
    """A part of the host's file system that an app sees.

    :param source: absolute path on the host. :param target: absolute path in the app's root.
    :param read_only: the app cannot write to it.
    """

    source: str
    target: str
    read_only: bool = field(default=False, key="read_only")


@frozen
class IoPriority(JsonValue):
    """The I/O priority of an app's processes, as in ioprio_set(2).

    :param kind: ``realtime``, ``best-effort`` or ``idle``. :param level: 0, the highest, to 7.
    """

    PARTIAL = True

    kind: IoClass
    level: IoLevel = 4


@frozen
class Scheduling(JsonValue):
    """The scheduling of an app's processes, as in sched(7).

    Processes that the app starts inherit it, except ``deadline``: the kernel lets only the process itself have it.

    :param policy: ``other``, ``batch``, ``idle``, ``fifo``, ``rr`` or ``deadline``.
    :param priority: 1 to 99 for ``fifo`` and ``rr``; 0 for the others.
    :param nice: −20 … 19, for ``other`` and ``batch``.
    :param runtime: for ``deadline``: its time on a processor in each period, in nanoseconds.
    :param deadline: by which it has had that time, in nanoseconds. :param period: in nanoseconds.
    """

    PARTIAL = True

    policy: Policy = "other"
    priority: Priority = 0
    nice: Nice = 0
    runtime: Nanoseconds = 0
    deadline: Nanoseconds = 0
    period: Nanoseconds = 0

    def __post_init__(self) -> None:
        """:raises SchemaError: the values do not fit the policy."""
        if (self.policy in ("fifo", "rr")) != bool(self.priority):
            raise SchemaError("the scheduling", f"a priority that fits {self.policy}", describe(self.priority))
        times = (self.runtime, self.deadline, self.period)
        if self.policy != "deadline" and any(times):
            raise SchemaError("the scheduling", f"no times with {self.policy}", describe(max(times)))
        if self.policy == "deadline" and not 0 < self.runtime <= self.deadline <= self.period:
            raise SchemaError("the scheduling", "0 < runtime ≤ deadline ≤ period", describe(list(times)))


@frozen
class MemoryPolicy(JsonValue):
    """The NUMA nodes that an app's memory comes from, as in set_mempolicy(2).

    :param mode: ``bind``, ``preferred``, ``preferred-many``, ``interleave`` or ``local``.
    :param nodes: such as ``0-3,6``; "" only for ``local``, which takes none.
    :param static: ``nodes`` are physical, also if the app's cpuset changes (``MPOL_F_STATIC_NODES``).
    :param relative: ``nodes`` are counted among those of the app's cpuset (``MPOL_F_RELATIVE_NODES``).
    """

    PARTIAL = True

    mode: MemoryMode
    nodes: MemoryNodes = ""
    static: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        """:raises SchemaError: the values contradict each other."""
        if (self.mode == "local") != (not self.nodes):
            raise SchemaError("the memory policy", f"nodes that fit {self.mode}", describe(self.nodes))
        if self.static and (self.relative or self.mode == "local"):
            raise SchemaError("the memory policy", "static alone, and with nodes", "static")
        if self.relative and self.mode == "local":
            raise SchemaError("the memory policy", "relative with nodes", "relative")


@frozen
class IsolatorPlan(JsonValue):
    """The compiled isolators of one app, or of a pod, which any stager applies unchanged.

    :param capabilities: the bounding set by name, ``CAP_…``; None: the default fourteen.
    :param ambient: ambient capabilities, which a process keeps that is not root.
    :param no_new_privileges: set ``PR_SET_NO_NEW_PRIVS``.
    :param oom_score_adj: −1000 … 1000; None: unchanged.
    :param rlimits: soft and hard limit by name (:data:`RLIMITS`); −1 is unlimited.
    :param cgroup: writes, in order.
    :param sysctls: of the pod's own namespaces (:func:`sysctl_namespace`); only in a pod's plan.
    :param seccomp: a filter of system calls, for an app: a compiled classic BPF program, an array of the kernel's
        ``struct sock_filter``, for this machine. The stager loads it as the last step before it executes a program
        of the app: main, handlers and commands that are run later.
    :param devices: nodes that an app may have, besides those that every app has.
    :param traffic: limits of the pod's network; an isolator plugin applies them, not the stager.
    :param apparmor: profile that the app's programs run under.
    :param selinux: security context that they run in.
    :param privileged: the app runs without its protections.
    :param namespaces: those that the pod shares with the host (``{"ipc": "host"}``); the core sets them, in the
        pod's plan.
    :param mounts: parts of the host's file system; the core makes volumes of them.
    :param api: ``full`` or ``read``: the app's rights to the daemon's API, by a socket of its own. The core
        makes the socket, not the stager.
    :param umask: the file mode creation mask of the app's programs; None: 022.
    :param io_priority: None: the stager's own, as with the two others.
    :param scheduling: the policy and its parameters.
    :param memory_policy: the NUMA nodes of the app's memory.
    :param keyrings: the app may use the kernel's keyring system calls.
    :param masked_paths: absolute paths in the app's root that are hidden: an empty file or directory takes their
        place. Missing ones are ignored. None: the stager's own, in ``/proc`` and ``/sys``.
    :param read_only_paths: as ``masked_paths``, of paths that the app cannot write to. ``/sys`` is always
        read-only.
    :param environment: variables that the app gets in place of its own; the core passes them to the stager.
    """

    COMPUTED = {"version": int}  # noqa: RUF012 - of the class

    capabilities: tuple[str, ...] | None = None
    ambient: tuple[str, ...] = ()
    no_new_privileges: bool = False
    oom_score_adj: OomScore | None = None
    rlimits: Mapping[str, tuple[Limit, Limit]] = field(default_factory=dict, shape=_RLIMITS)
    cgroup: tuple[CgroupSetting, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    seccomp: Filter | None = None
    devices: tuple[Device, ...] = ()
    traffic: tuple[TrafficLimit, ...] = ()
    apparmor: str | None = None
    selinux: str | None = None
    privileged: bool = False
    namespaces: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[HostMount, ...] = ()
    api: Access | None = None
    umask: Umask | None = None
    io_priority: IoPriority | None = None
    scheduling: Scheduling | None = None
    memory_policy: MemoryPolicy | None = None
    keyrings: bool = False
    masked_paths: tuple[InnerPath, ...] | None = None
    read_only_paths: tuple[InnerPath, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The version of the JSON form. A stager refuses newer versions, so a plan has the version of its newest
        field: a stager without support for filters must not run the app without its filter."""
        if self.keyrings or self.masked_paths is not None or self.read_only_paths is not None:
            return 5
        if any(one is not None for one in (self.umask, self.io_priority, self.scheduling, self.memory_policy)):
            return 4
        if self.devices or self.apparmor or self.selinux or self.privileged or self.namespaces:
            return 3
        return 1 if self.seccomp is None else 2

    def to_json(self) -> dict[str, Json]:
        every = JsonValue.to_json(self)
        wanted = _IN_VERSION_3 if self.version == 3 else _IN_VERSION_1
        return {key: one for key, one in every.items() if key in wanted or one != _EMPTY[key]}

    @classmethod
    def from_json(cls, value: Json, path: str = "the plan") -> Self:
        if isinstance(value, dict):
            value = {**{key: one for key, one in _EMPTY.items() if key not in _IN_VERSION_1}, **value}
        return super(IsolatorPlan, cls).from_json(value, path)  # noqa: UP008 - frozen() remakes the class

    def check(self, scope: str) -> None:
        """Checks that the plan sets only fields that have a meaning. :param scope: ``app`` or ``pod``, which it is
        for.

        :raises SchemaError: a value has no meaning there.
        """
        elsewhere = _POD_ONLY if scope == "app" else _APP_ONLY
        for each in members(IsolatorPlan):
            if each.name in elsewhere and (value := getattr(self, each.name)) != getattr(_NONE, each.name):
                raise SchemaError(
                    each.name, f"no value in the plan of the {scope}", describe(each.shape.write(value))
                )


_NONE = IsolatorPlan()
_POD_ONLY = frozenset(("sysctls", "namespaces"))
_APP_ONLY = frozenset(
    (
        *("rlimits", "umask", "io_priority", "scheduling", "memory_policy"),
        *("keyrings", "masked_paths", "read_only_paths", "environment"),
    )
)
_EMPTY = JsonValue.to_json(_NONE)
#: Keys that are always there.
_IN_VERSION_1 = frozenset(list(_EMPTY)[:7]) | {"version"}
_IN_VERSION_3 = _IN_VERSION_1 | {"devices", "apparmor", "selinux", "privileged", "namespaces"}


def needs_powers(apps: Iterable[IsolatorPlan], pod: IsolatorPlan) -> bool:
    """Whether the stager must support power over the host: devices, host namespaces, privileged apps."""
    return bool(pod.namespaces) or any(plan.devices or plan.privileged for plan in apps)


@frozen
class IsolatorReport(JsonValue):
    """How one isolator was applied.

    :param name: name of the isolator.
    :param scope: name of the app; null: it is the pod's.
    :param outcome: whether this host enforces it.
    :param note: how it was modified, or why it was ignored.
    :param default: true: it applies by default; the caller did not ask for it.
    :param value: the value as the user wrote it.
    :param amounts: its quantities in base units, for people.
    """

    JSON_NAME = "IsolatorReport"

    name: str
    scope: str | None = field(key="app")
    outcome: Outcome
    note: str = ""
    default: bool = False
    value: Json = None
    amounts: str = ""


@frozen
class IdRange(JsonValue):
    """Ids of users and groups of the host that a pod's user namespace maps.

    :param first: the host's id of the namespace's 0; the others follow. :param count: the number of ids.
    """

    first: NamespaceId
    count: NamespaceId

    @classmethod
    def parse(cls, text: str) -> IdRange:
        """Parses a text ``UID:COUNT``. :raises ValueError: it has another form, or the range holds root's own
        id."""
        first, colon, count = text.partition(":")
        if not colon or not all(part.isascii() and part.isdecimal() and len(part) < 11 for part in (first, count)):
            raise ValueError(text)
        found = cls(int(first), int(count))
        if not (found.first and found.count and found.last <= MAX_ID):
            raise ValueError(text)
        return found

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def overlaps(self, other: IdRange) -> bool:
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}:{self.count}"


def userns_word(text: str) -> str:
    """Checks a value of ``--userns``: ``none``, ``auto`` or ``UID:COUNT``. :raises ValueError: it is none of
    these."""
    if text not in ("none", "auto"):
        IdRange.parse(text)
    return text
