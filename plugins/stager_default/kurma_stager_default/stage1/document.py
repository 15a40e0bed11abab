"""Makes the stager's manifest from stage0's files: the pod manifest, the apps' image manifests, ``rkt/env/APP``
and the files for ``/etc``.
"""

from __future__ import annotations

import os
import stat

from kurma_stager_default.stage1 import isolators
from kurma_stager_default.stage1.arguments import FROM_HOST, FROM_NOWHERE, USUAL
from kurma_stager_default.stage1.place import APPS, ROOTFS, Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.linux.cgroups import Layout
    from kurma_stager_default.stage1.arguments import RunArguments
    from kurma_stager_default.stage1.place import Place

    Json = dict[str, Any]

_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_LONGEST = 253
#: The path of the pod's user namespace in the stager's root.
USER_NAMESPACE = "/userns"
#: Port of rkt's metadata service.
_METADATA_PORT = 18112
#: Prefix of annotations on images that were converted from Docker's: their empty volumes are filled with the
#: image's files.
_FROM_DOCKER = "appc.io/docker/"
#: Files that stage0, the host or a network may provide for apps; stage0's are below stage1's root.
_RESOLV, _HOSTS = "/etc/resolv.conf", "/etc/hosts"
_OF_STAGE0 = {_RESOLV: "etc/rkt-resolv.conf", _HOSTS: "etc/rkt-hosts"}
_LIFECYCLE = "kurma.io/lifecycle"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the host's, which is meant


class Document:
    """The stager's manifest. :attr:`value` is the JSON document, :attr:`volumes` the pod's volumes that apps use.

    :param note: called with a line for each setting that is ignored.
    :raises Stage1Error: the pod's documents are wrong, or ask for a feature that this stage1 does not support.
    """

    def __init__(self, place: Place, wanted: RunArguments, layout: Layout, note: Callable[[str], None]) -> None:
        self._place = place
        self._layout = layout
        self._note = note
        self._wanted = wanted
        pod = place.json("pod")
        self._volumes: Json = {_name(volume, "a volume"): volume for volume in pod.get("volumes") or []}
        self.volumes: Json = {}
        self.apps: list[str] = []
        self.hostname = wanted.hostname or f"rkt-{wanted.uuid or place.uuid}"
        images, settings = {}, {}
        for entry in pod.get("apps") or []:
            name = _name(entry, "an app")
            self.apps.append(name)
            images[name] = _image(place, name)
            settings[name] = self._app(name, entry, images[name])
        #: The pod has a lifecycle annotation; without one, an app that fails ends the pod, as under rkt.
        self.says_its_end = any(note["name"] == _LIFECYCLE for note in pod.get("annotations") or [])
        #: Ports of the host that are forwarded to apps, in the form of CNI's capability ``portMappings``.
        self.ports = _ports(pod, images, wanted, note)
        if not self.apps:
            raise Stage1Error("the pod has no apps, and this stage1 runs no pods that change")
        if len(set(self.apps)) < len(self.apps):
            raise Stage1Error("two apps of the pod have the same name")
        if wanted.interactive:
            self._give_terminal(settings)
        self._settings = settings
        plan = isolators.plan_of(pod.get("isolators") or [], "pod", layout, note)
        if wanted.shares_ipc:
            plan["namespaces"] = {"ipc": "host"}
            self._bind(_SHARED_MEMORY, _SHARED_MEMORY, read_only=False)
        self.value: Json = {
            "name": place.uuid,
            # Each app's root is its only layer, by the app's name.
            "pod": {**pod, "apps": [{**entry, "image": {"id": entry["name"]}} for entry in pod["apps"]]},
            "images": images,
            "appImageOrder": {name: [name] for name in self.apps},
            "stagerConfig": {
                "graphStorage": "given",
                "kurma.io": {
                    "version": 1,
                    "uuid": wanted.uuid or place.uuid,
                    "hostname": self.hostname,
                    # For an app without a hosts file; a file of stage0, the host or a network is bound over it.
                    "hosts": [
                        ["127.0.0.1", ["localhost"]],
                        ["::1", ["localhost", "ip6-localhost", "ip6-loopback"]],
                        ["127.0.0.1", [self.hostname]],
                    ],
                    "podPlan": plan,
                    "userns": _user_namespace(wanted.users),
                    "apps": settings,
                },
            },
        }

    def _app(self, name: str, entry: Json, image: Json) -> Json:
        app = entry.get("app") or image.get("app")
        if not app or not app.get("exec"):
            raise Stage1Error(f"app {name}: neither the pod nor its image says what to run")
        if not isinstance(app["exec"], list) or not all(isinstance(word, str) for word in app["exec"]):
            raise Stage1Error(f"app {name}: its exec is not a list of words: {app['exec']!r}")
        plan = isolators.plan_of(app.get("isolators") or [], f"app {name}", self._layout, self._note, self._wanted)
        mounts = [self._mount(name, plan, *each) for each in _mounts(name, entry, app)]
        for volume, path, read_only in _left(name, entry, app):
            if volume in self._volumes:
                mounts.append(self._mount(name, plan, volume, path, read_only, None))
                continue
            self._note(f"app {name}: no volume {volume} for {path}: an empty one is made, that goes with the pod")
            mounts.append(self._mount(name, plan, volume, path, read_only, {"kind": "empty"}))
            notes = image.get("annotations") or []
            mounts[-1]["seed"] = any(note["name"].startswith(_FROM_DOCKER) for note in notes)
        return {"mounts": mounts, "environment": environment(self._place, name, app), "plan": plan}

    def _mount(self, app: str, plan: Json, volume: str, path: str, read_only: bool, own: Json | None) -> Json:
        found = own or self._volumes.get(volume)
        if found is None:
            raise Stage1Error(f"app {app}: there is no volume {volume} for its mount at {path}")
        # The app's own volume may have the same name as one of the pod's.
        name = f"{app}.{_name({'name': volume}, 'a volume')}" if own else volume
        self.volumes[name] = found
        read_only = read_only or found.get("readOnly") is True
        device = _device(found)
        if device is not None:
            plan.setdefault("devices", []).append({**device, "access": "r" if read_only else "rw"})
        return {"volume": name, "path": path, "readOnly": read_only, "device": device is not None}

    def _bind(self, path: str, source: str, *, read_only: bool) -> None:
        """Mounts the source at the path in every app that has no mount at that path or above it."""
        name = path.replace("/", ".")  # volumes of the pod cannot begin with a dot
        self.volumes[name] = {"kind": "host", "source": source}
        for app in self._settings.values():
            if not any(f"{path}/".startswith(f"{mount['path'].rstrip('/')}/") for mount in app["mounts"]):
                app["mounts"].append({"volume": name, "path": path, "readOnly": read_only})

    def show_names(self, dns: Json) -> None:
        """Binds the files of ``--dns-conf-mode`` over the apps' own ``/etc/resolv.conf`` and ``/etc/hosts``.

        :param dns: the DNS settings of the pod's networks, used if there are no others.
        :raises OSError: a file of stage0 cannot be written.
        """
        for path, mode in ((_RESOLV, self._wanted.resolv), (_HOSTS, self._wanted.hosts)):
            if mode == FROM_HOST:
                if os.path.exists(path):
                    self._bind(path, path, read_only=True)
                continue
            source = f"{self._place.rootfs}/{_OF_STAGE0[path]}"
            if path == _RESOLV and mode == USUAL and not os.path.exists(source):
                _write_resolv_conf(source, dns)
            if mode != FROM_NOWHERE and os.path.exists(source):
                if path == _HOSTS:
                    _add_own_name(source, self.hostname)
                self._bind(path, source, read_only=False)

    def _give_terminal(self, settings: Json) -> None:
        if len(self.apps) > 1:
            raise Stage1Error("--interactive: standard input can be an app's only in a pod of one app")
        (app,) = settings.values()
        if os.isatty(0):
            size = os.get_terminal_size(0)
            app["terminal"] = {"rows": size.lines, "columns": size.columns}
        else:
            app["stdin"] = True


