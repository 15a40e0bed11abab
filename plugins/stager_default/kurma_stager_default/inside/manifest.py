"""The stager manifest (Kurma Stager Specification, Stager Manifest) and ``stagerConfig``'s reserved part."""

from __future__ import annotations

import os

from kurma_core.formats import small_json
from kurma_stager_default.inside.user_namespace import Ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RESERVED = "kurma.io"
VERSION = 1
PLAN_VERSION = 5
RESTARTS = ("never", "on-failure", "always")
LIFECYCLES = ("all", "any")
PROTOCOLS = ("tcp", "udp")
STDIN_ENDS = ("last", "first", "never")
#: The PID namespaces that an app may have: the pod's, one of its own, the host's, or (a prefix) that of an app.
POD_PID, OWN_PID, HOST_PID, OF_APP = "pod", "own", "host", "app:"
#: Whether later mounts propagate: not at all, from the host to the app, in both directions.
PROPAGATIONS = ("private", "rslave", "rshared")
#: Annotation of an image whose app reports its readiness.
NOTIFIES = "appc.io/executor/supports-systemd-notify"
#: How an app's root is made; ``given``: the app's only layer is its root, and the app writes to it.
STORAGES = ("overlay", "copy", "given")


class ManifestError(Exception):
    """The manifest is malformed, or asks for a feature that this stager does not support."""


class Mount:
    """A volume at a path of an app."""

    __slots__ = (
        "device",
        "idmap",
        "layers",
        "options",
        "path",
        "propagation",
        "read_only",
        "read_only_submounts",
        "secret",
        "seed",
        "sub_path",
        "volume",
    )

    def __init__(self, value: dict[str, Any]) -> None:
        self.volume: str = value["volume"]
        self.path: str = value["path"]
        self.read_only: bool = value.get("readOnly", False)
        self.seed: bool = value.get("seed", False)
        self.idmap: bool = value.get("idmap", False)
        #: the volume is a device node that the app may open; the plan's devices list the access
        self.device: bool = value.get("device", False)
        self.propagation: str = _one_of(
            f"volume {self.volume}: propagation", value.get("propagation", "private"), PROPAGATIONS
        )
        #: the mounts below a read-only volume are read-only, too
        self.read_only_submounts: bool = value.get("readOnlySubmounts", True)
        #: the volume is the files of an image, with these layers
        self.layers: list[str] = value.get("layers", [])
        self.sub_path: str = value.get("subPath", "")
        #: names of mount attributes
        self.options: list[str] = value.get("options", [])
        #: the volume is a secret: path of its file in the stager's root; empty: it is not
        self.secret: str = value.get("secret", "")


class Port:
    """The ports of an app's listening sockets: ``count`` ports from ``first`` up."""

    __slots__ = ("count", "first", "name", "protocol")

    def __init__(self, value: dict[str, Any]) -> None:
        self.name: str = value["name"]
        self.protocol: str = _one_of(f"port {self.name}: protocol", value.get("protocol", "tcp"), PROTOCOLS)
        self.first: int = value["port"]
        self.count: int = value.get("count", 1)


