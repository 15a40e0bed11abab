"""Executing a program, and saying why it cannot be executed (Y3).

What counts is what this process finds: call it in the root, and as the user, that the program is to have.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

# Used where the environment has no PATH.
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOT_FOUND = 127
NOT_EXECUTABLE = 126

#: So much of a program's beginning decides what it is: ``BINPRM_BUF_SIZE``.
_LINE = 256
#: A script's interpreter may be a script, and so on; one level more is ``ELOOP``.
_NESTED = 5
_ST_NOEXEC = 8
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# What execve says of a file that may be executed, when it, its interpreter or its loader is not what it should be.
_FINE = 0
_AFTER = (errno.ENOENT, errno.ENOEXEC, errno.EACCES, errno.ELOOP)
_SAID = {
    errno.E2BIG: "its arguments and environment are too long for this kernel",
    errno.ETXTBSY: "is open for writing",
    errno.ENOEXEC: "is a damaged ELF program",
}
#: ``e_machine`` of ELF, and how machines call themselves.
_ELF_MACHINES = {
    3: "i386",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
_PT_INTERP = 3
_ET_EXEC, _ET_DYN = 2, 3
#: Most of an ELF program's header table and loader's name that is looked at, in bytes.
_TABLE, _LOADER = 65536, 4096


class ExecuteError(OSError):
    """A program cannot be executed: ``strerror`` says why, ``filename`` is the program.

    :attr:`exit_code` is a shell's: 127 for not found, 126 for the rest.
    """

    def __init__(self, code: int, reason: str, program: str) -> None:
        super().__init__(code, reason, program)
        self.exit_code = NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}" if self.filename else str(self.strerror)


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``argv``.

    A name without a slash is looked for in the environment's PATH; an empty part of it is the current directory.
    As in a shell, what may not be executed is passed over while there are further parts.

    :raises ExecuteError: it cannot be; the reason names the missing file, interpreter or loader.
    """
    name = argv[0]
    if not name:
        raise ExecuteError(errno.ENOENT, "the command's name is empty", name)
    if "/" in name:
        raise _try(name, argv, environment)
    refused: ExecuteError | None = None
    searched = environment.get("PATH", DEFAULT_PATH)
    for directory in searched.split(":"):
        path = os.path.join(directory or ".", name)
        error = _try(path, argv, environment)
        if error.exit_code == NOT_FOUND or not _can_be_seen(path):
            continue
        refused = refused or error
        if error.errno != errno.EACCES:
            break
    raise refused or ExecuteError(errno.ENOENT, f"not found in {searched or 'the current directory'}", name)


