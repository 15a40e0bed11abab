"""Isolator plans, which stagers apply, reports on each isolator, and id ranges of user namespaces."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping  # without collections

from kurma_core.schema import Count, JsonValue, SchemaError, Text, Whole, Words, describe
from kurma_core.value import field, frozen

#: The largest id there is; the one above it means "none".
MAX_ID = (1 << 32) - 2
#: A pod's annotation that says which user namespace it has.
USERNS_ANNOTATION = "kurma.io/userns"
#: Hint of the error for a malformed value of ``--userns``.
USERNS_WORDS = "none, auto, or UID:COUNT with a UID from 1 on"


class Hex(Text):
    """Bytes, in hex digits."""

    __slots__ = ()
    plain = False

    def read(self, value: Json, path: str) -> Any:
        try:
            return bytes.fromhex(super().read(value, path))
        except ValueError as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(path, "hex digits", describe(value)) from None

    def write(self, value: Any) -> Json:
        return value.hex()


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Json = Any
    Access = str
    DeviceKind = str
    Direction = str
    Filter = bytes
    Id = int
    Limit = int
    Mode = int
    NamespaceId = int
    OomScore = int
    Outcome = str
else:
    Access = Words("full", "read")
    DeviceKind = Words("c", "b")
    Direction = Words("in", "out")
    Filter = Hex()
    Id = Whole(0, MAX_ID)
    Limit = Whole(-1, (1 << 64) - 1)
    Mode = Whole(0, 0o7777)
    NamespaceId = Whole(1, MAX_ID)
    OomScore = Whole(-1000, 1000)
    Outcome = Words("enforced", "modified", "ignored")


@frozen
class CgroupSetting(JsonValue):
    """One write into a cgroup: ``controller`` as the kernel calls it, the file's name, the text to write."""

    controller: str
    file: str
    value: str


@frozen
class Device(JsonValue):
    """A device node that an app may have.

    :param path: in the app's root, absolute.
    :param kind: ``c`` (character) or ``b`` (block).
    :param access: letters of ``rwm``: read, write, make the node.
    :param mode: permission bits of the node; ``uid`` and ``gid`` as the app sees them.
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

    :param source: on the host; ``target`` in the app's root: both absolute.
    """

    source: str
    target: str
    read_only: bool = field(default=False, key="read_only")


@frozen
class IsolatorPlan(JsonValue):
    """The compiled isolators of one app, or of a pod, which any stager applies unchanged.

    :param capabilities: the bounding set by name, ``CAP_…``; None: the default fourteen.
    :param ambient: ambient capabilities, which a process keeps that is not root.
    :param no_new_privileges: set ``PR_SET_NO_NEW_PRIVS``.
    :param oom_score_adj: −1000 … 1000; None: unchanged.
    :param rlimits: soft and hard limit by name in lower case (``nofile``); −1 is unlimited.
    :param cgroup: writes, in order.
    :param sysctls: for the pod's namespaces; only in a pod's plan.
    :param seccomp: a filter of system calls, for an app: a compiled classic BPF program, an array of the kernel's
        ``struct sock_filter``, for this machine. The stager loads it as the last step before it executes a program
        of the app: main, handlers and commands that are run later.
    :param devices: nodes that an app may have, besides those that every app has.
    :param traffic: limits of the pod's network; the core applies them, not the stager.
    :param apparmor: profile that the app's programs run under.
    :param selinux: security context that they run in.
    :param privileged: the app runs without its protections.
    :param namespaces: those that the pod shares with the host (``{"ipc": "host"}``); the core sets them, in the
        pod's plan.
    :param mounts: parts of the host's file system; the core makes volumes of them.
    :param api: ``full`` or ``read``: the app's rights to the daemon's API, by a socket of its own. The core
        makes the socket, not the stager.
    """

    COMPUTED = {"version": int}  # noqa: RUF012 - of the class

    capabilities: tuple[str, ...] | None = None
    ambient: tuple[str, ...] = ()
    no_new_privileges: bool = False
    oom_score_adj: OomScore | None = None
    rlimits: Mapping[str, tuple[Limit, Limit]] = field(default_factory=dict)
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

    @property
    def version(self) -> int:
        """The version of the JSON form. A stager refuses newer versions, so a plan has the version of its newest
        field: a stager without support for filters must not run the app without its filter."""
        if self.devices or self.apparmor or self.selinux or self.privileged or self.namespaces:
            return 3
        return 1 if self.seccomp is None else 2

    def to_json(self) -> dict[str, Json]:
        every = JsonValue.to_json(self)
        wanted = _IN_VERSION_3 if self.version == 3 else _IN_VERSION_1
        return {key: one for key, one in every.items() if key in wanted or one not in (None, False, [], {})}

    @classmethod
    def from_json(cls, value: Json, path: str = "the plan") -> Self:
        if isinstance(value, dict):
            value = {**{key: one for key, one in _EMPTY.items() if key not in _IN_VERSION_1}, **value}
        return super(IsolatorPlan, cls).from_json(value, path)  # noqa: UP008 - frozen() remakes the class


_EMPTY = JsonValue.to_json(IsolatorPlan())
#: Keys that are always there.
_IN_VERSION_1 = frozenset(list(_EMPTY)[:7]) | {"version"}
_IN_VERSION_3 = _IN_VERSION_1 | {"devices", "apparmor", "selinux", "privileged", "namespaces"}


def needs_powers(apps: Iterable[IsolatorPlan], pod: IsolatorPlan) -> bool:
    """Whether the stager must support power over the host: devices, host namespaces, privileged apps."""
    return bool(pod.namespaces) or any(plan.devices or plan.privileged for plan in apps)


@frozen
class IsolatorReport(JsonValue):
    """How one isolator was applied.

    :param name: of the isolator.
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
        """Parses ``UID:COUNT``. :raises ValueError: the text has another form, or the range holds root's own
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