class Plan:
    """An isolator plan; see ``kurma_core.models.isolator.IsolatorPlan``."""

    __slots__ = (
        "ambient",
        "apparmor",
        "capabilities",
        "cgroup",
        "devices",
        "io_priority",
        "keyrings",
        "masked_paths",
        "memory_policy",
        "namespaces",
        "no_new_privileges",
        "oom_score_adj",
        "privileged",
        "read_only_paths",
        "rlimits",
        "scheduling",
        "seccomp",
        "selinux",
        "sysctls",
        "umask",
    )

    def __init__(self, value: dict[str, Any]) -> None:
        if value.get("version", 1) > PLAN_VERSION:
            raise ManifestError(
                f"isolator plan: version {value['version']} is newer than this stager's {PLAN_VERSION}"
            )
        self.capabilities: list[str] | None = value.get("capabilities")
        self.ambient: list[str] = value.get("ambient", [])
        self.no_new_privileges: bool = value.get("noNewPrivileges", False)
        self.oom_score_adj: int | None = value.get("oomScoreAdj")
        self.rlimits: dict[str, list[int]] = value.get("rlimits", {})
        self.cgroup: list[dict[str, str]] = value.get("cgroup", [])
        self.sysctls: dict[str, str] = value.get("sysctls", {})
        self.seccomp = bytes.fromhex(value.get("seccomp") or "")
        self.devices: list[dict[str, Any]] = value.get("devices", [])
        self.apparmor: str | None = value.get("apparmor")
        self.selinux: str | None = value.get("selinux")
        self.privileged: bool = value.get("privileged", False)
        #: the app may use the kernel's keyring system calls
        self.keyrings: bool = value.get("keyrings", self.privileged)
        self.namespaces: dict[str, str] = value.get("namespaces", {})
        #: None: 022
        self.umask: int | None = value.get("umask")
        if not (self.umask is None or (isinstance(self.umask, int) and 0 <= self.umask <= 0o777)):
            raise ManifestError(f"isolator plan: not a umask: {self.umask!r}")
        self.scheduling: dict[str, Any] | None = value.get("scheduling")
        self.io_priority: dict[str, Any] | None = value.get("ioPriority")
        self.memory_policy: dict[str, Any] | None = value.get("memoryPolicy")
        #: None: Kurma's own, in /proc and /sys
        self.masked_paths: list[str] | None = value.get("maskedPaths")
        self.read_only_paths: list[str] | None = value.get("readOnlyPaths")

    @property
    def own_paths(self) -> bool:
        """Whether the plan replaces some of Kurma's masked and read-only paths."""
        return self.masked_paths is not None or self.read_only_paths is not None


class App:
    """One app of the pod: what to run, as whom, in which root."""

    __slots__ = (
        "environment",
        "exec",
        "group",
        "groups",
        "layers",
        "log_path",
        "make_directory",
        "mounts",
        "name",
        "notifies",
        "pid",
        "plan",
        "post_stop",
        "pre_start",
        "read_only",
        "replace_files",
        "restart",
        "secret_environment",
        "sockets",
        "stdin",
        "stdin_ends",
        "stdin_open",
        "stop_signal",
        "terminal",
        "user",
        "working_directory",
    )

    def __init__(self, name: str, app: dict[str, Any]) -> None:
        """:param app: the App Container ``app`` object."""
        self.name = name
        self.exec: list[str] = app.get("exec") or []
        self.user: str = app.get("user", "0")
        self.group: str = app.get("group", "")
        self.groups: list[int] = app.get("supplementaryGIDs") or app.get("supplementaryGids") or []
        self.working_directory: str = app.get("workingDirectory") or "/"
        self.environment: list[tuple[str, str]] = [
            (pair["name"], pair["value"]) for pair in app.get("environment") or []
        ]
        #: names of variables, and the files in the stager's root that have their values
        self.secret_environment: list[tuple[str, str]] = []
        handlers = {handler["name"]: handler["exec"] for handler in app.get("eventHandlers") or []}
        self.pre_start: list[str] | None = handlers.get("pre-start")
        self.post_stop: list[str] | None = handlers.get("post-stop")
        self.sockets = [Port(port) for port in app.get("ports") or [] if port.get("socketActivated")]
        #: the app reports its readiness (sd_notify)
        self.notifies = False
        self.layers: list[str] = []
        self.mounts: list[Mount] = []
        self.read_only = False
        #: files below /etc whose content Kurma replaces, even if the image has some
        self.replace_files: list[str] = []
        self.restart = "never"
        #: its PID namespace
        self.pid = POD_PID
        self.stdin = False
        self.stdin_open = False
        #: when the input ends: with that of the ``last`` attached client, of the ``first``, or ``never``
        self.stdin_ends = "last"
        #: rows and columns of the app's terminal, zeros: not known yet; None: it has no terminal
        self.terminal: tuple[int, int] | None = None
        #: the log's path below the pod's log directory; empty: it has no log; None: it is in the pod's directory
        self.log_path: str | None = None
        self.make_directory = False
        self.stop_signal = 15
        self.plan = Plan({})


