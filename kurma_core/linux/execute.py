"""Executing a program, and saying why it cannot be executed (Y3)."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

# Used where the environment has no PATH.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_FOUND = 127
NOT_EXECUTABLE = 126
_ELF_MACHINES = {
    3: "i386",
    8: "mips",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
_PT_INTERP = 3


class ExecuteError(OSError):
    """A program cannot be executed. :attr:`exit_code` is a shell's: 127 for not found, 126 for the rest."""

    def __init__(self, code: int, reason: str, program: str) -> None:
        super().__init__(code, reason, program)
        self.exit_code = NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``argv``. A name without a slash is looked for in the environment's PATH.

    :raises ExecuteError: it cannot be; the reason names the missing file, interpreter or loader.
    """
    name = argv[0]
    if "/" in name:
        candidates = [name]
    else:
        path = environment.get("PATH", DEFAULT_PATH)
        candidates = [os.path.join(directory or ".", name) for directory in path.split(":")] if name else []
    refused: ExecuteError | None = None
    for candidate in candidates:
        try:
            os.execve(candidate, tuple(argv), environment)  # noqa: S606 - that is the job
        except OSError as error:
            code = error.errno or errno.EIO
            if code in (errno.ENOENT, errno.ENOTDIR) and not os.path.exists(candidate):
                continue
            reason = why_not(candidate, code)
            refused = refused or ExecuteError(errno.ENOEXEC if code == errno.ENOENT else code, reason, candidate)
            if code not in (errno.EACCES, errno.EISDIR):
                break
    if refused is not None:
        raise refused
    reason = "no such file" if "/" in name else "not found in PATH"
    raise ExecuteError(errno.ENOENT, reason, name)


def why_not(program: str, code: int) -> str:
    """In words, why ``execve`` of a file that exists failed with the error number ``code``."""
    try:
        with open(program, "rb") as file:
            head = file.read(4096)
    except IsADirectoryError:
        return "it is a directory"
    except OSError:
        return os.strerror(code)
    if code == errno.EACCES and not os.access(program, os.X_OK):
        return "it lacks the permission to be executed"
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n", 1)[0].split()
        interpreter = os.fsdecode(words[0]) if words else ""
        if not interpreter:
            return "its first line names no interpreter"
        if not os.path.exists(interpreter):
            return f"its interpreter {interpreter} is missing"
        return f"its interpreter {interpreter} cannot be executed: {os.strerror(code)}"
    if head.startswith(b"\x7fELF") and len(head) >= 64:
        return _why_not_elf(head, code)
    if code == errno.ENOEXEC:
        return "it is neither a program of this machine nor a script with an interpreter"
    return os.strerror(code)


def _why_not_elf(head: bytes, code: int) -> str:
    order = "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]

    if code == errno.ENOEXEC:
        machine = number(18, 2)
        return (
            f"it is a program for {_ELF_MACHINES.get(machine, f'ELF machine {machine}')}, not {os.uname().machine}"
        )
    wide = head[4] == 2
    at, size, count = (
        (number(32, 8), number(54, 2), number(56, 2)) if wide else (number(28, 4), number(42, 2), number(44, 2))
    )
    for header in range(at, at + size * count, size or 1):
        if number(header, 4) == _PT_INTERP:
            start, length = (
                (number(header + 8, 8), number(header + 32, 8))
                if wide
                else (number(header + 4, 4), number(header + 16, 4))
            )
            loader = os.fsdecode(head[start : start + length].rstrip(b"\0"))
            if loader and not os.path.exists(loader):
                return f"its loader {loader} is missing"
    return os.strerror(code)
