"""Makes, enters and pins namespaces.

A network namespace is pinned as by ``ip netns``: it is bound to a file in ``/run/netns``. That directory is a
shared mount, so that all mount namespaces of the host see the file. Needs CAP_SYS_ADMIN.

:param path: where a namespace is pinned. :param flags: ``CLONE_NEW…`` bits.
:raises OSError: the kernel refuses, or the path is not a namespace.
"""

from __future__ import annotations

import errno
import os
import sys

from kurma_core.linux import mounts
from kurma_core.linux.libc import syscall, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

#: Kinds of namespaces, and their names.
CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

#: The bit of each kind, by name.
FLAGS = {
    "mount": CLONE_NEWNS,
    "cgroup": CLONE_NEWCGROUP,
    "uts": CLONE_NEWUTS,
    "ipc": CLONE_NEWIPC,
    "user": CLONE_NEWUSER,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
}


def unshare(flags: int) -> None:
    """Give this process new namespaces; a new PID namespace is for its children."""
    syscall("unshare", flags)


def setns(fd: int, flags: int = 0) -> None:
    """Enter the namespace of ``fd``; or, if ``fd`` is a pidfd, the process's namespaces that ``flags`` name."""
    syscall("setns", fd, flags)


def enter_netns(path: str) -> None:
    """Enter the network namespace pinned at ``path``, for good."""
    _enter(path, CLONE_NEWNET, "network")


def enter_userns(path: str) -> None:
    """Enter the user namespace pinned at ``path``, for good, with all rights in it and none outside of it."""
    _enter(path, CLONE_NEWUSER, "user")


def _enter(path: str, flag: int, kind: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            setns(fd, flag)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, f"cannot enter the {kind} namespace: {error.strerror}", path) from None


def set_hostname(name: str) -> None:
    """Name the host as seen in the current UTS namespace. :param name: the host name."""
    raw = os.fsencode(name)
    syscall("sethostname", raw, len(raw))


def share_directory(directory: str) -> None:
    """Make ``directory`` a shared mount, once, as ``ip netns`` does."""
    os.close(_shared(directory))


def _shared(directory: str) -> int:
    """:returns: a descriptor that holds its lock: until it is closed, no process removes the directory."""
    import fcntl

    os.makedirs(os.path.dirname(directory), exist_ok=True)
    while True:
        # Not os.makedirs(exist_ok=True): it fails if unshare_directory removes the directory after its mkdir(2).
        try:  # noqa: SIM105 - contextlib is not light
            os.mkdir(directory, 0o755)
        except FileExistsError:
            pass
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            # Only one process may make the mount; ip(8) takes the same lock.
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, directory):
                if not _share(directory):
                    mounts.mount(directory, directory, None, mounts.MS_BIND | mounts.MS_REC)
                    _share(directory)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def unshare_directory(directory: str) -> None:
    """Unmounts and removes a directory of :func:`share_directory`, if it is empty. It can be repeated.

    :raises OSError: as the kernel says.
    """
    import fcntl

    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_dev != os.stat(os.path.dirname(directory)).st_dev:
            return  # another file system is mounted there
        if os.listdir(fd):
            return
        # Detached mounts stay until we, and processes that wait for the lock, close it.
        while _is_at(fd, directory) and _detach(directory):
            pass
        if _is_at(fd, directory):
            os.rmdir(directory)
    finally:
        os.close(fd)


def _is_at(fd: int, directory: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(directory))
    except FileNotFoundError:
        return False


