"""Values that cross rooms: images, pods, networks, isolator plans. Frozen, and named in the field's words.

What a manifest says is in :mod:`kurma_core.appc`; what a driver must be is in :mod:`kurma_core.hookspecs`.
Every ``to_json`` here is what ``--format json`` prints and what stands on disk: keys are only ever added.
"""

from __future__ import annotations

from _collections_abc import Iterable, Mapping  # without collections
from _operator import itemgetter

from kurma_core.shape import COUNT, fit
from kurma_core.value import field, fields, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NamedTuple

    from kurma_core.shape import Shape

    Json = Any

#: States of a pod, in the order of its life (``preparing prepared starting running stopping stopped errored``).
STATES = ("preparing", "prepared", "starting", "running", "stopping", "stopped", "errored")
#: States in which nothing of the pod runs and its teardown is complete.
ENDED_STATES = ("stopped", "errored")


#: The largest id there is; the one above it says "none".
MAX_ID = (1 << 32) - 2


@frozen
class IdRange:
    """Users and groups of the host that a pod's user namespace has: its 0 is ``first`` outside, and so on (H9)."""

    first: int
    count: int

    SHAPE: ClassVar[Shape] = {"first": range(1, MAX_ID + 1), "count": range(1, MAX_ID + 1)}

    @classmethod
    def parse(cls, text: str) -> IdRange:
        """``UID:COUNT``. :raises ValueError: it is none, or root's own id is in it."""
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

    def to_json(self) -> dict[str, Json]:
        return {"first": self.first, "count": self.count}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> IdRange:
        """:raises ShapeError: it is not such a record; also of the others' below."""
        fit(value, cls.SHAPE, "ids")
        return cls(value["first"], value["count"])


#: What people are told who say it wrongly.
USERNS_WORDS = "none, auto, or UID:COUNT with a UID from 1 on"


def userns_word(text: str) -> str:
    """What ``--userns`` takes: ``none``, ``auto`` or ``UID:COUNT``. :raises ValueError: another word."""
    if text not in ("none", "auto"):
        IdRange.parse(text)
    return text


# --- images ----------------------------------------------------------------------------------------------------


@frozen
class Provenance:
    """Where an image came from, once (S4).

    :param trust: ``signed``, ``digest`` (content digest over TLS or pinned), ``local`` (a file of this machine,
        unverified), ``built`` (made and signed on this machine) or ``unverified`` (checks were relaxed).
    :param fetched_at: RFC 3339, UTC, with microseconds.
    :param fingerprint: of the key whose signature was verified.
    :param insecure: the relaxations that were in force (``image``, ``tls``, ``http``, ``pubkey``).
    :param encrypted: its archive came encrypted (A1).
    """

    locator: str
    fetched_at: str
    trust: str
    url: str | None = None
    digest: str | None = None
    fingerprint: str | None = None
    insecure: tuple[str, ...] = ()
    encrypted: bool = False

    SHAPE: ClassVar[Shape] = {
        "locator": str,
        "fetchedAt": str,
        "trust": frozenset(("built", "signed", "digest", "local", "unverified")),
        "url?": (str, None),
        "digest?": (str, None),
        "fingerprint?": (str, None),
        "insecure?": [str],
        "encrypted?": bool,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "locator": self.locator,
            "fetchedAt": self.fetched_at,
            "trust": self.trust,
            "url": self.url,
            "digest": self.digest,
            "fingerprint": self.fingerprint,
            "insecure": list(self.insecure),
            "encrypted": self.encrypted,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Provenance:
        fit(value, cls.SHAPE, "provenance")
        return cls(
            locator=value["locator"],
            fetched_at=value["fetchedAt"],
            trust=value["trust"],
            url=value.get("url"),
            digest=value.get("digest"),
            fingerprint=value.get("fingerprint"),
            insecure=tuple(value.get("insecure", ())),
            encrypted=value.get("encrypted", False),
        )


@frozen
class ImageRecord:
    """One image of the store.

    :param id: ``sha512-`` and 128 hex digits: over the uncompressed tar (A4).
    :param size: bytes that its extracted layers and its archive take on disk.
    :param layers: keys of the extracted layers, lowest first (an ACI has one; a Docker image has several).
    :param provenance: every way it came in, oldest first; never empty.
    :param last_used: RFC 3339, UTC; None: never.
    :param early_id: ``sha256-`` and 64 hex digits over the same tar, as early documents name it (E6); None: it
        came from a registry, or into the store by a Kurma that kept none.
    """

    id: str
    name: str
    version: str | None
    labels: Mapping[str, str]
    size: int
    layers: tuple[str, ...]
    provenance: tuple[Provenance, ...]
    last_used: str | None = None
    early_id: str | None = None

    @property
    def trust(self) -> str:
        """The strongest word that vouches for the image."""
        order = ("built", "signed", "digest", "local", "unverified")
        return min((p.trust for p in self.provenance), key=order.index)

    @property
    def fetched_at(self) -> str:
        return self.provenance[-1].fetched_at

    @property
    def age_order(self) -> str:
        """Sorts images by when they came in, the oldest first; what is known to the second alone came at its
        beginning."""
        return self.fetched_at.removesuffix("Z")

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "earlyId": self.early_id,
            "name": self.name,
            "version": self.version,
            "labels": dict(self.labels),
            "size": self.size,
            "trust": self.trust,
            "fetchedAt": self.fetched_at,
            "lastUsed": self.last_used,
            "layers": list(self.layers),
            "provenance": [p.to_json() for p in self.provenance],
        }


