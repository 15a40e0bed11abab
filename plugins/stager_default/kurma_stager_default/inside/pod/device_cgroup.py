"""Limits the devices that a pod's apps may open, by the devices controller (v1) or a BPF program (v2) of the
cgroup.

It is a second barrier behind ``nodev``, which does not hold for file systems that an app with CAP_SYS_ADMIN
mounts. The limit of the pod's cgroup binds all cgroups below: an app that can write to its own cgroup's files
cannot allow itself more. The pod's cgroup allows all devices that its apps were given, and each app's cgroup only
its own.
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
#: Seconds that a call-in's cgroup may delay the start, and between two attempts.
_IN_THE_WAY, _TURN = 5.0, 0.01
#: All devices, in v1's notation. Unlike ``a``, the kernel accepts it while the cgroup has children.
_EVERYTHING = ("c *:* rwm", "b *:* rwm")


def rules(plans: Iterable[Plan]) -> list[str] | None:
    """The devices that apps with these plans may open besides the usual ones, in v1's notation; None: all."""
    found: dict[str, None] = {}
    for plan in plans:
        if plan.privileged:
            return None
        for device in plan.devices:
            found[f"{device['kind']} {device['major']}:{device['minor']} {device['access']}"] = None
    return list(found)


def close(layout: Layout, more: list[str] | None) -> str:
    """Limits the devices of the pod's cgroup. Call it before any cgroup is made below.

    :param more: see :func:`rules`.
    :returns: a note for the user on the limit.
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
    """The note for a host without the limit.

    :raises SetupError: a device was given for reading only, which ``nodev`` cannot enforce."""
    if any("w" not in rule.split()[2] for rule in more or ()):
        raise SetupError(f"devices cannot be given for reading alone: their cgroup cannot be closed: {why}")
    return _LACKS.format(why)


def close_anew(layout: Layout, more: list[str] | None) -> str:
    """Replaces the devices that :func:`close` has allowed. Call it before any cgroup is made below, too.

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
    """Limits an app's cgroup to the app's own devices.

    :param wall: the devices that the pod's cgroup allows.
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
    """Allows the devices of an added app in the pod's cgroup, after limiting the other apps' cgroups.

    :param wall: the devices that the pod's cgroup allows so far.
    :param others: the other apps of the pod.
    :returns: the devices that the pod's cgroup allows now.
    :raises OSError: the kernel refuses.
    """
    own = rules([plan])
    if wall is None or (own is not None and set(own) <= set(wall)):
        return wall
    allowed = None if own is None else [*wall, *own]
    v1, v2 = _directory(layout, 1), _directory(layout, 2)
    if v1 is not None:
        # On v1, existing cgroups below do not get the new devices.
        for line in _EVERYTHING if own is None else own:
            _write(f"{v1}/devices.allow", line)
    elif v2 is not None:
        from kurma_core.linux import bpf

        for tree, theirs in others:
            narrow(tree, theirs, allowed)
        bpf.replace_device_program(v2, None if allowed is None else (*proc_sys_dev.ALLOWED, *allowed))
    return allowed


def _directory(layout: Layout, version: int) -> str | None:
    """The cgroup's directory on the hierarchy of that version that controls devices; None: there is none."""
    for hierarchy in layout.hierarchies:
        if hierarchy.version == version and (version == 2 or "devices" in hierarchy.controllers):
            return hierarchy.directory
    return None


def _close_v1(directory: str, more: list[str]) -> None:
    # The kernel takes one line per write.
    _deny_everything(directory)
    for line in (*proc_sys_dev.ALLOWED, *more):
        _write(f"{directory}/devices.allow", line)


def _deny_everything(directory: str) -> None:
    """Denies all devices. The kernel accepts that only while there are no cgroups below. Such a cgroup was made
    for a call-in that came too early: it is removed once the call-in has ended, and made again for the next.
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
                pass  # a file; or the call-in still runs
        # The kernel frees a removed cgroup with a delay.
        time.sleep(_TURN)


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"cannot write {value!r}: {error.strerror}", path) from None
    finally:
        os.close(fd)