def _share(directory: str) -> bool:
    """Makes a mount shared. :returns: False: the directory is not a mount."""
    try:
        mounts.mount(None, directory, None, mounts.MS_SHARED | mounts.MS_REC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def is_pinned(path: str) -> bool:
    """Whether a namespace is bound on ``path``."""
    return any(one.target == path and one.fstype == "nsfs" for one in mounts.mountinfo())


def mounted_on(path: str) -> list[str]:
    """The mounts on ``path``, the lowest first: a namespace as ``net:[4026532567]``, else the directory or
    file of its file system.
    """
    return [one.root for one in mounts.mountinfo() if one.target == path]


def make_netns(path: str) -> None:
    """Make a network namespace and pin it at ``path``. **Moves the calling process into it**: see the spawner.

    :param path: ``/run/netns/NAME``; must not exist.
    :raises FileExistsError: something is there already.
    :raises OSError: as the kernel says; the file is removed again.
    """
    unshare(CLONE_NEWNET)
    pin("/proc/thread-self/ns/net", path)


def pin(namespace: str, path: str) -> None:
    """Keep a namespace, e.g. ``/proc/PID/ns/net``, by binding it on ``path``, which must not exist.

    :raises FileExistsError: something is there already.
    :raises OSError: as the kernel says; the file is removed again.
    """
    held = _shared(os.path.dirname(path))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        try:
            mounts.mount(namespace, path, None, mounts.MS_BIND)
        except OSError:
            os.unlink(path)
            raise
    finally:
        os.close(held)


def unpin(path: str) -> None:
    """Unpin the namespace at ``path``, which ends with its last process; succeed if there is none."""
    while _detach(path):
        pass
    try:  # noqa: SIM105 - contextlib is not light
        os.unlink(path)
    except FileNotFoundError:
        pass


def _detach(path: str) -> bool:
    """Takes away the uppermost mount there. :returns: False: there is no mount (left)."""
    try:
        mounts.umount(path, mounts.UMOUNT_NOFOLLOW | mounts.MNT_DETACH)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True


class in_netns:
    """``with in_netns(path):`` runs the block inside a pinned network namespace, for the calling thread."""

    __slots__ = ("_home", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_netns(self._path)
        except OSError:
            os.close(self._home)
            raise

    def __exit__(self, *_: object) -> None:
        try:
            setns(self._home, CLONE_NEWNET)
        finally:
            os.close(self._home)


def write_maps(pid: int, uids: list[tuple[int, int, int]], gids: list[tuple[int, int, int]]) -> None:
    """Write the id maps of a new user namespace of process ``pid``. Runs outside of the namespace, as root.

    :param uids: ``(first inside, first outside, count)`` each. :param gids: as ``uids``.
    :raises OSError: the kernel refuses the map; names the file.
    """
    for name, ranges in (("uid_map", uids), ("gid_map", gids)):
        text = "".join([f"{inside} {outside} {count}\n" for inside, outside, count in ranges])
        path = f"/proc/{pid}/{name}"
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())  # the kernel wants a map in one write
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)


def in_network_namespace(path: str, function: Callable[[], T]) -> T:
    """Runs ``function`` inside the network namespace pinned at ``path``, and returns or raises its outcome.

    Needs CAP_SYS_ADMIN, over the namespace's owner too. Sockets that ``function`` opens stay in that namespace.

    :raises OSError: the namespace cannot be entered; ``function`` was not called.
    """
    import threading

    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            enter_netns(path)
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="netns", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


# --- the loopback interface ------------------------------------------------------------------------------------
#
# Without a netlink library, which is slow to import.

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def raise_lo() -> None:
    """Set the loopback interface of the current network namespace up. Needs CAP_NET_ADMIN; it can be repeated.

    :raises OSError: as the kernel says.
    """
    import _socket
    import fcntl

    request = bytearray(40)
    request[:2] = b"lo"
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCGIFFLAGS, request)
        flags = int.from_bytes(request[16:18], "little")
        if flags & _IFF_UP:
            return  # reading the flags does not wait for the lock of all interfaces
        request[16:18] = (flags | _IFF_UP).to_bytes(2, "little")
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, request)
    except OSError as error:
        raise OSError(error.errno, f"cannot raise lo: {os.strerror(error.errno or 0)}") from None
    finally:
        sock.close()


# struct nlmsghdr and ifaddrmsg of rtnetlink(7).
_NEWADDR, _REQUEST_ACK_CREATE_NEW = 20, 0x1 | 0x4 | 0x400 | 0x200
_ROUTE, _INET, _SCOPE_HOST, _LOOPBACK = 0, 2, 254, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_ERROR_AT, _EEXIST = 16, 17


def add_lo_address(address: bytes) -> None:
    """Add an address with prefix length 32 and host scope to the loopback interface of the current network
    namespace, unless it exists. Needs CAP_NET_ADMIN.

    :param address: IPv4, four bytes.
    :raises OSError: as the kernel says.
    """
    import _socket

    body = bytes((_INET, 32, 0, _SCOPE_HOST)) + words(_LOOPBACK, size=4)
    for kind in (_IFA_LOCAL, _IFA_ADDRESS):
        body += words(8, kind, size=2) + address
    message = (
        words(16 + len(body), size=4)
        + words(_NEWADDR, _REQUEST_ACK_CREATE_NEW, size=2)
        + words(1, 0, size=4)
        + body
    )
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _ROUTE)
    try:
        sock.send(message)
        answer = sock.recv(4096)
    finally:
        sock.close()
    code = -int.from_bytes(answer[_ERROR_AT : _ERROR_AT + 4], sys.byteorder, signed=True)
    if code not in (0, _EEXIST):
        raise OSError(code, f"cannot give lo an address: {os.strerror(code)}")
