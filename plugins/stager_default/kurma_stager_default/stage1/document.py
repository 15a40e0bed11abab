"""The stager's manifest, made of what stage0 has laid out: the pod manifest, the apps' images, ``rkt/env/APP`` and
the files for ``/etc`` (Z2, Z7).
"""

from __future__ import annotations

import os

from kurma_stager_default.stage1 import isolators
from kurma_stager_default.stage1.place import APPS, ROOTFS, Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.linux.cgroup_layout import Layout
    from kurma_stager_default.stage1.arguments import RunArguments
    from kurma_stager_default.stage1.place import Place

    Json = dict[str, Any]

_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_LONGEST = 253
#: Where the pod's user namespace is, in the stager's root.
USER_NAMESPACE = "/userns"
#: Of the metadata service that rkt knows.
_METADATA_PORT = 18112


class Document:
    """:attr:`value` is the manifest, :attr:`volumes` the pod's volumes that its apps use.

    :param note: told, in a line each, what is passed over.
    :raises Stage1Error: something is wrong with the pod, or cannot be done.
    """

    def __init__(self, place: Place, wanted: RunArguments, layout: Layout, note: Callable[[str], None]) -> None:
        self._place = place
        self._layout = layout
        self._note = note
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
        #: Those of the host that lead to apps, as CNI's capability ``portMappings`` has them.
        self.ports = _ports(pod, images, wanted, note)
        if not self.apps:
            raise Stage1Error("the pod has no apps, and this stage1 runs no pods that change")
        if len(set(self.apps)) < len(self.apps):
            raise Stage1Error("two apps of the pod have the same name")
        if wanted.interactive:
            self._give_terminal(settings)
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
                    "dns": _dns(place),
                    "hosts": _hosts(place, self.hostname),
                    "podPlan": isolators.plan_of(pod.get("isolators") or [], "pod", layout, note),
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
            raise Stage1Error(f"app {name}: its exec is no list of words: {app['exec']!r}")
        return {
            "mounts": [self._mount(name, *each) for each in _mounts(name, entry, app)],
            "environment": environment(self._place, name, app),
            "plan": isolators.plan_of(app.get("isolators") or [], f"app {name}", self._layout, self._note),
        }

    def _mount(self, app: str, volume: str, path: str, read_only: bool, own: Json | None) -> Json:
        found = own or self._volumes.get(volume)
        if found is None:
            raise Stage1Error(f"app {app}: there is no volume {volume} for its mount point {path}")
        # One that is this app's alone may have the name of one of the pod's.
        name = f"{app}.{_name({'name': volume}, 'a volume')}" if own else volume
        self.volumes[name] = found
        return {"volume": name, "path": path, "readOnly": read_only or found.get("readOnly") is True}

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
    """:raises Stage1Error: see :class:`Document`; or a manifest is none."""
    try:
        return Document(place, wanted, layout, note)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        raise Stage1Error(f"{place.path}/pod, or an app's manifest: not understood: {text}") from None


def metadata_url(wanted: RunArguments, gateway: str, note: Callable[[str], None]) -> str:
    """What apps are told of it; empty: nothing. :param gateway: the host, in the pod's network; or empty."""
    if not wanted.token:
        return ""
    host = "127.0.0.1" if wanted.networks is None else f"[{gateway}]" if ":" in gateway else gateway
    if not host:
        note("its apps get no AC_METADATA_URL: a pod without a network to the host reaches no metadata service")
        return ""
    return f"http://{host}:{_METADATA_PORT}/{wanted.token}"


def _ports(pod: Json, images: Json, wanted: RunArguments, note: Callable[[str], None]) -> list[Json]:
    """In the host's network, apps have the host's ports themselves."""
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
    """Its manifest, where stage0 has left one; the pod's may say all that there is to know."""
    for path in (f"{ROOTFS}/{APPS}/{app}/manifest", f"appsinfo/{app}/manifest"):
        if os.path.lexists(f"{place.path}/{path}"):
            return place.json(path)
    return {}


def _name(entry: Json, what: str) -> str:
    """It is made part of paths."""
    name = entry.get("name")
    if not isinstance(name, str) or not name or len(name) > _LONGEST or not _NAME.issuperset(name):
        raise Stage1Error(f"not the name of {what}: {name!r}")
    return name


def _mounts(name: str, entry: Json, app: Json) -> list[tuple[str, str, bool, Json | None]]:
    """Volume, path, whether read-only, and the app's own volume: those that the pod names, and for every other
    mount point of the app the volume of its name."""
    points: dict[str, Json] = {
        point["name"]: {**point, "path": _normal(point["path"])} for point in app.get("mountPoints") or []
    }
    found = []
    for mount in entry.get("mounts") or []:
        path = mount.get("path") or (points.get(mount["volume"]) or {}).get("path")
        if not path:
            raise Stage1Error(f"app {name}: the mount of volume {mount['volume']} has no path")
        path = _normal(path)
        read_only = any(each["path"] == path and each.get("readOnly") is True for each in points.values())
        found.append((mount["volume"], path, read_only, mount.get("appVolume")))
    taken = {path for _, path, _, _ in found}
    left = [point for point in points.values() if point["path"] not in taken]
    return found + [(point["name"], point["path"], point.get("readOnly") is True, None) for point in left]


def _normal(path: str) -> str:
    """Who has written a mount point, and who a mount, may have written the same place otherwise."""
    return "/" + "/".join([part for part in path.split("/") if part not in ("", ".")])


def environment(place: Place, name: str, app: Json) -> list[list[str]]:
    """The app's own as the manifest has it, and over it what stage0 has written down for it.

    A line each there, or with a NUL behind each. In lines, a value of several cannot be told from the variables
    that follow: so what stands there just as the manifest has it is the manifest's.
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


def _lines(path: str) -> list[list[str]] | None:
    """The words of each line that is no comment; None: there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Stage1Error(f"{path}: {why(error)}") from None
    return [words for words in lines if words]


def _dns(place: Place) -> Json | None:
    lines = _lines(f"{place.rootfs}/etc/rkt-resolv.conf")
    if lines is None:
        return None
    found: Json = {"nameservers": [], "search": [], "options": []}
    for word, *rest in lines:
        if word == "nameserver":
            found["nameservers"] += rest[:1]
        elif word in ("search", "domain"):
            found["search"] = rest
        elif word == "options":
            found["options"] += rest
    return found


def _hosts(place: Place, hostname: str) -> list[list[Any]]:
    lines = _lines(f"{place.rootfs}/etc/rkt-hosts")
    if lines is not None:
        return [[address, names] for address, *names in lines if names]
    return [
        ["127.0.0.1", ["localhost"]],
        ["::1", ["localhost", "ip6-localhost", "ip6-loopback"]],
        ["127.0.0.1", [hostname]],
    ]


def _user_namespace(users: tuple[int, int] | None) -> Json | None:
    if users is None:
        return None
    ids = [[0, *users]]
    return {"path": USER_NAMESPACE, "uids": ids, "gids": ids}
