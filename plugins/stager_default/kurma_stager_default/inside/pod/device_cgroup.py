"""Which devices may be opened at all: the second wall behind ``nodev`` (H11).

It holds where ``nodev`` does not: on what an app with CAP_SYS_ADMIN mounts itself. v1 has a controller for it, v2
takes a program. The pod's cgroup is closed, and with it all below: an app that has got hold of its own cgroup's
files cannot allow itself what the pod's denies. Where an app was given devices, the pod's cgroup allows them, and
that of every app just its own.
"""

from __future__ import annotations

import errno
import os
import time

from kurma_stager_default.inside.app import proc_sys_dev
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from kurma_core.linux.cgroups import CgroupTree, Layout
    from kurma_stager_default.inside.manifest import Plan

_HOLDS = "devices: those that were not given are refused by nodev and by {}"
_LACKS = "devices: those that were not given are refused by nodev alone ({})"
OPEN = "devices: a privileged app may open all of the host's; to others those that were not given are refused"
#: Seconds for which a call-in may be in the way, and between two looks.
_IN_THE_WAY, _TURN = 5.0, 0.01
#: v1's word for everything; it is taken once there are cgroups below.
_EVERYTHING = ("c *:* rwm", "b *:* rwm")


def rules(plans: Iterable[Plan]) -> list[str] | None:
    """What apps with these plans may open besides what all may, as v1's controller says it; None: everything."""
    found: dict[str, None] = {}
    for plan in plans:
        if plan.privileged:
            return None
        for device in plan.devices:
            found[f"{device['kind']} {device['major']}:{device['minor']} {device['access']}"] = None
    return list(found)


def close(layout: Layout, more: list[str] | None) -> str:
    """Comes before any cgroup is made below the pod's own.

    :param more: see :func:`rules`.
    :returns: what holds, in words for the user.
    :raises OSError: v1's controller refuses.
    """
    if more is None:
        return OPEN
    v1, v2 = _directory(layout, 1), _directory(layout, 2)
    if v1 is not None:
        _close_v1(v1, more)
        return _HOLDS.format("the devices controller")
    if v2 is not None:
        from kurma_core.linux import bpf

        try:
            bpf.attach_device_program(v2, (*proc_sys_dev.ALLOWED, *more))
        except OSError as error:
            return _lacks(str(error.strerror), more)
        return _HOLDS.format("a program of the cgroup")
    return _lacks("this host has no cgroups", more)


def _lacks(why: str, more: list[str] | None) -> str:
    """:raises SetupError: a device was given to be read alone, which nodev does not hold."""
    if any("w" not in rule.split()[2] for rule in more or ()):
        raise SetupError(f"devices cannot be given for reading alone: their cgroup cannot be closed: {why}")
    return _LACKS.format(why)


def close_anew(layout: Layout, more: list[str] | None) -> str:
    """What :func:`close` has closed, with other devices; comes before any cgroup is made below, too.

    :raises OSError: v1's controller refuses.
    """
    v1, v2 = _directory(layout, 1), _directory(layout, 2)
    if v1 is not None:
        if more is None:
            _write(f"{v1}/devices.allow", "a")
            return OPEN
        return close(layout, more)
    if v2 is not None:
        from kurma_core.linux import bpf

        try:
            bpf.replace_device_program(v2, None if more is None else (*proc_sys_dev.ALLOWED, *more))
        except OSError as error:
            return _lacks(str(error.strerror), more)
        return OPEN if more is None else _HOLDS.format("a program of the cgroup")
    return close(layout, more)


def narrow(tree: CgroupTree, plan: Plan, wall: list[str] | None) -> None:
    """Closes an app's own cgroup to what its pod's allows for others.

    :param wall: what the pod's allows.
    :raises OSError: the kernel refuses.
    """
    own = rules([plan])
    if own is None or own == wall:
        return
    v1, v2 = _directory(tree.layout, 1), _directory(tree.layout, 2)
    if v1 is not None:
        _close_v1(f"{v1}/{tree.name}", own)
    elif v2 is not None:
        from kurma_core.linux import bpf

        bpf.attach_device_program(f"{v2}/{tree.name}", (*proc_sys_dev.ALLOWED, *own))


def widen(
    layout: Layout, wall: list[str] | None, plan: Plan, others: list[tuple[CgroupTree, Plan]]
) -> list[str] | None:
    """Opens the pod's cgroup for an app that has come, and closes those of the others first.

    :param wall: what the pod's allows so far.
    :param others: the apps that are there.
    :returns: what it allows now.
    :raises OSError: the kernel refuses.
    """
    own = rules([plan])
    if wall is None or (own is not None and set(own) <= set(wall)):
        return wall
    allowed = None if own is None else [*wall, *own]
    v1, v2 = _directory(layout, 1), _directory(layout, 2)
    if v1 is not None:
        # Who has a cgroup already gets nothing by this.
        for line in _EVERYTHING if own is None else own:
            _write(f"{v1}/devices.allow", line)
    elif v2 is not None:
        from kurma_core.linux import bpf

        for tree, theirs in others:
            narrow(tree, theirs, allowed)
        bpf.replace_device_program(v2, None if allowed is None else (*proc_sys_dev.ALLOWED, *allowed))
    return allowed


def _directory(layout: Layout, version: int) -> str | None:
    """Of the hierarchy that devices are controlled on, in that version of cgroups."""
    for hierarchy in layout.hierarchies:
        if hierarchy.version == version and (version == 2 or "devices" in hierarchy.controllers):
            return hierarchy.directory
    return None


def _close_v1(directory: str, more: list[str]) -> None:
    # One write per line: the files take no more.
    _deny_everything(directory)
    for line in (*proc_sys_dev.ALLOWED, *more):
        _write(f"{directory}/devices.allow", line)


def _deny_everything(directory: str) -> None:
    """The kernel does so only while there are no cgroups below. One that is there was made for a call-in that has
    come before its time: it goes once that has ended, and the next call-in makes it anew.
    """
    end = 0.0
    while True:
        try:
            _write(f"{directory}/devices.deny", "a")
            return
        except OSError as error:
            now = time.monotonic()
            end = end or now + _IN_THE_WAY
            if error.errno != errno.EINVAL or now > end:
                raise
        for name in os.listdir(directory):
            try:  # noqa: SIM105 - contextlib costs every pod's start
                os.rmdir(f"{directory}/{name}")
            except OSError:
                pass  # a file; or it is still at work
        # The kernel lets go of a cgroup a moment after it was removed.
        time.sleep(_TURN)


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"cannot write {value!r}: {error.strerror}", path) from None
    finally:
        os.close(fd)
