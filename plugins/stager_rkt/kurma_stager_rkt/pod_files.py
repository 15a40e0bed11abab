"""Writes the files of a pod's directory that stage1 reads: manifests, environment, networks, DNS."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.appc.image import ImageManifest
from kurma_core.appc.reify import effective_app
from kurma_core.trees import user_database
from kurma_core.trees.merging import Shift
from kurma_core.trees.mount_targets import make_dirs

if TYPE_CHECKING:
    from kurma_core.appc.image import App
    from kurma_core.hookspecs.driver import HostTree
    from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup
    from kurma_core.models.network import Attachment, PortMapping

#: Directory below the pod's: configurations of Kurma's networks, for stage1 to join.
LOCAL_CONFIG = "local-config"
ROOTFS = "stage1/rootfs"
#: Kurma's own file in ``appsinfo/APP``: paths of the layers of the app's root, the top one first.
LAYERS = "kurma-layers.json"
METADATA = "AC_METADATA_URL"
#: Annotations of an app that can be attached to, one for each of its streams; and their values.
STREAMS = tuple(f"coreos.com/rkt/stage2/{name}" for name in ("stdin", "stdout", "stderr"))
TTY, STREAM, INTERACTIVE = "tty", "stream", "interactive"
#: Annotation of a pod whose apps can be added and removed.
MUTABLE = "coreos.com/rkt/stage1/mutable"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PLAIN, _DIRECTORY = 0o640, 0o750


def write_pod(place: str, pod: PodSetup, stage1: HostTree) -> None:
    """Writes the files that are known before the root file systems are made, except the pod's manifest.

    :param place: the pod's directory, empty.
    """
    _write(f"{place}/pod-created", "")
    _write(f"{place}/pod.lck", "")
    if pod.userns is not None:
        _write(f"{place}/private-users-prepared", str(pod.userns.ids))
    os.makedirs(f"{place}/{ROOTFS}", _DIRECTORY)
    _write(f"{place}/stage1/manifest", _json(stage1.manifest.to_json()))
    _write(f"{place}/stage1TreeStoreID", tree_id(stage1.id))
    for app in pod.apps:
        write_app_info(place, pod, app)
    os.makedirs(f"{place}/{LOCAL_CONFIG}/net.d", _DIRECTORY)
    for name, config in networks(pod).items():
        kind = "conflist" if "plugins" in config else "conf"
        _write(f"{place}/{LOCAL_CONFIG}/net.d/{name}.{kind}", _json(config))


def write_manifest(place: str, pod: PodSetup, *, attachable: bool, in_front: bool = False) -> None:
    """Writes the pod's manifest to its directory ``place``. For the other arguments see :func:`pod_manifest`."""
    _write(f"{place}/pod", _json(pod_manifest(pod, attachable=attachable, in_front=in_front)))


def write_app_info(place: str, pod: PodSetup, app: AppSetup) -> None:
    """Writes ``appsinfo/APP``: the image's manifest, and the name of its tree."""
    _write(f"{place}/appsinfo/{app.name}/manifest", _json(_image(pod, app)))
    _write(f"{place}/appsinfo/{app.name}/treeStoreID", tree_id(app.layers[0].id))
    _write(f"{place}/appsinfo/{app.name}/{LAYERS}", _json([one.path for one in app.layers]))


@contextlib.contextmanager
def inside(place: str, path: str, owner: tuple[int, int] = (0, 0)) -> Iterator[str]:
    """A directory of stage1's root as a path by descriptor; it is made if it is missing. By descriptor, since
    stage1's image or its processes may have put links to other places there.

    :param owner: owner of new directories.
    :raises OSError: a component of the path is not a directory.
    """
    root = os.open(f"{place}/{ROOTFS}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = make_dirs(root, path, 0o755, *owner, symlinks=True)
    finally:
        os.close(root)
    path = f"/proc/self/fd/{fd}"
    try:
        yield path
    except OSError as error:
        if isinstance(error.filename, str) and f"{error.filename}/".startswith(f"{path}/"):
            error.filename = os.readlink(path) + error.filename.removeprefix(path)  # a readable path for the user
        raise
    finally:
        os.close(fd)


def write_rootfs(place: str, pod: PodSetup) -> None:
    """Writes what stage1 finds in its own root beside the files of its image."""
    owner = _root(pod)
    with inside(place, "rkt/status", owner), inside(place, "opt/stage2", owner) as stage2:
        for app in pod.apps:
            write_app(stage2, pod, app)
    files = {"rkt-resolv.conf": resolv_conf(pod), "rkt-hosts": hosts(pod)}
    for name, text in files.items():
        if text:
            with inside(place, "etc", owner) as etc:
                _own(_write(f"{etc}/{name}", text, 0o644), pod)


def write_app(stage2: str, pod: PodSetup, app: AppSetup) -> None:
    """Writes an app's directories and its manifest. :param stage2: the directory of stage1's root, by descriptor.

    :raises OSError: an entry is not a directory, but for example a link.
    """
    for directory in (f"{stage2}/{app.name}", f"{stage2}/{app.name}/rootfs"):
        try:
            os.mkdir(directory, 0o755)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(directory).st_mode):
                raise
        else:
            _own(directory, pod)
    _own(_write(f"{stage2}/{app.name}/manifest", _json(_image(pod, app))), pod)


