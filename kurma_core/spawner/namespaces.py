"""Makes and pins a pod's network namespace and user namespace, in the spawner's program."""

from __future__ import annotations

import os

from kurma_core.linux import namespaces
from kurma_core.spawner import child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Request = dict[str, Any]
    Answer = tuple[dict[str, object], list[int]]


def make_user(request: Request, _fds: list[int]) -> Answer:
    """Answers the request ``user_namespace``."""

    def make() -> None:
        child.step("unshare", "user namespace", namespaces.unshare, namespaces.CLONE_NEWUSER)

    def write_maps(pid: int) -> None:
        namespaces.write_maps(pid, request["uids"], request["gids"])

    return _make_namespace("user", request["path"], make, write_maps)


def make_network(request: Request, _fds: list[int]) -> Answer:
    """Answers the request ``network_namespace``."""
    owner = request["userns"]

    def make() -> None:
        if owner is not None:
            child.step("join", owner, namespaces.enter_userns, owner)
        child.step("unshare", "network namespace", namespaces.unshare, namespaces.CLONE_NEWNET)

    return _make_namespace("net", request["path"], make)


def _make_namespace(
    kind: str, path: str, make: Callable[[], None], finish: Callable[[int], None] = lambda _: None
) -> Answer:
    """Makes a namespace in a child process, and pins it on the host.

    :param make: called in the child, which enters the new namespace.
    :param finish: called here with the child's PID, before the namespace is pinned.
    """
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    made_read, made_write = os.pipe2(os.O_CLOEXEC)

    def run() -> None:
        os.close(go_write)
        make()
        os.write(made_write, b"m")
        os.read(go_read, 1)  # until the namespace is pinned, or the spawner has ended

    pid, pidfd, report = child.fork(0, run)
    os.close(pidfd)
    os.close(go_read)
    os.close(made_write)
    try:
        if os.read(made_read, 1):
            finish(pid)
            child.step("pin", path, namespaces.pin, f"/proc/{pid}/ns/{kind}", path)
    finally:
        os.close(go_write)
        os.close(made_read)
        _, failure = child.read_report(report)
    return failure or {}, []
