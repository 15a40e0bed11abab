"""Makes a stager's root: plans its mounts, and writes the stager manifest, which is a file in it.

Implements Kurma Stager Specification, Stager Manifest and Filesystem Configuration.
"""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import VolumeError
from kurma_core.models.pod import stop_timeout_of
from kurma_core.spawn_plan import (
    Bind,
    Directory,
    File,
    FileSystemMount,
    Operation,
    Overlay,
    RootPlan,
    cgroups,
    proc,
    sysfs,
)
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kurma_core.errors import HostError, KurmaError
    from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup, VolumeSetup
    from kurma_core.linux.cgroups import CgroupTree
    from kurma_core.models.image import RenderedLayer
    from kurma_core.models.isolator import IdRange, IsolatorPlan


#: Most memory for the files that a stager writes to its root, outside of ``/pod``.
SCRATCH_SIZE = "64m"
#: Where the pod's user namespace is pinned in the stager's root, if the pod has one.
USER_NAMESPACE = "/userns"
#: The pod's log directory in the stager's root, if it has one.
LOGS = "/logs"
LAYERS, VOLUMES = "/layers", "/volumes"
#: A file system in memory for each app with secrets, with a file for each of them, by number.
SECRETS = "/secrets"
#: Bytes that a file in memory takes at least: the largest page of Linux.
_PAGE = 64 << 10


def stager_root(image: str, pod: PodSetup, manifest: bytes, tree: CgroupTree) -> RootPlan:
    """The mounts of a stager's root.

    :param image: the stager image's tree, shared by all its pods and never written to.
    :param manifest: the stager manifest.
    """
    places = places_of_pod(pod.directory, tree)
    return RootPlan((*waiting_root(image).operations, *places, *pod_parts(pod, manifest)))


def image_root(image: str) -> RootPlan:
    """The mounts of the stager's image alone, for its fork server."""
    return RootPlan((Overlay((image,), scratch=True, scratch_size=SCRATCH_SIZE), *_programs(image)))


def waiting_root(image: str) -> RootPlan:
    """The mounts that do not depend on the pod; :func:`places_of_pod` and :func:`pod_parts` are the others."""
    return RootPlan(
        (
            # The stager may write to its root; its changes are lost at the end of the mount namespace.
            Overlay((image,), scratch=True, scratch_size=SCRATCH_SIZE),
            Directory(LAYERS),
            Directory(VOLUMES),
            *_programs(image),
            Bind("/dev", "/dev"),
            proc(),
            sysfs(),
        )
    )


def places_of_pod(directory: str, tree: CgroupTree) -> list[Operation]:
    """The mounts of ``/pod`` and of the pod's cgroup, which can be made before the pod's manifest is known.

    :param directory: the pod's directory, which has a subdirectory ``pod``. :param tree: the existing cgroup.
    """
    return [Bind(f"{directory}/pod", "/pod", recursive=False), *cgroups(tree)]


def pod_parts(pod: PodSetup, manifest: bytes) -> list[Operation]:
    """The mounts of the pod's layers, volumes, user namespace and manifest, for a new root or a running
    stager's."""
    return [
        *layer_binds(layers_of(pod)),
        *volume_mounts(pod.volumes, links=pod.volume_links),
        *secret_files(pod.apps),
        *([] if pod.userns is None else [Bind(pod.userns.path, USER_NAMESPACE)]),
        *([] if pod.log_directory is None else [Bind(pod.log_directory, LOGS, links=True)]),
        File("/manifest", manifest, 0o600),
    ]


