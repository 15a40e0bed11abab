"""The roots of apps whose pod keeps them after its end (annotation ``kurma.io/keep-root``): the place that
``kurma cp`` and ``kurma commit`` read, and the changes that ``kurma diff`` lists.

The stager writes the changes of each execution of an app to ``pod/apps/APP/NUMBER/upper`` below the pod's
directory: the upper directory of an overlay, or, if ``work`` is not beside it, a copy of the whole root. Kurma
removes it at the next start of the pod, and with the pod.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from kurma_core.api.pods import RootChange
from kurma_core.errors import HostError, PodStateError, StagerError
from kurma_core.linux.beneath import open_beneath, open_in_root
from kurma_core.models.pod import ENDED_STATES
from kurma_core.pods.inside.copy_source import Place
from kurma_core.pods.record.pod_record import the_app
from kurma_core.trees.overlay import mount_overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from kurma_core.models.image import ImageRecord
    from kurma_core.models.isolator import IdRange
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.services import Services

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
#: Kurma makes these files in every root, so no app has changed them.
_OURS = frozenset({"dev", "proc", "sys", "etc/hostname", "etc/hosts", "etc/resolv.conf"})
#: Those of them that are files with content.
_WRITTEN = frozenset(name.encode() for name in _OURS if name.startswith("etc/"))
#: The extended attribute of a directory of an overlay that hides the lower directory of its name.
_OPAQUE = "trusted.overlay.opaque"


class KeptRoot(Place):
    """A side of a copy: the root of an app of an ended pod, read-only and without its volumes. Links in it cannot
    lead out of it.

    :raises PodStateError: the pod has not ended, or keeps no roots.
    :raises AppNotFoundError: there is no such app.
    :raises HostError: its overlay cannot be mounted.
    """

    read_only = "the pod has ended"

    def __init__(self, services: Services, record: PodRecord, app: str | None) -> None:
        if record.state not in ENDED_STATES:
            raise PodStateError(
                f"cannot read the kept root of pod {record.name}: it is {record.state}",
                hint=f"kurma stop {record.uuid[:8]}",
                pod=record.uuid,
            )
        found = the_app(record, app).name
        self.name = f"app {found} of pod {record.name}"
        with _Changes(services, record, found) as changes:
            if changes.whole:
                self._root = os.dup(changes.upper)
            else:
                try:
                    self._root = mount_overlay([changes.path, *_layers(services, record, found)])
                except OSError as error:
                    raise HostError.of(f"cannot mount the root of {self.name}", error) from None
        #: Changes have the owners of the pod's user namespace, the image's files their own.
        self._shifted = record.userns

    @property
    def descriptor(self) -> int:
        """Of the root's directory; closed by :meth:`close`."""
        return self._root

    def _open(self, path: str, flags: int) -> int:
        return open_in_root(self._root, path, flags)

    def called(self, path: str) -> str:
        return f"{path} in {self.name}"

    def inside(self, number: int) -> int:
        return unshifted(self._shifted, number)

    def close(self) -> None:
        os.close(self._root)


def unshifted(ids: IdRange | None, number: int) -> int:
    """An owner on disk as the app saw it. Files of the image are below the range of any user namespace.

    :param ids: of the pod's user namespace; None: it had none.
    """
    return number - ids.first if ids is not None and ids.first <= number <= ids.last else number


def changes(services: Services, record: PodRecord, app: str | None) -> list[RootChange]:
    """The changes that the last execution of an app has made to the files of its image, by path. Files that Kurma
    makes in every root, and the places of volumes and secrets, are left out.

    :raises PodStateError: the app's root is gone.
    :raises StagerError: the stager made the root as a copy, in which changes cannot be told from the image.
    """
    found = the_app(record, app).name
    own = {*_OURS, *_volume_paths(record, found)}
    with _Changes(services, record, found) as made:
        if made.whole:
            raise StagerError(
                f"stager {record.stager} made the root of app {found} of pod {record.name} as a copy: its changes "
                "are not known",
                hint="set graphStorage: overlay in the stager's config, on a file system that overlay supports",
            )
        try:
            below = mount_overlay(_layers(services, record, found))
        except OSError as error:
            raise HostError.of(f"cannot mount the image of app {found}", error) from None
        try:
            return sorted(_compare(made.upper, below, "", own), key=lambda one: one.path)
        finally:
            os.close(below)