class Pod:
    """The pod of a stager manifest: its apps, its own settings and those of ``stagerConfig``."""

    __slots__ = (
        "apps",
        "dns",
        "handler_timeout",
        "hostname",
        "hosts",
        "ids",
        "keep",
        "lifecycle",
        "log_count",
        "log_directory",
        "log_size",
        "names",
        "plan",
        "shown",
        "stop_timeout",
        "storage",
    )

    def __init__(self, document: dict[str, Any], environment: dict[str, str]) -> None:
        """:param environment: the stager's own: the hostname and the metadata URL, if the core gives no reserved
            part in ``stagerConfig``.
        :raises ManifestError: the manifest asks for an unknown feature.
        """
        pod = document["pod"]
        config = document.get("stagerConfig") or {}
        ours = config.get(RESERVED) or {}
        if ours.get("version", VERSION) > VERSION:
            raise ManifestError(
                f"stagerConfig {RESERVED}: version {ours['version']} is newer than this stager's {VERSION}"
            )
        notes = _annotations(pod)
        self.hostname: str = ours.get("hostname") or environment.get("HOSTNAME") or document.get("name") or "pod"
        self.dns: dict[str, list[str]] | None = ours.get("dns")
        self.hosts: list[list[Any]] = ours.get("hosts", [])
        #: a directory of hosts files that the core keeps up to date; empty: the pod cannot look up other pods'
        #: names
        self.names: str = ours.get("names") or ""
        self.ids = Ids(ours.get("userns"))
        self.plan = Plan(ours.get("podPlan") or {})
        self.stop_timeout: float = ours.get("stopTimeout", 10)
        self.handler_timeout: float = config.get("handlerTimeout", 30)
        logs = ours.get("logs") or {}
        self.log_size: int = logs.get("size", 16 << 20)
        self.log_count: int = logs.get("count", 5)
        #: directory of the logs of apps with a ``log_path``, which other programs rotate
        self.log_directory: str = logs.get("directory", "")
        self.storage: str | None = _one_of("graphStorage", config.get("graphStorage") or None, (*STORAGES, None))
        #: called with the stream and the data of an app's output, besides the log; the stage1 sets it
        self.shown: Callable[[bytes, bytes], None] | None = None
        self.lifecycle: str = _one_of("kurma.io/lifecycle", notes.get("kurma.io/lifecycle", "all"), LIFECYCLES)
        self.apps = [_app(document, app, ours, environment) for app in pod.get("apps") or []]
        #: the pod ends only when it is stopped, even if all its apps have ended
        self.keep: bool = ours.get("keep", not self.apps)

    def app(self, name: str) -> App | None:
        for app in self.apps:
            if app.name == name:
                return app
        return None


