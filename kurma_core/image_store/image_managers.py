"""Records which programs manage an image of the store: garbage collection keeps it until they give it up.

``images/ID/managers`` is there only for an image that a program manages, or has given up while pods used it.
"""

from __future__ import annotations

import contextlib
import json
import os

from kurma_core.errors import StoreError, UsageError
from kurma_core.image_store.durable import guard, no_room
from kurma_core.json_text import loads
from kurma_core.linux.files import replace_file
from kurma_core.schema import fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.image_store.durable import Store

_FILE = "managers"
_SHAPE = {"managers": [str], "released": bool}
_LONGEST = 512


def check_name(manager: str) -> str:
    """Returns the name. :raises UsageError: it is empty, too long, or not printable on one line."""
    if not (0 < len(manager) <= _LONGEST and manager.isprintable()):
        raise UsageError(
            f"{manager[:40]!r} is not the name of a manager",
            hint=f"write one line of 1 to {_LONGEST} printable characters",
        )
    return manager


def read(path_in: Callable[..., str], image_id: str) -> tuple[tuple[str, ...], bool]:
    """The image's managers, and whether the last of them has given it up while pods used it.

    :raises StoreError: the file is damaged.
    """
    path = path_in("images", image_id, _FILE)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return (), False
    try:
        value = loads(text, own=True)
        fit(value, _SHAPE, "the record")
    except ValueError as error:
        raise StoreError(
            f"the image store is damaged: {path} is not readable: {error}",
            hint="remove the file; its managers then fetch the image again",
            path=path,
        ) from error
    return tuple(value["managers"]), value["released"]


def hold(store: Store, image_id: str, manager: str | None) -> None:
    """Adds a manager. :param manager: None: a person has fetched the image, so that it is no longer given up.

    :raises StoreError: the disk is full, …
    """
    found, released = read(store.path, image_id)
    wanted = found if manager is None or manager in found else (*found, manager)
    if wanted == found and not released:
        return
    with guard("cannot record who manages an image", store.root), store.locked(exclusive=True):
        _write(store, image_id, wanted, released=False)


def release(store: Store, image_id: str, manager: str) -> tuple[str, ...]:
    """Removes a manager. :returns: the managers that are left.

    :raises StoreError: the record cannot be changed.
    """
    with guard("cannot record who manages an image", store.root), store.locked(exclusive=True):
        found, _ = read(store.path, image_id)
        left = tuple(name for name in found if name != manager)
        try:
            _write(store, image_id, left, released=not left)
        except OSError as error:
            # Images are given up because the disk is full.
            if left or not no_room(error):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.unlink(store.path("images", image_id, _FILE))
    return left


def _write(store: Store, image_id: str, managers: tuple[str, ...], *, released: bool) -> None:
    path = store.path("images", image_id, _FILE)
    if not managers and not released:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    replace_file(path, json.dumps({"managers": list(managers), "released": released}).encode() + b"\n")