def read(place: Place, wanted: RunArguments, layout: Layout, note: Callable[[str], None]) -> Document:
    """Reads the pod's documents. :raises Stage1Error: see :class:`Document`; or a manifest is malformed."""
    try:
        return Document(place, wanted, layout, note)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        raise Stage1Error(f"{place.path}/pod, or an app's manifest: not understood: {text}") from None


def metadata_url(wanted: RunArguments, gateway: str, note: Callable[[str], None]) -> str:
    """The URL of the metadata service for apps; empty: none.

    :param gateway: the host's address in the pod's network; empty: there is none."""
    if not wanted.token:
        return ""
    host = "127.0.0.1" if wanted.networks is None else f"[{gateway}]" if ":" in gateway else gateway
    if not host:
        note("its apps get no AC_METADATA_URL: a pod without a network to the host reaches no metadata service")
        return ""
    return f"http://{host}:{_METADATA_PORT}/{wanted.token}"


def _ports(pod: Json, images: Json, wanted: RunArguments, note: Callable[[str], None]) -> list[Json]:
    """The ports to forward; none for a pod in the host's network, whose apps listen on the host's ports."""
    found = []
    for port in [] if wanted.networks is None else pod.get("ports") or []:
        own = port.get("podPort") or _app_port(pod, images, port["name"])
        if not wanted.networks:
            note(f"port {port['name']} is not led to the pod, which is on no network")
        elif port.get("hostPort"):
            found += [
                {
                    "hostPort": int(port["hostPort"]) + offset,
                    "containerPort": int(own["port"]) + offset,
                    "protocol": str(own.get("protocol") or "tcp"),
                    "hostIP": str(port.get("hostIP") or ""),
                }
                for offset in range(int(own.get("count") or 1))
            ]
    return found


