"""Sets the AppArmor profile or SELinux context of an app, for the next exec.

The label is written before the change of root, while ``/proc`` is the kernel's and not a volume. It takes effect
at exec; changes of user, namespaces or capabilities do not undo it. An app whose label cannot be set does not run.
"""

from __future__ import annotations

import errno
import os

from kurma_core.linux.execute import ExecuteError
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import Plan

#: AppArmor's own file, and the file of the active module, for SELinux and for kernels before 5.8.
_APPARMOR = "/proc/thread-self/attr/apparmor/exec"
_EXEC = "/proc/thread-self/attr/exec"
_DENIED = (errno.EACCES, errno.EPERM)


def set_for_exec(plan: Plan) -> None:
    """Writes the plan's labels. Runs as root, with a ``/proc`` that shows this process.

    :raises SetupError: the kernel refuses one.
    """
    if plan.apparmor:
        path = _APPARMOR if os.path.exists(_APPARMOR) else _EXEC
        _write(path, f"exec {plan.apparmor}", _profile(plan), errno.ENOENT, "is not loaded")
    if plan.selinux:
        _write(_EXEC, plan.selinux, _context(plan), errno.EINVAL, "is none of this kernel's")


def _write(path: str, text: str, what: str, unknown: int, why: str) -> None:
    """:param unknown: the kernel's error number for an unknown label; ``why``: the reason to show for it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # In one write(2): the kernel parses each write on its own.
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno == unknown:
            raise SetupError(f"{what} {why}") from None
        raise SetupError(f"{what} cannot be set: {error.strerror}") from None


def explained(error: ExecuteError, plan: Plan) -> ExecuteError:
    """The error; if the kernel's only reason is that access is denied, with the label added to the reason."""
    code = error.errno or errno.EACCES
    if code not in _DENIED or error.strerror != os.strerror(code).lower():
        return error
    what = _profile(plan) if plan.apparmor else _context(plan)
    return ExecuteError(code, f"{error.strerror}, with {what}", str(error.filename))


def _profile(plan: Plan) -> str:
    return f"the AppArmor profile {plan.apparmor}"


def _context(plan: Plan) -> str:
    return f"the SELinux context {plan.selinux}"
