"""The fork server: one process of the stager's program that has loaded all modules, and forks the stagers.

A forked stager shares the memory that neither process writes to, and starts without the start of an interpreter.
The fork server holds no pod's descriptors when it forks the next stager, and never reads a pod's data, so that no
pod finds another one's in its memory. It ends when kurmad does.
"""

from __future__ import annotations

import _socket
import fcntl
import gc
import os

from kurma_core.linux import clone, libc, namespaces, process
from kurma_core.linux.descriptor_passing import packed, room, unpacked

_REQUEST, _FDS = 4096, 250
# Received before the descriptors of the cgroup and those of the stager.
_PLACES = 6
# Above the numbers that a stager's descriptors get.
_HIGH = 64


def serve(fd: int) -> None:
    """Forks stagers until kurmad has ended, and then ends the process. :param fd: the socket with requests.

    It returns in each forked stager, in its pod's root, network namespace and cgroup, with the descriptors of a
    stager that was executed."""
    _load()
    requests = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)
    while True:
        text, beside, _, _ = requests.recvmsg(_REQUEST, room(_FDS), _socket.MSG_CMSG_CLOEXEC)
        fds = unpacked(beside)
        if not text:
            os._exit(0)
        if _fork(text, fds):
            requests.detach()  # it is closed already
            return
        for fd in fds:
            os.close(fd)


def _load() -> None:
    """Loads the modules that stagers load late: their memory is shared only if they are loaded before the fork."""
    from kurma_core.linux import exec_errors  # noqa: F401
    from kurma_core.linux.files import replace_file  # noqa: F401
    from kurma_core.trees import mount_targets, overlay, user_database  # noqa: F401
    from kurma_stager_default.inside.app import etc_hosts, privileges, secret_variables, volumes  # noqa: F401
    from kurma_stager_default.inside.callins import command_group, run  # noqa: F401
    from kurma_stager_default.inside.pod import app_changes, forked_work, prestarted_root  # noqa: F401
    from kurma_stager_default.inside.streams import attach  # noqa: F401

    privileges.prepare()
    gc.freeze()
    libc.trim_heap()


def _fork(text: bytes, fds: list[int]) -> bool:
    """Forks a stager. :returns: True in the stager; it owns ``fds`` and has closed them.

    :param text: ``fork unified=0 tasks=10 move=0 signal=0 parent=123 descriptors=0,1,2,4``.
    :param fds: the socket for the answer; the pod's mount namespace, network namespace, root and working
        directory; a file with the environment; the cgroup's directory on v2 if ``unified``, and its files
        ``tasks`` on v1; the stager's descriptors, in the order of their numbers in ``descriptors``.
    """
    answer = fds[0]
    pid = pidfd = -1
    try:
        given = dict([word.split("=") for word in text.decode().split()[1:]])
        unified, tasks = int(given["unified"]), int(given["tasks"])
        begin = _PLACES + unified + tasks
        numbers = [int(number) for number in given["descriptors"].split(",")]
        cgroup = fds[_PLACES:begin]
        place = clone.Birthplace.of_descriptors(cgroup[0] if unified else -1, cgroup[unified:])
        # The stager becomes kurmad's child, as if kurmad had started it.
        pid, pidfd = place.clone(clone.CLONE_PARENT, move=given["move"] == "1")
        if pid:
            _say(answer, f"pid {pid}", pidfd)
            return False
        place.join()
        _enter(*fds[1:_PLACES])
        process.set_pdeathsig(int(given["signal"]))
        if os.getppid() != int(given["parent"]):
            os._exit(125)  # kurmad ended before prctl(2)
        _arrange(dict(zip(numbers, fds[begin:], strict=True)), answer)
        return True
    except BaseException as error:  # noqa: BLE001 - the client executes the stager's program after any failure
        try:  # noqa: SIM105 - contextlib costs memory
            _say(answer, f"error {error}"[:1000])
        except OSError:
            pass  # the spawner has ended
        if pid == 0:
            os._exit(125)
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _enter(mount: int, network: int, root: int, directory: int, environment: int) -> None:
    namespaces.setns(network, namespaces.CLONE_NEWNET)
    namespaces.setns(mount, namespaces.CLONE_NEWNS)
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(directory)
    os.setsid()
    os.environ.clear()
    with open(environment, "rb") as file:
        for pair in file.read().split(b"\0")[:-1]:
            name, _, value = pair.partition(b"=")
            os.environ[os.fsdecode(name)] = os.fsdecode(value)


def _arrange(numbered: dict[int, int], answer: int) -> None:
    """Gives the descriptors their numbers, closes all others, reports that the stager is ready, and waits until it
    may run."""
    answer = fcntl.fcntl(answer, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    moved = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for number, fd in numbered.items()}
    for number, fd in moved.items():
        os.dup2(fd, number)
    process.close_others({*numbered, answer})
    _say(answer, "ready")
    if os.read(answer, 2) != b"go":
        os._exit(125)  # the spawner has given it up
    os.close(answer)


def _say(answer: int, text: str, *fds: int) -> None:
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, answer)
    try:
        socket.sendmsg([text.encode(errors="replace")], packed(fds), _socket.MSG_NOSIGNAL)
    finally:
        socket.detach()
