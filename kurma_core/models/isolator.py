"""Isolator plans, which stagers apply, and reports on each isolator."""

from __future__ import annotations

from _collections_abc import Iterable, Mapping  # without collections

from kurma_core.models.userns import MAX_ID
from kurma_core.schema import COUNT, fit
from kurma_core.value import field, fields, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from kurma_core.schema import Form

    Json = Any


@frozen
class CgroupSetting:
    """One write into a cgroup: ``controller`` as the kernel calls it, the file's name, the text to write."""

    controller: str
    file: str
    value: str

    def to_json(self) -> dict[str, Json]:
        return {"controller": self.controller, "file": self.file, "value": self.value}


@frozen
class Device:
    """A device node that an app may have.

    :param path: in the app's root, absolute.
    :param kind: ``c`` (character) or ``b`` (block).
    :param access: letters of ``rwm``: read, write, make the node.
    :param mode: permission bits of the node; ``uid`` and ``gid`` as the app sees them.
    """

    path: str
    kind: str
    major: int
    minor: int
    access: str = "rwm"
    mode: int = 0o666
    uid: int = 0
    gid: int = 0

    def to_json(self) -> dict[str, Json]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@frozen
class TrafficLimit:
    """How much may go over the pod's interfaces, each on its own; never over loopback.

    :param direction: ``in`` or ``out``, as the pod sees it.
    :param rate: bytes per second.
    :param interface: the one that is meant; "": each.
    """

    direction: str
    rate: int
    interface: str = ""

    def to_json(self) -> dict[str, Json]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@frozen
class HostMount:
    """A part of the host's file system that an app sees.

    :param source: on the host; ``target`` in the app's root: both absolute.
    """

    source: str
    target: str
    read_only: bool = False

    def to_json(self) -> dict[str, Json]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@frozen
