"""``/etc/hosts``, ``/etc/hostname`` and ``/etc/resolv.conf`` for an app that does not bring its own (H10).

They are written into the app's own fresh root: each app has its own; an image's file with content stays as it is.
Where other pods are to be found by name (W10), a copy of ``/etc/hosts`` that the core keeps up to date is bound
over it.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import mounts
from kurma_core.linux.places import make_mount_target
from kurma_stager_default.inside.manifest import App, Pod

HOSTS = "/etc/hosts"
#: What is larger is no hosts file of an image's, and is not copied.
_LIMIT = 1 << 20
#: Times that other pods' names may change while a copy is made of them.
_TRIES = 100
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW


def contents(pod: Pod) -> dict[str, str]:
    """What is to be written, by path. Nothing for the resolver where the pod has no DNS of its own."""
    found = {
        # Whole as the core gives it, localhost included.
        HOSTS: "".join([f"{address}\t{' '.join(names)}\n" for address, names in pod.hosts]),
        "/etc/hostname": pod.hostname + "\n",
    }
    dns = pod.dns
    if dns is not None:
        text = "".join([f"nameserver {server}\n" for server in dns.get("nameservers", [])])
        if dns.get("search"):
            text += f"search {' '.join(dns['search'])}\n"
        if dns.get("options"):
            text += f"options {' '.join(dns['options'])}\n"
        found["/etc/resolv.conf"] = text
    return found


def write(root: int, files: dict[str, str], owner: tuple[int, int], hidden: list[str]) -> None:
    """Runs in the app's mount namespace, before anything is mounted into ``root``.

    :param hidden: where volumes will be: what they would hide is not written.
    :raises OSError: with the path.
    """
    for path, text in files.items():
        place = _place(root, path, owner, hidden)
        if place < 0:
            continue
        try:
            if not os.fstat(place).st_size:
                # The magic link leads to the very file that was found, whatever its name is now.
                fd = os.open(f"/proc/self/fd/{place}", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(fd, text.encode())
                finally:
                    os.close(fd)
        finally:
            os.close(place)


def _place(root: int, path: str, owner: tuple[int, int], hidden: list[str]) -> int:
    """A descriptor of the app's file, made if it is missing; -1: the image, or a volume, has something else."""
    if any((path + "/").startswith(place + "/") for place in hidden):
        return -1
    try:
        place = make_mount_target(root, path, directory=False, owner=owner)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP):
            return -1
        raise
    if stat.S_ISREG(os.fstat(place).st_mode):
        return place
    os.close(place)
    return -1


def show_names(root: int, pod: Pod, app: App, hidden: list[str]) -> None:
    """Binds a file over the app's ``/etc/hosts`` that has its lines, and those of other pods, kept by the core.

    Each execution has its own: what an app adds there no other sees. Runs after :func:`write`.

    :raises OSError: with the path.
    """
    place = _place(root, HOSTS, pod.ids.root, hidden)
    if place < 0:
        return
    try:
        if os.fstat(place).st_size > _LIMIT:
            return
        directory = os.open(pod.names, os.O_RDONLY | os.O_DIRECTORY | _PLAIN)
        try:
            file = _copy(directory, app.name, _content(f"/proc/self/fd/{place}"), pod.ids.root)
        finally:
            os.close(directory)
        try:
            attributes = mounts.ATTR_NODEV | mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC
            mounts.bind(file, place, attributes=attributes | (mounts.ATTR_RDONLY if app.read_only else 0))
        finally:
            os.close(file)
    finally:
        os.close(place)


def _copy(directory: int, name: str, own: bytes, owner: tuple[int, int]) -> int:
    """A hosts file of these lines and other pods'. :returns: a descriptor of it.

    The core changes ``.names`` first, and then the files that it finds. So a copy is right whose lines are still
    the same once it can be found; whatever comes later, the core writes to it.
    """
    if own and not own.endswith(b"\n"):
        own += b"\n"
    new, lines = f".{name}.new", _content(".names", directory)
    for _ in range(_TRIES):
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _PLAIN, 0o644, dir_fd=directory)
        try:
            os.write(fd, own + lines)
            os.fchmod(fd, 0o644)
            os.fchown(fd, *owner)
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
            now = _content(".names", directory)
            if now == lines:
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)
        lines = now
    raise OSError(errno.EAGAIN, "other pods' names change too fast", HOSTS)


def _content(path: str, directory: int | None = None) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        parts = []
        while part := os.read(fd, _LIMIT):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
