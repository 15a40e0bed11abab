"""Compiles ``kurma.io/devices``: gives apps devices of the host, by their current numbers, owners and modes."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs.isolator import Compiled, Power
from kurma_core.models.isolator import Device, IsolatorPlan
from kurma_core.schema import describe
from kurma_core.value import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.hookspecs.isolator import IsolatorHost

_KEYS = frozenset(("path", "hostPath", "access"))
_ACCESS = "rwm"
#: Devices that every app's ``/dev`` has.
_GIVEN = frozenset(("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero"))
#: Those of them that are the same device on the host: an app's console and terminals are not the host's.
_SAME = frozenset(("full", "null", "random", "urandom", "zero"))
_OWN = ("fd", "mqueue", "pts", "shm", "stdin", "stdout", "stderr")
_EXAMPLE = '[{"path": "/dev/fuse", "access": "rw"}], or ["/dev/fuse"]'


@frozen
class _Wanted:
    """A requested device. :param path: in the app. :param source: on the host."""

    path: str
    source: str
    access: str


def powers(name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
    """Requires a grant for every device of the host except those that all apps have."""
    found = [one for one in _read(name, value) if one.source.removeprefix("/dev/") not in _SAME]
    return tuple(Power(f"{name}={one.source}") for one in found)


def devices(name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
    """Compiles the list: each device gets the numbers, owner and mode that it has on the host now. A directory
    stands for all devices below it.

    :raises IsolatorError: the host has no such device, or the path is not allowed in an app's ``/dev``.
    """
    found = tuple(device for one in _read(name, value) for device in _devices(name, one, host.root))
    if scope == "pod":
        return Compiled(IsolatorPlan(), apps=IsolatorPlan(devices=found))
    return Compiled(IsolatorPlan(devices=found))


def _read(name: str, value: Any) -> list[_Wanted]:
    if not isinstance(value, list):
        raise IsolatorError(f"isolator {name}: expected a list of devices, got {describe(value)}", hint=_EXAMPLE)
    wanted = [_wanted(name, entry) for entry in value]
    for number, one in enumerate(wanted):
        for other in wanted[:number]:
            shorter, longer = sorted((one.path, other.path), key=len)
            if longer == shorter:
                raise IsolatorError(f"isolator {name}: {one.path} is given twice", hint="give each path once")
            if longer.startswith(f"{shorter}/"):
                raise IsolatorError(f"isolator {name}: {one.path} stands in the way of {other.path}")
    return wanted


def _wanted(name: str, entry: Any) -> _Wanted:
    if isinstance(entry, str):
        entry = {"path": entry}
    if not isinstance(entry, dict) or not set(entry) <= _KEYS or "path" not in entry:
        raise IsolatorError(
            f"isolator {name}: expected a path, or an object with path, hostPath, access, got {describe(entry)}",
            hint=_EXAMPLE,
        )
    path, source = (_below_dev(name, each) for each in (entry["path"], entry.get("hostPath", entry["path"])))
    if path.split("/")[2] in (*_OWN, *_GIVEN):
        raise IsolatorError(f"isolator {name}: {path} is there for every app, and its own")
    access = entry.get("access", _ACCESS)
    if not isinstance(access, str) or not access or any(access.count(each) > (each in _ACCESS) for each in access):
        raise IsolatorError(f"isolator {name}: {path}: expected letters of rwm as access, got {describe(access)}")
    return _Wanted(path, source, "".join(letter for letter in _ACCESS if letter in access))


def _below_dev(name: str, path: Any) -> str:
    if not isinstance(path, str) or not _is_below_dev(path):
        raise IsolatorError(f"isolator {name}: expected a path below /dev, got {describe(path)}")
    return path


def _is_below_dev(path: str) -> bool:
    parts = path.split("/")
    return (
        parts[:2] == ["", "dev"]
        and len(parts) > 2
        and not any(part in ("", ".", "..") for part in parts[2:])
        and path.isprintable()
        and len(path) < 256
    )


def _devices(name: str, wanted: _Wanted, root: str) -> tuple[Device, ...]:
    source = f"{root.rstrip('/')}{wanted.source}"
    try:
        status = os.stat(source)
    except OSError as error:
        raise IsolatorError(
            f"isolator {name}: {wanted.source}: {(error.strerror or '').lower()}",
            hint="devices are the host's own: look for it in /dev",
        ) from None
    if stat.S_ISDIR(status.st_mode):
        below = sorted(_below(source, wanted.path, wanted.access), key=lambda device: device.path)
        if not below:
            raise IsolatorError(f"isolator {name}: the directory {wanted.source} has no devices")
        return tuple(below)
    found = _as_device(wanted.path, status, wanted.access)
    if found is None:
        raise IsolatorError(f"isolator {name}: {wanted.source} is not a device")
    return (found,)


def _as_device(path: str, status: os.stat_result, access: str = _ACCESS) -> Device | None:
    mode = status.st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        return None
    return Device(
        path=path,
        kind="c" if stat.S_ISCHR(mode) else "b",
        major=os.major(status.st_rdev),
        minor=os.minor(status.st_rdev),
        access=access,
        mode=stat.S_IMODE(mode),
        uid=status.st_uid,
        gid=status.st_gid,
    )


def all_devices(root: str) -> tuple[Device, ...]:
    """Returns every node of the host's ``/dev`` except those that an app has of its own."""
    top = f"{root.rstrip('/')}/dev"
    return tuple(sorted(_below(top, "/dev"), key=lambda device: device.path))


def _below(directory: str, path: str, access: str = _ACCESS) -> Iterator[Device]:
    try:
        with os.scandir(directory) as listed:
            entries = list(listed)
    except OSError:
        return  # removed meanwhile, or not a directory
    for entry in entries:
        if path == "/dev" and entry.name in (*_OWN, *_GIVEN):
            continue
        here = f"{path}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, here, access)
            continue
        try:
            found = _as_device(here, entry.stat(follow_symlinks=False), access)
        except OSError:
            continue
        if found is not None and _is_below_dev(here):
            yield found