def write_environment(place: str, pod: PodSetup, app: AppSetup) -> None:
    """Writes ``rkt/env/APP``: the app's own variables, and those of every app. The app's root must exist."""
    found = effective_app(pod.manifest.app(app.name), ImageManifest.parse(_image(pod, app)))
    with inside(place, "rkt/env", _root(pod)) as env, inside(place, f"opt/stage2/{app.name}/rootfs") as root:
        values = {**_of_user(root, found.user), "AC_APP_NAME": app.name, **_environment(pod, found, app)}
        _own(_write(f"{env}/{app.name}", "".join([f"{key}={value}\n" for key, value in values.items()])), pod)


def _of_user(root: str, name: str) -> dict[str, str]:
    """The variables of the app's user: from the image's user database, else defaults.

    :param root: the app's root, by descriptor.
    """
    user = user_database.User(0, 0, None, None, None)
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        user = user_database.find_user(fd, name, proc=True)
    except (LookupError, OSError):
        pass  # stage1 reports the same error
    finally:
        os.close(fd)
    named, home = ("root", "/root") if name in ("", "0") else (name, "/")
    named = user.name or named
    return {
        "PATH": _PATH,
        "SHELL": user.shell or "/bin/sh",
        "USER": named,
        "LOGNAME": named,
        "HOME": user.home or home,
    }


def mode(pod: PodSetup, app: AppSetup, *, in_front: bool) -> str:
    """The mode of the app's streams. Empty: stage1's choice, without attaching.

    :param in_front: the pod runs in the foreground, with the caller's standard input.
    """
    if in_front and (app.interactive or (app.terminal and app.stdin_open and len(pod.apps) == 1)):
        return INTERACTIVE
    return TTY if app.terminal else STREAM if app.stdin_open or app.interactive else ""


def modes_of(app: Mapping[str, Any]) -> dict[str, str]:
    """The modes of an app's streams by its annotations. :param app: as a pod manifest has it."""
    return {one["name"]: one["value"] for one in app.get("annotations", ()) if one["name"] in STREAMS}


def pod_manifest(pod: PodSetup, *, attachable: bool, in_front: bool = False) -> dict[str, Any]:
    """The pod manifest, with each app's complete ``app``, also if it comes from the image.

    :param attachable: stage1 can attach. :param in_front: see :func:`mode`.
    """
    value = pod.manifest.to_json()
    if pod.keep:
        annotations = [one for one in value.get("annotations", ()) if one["name"] != MUTABLE]
        value["annotations"] = [*annotations, {"name": MUTABLE, "value": "true"}]
    setups = {each.name: each for each in pod.apps}
    for app, document in zip(pod.manifest.apps, value["apps"], strict=True):
        setup = setups[app.name]
        found = effective_app(app, ImageManifest.parse(_image(pod, setup)))
        environment = [{"name": k, "value": v} for k, v in _environment(pod, found, setup).items()]
        document["app"] = {**found.to_json(), "environment": environment}
        document["mounts"] = [{"volume": each.volume, "path": each.path} for each in setup.mounts]
        streams = mode(pod, setup, in_front=in_front)
        if attachable and streams:
            # The pod author's own annotation wins.
            new = [{"name": name, "value": streams} for name in STREAMS if name not in modes_of(document)]
            document["annotations"] = [*document.get("annotations", ()), *new]
    ports: list[dict[str, Any]] = []
    for published in [port for one in pod.attachments for port in one.ports]:
        ports.append(_port(pod, published, {port["name"] for port in ports}))
    if ports:
        value["ports"] = ports
    return value