def execute_after(last: Callable[[], None], argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """As :func:`execute`, with a last step before it, after which this process may do nothing but execute.

    So the program is looked for before, and what may be wrong with it is looked at before.

    :raises ExecuteError: as :func:`execute`; what ``last`` raises goes through.
    """
    path = _find(argv[0], environment)
    # Looked at once, most programs are found to be in order.
    fine = _reason(path, _FINE, 0).endswith(os.strerror(_FINE).lower())
    reasons = {} if fine else {code: _reason(path, code, 0) for code in _AFTER}
    try:
        if any("=" in name for name in environment):
            raise ValueError("illegal environment variable name")
        words = _pointers([os.fsencode(word) for word in argv])
        variables = _pointers([os.fsencode(f"{name}={value}") for name, value in environment.items()])
    except ValueError as error:
        raise ExecuteError(errno.EINVAL, str(error), path) from None
    program = os.fsencode(path)
    last()
    try:
        libc.syscall("execve", program, words[0], variables[0])
    except OSError as error:
        code = error.errno or errno.EIO
    else:
        raise AssertionError("execve returned")
    code = errno.ENOEXEC if code == errno.ELIBBAD else code
    reason = reasons.get(code) or _SAID.get(code)
    code = errno.ENOEXEC if code == errno.ENOENT else code
    raise ExecuteError(code, reason or os.strerror(code).lower(), path)


def _pointers(strings: list[bytes]) -> tuple[bytes, list[bytearray]]:
    """The kernel's array of strings, and what must be kept while that is used."""
    if any(b"\0" in each for each in strings):
        raise ValueError("embedded null byte")
    kept = [bytearray(each + b"\0") for each in strings]
    return libc.words(*[libc.address(each) for each in kept], 0), kept


def _find(name: str, environment: Mapping[str, str]) -> str:
    """The program that :func:`execute` would come to. :raises ExecuteError: there is none that may be executed."""
    if not name:
        raise ExecuteError(errno.ENOENT, "the command's name is empty", name)
    if "/" in name:
        denied = _may_not(name)
        if denied is not None:
            raise denied
        return name
    refused: ExecuteError | None = None
    searched = environment.get("PATH", DEFAULT_PATH)
    for directory in searched.split(":"):
        path = os.path.join(directory or ".", name)
        denied = _may_not(path)
        if denied is None:
            return path
        if denied.exit_code != NOT_FOUND and _can_be_seen(path):
            refused = refused or denied
    raise refused or ExecuteError(errno.ENOENT, f"not found in {searched or 'the current directory'}", name)


def _may_not(path: str) -> ExecuteError | None:
    try:
        # Our effective rights count, as they do for execve.
        if os.access(path, os.X_OK, effective_ids=True) and stat.S_ISREG(os.stat(path).st_mode):
            return None
    except ValueError as error:  # a NUL in the name
        return ExecuteError(errno.EINVAL, str(error), path)
    except OSError as error:
        return why_not(path, error.errno or errno.EIO)
    return why_not(path, errno.EACCES)


def _try(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> ExecuteError:
    try:
        os.execve(path, tuple(argv), environment)  # noqa: S606 - that is the job
    except OSError as error:
        return why_not(path, error.errno or errno.EIO)
    except ValueError as error:  # a NUL in a word, or a variable's name with a "=" in it
        return ExecuteError(errno.EINVAL, str(error), path)
    raise AssertionError("execve returned")


def _can_be_seen(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True


def why_not(program: str, code: int) -> ExecuteError:
    """Why ``execve`` of ``program`` has failed with the error number ``code``."""
    try:
        os.stat(program)
    except OSError as error:
        if error.errno not in _MISSING:
            return ExecuteError(error.errno or code, _reached(error), program)
        reason = "not found"
        if os.path.islink(program):
            reason = f"is a link to {os.readlink(program)}, which is missing"
        return ExecuteError(errno.ENOENT, reason, program)
    reason = _SAID[code] if code == errno.E2BIG else _reason(program, code, 0)
    # ENOENT is also what a script without its interpreter gives; the program itself is there.
    return ExecuteError(errno.ENOEXEC if code == errno.ENOENT else code, reason, program)


def _reached(error: OSError) -> str:
    """Why a file, or something on the way to it, cannot be looked at."""
    if error.errno == errno.ELOOP:
        return "too many symbolic links"
    if error.errno == errno.EACCES:
        return f"user {os.getuid()} may not search a directory on the way"
    return os.strerror(error.errno or 0).lower()


def _reason(path: str, code: int, nested: int) -> str:
    """What is wrong with a file that was to be executed, or that such a file needs.

    :param nested: how many scripts have led here.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        return "is missing" if error.errno in _MISSING else _reached(error)
    if stat.S_ISDIR(status.st_mode):
        return "is a directory"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    denied = _denied(path, status)
    if denied:
        return denied
    if code == errno.ETXTBSY:
        return _SAID[code]
    try:
        with open(path, "rb") as file:
            head = file.read(_LINE)
            if head[:2] == b"#!":
                return _script(head, code, nested)
            if head[:4] == b"\x7fELF":
                file.seek(0)
                return _elf(file.read(_TABLE), path, code)
    except OSError:
        return f"cannot be executed ({os.strerror(code).lower()}), nor read to see why"
    if code in (_FINE, errno.ENOEXEC, errno.ELIBBAD):
        return "is neither an ELF program nor a script that begins with #!" if head else "is empty"
    return os.strerror(code).lower()


def _denied(path: str, status: os.stat_result) -> str | None:
    """What forbids to execute a regular file; None: nothing that is to be seen."""
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if not status.st_mode & 0o111:
        return f"is not executable (mode {mode})"
    try:
        if os.statvfs(path).f_flag & _ST_NOEXEC:
            return "lies on a noexec mount"
    except OSError:
        return None
    if not os.access(path, os.X_OK):
        return f"user {os.getuid()} may not execute it (mode {mode}, owner {status.st_uid}, group {status.st_gid})"
    return None


def _script(head: bytes, code: int, nested: int) -> str:
    line, newline, _ = head[2:].partition(b"\n")
    # The kernel's blanks are these two; a carriage return belongs to the name.
    words = line.strip(b" \t").replace(b"\t", b" ").split(b" ")
    name = os.fsdecode(words[0].partition(b"\0")[0])
    if not newline and len(words) == 1 and len(head) == _LINE and b"\0" not in words[0]:
        return f"its #! line is too long: an interpreter's name must end within {_LINE} bytes"
    if not name:
        return "its #! line names no interpreter"
    called = f"the script's interpreter {name}"
    try:
        os.stat(name)
    except OSError as error:
        if error.errno not in _MISSING:
            return f"{called}: {_reached(error)}"
        if name.endswith("\r"):
            return f"{called[:-1]} is missing: the line ends with a carriage return, as in DOS"
        return f"{called} is missing"
    if nested >= _NESTED:
        return f"{called}: too many scripts that interpret each other"
    return f"{called}: {_reason(name, code, nested + 1)}"


def _elf(head: bytes, path: str, code: int) -> str:
    if len(head) < 64:
        return "is a truncated ELF program"
    order = "little" if head[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(head[at : at + size], order)  # type: ignore[arg-type]

    kind, machine, here = number(16, 2), number(18, 2), os.uname().machine
    if code in (_FINE, errno.ENOEXEC, errno.ELIBBAD):
        name = _ELF_MACHINES.get(machine, f"ELF machine {machine}")
        if not _same(name, here):
            return f"is built for {name}, this machine is {here}"
        if kind not in (_ET_EXEC, _ET_DYN):
            return "is an ELF file, but no program"
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
            loader = _loader(path, start, length)
            reason = _reason(loader, code, _NESTED) if loader else ""
            if reason == "is missing":
                return f"its ELF loader {loader} is missing (is a library missing from the image?)"
            if reason:
                return f"its ELF loader {loader}: {reason}"
    if code == errno.ENOEXEC:
        return "is a damaged ELF program"
    return os.strerror(code).lower()


def _same(machine: str, here: str) -> bool:
    """Whether an ELF machine is this one: ``arm`` is ``armv7l``, and ``ppc64`` is ``ppc64le``."""
    return here.startswith(machine) or (machine == "i386" and here in ("i486", "i586", "i686"))


def _loader(path: str, start: int, length: int) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.fsdecode(os.pread(fd, min(length, _LOADER), start).rstrip(b"\0"))
        finally:
            os.close(fd)
    except (OSError, OverflowError):
        return ""
