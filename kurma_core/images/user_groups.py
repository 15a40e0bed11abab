"""Looks up the groups of a user in an image's own ``/etc/passwd`` and ``/etc/group``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kurma_core.appc.image import MAX_ID
from kurma_core.linux.beneath import open_regular

if TYPE_CHECKING:
    from kurma_core.hookspecs.renderer import ImageLayer

#: Longest passwd or group file that is read, bytes.
_LIMIT = 4 << 20


class ImageFiles:
    """The files of stacked layers; see :class:`kurma_core.hookspecs.fetcher.ImageFiles`.

    :param layers: lowest first.
    """

    def __init__(self, layers: Sequence[ImageLayer]) -> None:
        self._layers = layers

    def read(self, path: str) -> str:
        parent = os.path.dirname(path)
        for layer in reversed(self._layers):
            content = _read_beneath(layer.path, path)
            if content is not None:
                return content
            if path in layer.removed or parent in layer.removed or parent in layer.opaque or "" in layer.opaque:
                return ""
        return ""

    def groups_of(self, user: str) -> tuple[str, tuple[int, ...]]:
        if user.startswith("/"):
            return user, ()
        name, group = _account(user, self.read("etc/passwd"))
        others = _memberships(name, self.read("etc/group")) if name is not None else ()
        return str(group), tuple(gid for gid in others if gid != group)


def _account(user: str, passwd: str) -> tuple[str | None, int]:
    """Name and primary group of a user given by name or number; an unknown user has the group
    0."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and user in (fields[0], fields[2]) and (group := _number(fields[3])) is not None:
            return fields[0], group
    return None, 0


def _memberships(name: str, groups: str) -> tuple[int, ...]:
    found = set()
    for line in groups.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and name in fields[3].split(",") and (gid := _number(fields[2])) is not None:
            found.add(gid)
    return tuple(sorted(found))


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_ID:
        return None
    return int(text)


def _read_beneath(root: str, path: str) -> str | None:
    """The file in one layer; None: the layer does not contain the path."""
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = open_regular(root_fd, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""  # a link, a device, or what cannot be opened
    finally:
        os.close(root_fd)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_LIMIT).decode(errors="surrogateescape")
