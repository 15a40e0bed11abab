"""Makes the pod's own user and network namespaces, by short-lived child processes."""

from __future__ import annotations

import os

from kurma_core.linux import namespaces
from kurma_stager_default.stage1.place import Stage1Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def user_namespace(users: tuple[int, int]) -> int:
    """Makes a user namespace with these ids. :param users: the first id on the host, and the number of ids.

    :returns: a descriptor of it."""

    def write_maps(pid: int) -> None:
        namespaces.write_maps(pid, [(0, *users)], [(0, *users)])

    return _made(
        "user",
        lambda: namespaces.unshare(namespaces.CLONE_NEWUSER),
        "--private-users: this kernel makes no user namespaces here",
        write_maps,
    )


def network_namespace(userns: int) -> int:
    """Makes a network namespace whose loopback interface is up. :param userns: a descriptor of the user namespace
    that shall own it; -1: the host's. :returns: a descriptor of it.
    """

    def make() -> None:
        if userns >= 0:
            namespaces.setns(userns, namespaces.CLONE_NEWUSER)
        namespaces.unshare(namespaces.CLONE_NEWNET)
        namespaces.raise_lo()

    return _made("net", make, "no network namespace could be made")


def _made(kind: str, make: Callable[[], None], failed: str, then: Callable[[int], None] = lambda pid: None) -> int:
    """Forks a child that calls ``make`` to enter a new namespace, and calls ``then`` with its PID.

    :returns: a descriptor of the namespace."""
    ready, told_ready = os.pipe()
    go, told_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told_go)
            make()
            os.write(told_ready, b"R")
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(told_ready)
    os.close(go)
    try:
        if not os.read(ready, 1):
            raise Stage1Error(failed)
        then(pid)
        return os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(told_go)
        os.waitpid(pid, 0)