def _app_port(pod: Json, images: Json, name: str) -> Json:
    apps = [entry.get("app") or images[entry["name"]].get("app") or {} for entry in pod.get("apps") or []]
    found: list[Json] = [port for app in apps for port in app.get("ports") or [] if port.get("name") == name]
    if not found:
        raise Stage1Error(f"port {name}: no app has one of that name")
    return found[0]


def _image(place: Place, app: str) -> Json:
    """The app's image manifest; empty if stage0 has left none, since the pod's manifest may suffice."""
    for path in (f"{ROOTFS}/{APPS}/{app}/manifest", f"appsinfo/{app}/manifest"):
        if os.path.lexists(f"{place.path}/{path}"):
            return place.json(path)
    return {}


def _name(entry: Json, what: str) -> str:
    """The entry's name, checked because it becomes part of paths."""
    name = entry.get("name")
    if not isinstance(name, str) or not name or len(name) > _LONGEST or not _NAME.issuperset(name):
        raise Stage1Error(f"not the name of {what}: {name!r}")
    return name


def _mounts(name: str, entry: Json, app: Json) -> list[tuple[str, str, bool, Json | None]]:
    """The app's mounts in the pod manifest: volume, path, whether read-only, and the app's own volume."""
    points = _points(app)
    found = []
    for mount in entry.get("mounts") or []:
        path = mount.get("path") or (points.get(mount["volume"]) or {}).get("path")
        if not path:
            raise Stage1Error(f"app {name}: the mount of volume {mount['volume']} has no path")
        path = _normal(path)
        read_only = any(each["path"] == path and each.get("readOnly") is True for each in points.values())
        found.append((mount["volume"], path, read_only, mount.get("appVolume")))
    return found


def _left(name: str, entry: Json, app: Json) -> list[tuple[str, str, bool]]:
    """The app's mount points without a mount, which get volumes of the same names: name, path, whether
    read-only."""
    taken = {path for _, path, _, _ in _mounts(name, entry, app)}
    left = [point for point in _points(app).values() if point["path"] not in taken]
    return [(point["name"], point["path"], point.get("readOnly") is True) for point in left]


def _points(app: Json) -> dict[str, Json]:
    return {point["name"]: {**point, "path": _normal(point["path"])} for point in app.get("mountPoints") or []}


def _normal(path: str) -> str:
    """The path without redundant slashes and dots, so that paths of mount points and of mounts can be compared."""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")])


def environment(place: Place, name: str, app: Json) -> list[list[str]]:
    """The app's environment: the manifest's variables, overridden by those of stage0's file.

    The file has a variable per line, or NUL-terminated variables. A value of several lines cannot be told from the
    variables that follow: so a multi-line value that is the same as the manifest's is taken from the manifest.
    """
    given = {pair["name"]: pair["value"] for pair in app.get("environment") or []}
    path = f"{place.rootfs}/rkt/env/{name}"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise Stage1Error(f"{path}: {why(error)}") from None
    end = "\0" if "\0" in text else "\n"
    for key, value in given.items():
        if end == "\n" and "\n" in value:
            text = f"\n{text}".replace(f"\n{key}={value}\n", "\n")[1:]
    for line in text.split(end):
        key, equals, value = line.partition("=")
        if key and equals:
            given[key] = value
    return [[key, value] for key, value in given.items()]


def _write_resolv_conf(path: str, dns: Json) -> None:
    """Writes a resolver configuration, if there are settings. :param dns: from the result of a network's
    plugins."""
    lines = [f"nameserver {each}" for each in dns.get("nameservers") or []]
    if dns.get("domain"):
        lines.append(f"domain {dns['domain']}")
    lines += [" ".join([key, *dns[key]]) for key in ("search", "options") if dns.get(key)]
    if lines:
        with open(path, "w") as file:
            file.write("\n".join([*lines, ""]))


def _add_own_name(path: str, hostname: str) -> None:
    with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
        if hostname not in text.split():
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}127.0.0.1 {hostname}\n")


def _device(volume: Json) -> Json | None:
    """The device that an app's cgroup has to allow for this volume; None: the volume is not a device."""
    source = volume.get("source") if volume.get("kind") == "host" else None
    try:
        found = os.stat(source or "/")
    except OSError:
        return None  # the mount reports the error later
    if not stat.S_ISBLK(found.st_mode) and not stat.S_ISCHR(found.st_mode):
        return None
    return {
        "path": "",  # the stager makes no other node for it
        "kind": "b" if stat.S_ISBLK(found.st_mode) else "c",
        "major": os.major(found.st_rdev),
        "minor": os.minor(found.st_rdev),
    }


def _user_namespace(users: tuple[int, int] | None) -> Json | None:
    if users is None:
        return None
    ids = [[0, *users]]
    return {"path": USER_NAMESPACE, "uids": ids, "gids": ids}
