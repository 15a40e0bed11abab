"""One entry of a tree that is copied, wherever it comes from and wherever it goes to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

#: How names begin of what is not whole yet.
UNFINISHED = ".kurma-cp-"
#: Bytes that are copied at a time.
PIECE = 1 << 20


class Reader(Protocol):
    def read(self, count: int, /) -> bytes: ...


class Entry(NamedTuple):
    """:param parts: its way from the top of what is copied; empty: the top itself.
    :param kind: ``file``, ``directory``, ``link``, or ``again``: another name of a file that came before.
    :param mode: permission bits. :param uid, gid: as its pod has them, or the host.
    :param mtime: nanoseconds since 1970. :param size: bytes, of a file.
    :param to: of a link. :param first: of ``again``: the other name.
    :param open: its content, of which ``size`` bytes count; who opens it closes it.
    """

    parts: tuple[str, ...]
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    to: str = ""
    first: tuple[str, ...] = ()
    open: Callable[[], int | Reader] | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return "/".join(self.parts) or "."


class Descriptor:
    """Reads from a descriptor, and closes it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, count: int) -> bytes:
        return os.read(self._fd, min(count, PIECE))

    def close(self) -> None:
        os.close(self._fd)
