"""The block devices of a host, as cgroups know them: ``MAJOR:MINOR`` of whole ones, partitions are none."""

from __future__ import annotations

import os

from kurma_core.linux.mounts import Mount


def all_of(root: str) -> tuple[str, ...]:
    """Those that hold something: an unused loop device, or an empty drive, does not.

    :param root: where ``/sys`` is.
    """
    place = f"{root}/sys/block"
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return ()
    found = [
        _read(f"{place}/{name}/dev")
        for name in names
        if os.path.isdir(f"{place}/{name}/queue") and _read(f"{place}/{name}/size") not in ("", "0")
    ]
    return tuple(filter(None, found))


def under(path: str, root: str) -> tuple[str, str]:
    """The device below a path of the host, or the one that it is.

    :param path: absolute. Nothing of it is opened: it may come from a stranger's manifest.
    :param root: where ``/proc`` and ``/sys`` are.
    :returns: the device, or "" and why there is none.
    """
    try:
        path = os.path.realpath(path)
    except OSError:  # it changes meanwhile
        return "", f"there is no {path} on this host"
    if not os.path.lexists(path):
        return "", f"there is no {path} on this host"
    number = _read(f"{root}/sys/class/block/{os.path.basename(path)}/dev") if path.startswith("/dev/") else ""
    if not number:
        number, source = _mounted(path, root)
        if number.startswith("0:"):
            # A file system of several devices, or of none, has a number of its own.
            number = _read(f"{root}/sys/class/block/{os.path.basename(source)}/dev") if source[:1] == "/" else ""
    whole = _whole(number, root) if number else ""
    return (whole, "") if whole else ("", f"{path} is on no block device")


def _mounted(path: str, root: str) -> tuple[str, str]:
    """Number and source of what is mounted there."""
    number = source = best = ""
    try:
        with open(f"{root}/proc/self/mountinfo", errors="surrogateescape") as file:
            for mount in map(Mount, file):
                inside = path == mount.target or path.startswith(mount.target.rstrip("/") + "/")
                if inside and len(mount.target) >= len(best):
                    best, number, source = mount.target, mount.device, mount.source
    except OSError:
        pass
    return number, source


def _whole(number: str, root: str) -> str:
    """The device that a partition is of; any other is whole."""
    place = os.path.realpath(f"{root}/sys/dev/block/{number}")
    if os.path.exists(f"{place}/partition"):
        place = os.path.dirname(place)
    return _read(f"{place}/dev") if os.path.isdir(f"{place}/queue") else ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
