"""Explains why execve(2) of a program failed: its interpreter, its ELF loader, its mode, its mount.

It looks at files as this process sees them: call it in the program's root, as the program's user.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes of a program's beginning that the kernel reads to find its type: ``BINPRM_BUF_SIZE``.
_LINE = 256
#: A script's interpreter may be a script, and so on; one level more is ``ELOOP``.
_NESTED = 5
_ST_NOEXEC = 8
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# The errors of execve for a file that may be executed, but that is damaged, or lacks its interpreter or loader.
_FINE = 0
_AFTER = (errno.ENOENT, errno.ENOEXEC, errno.EACCES, errno.ELOOP)
SAID = {
    errno.EPERM: "its file capabilities (see getcap) give it more than the app has",
    errno.E2BIG: "its arguments and environment are too long for this kernel",
    errno.ETXTBSY: "is open for writing",
    errno.ENOEXEC: "is a damaged ELF program",
}
#: ``e_machine`` of ELF, and the machine's name in uname(2).
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
#: Most bytes of an ELF program's header table, and of its loader's name, that are read.
_TABLE, _LOADER = 65536, 4096
#: Bytes to read at first: in most programs the table is at the beginning of the file.
_START = 4096


def expected(program: str) -> Mapping[int, str]:
    """Reasons by error number, found before ``execve`` of ``program``, after which the caller cannot look."""
    # Looked at once, most programs are found to be in order.
    if _reason(program, _FINE, 0).endswith(os.strerror(_FINE).lower()):
        return {}
    return {code: _reason(program, code, 0) for code in _AFTER}


def why_not(program: str, code: int) -> tuple[int, str]:
    """Why ``execve`` of ``program`` has failed with the error ``code``: a more exact error number, and the
    reason."""
    try:
        os.stat(program)
    except OSError as error:
        if error.errno not in _MISSING:
            return error.errno or code, _reached(error)
        reason = "not found" + of_one_name(program)
        if os.path.islink(program):
            reason = f"is a link to {os.readlink(program)}, which is missing"
        return errno.ENOENT, reason
    reason = SAID[code] if code in (errno.E2BIG, errno.EPERM) else _reason(program, code, 0)
    # ENOENT of an existing program means that its interpreter is missing.
    return errno.ENOEXEC if code == errno.ENOENT else code, reason


def of_one_name(name: str) -> str:
    """A hint for a program that is not found, and whose name looks like a command with its arguments; or ""."""
    return "; the blanks belong to its name: arguments are words of their own" if " " in name.strip() else ""


def _reached(error: OSError) -> str:
    """Why a file cannot be inspected, because of it or a directory of its path."""
    if error.errno == errno.ELOOP:
        return "too many symbolic links"
    if error.errno == errno.EACCES:
        return f"user {os.getuid()} may not search a directory on the way"
    return os.strerror(error.errno or 0).lower()


def _reason(path: str, code: int, nested: int) -> str:
    """Finds the reason why a file, or its interpreter or loader, cannot be executed.

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
        return SAID[code]
    try:
        with open(path, "rb", opener=_not_waiting) as file:
            head = file.read(_LINE)
            if head[:2] == b"#!":
                return _script(head, code, nested)
            if head[:4] == b"\x7fELF":
                file.seek(0)
                return _elf(file.read(_START), file.fileno(), code, lambda: file.read(_TABLE))
    except OSError:
        return f"cannot be executed ({os.strerror(code).lower()}), nor read to see why"
    if code in (_FINE, errno.ENOEXEC, errno.ELIBBAD):
        return "is neither an ELF program nor a script that begins with #!" if head else "is empty"
    return os.strerror(code).lower()


def _not_waiting(path: str, flags: int) -> int:
    """Opens a regular file without blocking: another process may have replaced it by a FIFO or a device.

    The process has the app's rights here. It uses open(2), since the app's filter may refuse openat2(2).
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _denied(path: str, status: os.stat_result) -> str | None:
    """Why a regular file may not be executed; None: no reason was found."""
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
    # The kernel separates words by blank and tab; a carriage return is part of the name.
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


def _elf(head: bytes, fd: int, code: int, more: Callable[[], bytes]) -> str:
    """:param fd: of the program. :param more: reads the bytes after ``head``, if the table is longer."""
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
    if at + size * count > len(head):
        head += more()
    for header in range(at, at + size * count, size or 1):
        if number(header, 4) == _PT_INTERP:
            start, length = (
                (number(header + 8, 8), number(header + 32, 8))
                if wide
                else (number(header + 4, 4), number(header + 16, 4))
            )
            loader = _loader(fd, start, length)
            reason = _reason(loader, code, _NESTED) if loader else ""
            if reason == "is missing":
                return f"its ELF loader {loader} is missing (is a library missing from the image?)"
            if reason:
                return f"its ELF loader {loader}: {reason}"
    if code == errno.ENOEXEC:
        return "is a damaged ELF program"
    return os.strerror(code).lower()


def _same(machine: str, here: str) -> bool:
    """Whether an ELF machine is this one: ``arm`` matches ``armv7l``, and ``ppc64`` matches ``ppc64le``."""
    return here.startswith(machine) or (machine == "i386" and here in ("i486", "i586", "i686"))


def _loader(fd: int, start: int, length: int) -> str:
    try:
        return os.fsdecode(os.pread(fd, min(length, _LOADER), start).rstrip(b"\0"))
    except (OSError, OverflowError):
        return ""
