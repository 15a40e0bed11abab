"""Who holds a pipe open: for messages that name a process and not only what it does."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_WORDS, _LETTERS = 4096, 80


class Holder:
    """A process that holds a pipe: ``descriptor`` is its lowest number there."""

    __slots__ = ("descriptor", "pid", "program")

    def __init__(self, pid: int, descriptor: int, program: str) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.program = program


def holders(pipe: int, pids: Iterable[int]) -> Iterator[Holder]:
    """Which of these processes hold an end of that pipe.

    Those that end meanwhile, or that we may not look into, are passed over.

    :param pipe: a descriptor of ours of either end.
    """
    return _holders(f"pipe:[{os.fstat(pipe).st_ino}]", pids)


def _holders(name: str, pids: Iterable[int]) -> Iterator[Holder]:
    for pid in pids:
        try:
            for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
                if _link(f"/proc/{pid}/fd/{number}") == name:
                    yield Holder(pid, number, program(pid))
                    break
        except OSError:
            continue


def is_held(inode: int, pids: Iterable[int]) -> bool:
    """Whether one of these processes holds an end of the pipe of that inode."""
    return any(True for _ in _holders(f"pipe:[{inode}]", pids))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def program(pid: int) -> str:
    """The beginning of its command, or its name where it has none; nothing that a terminal would act on.

    :raises OSError: it has ended.
    """
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        text = file.read(_WORDS)
    if not text.strip(b"\0"):
        with open(f"/proc/{pid}/comm", "rb") as file:
            text = file.read(_WORDS)
    words = " ".join(text.decode(errors="replace").replace("\0", " ").split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:_LETTERS]
