"""Finding the program to run, and saying why it cannot be run (Y3).

Everything here runs in the app's root and as the app's user, right before exec: what counts is what that user may.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_stager_default.inside.manifest import PATH

NOT_FOUND = 127
NOT_EXECUTABLE = 126

# e_machine of ELF by the machine's name
_MACHINES = {"x86_64": 62, "i686": 3, "aarch64": 183, "armv7l": 40, "ppc64le": 21, "s390x": 22, "riscv64": 243}
_PT_INTERP = 3


class ExecError(Exception):
    """:attr:`code` is 127 (not found) or 126 (not executable)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def execute(argv: list[str], environment: dict[str, str]) -> None:
    """Become the program; comes back only by :class:`ExecError`."""
    raw = [os.fsencode(argument) for argument in argv]
    pairs = {os.fsencode(key): os.fsencode(value) for key, value in environment.items()}
    name = argv[0]
    if not name:
        raise ExecError(NOT_FOUND, "the command's name is empty")
    if "/" in name:
        raise _try(name, raw, pairs)
    denied: ExecError | None = None
    searched = environment.get("PATH", PATH)
    for directory in searched.split(":"):
        error = _try(f"{directory or '.'}/{name}", raw, pairs)
        if error.code != NOT_FOUND and denied is None:
            denied = error
    raise denied or ExecError(NOT_FOUND, f"{name}: not found in {searched}")


def _try(path: str, argv: list[bytes], environment: dict[bytes, bytes]) -> ExecError:
    try:
        os.execve(path, argv, environment)  # noqa: S606 - that is the job
    except OSError as error:
        return _explain(path, error)
    except ValueError as error:  # a NUL in an argument
        return ExecError(NOT_EXECUTABLE, f"{path}: {error}")
    raise AssertionError("execve returned")


def _explain(path: str, error: OSError) -> ExecError:
    try:
        status = os.stat(path)
    except OSError as missing:
        if missing.errno in (errno.ENOENT, errno.ENOTDIR):
            return ExecError(NOT_FOUND, f"{path}: not found")
        if missing.errno == errno.ELOOP:
            return ExecError(NOT_FOUND, f"{path}: too many symbolic links")
        return ExecError(NOT_EXECUTABLE, f"{path}: {missing.strerror}")
    if stat.S_ISDIR(status.st_mode):
        return ExecError(NOT_EXECUTABLE, f"{path}: is a directory")
    if not stat.S_ISREG(status.st_mode):
        return ExecError(NOT_EXECUTABLE, f"{path}: is not a regular file")
    if error.errno == errno.EACCES:
        if not status.st_mode & 0o111:
            return ExecError(
                NOT_EXECUTABLE, f"{path}: is not executable (mode {stat.S_IMODE(status.st_mode):04o})"
            )
        return ExecError(
            NOT_EXECUTABLE, f"{path}: permission denied for user {os.getuid()}, or on a noexec volume"
        )
    if error.errno in (errno.ENOENT, errno.ENOEXEC, errno.ELIBBAD, errno.ENOTDIR):
        reason = _content(path)
        if reason is not None:
            return ExecError(NOT_EXECUTABLE, f"{path}: {reason}")
    return ExecError(NOT_EXECUTABLE, f"{path}: {error.strerror}")


def _content(path: str) -> str | None:
    """What is wrong with a program, from its first bytes."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    if head[:2] == b"#!":
        words = head[2:].split(b"\n", 1)[0].split()
        if not words:
            return "the script names no interpreter"
        interpreter = os.fsdecode(words[0])
        if not os.path.exists(interpreter):
            return f"the script's interpreter {interpreter} is missing"
        return f"the script's interpreter {interpreter} cannot be executed"
    if head[:4] == b"\x7fELF":
        return _elf(head)
    if not head:
        return "is empty"
    return "is neither an ELF program nor a script that begins with #!"


def _elf(head: bytes) -> str | None:
    if len(head) < 64:
        return "is a truncated ELF program"
    order = "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]

    machine = os.uname().machine
    wanted = _MACHINES.get(machine)
    if wanted is not None and number(18, 2) != wanted:
        found = [name for name, value in _MACHINES.items() if value == number(18, 2)]
        return f"is built for {found[0] if found else 'another architecture'}, this machine is {machine}"
    wide = head[4] == 2
    table, size, count = (
        (number(32, 8), number(54, 2), number(56, 2)) if wide else (number(28, 4), number(42, 2), number(44, 2))
    )
    for at in range(table, table + size * count, size or 1):
        if number(at, 4) == _PT_INTERP:
            start, length = (
                (number(at + 8, 8), number(at + 32, 8)) if wide else (number(at + 4, 4), number(at + 16, 4))
            )
            loader = os.fsdecode(head[start : start + length].rstrip(b"\0"))
            if loader and not os.path.exists(loader):
                return f"its ELF loader {loader} is missing (is a library missing from the image?)"
    return None