def _app(
    document: dict[str, Any], entry: dict[str, Any], ours: dict[str, Any], environment: dict[str, str]
) -> App:
    name: str = entry["name"]
    layers = document["appImageOrder"][name]
    # The first layer may be a merged tree of the image; the manifest's key is the tree's ID then.
    images = document["images"]
    image = images.get(entry["image"].get("id")) or images.get(layers[0]) or {}
    specification = entry.get("app") or image.get("app")
    if not specification:
        raise ManifestError(f"app {name}: neither the pod nor the image says what to run")
    extra = ours.get("apps", {}).get(name) or {}
    app = App(name, specification)
    app.layers = layers
    app.read_only = entry.get("readOnlyRootFS", False)
    app.stdin = extra.get("stdin", False)
    app.stdin_open = extra.get("stdinOpen", False)
    app.stdin_ends = _one_of(f"app {name}: stdinEnds", extra.get("stdinEnds", "last"), STDIN_ENDS)
    app.terminal = _terminal(extra.get("terminal"))
    app.replace_files = extra.get("replaceFiles", [])
    app.log_path = _log_path(name, extra.get("logPath"))
    app.make_directory = extra.get("makeWorkingDirectory", False)
    app.stop_signal = extra.get("stopSignal", 15)
    app.plan = Plan(extra.get("plan") or {})
    if "mounts" in extra:
        app.mounts = [Mount(mount) for mount in extra["mounts"]]
    else:
        read_only = {
            volume["name"]: volume.get("readOnly", False) for volume in document["pod"].get("volumes") or []
        }
        app.mounts = [
            Mount({**mount, "readOnly": read_only.get(mount["volume"], False)})
            for mount in entry.get("mounts") or []
        ]
    app.environment += [(pair[0], pair[1]) for pair in extra.get("environment", [])]
    app.secret_environment = [(pair[0], pair[1]) for pair in extra.get("secretEnvironment", [])]
    if "AC_METADATA_URL" in environment:
        app.environment.insert(0, ("AC_METADATA_URL", environment["AC_METADATA_URL"]))
    app.pid = _annotations(entry).get("kurma.io/pid", POD_PID)
    if not app.pid.startswith(OF_APP):
        _one_of(f"app {name}: kurma.io/pid", app.pid, (POD_PID, OWN_PID, HOST_PID))
    for notes in (entry, image):
        says = _annotations(notes).get(NOTIFIES)
        if says is not None:
            app.notifies = says == "true"
            break
    # Precedence: the app's annotation in the pod, then the pod's, then the image's.
    for notes in (entry, document["pod"], image):
        policy = _annotations(notes).get("kurma.io/restart")
        if policy is not None:
            app.restart = _one_of(f"app {name}: kurma.io/restart", policy, RESTARTS)
            break
    return app


def _log_path(app: str, value: str | None) -> str | None:
    if value and any(part in ("", ".", "..") for part in value.split("/")):
        raise ManifestError(f"app {app}: logPath {value!r} is not a relative path")
    return value


def _terminal(value: Any) -> tuple[int, int] | None:
    """Reads ``true``, or the size as ``{"rows": …, "columns": …}``."""
    if not value:
        return None
    return (0, 0) if value is True else (int(value["rows"]), int(value["columns"]))


def _annotations(value: dict[str, Any]) -> dict[str, str]:
    return {note["name"]: note["value"] for note in value.get("annotations") or []}


def _one_of(what: str, value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ManifestError(f"{what}: {value!r} is none of {', '.join([str(each) for each in known if each])}")
    return value


def load(path: str = "/manifest") -> Pod:
    """Reads the stager manifest. :raises ManifestError: the manifest is malformed or asks for unknown features."""
    with open(path, "rb", 0) as file:
        text = file.read()
    return parse(text, path)


def glance(path: str = "/manifest") -> tuple[bool, bool, bool, bool]:
    """Whether some app gets a terminal or standard input, whether apps can be added to the pod, whether some app
    gets listening sockets, and whether some app reports its readiness.

    It searches the text without parsing it: that is fast, and may err. All are False if there is no manifest yet.
    """
    try:
        with open(path, "rb", 0) as file:
            text = file.read()
    except FileNotFoundError:
        return False, False, False, False
    words = (b'"terminal":true', b'"terminal":{', b'"stdin":true', b'"stdinOpen":true')
    given = any(word in text for word in words)
    return given, b'"keep":true' in text, b'"socketActivated":true' in text, NOTIFIES.encode() in text


def parse(text: bytes, what: str) -> Pod:
    """Parses a stager manifest. :param what: the name of the text, for errors.

    :raises ManifestError: the manifest is malformed or asks for unknown features."""
    try:
        return Pod(small_json.decode(text.decode()), dict(os.environ))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ManifestError(f"{what}: not a stager manifest: {type(error).__name__}: {error}") from None