class IsolatorPlan:
    """What isolators become for one app, or for a pod: neutral, finished, applied by a stager as it stands.

    :param capabilities: the bounding set by name, ``CAP_…``; None: the default fourteen.
    :param ambient: capabilities that a process keeps that is not root.
    :param no_new_privileges: set ``PR_SET_NO_NEW_PRIVS``.
    :param oom_score_adj: −1000 … 1000; None: unchanged.
    :param rlimits: soft and hard limit by name in lower case (``nofile``); −1 is unlimited.
    :param cgroup: writes, in order.
    :param sysctls: for the pod's namespaces; only in a pod's plan.
    :param seccomp: a filter of system calls, for an app: a compiled classic BPF program, the kernel's ``struct
        sock_filter`` in a row, for this machine. It is put on as the last thing before a program of the app is
        executed: main, handlers and commands run later alike.
    :param devices: nodes that an app may have, besides those that every app has.
    :param traffic: limits of the pod's network; applied by the core, no stager's business.
    :param apparmor: profile that the app's programs run under.
    :param selinux: security context that they run in.
    :param privileged: an app whose walls are taken down (X6).
    :param namespaces: those that the pod shares with the host (``{"ipc": "host"}``): the core's to say,
        in the pod's plan.
    :param mounts: of the host's file system; the core makes volumes of them.
    :param api: ``full`` or ``read``: the most that the app may ask of the daemon, by a socket of its own. The core
        makes it; no stager's business.
    """

    capabilities: tuple[str, ...] | None = None
    ambient: tuple[str, ...] = ()
    no_new_privileges: bool = False
    oom_score_adj: int | None = None
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cgroup: tuple[CgroupSetting, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    seccomp: bytes | None = None
    devices: tuple[Device, ...] = ()
    traffic: tuple[TrafficLimit, ...] = ()
    apparmor: str | None = None
    selinux: str | None = None
    privileged: bool = False
    namespaces: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[HostMount, ...] = ()
    api: str | None = None

    #: Version of the JSON form; a stager refuses a newer one. A plan is of the version of what it sets: whoever
    #: does not know of a filter must not run the app without.
    VERSION = 3

    SHAPE: ClassVar[Form] = {
        "capabilities": ([str], None),
        "ambient": [str],
        "noNewPrivileges": bool,
        "oomScoreAdj": (range(-1000, 1001), None),
        "rlimits": {str: [range(-1, 1 << 64), range(-1, 1 << 64)]},
        "cgroup": [{"controller": str, "file": str, "value": str}],
        "sysctls": {str: str},
        "seccomp?": str,
        "devices?": [
            {
                "path": str,
                "kind": frozenset("bc"),
                "major": COUNT,
                "minor": COUNT,
                "access": str,
                "mode": range(0o10000),
                "uid": range(MAX_ID + 1),
                "gid": range(MAX_ID + 1),
            }
        ],
        "traffic?": [{"direction": frozenset(("in", "out")), "rate": COUNT, "interface": str}],
        "apparmor?": (str, None),
        "selinux?": (str, None),
        "privileged?": bool,
        "namespaces?": {str: str},
        "mounts?": [{"source": str, "target": str, "read_only": bool}],
        "api?": (frozenset(("full", "read")), None),
    }

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = {
            "version": 1,
            "capabilities": None if self.capabilities is None else list(self.capabilities),
            "ambient": list(self.ambient),
            "noNewPrivileges": self.no_new_privileges,
            "oomScoreAdj": self.oom_score_adj,
            "rlimits": {name: list(pair) for name, pair in self.rlimits.items()},
            "cgroup": [setting.to_json() for setting in self.cgroup],
            "sysctls": dict(self.sysctls),
        }
        if self.seccomp is not None:
            value.update(version=2, seccomp=self.seccomp.hex())
        newer = {
            "devices": [device.to_json() for device in self.devices],
            "apparmor": self.apparmor,
            "selinux": self.selinux,
            "privileged": self.privileged,
            "namespaces": dict(self.namespaces),
        }
        if any(newer.values()):
            value.update(version=self.VERSION, **newer)
        if self.traffic:
            value["traffic"] = [limit.to_json() for limit in self.traffic]
        if self.mounts:
            value["mounts"] = [mount.to_json() for mount in self.mounts]
        if self.api is not None:
            value["api"] = self.api
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> IsolatorPlan:
        fit(value, cls.SHAPE, "plan")
        capabilities = value["capabilities"]
        return cls(
            capabilities=None if capabilities is None else tuple(capabilities),
            ambient=tuple(value["ambient"]),
            no_new_privileges=value["noNewPrivileges"],
            oom_score_adj=value["oomScoreAdj"],
            rlimits={name: (pair[0], pair[1]) for name, pair in value["rlimits"].items()},
            cgroup=tuple(CgroupSetting(s["controller"], s["file"], s["value"]) for s in value["cgroup"]),
            sysctls=dict(value["sysctls"]),
            seccomp=bytes.fromhex(value["seccomp"]) if "seccomp" in value else None,
            devices=tuple(Device(**device) for device in value.get("devices", ())),
            traffic=tuple(TrafficLimit(**limit) for limit in value.get("traffic", ())),
            apparmor=value.get("apparmor"),
            selinux=value.get("selinux"),
            privileged=value.get("privileged", False),
            namespaces=dict(value.get("namespaces", {})),
            mounts=tuple(HostMount(**mount) for mount in value.get("mounts", ())),
            api=value.get("api"),
        )


def needs_powers(apps: Iterable[IsolatorPlan], pod: IsolatorPlan) -> bool:
    """Whether a stager must know how to share what is the host's: devices, namespaces, all power over it."""
    return bool(pod.namespaces) or any(plan.devices or plan.privileged for plan in apps)


@frozen
class IsolatorReport:
    """What became of one isolator (X1).

    :param scope: the app's name, or None for the pod's.
    :param outcome: ``enforced``, ``modified`` or ``ignored``.
    :param note: how it was modified, why it was ignored.
    :param default: nobody asked for it.
    :param value: as it was asked for, in the user's own form.
    :param amounts: its quantities in base units, for people.
    """

    name: str
    scope: str | None
    outcome: str
    note: str = ""
    default: bool = False
    value: Json = None
    amounts: str = ""

    SHAPE: ClassVar[Form] = {
        "name": str,
        "app": (str, None),
        "outcome": frozenset(("enforced", "modified", "ignored")),
        "note": str,
        "default?": bool,
        "amounts?": str,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "app": self.scope,
            "outcome": self.outcome,
            "note": self.note,
            "default": self.default,
            "value": self.value,
            "amounts": self.amounts,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> IsolatorReport:
        fit(value, cls.SHAPE, "isolator")
        return cls(
            value["name"],
            value["app"],
            value["outcome"],
            value["note"],
            value.get("default", False),
            value.get("value"),
            value.get("amounts", ""),
        )
