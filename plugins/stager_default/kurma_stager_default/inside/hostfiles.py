"""``/etc/hosts``, ``/etc/hostname`` and ``/etc/resolv.conf`` for an app that does not bring its own (H10).

They are written into the app's own fresh root: each app has its own; an image's file with content stays as it is.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux.places import make_mount_target
from kurma_stager_default.inside.manifest import Pod


def contents(pod: Pod) -> dict[str, str]:
    """What is to be written, by path. Nothing for the resolver where the pod has no DNS of its own."""
    found = {
        # Whole as the core gives it, localhost included.
        "/etc/hosts": "".join([f"{address}\t{' '.join(names)}\n" for address, names in pod.hosts]),
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
        if any((path + "/").startswith(place + "/") for place in hidden):
            continue
        try:
            place = make_mount_target(root, path, directory=False, owner=owner)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ELOOP):
                continue  # the image has something else in mind
            raise
        try:
            status = os.fstat(place)
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                continue
            # The magic link leads to the very file that was found, whatever its name is now.
            fd = os.open(f"/proc/self/fd/{place}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode())
            finally:
                os.close(fd)
        finally:
            os.close(place)
