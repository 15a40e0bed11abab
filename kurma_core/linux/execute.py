"""Executes a program by execve(2), found in PATH as a shell does.

The search sees files as this process does: call it in the program's root, as the program's user. Why a
program cannot be executed is said by :mod:`kurma_core.linux.exec_errors`: a process must import that before it
changes its root.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import libc
from kurma_core.linux.process import DEFAULT_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

NOT_FOUND = 127
NOT_EXECUTABLE = 126


class ExecuteError(OSError):
    """A program cannot be executed: ``strerror`` is the reason, ``filename`` the program.

    :attr:`exit_code` is as in a shell: 127 if the program is not found, 126 for other reasons.
    """

    def __init__(self, code: int, reason: str, program: str) -> None:
        super().__init__(code, reason, program)
        self.exit_code = NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}" if self.filename else str(self.strerror)


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by ``argv``.

    A name without a slash is searched in the environment's PATH; an empty part of it is the current directory. As
    in a shell, a file that may not be executed is skipped if there are further parts.

    :raises ExecuteError: it cannot be; the reason names the missing file, interpreter or loader.
    """
    path = _find(argv[0], environment)
    try:
        os.execve(path, tuple(argv), environment)  # noqa: S606 - that is the job
    except OSError as error:
        from kurma_core.linux import exec_errors

        raise ExecuteError(*exec_errors.why_not(path, error.errno or errno.EIO), path) from None
    except ValueError as error:  # a NUL in a word, or a variable's name with a "=" in it
        raise ExecuteError(errno.EINVAL, str(error), path) from None
    raise AssertionError("execve returned")


def execute_after(last: Callable[[], None], argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """As :func:`execute`, with a last step before it, after which this process may do nothing but execute.

    So the program is looked for before, and what may be wrong with it is looked at before.

    :raises ExecuteError: as :func:`execute`; errors of ``last`` pass through.
    """
    from kurma_core.linux import exec_errors

    path = _find(argv[0], environment)
    reasons = exec_errors.expected(path)
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
    reason = reasons.get(code) or exec_errors.SAID.get(code)
    code = errno.ENOEXEC if code == errno.ENOENT else code
    raise ExecuteError(code, reason or os.strerror(code).lower(), path)


def _pointers(strings: list[bytes]) -> tuple[bytes, list[bytearray]]:
    """The kernel's array of strings, and the buffers that must be kept while it is used."""
    if any(b"\0" in each for each in strings):
        raise ValueError("embedded null byte")
    kept = [bytearray(each + b"\0") for each in strings]
    return libc.words(*[libc.address(each) for each in kept], 0), kept


def _find(name: str, environment: Mapping[str, str]) -> str:
    """The program that :func:`execute` would execute. :raises ExecuteError: there is none."""
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
    if refused is not None:
        raise refused
    from kurma_core.linux import exec_errors

    where = f"not found in {searched or 'the current directory'}"
    raise ExecuteError(errno.ENOENT, where + exec_errors.of_one_name(name), name)


def _may_not(path: str) -> ExecuteError | None:
    from kurma_core.linux import exec_errors

    try:
        # execve(2) checks the effective IDs, too.
        if os.access(path, os.X_OK, effective_ids=True) and stat.S_ISREG(os.stat(path).st_mode):
            return None
    except ValueError as error:  # a NUL in the name
        return ExecuteError(errno.EINVAL, str(error), path)
    except OSError as error:
        return ExecuteError(*exec_errors.why_not(path, error.errno or errno.EIO), path)
    return ExecuteError(*exec_errors.why_not(path, errno.EACCES), path)


def _can_be_seen(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True