def _port(pod: PodSetup, port: PortMapping, taken: Collection[str]) -> dict[str, Any]:
    """One published port: by its name in an app, else as a ``podPort`` with a generated name.

    :param taken: names of the pod's other published ports; each name must be unique.
    """
    host = {"hostPort": port.host_port, **({"hostIP": port.host_ip} if port.host_ip else {})}
    setups = {each.name: each for each in pod.apps}
    for app in pod.manifest.apps:
        found = effective_app(app, ImageManifest.parse(_image(pod, setups[app.name])))
        for known in found.ports:
            same = (known.port, known.protocol, known.count) == (port.pod_port, port.protocol, 1)
            if same and known.name not in taken:
                return {"name": known.name, **host}
    name = f"port-{port.host_port}-{port.protocol}"
    if name in taken:  # at another address of the host
        name += f"-{len(taken)}"
    inside = {"name": name, "protocol": port.protocol, "port": port.pod_port, "count": 1, "socketActivated": False}
    return {"name": name, **host, "podPort": inside}


def hosts(pod: PodSetup) -> str:
    """``/etc/hosts``, if the user asked for entries. Empty: stage1 uses its default."""
    lines = pod.hosts if "hosts" in pod.asked else ()
    return "".join(f"{address}\t{' '.join(names)}\n" for address, names in lines)


def resolv_conf(pod: PodSetup) -> str:
    """``/etc/resolv.conf``, if the user asked for DNS settings. Empty: stage1 uses its default."""
    dns = (pod.dns or {}) if "dns" in pod.asked else {}
    lines = [f"nameserver {server}\n" for server in dns.get("nameservers", ())]
    for word, key in (("search", "search"), ("options", "options")):
        if dns.get(key):
            lines.append(f"{word} {' '.join(dns[key])}\n")
    return "".join(lines)


def network_names(pod: PodSetup) -> tuple[str, ...]:
    """The values of ``--net``, with their arguments. Empty: the host's network."""
    if not pod.attachments:
        return ()
    return tuple(_with_arguments(one) for one in pod.attachments if not one.base) or ("none",)


def _with_arguments(one: Attachment) -> str:
    """The network with its arguments: CNI's ``IP`` argument takes one address, without a prefix length."""
    return ":IP=".join((name_of(one), *(ip.partition("/")[0] for ip in one.request.ips[:1])))


def name_of(attachment: Attachment) -> str:
    """The network's name in its configuration, by which plugins keep addresses. A network that is chosen from a
    directory of files has another name as well, by which pods request it."""
    return str(attachment.config.get("name") or attachment.network)


def networks(pod: PodSetup) -> dict[str, Mapping[str, Any]]:
    """The CNI configurations of networks, by name. stage1 itself must know the other names."""
    return {
        name_of(one): {**one.config, "name": name_of(one)}
        for one in pod.attachments
        if not one.base and ("type" in one.config or "plugins" in one.config)
    }


def tree_id(image: str) -> str:
    """rkt's name for the image's tree, which is also a directory's name."""
    return "deps-" + image


def _environment(pod: PodSetup, app: App, setup: AppSetup) -> dict[str, str]:
    found = {**{each.name: each.value for each in app.environment}, **dict(setup.environment)}
    if pod.attachments:
        # For pods whose stage1 joins the networks, Kurma's service is available in the host's network only.
        found.pop(METADATA, None)
    return found


def _image(pod: PodSetup, app: AppSetup) -> Any:
    """The app's own image manifest."""
    named = next(each.image.id for each in pod.manifest.apps if each.name == app.name)
    return pod.images[str(named) if str(named) in pod.images else app.layers[0].id]


def _json(value: object) -> str:
    return json.dumps(value) + "\n"


def shift(pod: PodSetup) -> Shift | None:
    """The mapping of owners in the pod's root file systems; None: there is none."""
    return None if pod.userns is None else Shift(pod.userns.ids)


def _root(pod: PodSetup) -> tuple[int, int]:
    """The host's ids of root in the pod's user namespace."""
    to = shift(pod)
    return (0, 0) if to is None else to.ids(0, 0)


def _own(path: str, pod: PodSetup) -> None:
    """Makes root of the pod's user namespace the owner of a file in stage1's root."""
    if pod.userns is not None:
        os.chown(path, *_root(pod), follow_symlinks=False)


def _write(path: str, text: str, mode: int = _PLAIN) -> str:
    """:returns: the path."""
    os.makedirs(os.path.dirname(path), _DIRECTORY, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path
