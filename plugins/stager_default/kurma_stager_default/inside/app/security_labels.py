"""What a security module of the kernel is to hold an app to: set for the next program that is executed (X4).

It is written before the root is changed, where ``/proc`` is the kernel's own and no volume. Nothing comes of it
before that program, and no change of user, of namespaces or of rights undoes it; who cannot have it does not run.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.execute import ExecuteError
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import Plan

#: Of AppArmor alone, and, on a kernel that has no such place (before 5.8), of the one module that is there.
_APPARMOR = "/proc/thread-self/attr/apparmor/exec"
_EXEC = "/proc/thread-self/attr/exec"
_DENIED = (errno.EACCES, errno.EPERM)


def set_for_exec(plan: Plan) -> None:
    """Runs as root, with a ``/proc`` that shows us.

    :raises SetupError: the kernel does not take one.
    """
    if plan.apparmor:
        path = _APPARMOR if os.path.exists(_APPARMOR) else _EXEC
        _write(path, f"exec {plan.apparmor}", _profile(plan), errno.ENOENT, "is not loaded")
    if plan.selinux:
        _write(_EXEC, plan.selinux, _context(plan), errno.EINVAL, "is none of this kernel's")


def _write(path: str, text: str, what: str, unknown: int, why: str) -> None:
    """:param unknown: what the kernel answers where there is no such label; ``why``: that, in words."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # In one piece: it is taken as it comes.
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno == unknown:
            raise SetupError(f"{what} {why}") from None
        raise SetupError(f"{what} cannot be set: {error.strerror}") from None


def explained(error: ExecuteError, plan: Plan) -> ExecuteError:
    """The error, with the label in its reason, where the kernel has said no more than that it denies it."""
    code = error.errno or errno.EACCES
    if code not in _DENIED or error.strerror != os.strerror(code).lower():
        return error
    what = _profile(plan) if plan.apparmor else _context(plan)
    return ExecuteError(code, f"{error.strerror}, with {what}", str(error.filename))


def _profile(plan: Plan) -> str:
    return f"the AppArmor profile {plan.apparmor}"


def _context(plan: Plan) -> str:
    return f"the SELinux context {plan.selinux}"