@frozen
class RenderedLayer:
    """A read-only directory that stands for one layer of an app's rootfs.

    :param id: its name under a stager's ``/layers``: an image ID, or an ID over what made a merged tree (N4).
    :param path: absolute path of the directory on the host.
    """

    id: str
    path: str


@frozen
class RenderedImage:
    """An image ready to be stacked: ``layers`` top first, as ``appImageOrder`` has them.

    :param manifests: image manifest (as JSON value) by layer ID, for a stager's ``images``.
    :param images: IDs of all images that it is made of, itself among them.
    """

    id: str
    layers: tuple[RenderedLayer, ...]
    manifests: Mapping[str, Json]
    images: tuple[str, ...] = ()


# --- isolators -------------------------------------------------------------------------------------------------


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

    SHAPE: ClassVar[Shape] = {
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

    SHAPE: ClassVar[Shape] = {
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


# --- networks --------------------------------------------------------------------------------------------------


#: Ports of one range at most: each is a rule or more, and CNI's plugins run programs for each.
MOST_PORTS = 1024
#: Protocols of ports that can be published.
PROTOCOLS = ("tcp", "udp", "sctp")


@frozen
class PortMapping:
    """One port of the host that leads into the pod. ``protocol`` is ``tcp``, ``udp`` or ``sctp``; ``host_ip``
    "" is any."""

    host_port: int
    pod_port: int
    protocol: str = "tcp"
    host_ip: str = ""

    SHAPE: ClassVar[Shape] = {
        "hostPort": range(1, 1 << 16),
        "podPort": range(1, 1 << 16),
        "protocol": frozenset(PROTOCOLS),
        "hostIP": str,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "hostPort": self.host_port,
            "podPort": self.pod_port,
            "protocol": self.protocol,
            "hostIP": self.host_ip,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> PortMapping:
        fit(value, cls.SHAPE, "port")
        return cls(value["hostPort"], value["podPort"], value["protocol"], value["hostIP"])


@frozen
class NetworkRequest:
    """A wish to join a network: ``--net NAME[:IFNAME][,ip=…,mac=…,optional]``.

    :param optional: the pod starts without it where joining it fails (W4).
    """

    name: str
    interface: str | None = None
    ips: tuple[str, ...] = ()
    mac: str | None = None
    optional: bool = False

    SHAPE: ClassVar[Shape] = {
        "name": str,
        "interface?": (str, None),
        "ips?": [str],
        "mac?": (str, None),
        "optional?": bool,
    }

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "interface": self.interface,
            "ips": list(self.ips),
            "mac": self.mac,
            "optional": self.optional,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> NetworkRequest:
        fit(value, cls.SHAPE, "request")
        return cls(
            value["name"],
            value.get("interface"),
            tuple(value.get("ips", ())),
            value.get("mac"),
            value.get("optional", False),
        )


@frozen
class AddressResult:
    """One address of an attachment, in CIDR form, and its gateway."""

    address: str
    gateway: str | None = None


@frozen
class NetworkResult:
    """What a network's ``add`` gave (W3), whatever version of the CNI result it came in.

    :param raw: the result as the plugin printed it.
    """

    addresses: tuple[AddressResult, ...]
    routes: tuple[tuple[str, str | None], ...] = ()
    nameservers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    raw: Json = None


@frozen
class Attachment:
    """One network of one pod, as it was asked for and as it came out. Recorded before ``add`` (result None).

    :param driver: name of the network plugin that serves it.
    :param config: the network's configuration as handed to the plugin; ``del`` gets the same.
    :param capabilities: further capability arguments of CNI (``dns``, ``bandwidth``), by name.
    :param names: pods on it find each other by name (W10).
    """

    network: str
    driver: str
    interface: str
    config: Mapping[str, Json]
    request: NetworkRequest
    ports: tuple[PortMapping, ...] = ()
    result: NetworkResult | None = None
    capabilities: Mapping[str, Json] = field(default_factory=dict)
    names: bool = True

    SHAPE: ClassVar[Shape] = {
        "network": str,
        "driver": str,
        "interface": str,
        "config": dict,
        "request": NetworkRequest.SHAPE,
        "ports": [PortMapping.SHAPE],
        "capabilities?": dict,
        "names?": bool,
        "result?": (
            {
                "addresses": [{"address": str, "gateway?": (str, None)}],
                "routes": [{"dst": str, "gw?": (str, None)}],
                "nameservers": [str],
                "search": [str],
                "options": [str],
                "raw": object,
            },
            None,
        ),
    }

    def to_json(self) -> dict[str, Json]:
        result = self.result
        return {
            "network": self.network,
            "driver": self.driver,
            "interface": self.interface,
            "config": dict(self.config),
            "request": self.request.to_json(),
            "ports": [port.to_json() for port in self.ports],
            "capabilities": dict(self.capabilities),
            "names": self.names,
            "addresses": [] if result is None else [a.address for a in result.addresses],
            "result": None
            if result is None
            else {
                "addresses": [{"address": a.address, "gateway": a.gateway} for a in result.addresses],
                "routes": [{"dst": dst, "gw": gateway} for dst, gateway in result.routes],
                "nameservers": list(result.nameservers),
                "search": list(result.search),
                "options": list(result.options),
                "raw": result.raw,
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Attachment:
        fit(value, cls.SHAPE, "attachment")
        raw = value.get("result")
        result = None
        if raw is not None:
            result = NetworkResult(
                addresses=tuple(AddressResult(a["address"], a.get("gateway")) for a in raw["addresses"]),
                routes=tuple((r["dst"], r.get("gw")) for r in raw["routes"]),
                nameservers=tuple(raw["nameservers"]),
                search=tuple(raw["search"]),
                options=tuple(raw["options"]),
                raw=raw["raw"],
            )
        return cls(
            network=value["network"],
            driver=value["driver"],
            interface=value["interface"],
            config=value["config"],
            request=NetworkRequest.from_json(value["request"]),
            ports=tuple(PortMapping.from_json(port) for port in value["ports"]),
            result=result,
            capabilities=value.get("capabilities", {}),
            names=value.get("names", True),
        )


# --- pods ------------------------------------------------------------------------------------------------------


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

    SHAPE: ClassVar[Shape] = {
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
class NetworkSummary:
    """A network that a pod is joined to.

    :param addresses: in CIDR form; none before the pod was started.
    """

    network: str
    interface: str
    addresses: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        return {"network": self.network, "interface": self.interface, "addresses": list(self.addresses)}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> NetworkSummary:
        return cls(value["network"], value["interface"], tuple(value["addresses"]))


@frozen
class PodSummary:
    """What a table of pods has room for: of a :class:`PodRecord`, what its stager need not be asked for.

    :param apps: names, in the manifest's order.
    :param networks: none: the pod shares the host's.
    """

    uuid: str
    name: str
    state: str
    created_at: str
    apps: tuple[str, ...] = ()
    networks: tuple[NetworkSummary, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "uuid": self.uuid,
            "name": self.name,
            "state": self.state,
            "createdAt": self.created_at,
            "apps": list(self.apps),
            "networks": [one.to_json() for one in self.networks],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> PodSummary:
        return cls(
            uuid=value["uuid"],
            name=value["name"],
            state=value["state"],
            created_at=value["createdAt"],
            apps=tuple(value["apps"]),
            networks=tuple(NetworkSummary.from_json(one) for one in value["networks"]),
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


@frozen
class Stdio:
    """Standard input, output and error, not closed by the callee.

    :param terminal: ``stdin`` is a terminal.
    :param signals: a descriptor from which numbers of signals come, a byte each, for a call-in that is waited for.
        At its end the call-in is asked to end, by SIGTERM. -1: there is none.
    :param relayed: these are pipes or a pseudo-terminal of Kurma's own, in raw mode, and fit to be given to a
        program inside a pod. Else they are the caller's own, which no program of a pod may have.
    """

    stdin: int
    stdout: int
    stderr: int
    terminal: bool = False
    signals: int = -1
    relayed: bool = False


if TYPE_CHECKING:

    class LogText(NamedTuple):
        """What an app wrote to one stream at one moment: whole lines, or a part of one. A named tuple,
        for there are many.

        :param at: RFC 3339 with nanoseconds, as in the file.
        :param stream: ``stdout`` or ``stderr``.
        :param partial: one line, which goes on in the next text of that stream.
        :param text: the bytes; newlines stand between lines, and none behind the last.
        """

        app: str
        at: str
        stream: str
        partial: bool
        text: bytes

else:
    _OF_LOG_TEXT = ("app", "at", "stream", "partial", "text")

    class LogText(tuple):
        """As :mod:`typing` would make it, which takes longer to import than all of this."""

        __slots__ = ()
        app, at, stream, partial, text = (property(itemgetter(place)) for place in range(len(_OF_LOG_TEXT)))

        def __new__(cls, app, at, stream, partial, text):
            return tuple.__new__(cls, (app, at, stream, partial, text))

        def _replace(self, **changes):
            return type(self)(**{**dict(zip(_OF_LOG_TEXT, self, strict=True)), **changes})