def commit(
    services: Services, record: PodRecord, app: str | None, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> ImageRecord:
    """Makes an image of the kept root of an app of an ended pod, and puts it into the store. Volumes, sockets, and
    the files of ``/etc`` that Kurma makes for each pod are left out.

    :param change: gets the manifest of the app's image with the app as it ran, and returns the manifest of the new
        image.
    :raises PodStateError: the pod has not ended, or keeps no roots.
    :raises ManifestError: the new manifest violates the specification.
    """
    found = the_app(record, app).name
    document = services.store.directory(record.uuid).read_document()
    image = services.images.manifest(document.images[found])
    ran = next(one.app for one in document.manifest.apps if one.name == found)
    manifest = image.to_json()
    if ran is not None:
        kept = {"isolators": manifest["app"]["isolators"]} if "isolators" in (manifest.get("app") or {}) else {}
        manifest["app"] = {**{key: value for key, value in ran.to_json().items() if key != "isolators"}, **kept}
    for key in ("dependencies", "pathWhitelist"):
        manifest.pop(key, None)
    root = KeptRoot(services, record, found)

    def owner(path: bytes, status: os.stat_result) -> tuple[int, int] | None:
        if stat.S_ISSOCK(status.st_mode) or path in _WRITTEN:
            return None
        return root.inside(status.st_uid), root.inside(status.st_gid)

    try:
        return services.images.build(f"/proc/self/fd/{root.descriptor}/.", change(manifest), owner=owner)
    finally:
        root.close()


def _compare(upper: int, below: int, prefix: str, own: Collection[str]) -> Iterator[RootChange]:
    """:param upper: a directory of changes. :param below: the whole image. :param prefix: path of ``upper``."""
    for name in os.listdir(upper):
        path = f"{prefix}{name}"
        status = os.stat(name, dir_fd=upper, follow_symlinks=False)
        before = _status(below, path)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            if before is not None:
                yield RootChange(f"/{path}", "deleted")
            continue
        if path not in own and not (before is not None and stat.S_ISDIR(status.st_mode)):
            yield RootChange(f"/{path}", "added" if before is None else "changed")
        if not stat.S_ISDIR(status.st_mode):
            if before is not None and stat.S_ISDIR(before.st_mode):
                yield from _deleted(below, path, set())
            continue
        fd = os.open(name, _DIRECTORY, dir_fd=upper)
        try:
            inner = list(_compare(fd, below, f"{path}/", own))
            if before is not None and stat.S_ISDIR(before.st_mode) and _is_opaque(fd):
                inner += _deleted(below, path, set(os.listdir(fd)))
        finally:
            os.close(fd)
        # The overlay has a copy of each directory above a change, and of those above Kurma's own files.
        if before is not None and path not in own and (inner or before.st_mode != status.st_mode):
            yield RootChange(f"/{path}", "changed")
        yield from inner


def _deleted(below: int, path: str, kept: set[str]) -> Iterator[RootChange]:
    """The entries of a directory of the image that another directory or file hides."""
    fd = open_beneath(below, path, _DIRECTORY)
    try:
        for name in os.listdir(fd):
            if name not in kept:
                yield RootChange(f"/{path}/{name}", "deleted")
    finally:
        os.close(fd)


def _status(root: int, path: str) -> os.stat_result | None:
    """Of a file of the image; None: it has none there."""
    try:
        fd = open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # neither it nor, perhaps, its directory
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def _is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(fd, _OPAQUE) == b"y"
    except OSError:
        return False


def _volume_paths(record: PodRecord, app: str) -> set[str]:
    """Where the app's volumes and secrets are mounted, and the directories above."""
    found: set[str] = set()
    for one in record.manifest.get("apps") or ():
        if one["name"] != app:
            continue
        mounted = [mount["path"] for mount in one.get("mounts") or ()]
        mounted += [secret["target"] for secret in one.get("secrets") or () if "target" in secret]
        for path in mounted:
            path = path.strip("/")
            while path:
                found.add(path)
                path = path.rpartition("/")[0]
    return found


def _layers(services: Services, record: PodRecord, app: str) -> list[str]:
    """The directories of the app's image, the top one first."""
    document = services.store.directory(record.uuid).read_document()
    rendered = services.images.render(
        document.images[app], document.renderer, verify=document.verify, insecure=document.insecure
    )
    return [layer.path for layer in rendered.layers]


class _Changes:
    """The directory of the changes of an app's last execution, as a context manager.

    :attr:`upper`: its descriptor. :attr:`path`: its path on the host, by the descriptor. :attr:`whole`: it is a
        copy of the whole root.
    :raises PodStateError: it is gone.
    """

    def __init__(self, services: Services, record: PodRecord, app: str) -> None:
        top = os.open(services.store.directory(record.uuid).path, _DIRECTORY)
        try:
            place = open_beneath(top, f"pod/apps/{app}", _DIRECTORY)
            try:
                number = max((name for name in os.listdir(place) if name.isdecimal()), key=int, default=None)
                if number is None:
                    raise FileNotFoundError
                self.upper = open_beneath(place, f"{number}/upper", _DIRECTORY)
                self.whole = "work" not in os.listdir(f"/proc/self/fd/{place}/{number}")
            finally:
                os.close(place)
        except FileNotFoundError:
            raise PodStateError(
                f"pod {record.name} has no root of app {app}",
                hint="a pod that is made with --keep-root keeps them after its end; its volumes stay in any case",
                pod=record.uuid,
            ) from None
        finally:
            os.close(top)
        self.path = f"/proc/self/fd/{self.upper}"

    def __enter__(self) -> _Changes:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.upper)
