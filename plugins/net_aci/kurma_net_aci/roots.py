"""The roots of a network's scripts: one for each image, kept as long as a pod or the network needs it.

A root is a copy of the image's tree: files that scripts write stay, file locks work between calls, and a pod can
leave by the same image by which it joined, also after that image was removed from the store or is no longer
trusted. (An overlay cannot do this: one upper directory must not be mounted twice at a time.)
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs.driver import HostTree
from kurma_core.json_text import loads
from kurma_core.linux.beneath import open_in_root, remove_tree
from kurma_core.linux.process import DEFAULT_PATH
from kurma_core.schema import fit
from kurma_core.trees import merging
from kurma_core.value import frozen
from kurma_net_aci.records import Place

Json = Any
SCRIPTS = ("setup", "add", "del")
#: Characters of an image's ID that name its root.
_NAME = 40
_NEW = ".new"
#: Shape of ``image.json``.
_ROOT_RECORD = {"image": str, "environment": {str: str}, "aci": str}


def script_path(script: str) -> str:
    """Returns the path of a script in the image (Kurma Network Specification, The Container and The API)."""
    return f"/opt/network/{script}"


@frozen
class Root:
    """A root of a network's scripts.

    :param path: the tree. :param environment: environment of the scripts. :param aci: locator of the image.
    """

    image: str
    path: str
    environment: dict[str, str]
    aci: str


@frozen
class _Step:
    """A whole tree as an argument of :func:`kurma_core.trees.merging.merge`."""

    path: str
    root: str = ""
    filter: None = None
    removed: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


def find(place: Place, image: str) -> Root | None:
    """Returns the root made from that image; None: there is none."""
    directory = os.path.join(place.roots, image[:_NAME])
    try:
        with open(os.path.join(directory, "image.json"), encoding="utf-8") as file:
            value = loads(file.read(), own=True)
        fit(value, _ROOT_RECORD, "the record")
        return Root(value["image"], os.path.join(directory, "rootfs"), value["environment"], value["aci"])
    except (FileNotFoundError, ValueError):
        return None


def make(place: Place, image: HostTree, aci: str) -> Root:
    """Makes a new root. The caller holds the network's lock exclusively.

    :raises NetworkError: the disk is full, or the store is removing the tree.
    """
    final = os.path.join(place.roots, image.id[:_NAME])
    new = os.path.join(place.roots, _NEW)
    app = image.manifest.app
    environment = {"PATH": DEFAULT_PATH}
    environment.update({} if app is None else {one.name: one.value for one in app.environment})
    try:
        os.makedirs(place.roots, 0o700, exist_ok=True)
        _remove(place, _NEW)
        _remove(place, image.id[:_NAME])
        os.makedirs(f"{new}/rootfs", 0o755)
        merging.merge(f"{new}/rootfs", [_Step(image.path)], copy=True)
        with open(f"{new}/image.json", "x", encoding="utf-8") as file:
            json.dump({"image": image.id, "environment": environment, "aci": aci}, file)
        os.rename(new, final)
    except OSError as error:
        with suppress(OSError):
            _remove(place, _NEW)
        raise NetworkError(
            f'network "{place.network}": cannot make a root of {aci} in {place.roots}: {error.strerror}'
            + (f": {error.filename}" if error.filename else ""),
            network=place.network,
            errno=error.errno,
        ) from error
    return Root(image.id, f"{final}/rootfs", environment, aci)


def check_scripts(root: Root, network: str) -> None:
    """Checks the scripts of a root. :raises NetworkError: one is missing, or is not executable."""
    top = os.open(root.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for script in SCRIPTS:
            path = script_path(script)
            problem = _problem(top, path)
            if problem is not None:
                raise NetworkError(
                    f'network "{network}": {problem}: {path} of {root.aci}',
                    hint=f"an image of a network has {', '.join(map(script_path, SCRIPTS))}, all executable",
                    network=network,
                    image=root.image,
                )
    finally:
        os.close(top)


def _problem(top: int, path: str) -> str | None:
    try:
        fd = open_in_root(top, path, os.O_PATH)
    except OSError as error:
        return (error.strerror or "cannot be opened").lower()
    try:
        mode = os.fstat(fd).st_mode
    finally:
        os.close(fd)
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    return None if mode & 0o111 else "is not executable"


def names(place: Place) -> tuple[str, ...]:
    """Returns the names of all roots, incomplete ones included."""
    try:
        return tuple(sorted(os.listdir(place.roots)))
    except FileNotFoundError:
        return ()


def path_of(place: Place, name: str) -> str:
    return os.path.join(place.roots, name, "rootfs")


def superfluous(place: Place, current: str | None, needed: Collection[str]) -> tuple[str, ...]:
    """Returns the names of roots that neither the network nor a pod needs.

    :param current: image of the network's current root. :param needed: images of the roots in which pods were
        added.
    """
    kept = {image[:_NAME] for image in (*needed, *([] if current is None else [current]))}
    return tuple(name for name in names(place) if name not in kept)


def remove(place: Place, name: str) -> None:
    """Removes a root. The caller holds the network's lock exclusively, and no process may run in the root.

    :raises NetworkError: it cannot be removed.
    """
    try:
        _remove(place, name)
    except OSError as error:
        raise NetworkError(
            f'network "{place.network}": cannot remove {place.roots}/{name}: {error.strerror}',
            network=place.network,
            errno=error.errno,
        ) from error


def _remove(place: Place, name: str) -> None:
    try:
        parent = os.open(place.roots, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        remove_tree(parent, name)
    finally:
        os.close(parent)