def secret_files(apps: Iterable[AppSetup]) -> list[Operation]:
    """The file system in memory of each app with secrets, and its files.

    It is only in the stager's mount namespace, so the kernel removes it with the last process of the pod.
    """
    found: list[Operation] = []
    for app in apps:
        if not app.secrets:
            continue
        size = sum(-(-len(secret.value) // _PAGE) * _PAGE for secret in app.secrets)
        options = {"mode": "0700", "size": str(size), "nr_inodes": str(len(app.secrets) + 1)}
        found.append(FileSystemMount("tmpfs", f"{SECRETS}/{app.name}", options, ("nosuid", "nodev", "noexec")))
        for number, secret in enumerate(app.secrets):
            place = f"{SECRETS}/{app.name}/{number}"
            found.append(File(place, secret.value, secret.mode, secret.uid, secret.gid))
    return found


def layers_of(pod: PodSetup) -> Iterator[RenderedLayer]:
    """The layers of the pod's apps and image volumes."""
    for app in pod.apps:
        yield from app.layers
    for volume in pod.volumes:
        yield from volume.layers


def layer_binds(layers: Iterable[RenderedLayer]) -> list[Operation]:
    """Read-only mounts of the layers, each once."""
    paths = {layer.id: layer.path for layer in layers}
    return [Bind(path, f"{LAYERS}/{name}", read_only=True, recursive=False) for name, path in paths.items()]


def volume_mounts(volumes: Iterable[VolumeSetup], *, links: bool) -> list[Operation]:
    """The mounts of the volumes; the stager mounts those of images.

    :param links: symbolic links in the sources' paths are followed, unless apps may have made them.
    """
    return [_volume_mount(volume, links) for volume in volumes if volume.image is None]


def _volume_mount(volume: VolumeSetup, links: bool) -> Operation:
    target = f"{VOLUMES}/{volume.name}"
    if volume.tmpfs is not None:
        read_only = ("ro",) if volume.read_only else ()
        return FileSystemMount("tmpfs", target, volume.tmpfs, ("nosuid", "nodev", "noexec", *read_only))
    return Bind(
        volume.mounted,
        target,
        read_only=volume.read_only,
        recursive=volume.recursive,
        links=links and not volume.sub_path,
        propagation=volume.propagation,
        read_only_submounts=volume.read_only_submounts is not False,
    )


def of_volume(error: HostError, volumes: Iterable[VolumeSetup]) -> KurmaError:
    """The error to raise if a mount of the root has failed; that of a volume's mount names the volume.

    The source existed when it was checked. The bind does not follow links, and fails if the source was changed
    since.
    """
    for volume in volumes:
        if volume.tmpfs is not None and error.data.get("path") == f"{VOLUMES}/{volume.name}":
            reason = os.strerror(int(str(error.data["errno"]))).lower()
            return VolumeError(f"volume {volume.name}: cannot be made in memory: {reason}", volume=volume.name)
        if error.data.get("path") == f"{volume.mounted} on {VOLUMES}/{volume.name}":
            number = int(str(error.data["errno"]))
            reason = os.strerror(number).lower()
            if number == errno.ELOOP:
                reason = "a symbolic link has come to stand there, or on the way"
            return VolumeError(
                f"volume {volume.name}: source {volume.mounted}: {reason}",
                hint="it was changed while the pod was being started",
                volume=volume.name,
                path=volume.mounted,
            )
    return error


def _programs(image: str) -> tuple[Operation, ...]:
    """A read-only mount of ``/opt/stager`` without the overlay.

    An app can make a process of the stager execute the stager's program again, by ``/proc/self/exe`` as a program
    in the app's root. ``/proc/PID/exe`` of that process leads to the program's file, which must not be writable.
    """
    path = image
    for name in ("opt", "stager"):
        path = f"{path}/{name}"
        if os.path.islink(path) or not os.path.isdir(path):
            return ()
    return (Bind(path, "/opt/stager", read_only=True, recursive=False),)


#: The key of ``stagerConfig`` that is reserved for Kurma, and the version of its value.
RESERVED_KEY = "kurma.io"
RESERVED_VERSION = 1
#: The stager's directory of hosts files, which the core keeps up to date.
NAMES = "/pod/hosts"


def stager_manifest(
    pod: PodSetup,
    version: str,
    *,
    stop_timeout: float,
    log_size: int,
    log_count: int,
    terminal_size: tuple[int, int] | None = None,
) -> bytes:
    """The manifest as JSON.

    :param version: version of Kurma.
    :param stop_timeout: seconds between SIGTERM and SIGKILL for an app, if the pod does not say it.
    :param log_size: bytes after which an app's log is rotated; ``log_count`` files are kept.
    :param terminal_size: initial rows and columns of the apps' terminals.
    """
    document = {
        "kurmaVersion": version,
        "name": pod.name,
        "pod": pod.manifest.to_json(),
        "images": dict(pod.images),
        "appImageOrder": {app.name: [layer.id for layer in app.layers] for app in pod.apps},
        "stagerConfig": {
            **pod.config,
            RESERVED_KEY: {
                "version": RESERVED_VERSION,
                "uuid": pod.uuid,
                "hostname": pod.hostname,
                "dns": None if pod.dns is None else {key: list(values) for key, values in pod.dns.items()},
                "hosts": [[address, list(names)] for address, names in pod.hosts],
                "names": NAMES if pod.names else None,
                "podPlan": plan_json(pod.pod_plan),
                "keep": pod.keep,
                "stopTimeout": stop_timeout if (own := stop_timeout_of(pod.manifest)) is None else own,
                "logs": {
                    "size": log_size,
                    "count": log_count,
                    **({} if pod.log_directory is None else {"directory": LOGS}),
                },
                "userns": None if pod.userns is None else _userns(pod.userns.ids),
                "apps": {app.name: _app(pod, app, terminal_size) for app in pod.apps},
            },
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _userns(ids: IdRange) -> dict[str, Any]:
    whole = [[0, ids.first, ids.count]]
    return {"path": USER_NAMESPACE, "uids": whole, "gids": whole}


def _app(pod: PodSetup, app: AppSetup, size: tuple[int, int] | None) -> dict[str, Any]:
    terminal: object = app.terminal
    if app.terminal and size is not None:
        terminal = {"rows": size[0], "columns": size[1]}
    volumes = {volume.name: volume for volume in pod.volumes}
    own: dict[str, Any] = {} if app.log_path is None else {"logPath": app.log_path}
    if app.stdin_ends != "last":
        own["stdinEnds"] = app.stdin_ends
    places = {f"{SECRETS}/{app.name}/{number}": secret for number, secret in enumerate(app.secrets)}
    if places:
        own["secretEnvironment"] = [[one.variable, place] for place, one in places.items() if one.variable]
    return {
        **own,
        "mounts": [
            *(
                {"volume": one.name, "path": one.path, "readOnly": True, "secret": place}
                for place, one in places.items()
                if one.path is not None
            ),
            *(
                {
                    "volume": mount.volume,
                    "path": mount.path,
                    "readOnly": mount.read_only,
                    "seed": mount.seed,
                    **_of_volume(volumes[mount.volume]),
                }
                for mount in app.mounts
            ),
        ],
        "environment": [list(pair) for pair in app.environment],
        "stdin": app.interactive,
        "stdinOpen": app.stdin_open,
        "terminal": terminal,
        "makeWorkingDirectory": app.make_working_directory,
        "replaceFiles": list(app.replace_files),
        "stopSignal": app.stop_signal,
        "plan": plan_json(pod.plans[app.name]),
    }


def _of_volume(volume: VolumeSetup) -> dict[str, Any]:
    """The keys of a mount that its volume decides. Rare keys are left out where they say nothing."""
    found: dict[str, Any] = {"idmap": volume.idmap}
    if volume.propagation != "private":
        found["propagation"] = volume.propagation
    if volume.read_only_submounts is False:
        found["readOnlySubmounts"] = False
    if volume.attributes:
        found["options"] = list(volume.attributes)
    if volume.layers:
        found["layers"] = [layer.id for layer in volume.layers]
        found["subPath"] = volume.sub_path
    return found


def plan_json(plan: IsolatorPlan) -> dict[str, Any]:
    """The plan for the stager, without the traffic limits, which the core applies to the pod's network namespace,
    and without the app's rights on the daemon's API."""
    return replace(plan, traffic=(), api=None, environment={}).to_json()
