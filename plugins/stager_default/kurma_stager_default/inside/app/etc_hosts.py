"""Writes an app's ``/etc/hosts``, ``/etc/hostname`` and ``/etc/resolv.conf``.

The files are written to the new root of each execution, so that the image does not change. A file of the image
with content is kept, unless ``App.replace_files`` names it; a kept ``/etc/hosts`` gets the pod's own name. If apps
look up other pods by name, a copy of ``/etc/hosts``, which the core keeps up to date, is bound over it.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import mounts
from kurma_core.trees.mount_targets import make_mount_target
from kurma_stager_default.inside.manifest import App, Pod

HOSTS = "/etc/hosts"
#: The source of a file's content, as status.json shows it.
KURMA, IMAGE, IMAGE_AND_NAME, VOLUME = "kurma", "image", "image+name", "volume"
#: Bytes: a larger file is not a hosts file, and gets no lines and no copy.
_LIMIT = 1 << 20
#: Attempts to copy other pods' names before they change.
_TRIES = 100
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW


def contents(pod: Pod) -> dict[str, str]:
    """Kurma's content by path. There is no ``resolv.conf`` if the pod has no DNS configuration."""
    found = {
        # The core gives all lines, that of localhost included.
        HOSTS: "".join([_line(*each) for each in pod.hosts]),
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


def _line(address: str, names: list[str]) -> str:
    return f"{address}\t{' '.join(names)}\n"


def write(root: int, pod: Pod, app: App) -> str:
    """Writes the files, except those that a volume will hide. Runs in the app's mount namespace, before anything
    is mounted into ``root``.

    :returns: the source of each file, for the child's report: ``hosts=kurma hostname=image``.
    :raises OSError: with the path.
    """
    own = [_line(*each) for each in pod.hosts if pod.hostname in each[1] and pod.hostname != "localhost"]
    found = []
    for path, text in contents(pod).items():
        name = path.rpartition("/")[2]
        whose = _write(root, path, text, own if path == HOSTS else [], pod, app)
        found.append(f"{name}={whose}")
    return " ".join(found)


def _write(root: int, path: str, text: str, own: list[str], pod: Pod, app: App) -> str:
    """:param own: lines to add to a file of the image that is kept."""
    if _hidden(path, app):
        return VOLUME
    place = _place(root, path, pod.ids.root)
    if place < 0:
        return IMAGE
    try:
        if os.fstat(place).st_size and path.rpartition("/")[2] not in app.replace_files:
            return _add(place, own)
        _replace(place, text, pod.ids.root)
        return KURMA
    finally:
        os.close(place)


def _open(place: int, flags: int) -> int:
    """Opens the file that was found, even if its name is now another file's."""
    return os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC)


def _replace(place: int, text: str, owner: tuple[int, int]) -> None:
    fd = _open(place, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(fd, text.encode())
        # The image's file may be readable by root only.
        os.fchown(fd, *owner)
        os.fchmod(fd, 0o644)
    finally:
        os.close(fd)


def _add(place: int, lines: list[str]) -> str:
    """Adds lines to the image's file, except those that it has: a root that is used again has all of them."""
    if not lines or os.fstat(place).st_size > _LIMIT:
        return IMAGE
    content = _content(f"/proc/self/fd/{place}")
    there = content.splitlines(keepends=True)
    new = b"".join([line for line in [each.encode() for each in lines] if line not in there])
    if new:
        fd = _open(place, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, (b"" if content.endswith(b"\n") else b"\n") + new)
        finally:
            os.close(fd)
    return IMAGE_AND_NAME


def _hidden(path: str, app: App) -> bool:
    """Whether a volume will be mounted at the path or above it."""
    return any((path + "/").startswith(mount.path.rstrip("/") + "/") for mount in app.mounts)


def _place(root: int, path: str, owner: tuple[int, int]) -> int:
    """Opens the app's file with O_PATH, and makes it if it is missing. :returns: -1: it is not a regular file."""
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


def show_names(root: int, pod: Pod, app: App) -> None:
    """Binds a copy of the app's ``/etc/hosts`` over it, to which the core adds the lines of other pods.

    Each execution has its own copy: lines that an app adds are not seen by others. Runs after :func:`write`.

    :raises OSError: with the path.
    """
    place = -1 if _hidden(HOSTS, app) else _place(root, HOSTS, pod.ids.root)
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
    """Makes a hosts file of these lines and those of other pods. :returns: a descriptor of it.

    The core changes ``.names`` first, and then the hosts files of the directory. So a copy is up to date if
    ``.names`` is unchanged after the rename: the core finds the copy when it makes a later change.
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
