"""Which devices may be opened at all: the second wall behind ``nodev`` (H11).

It holds where ``nodev`` does not: on what an app with CAP_SYS_ADMIN mounts itself. v1 has a controller for it, v2
takes a program. The pod's cgroup is closed, and with it all below: an app that has got hold of its own cgroup's
files cannot allow itself what the pod's denies.
"""

from __future__ import annotations

import os

from kurma_stager_default.inside import sysmounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.linux.cgroup_layout import Layout

_HOLDS = "devices: those that were not given are refused by nodev and by {}"
_LACKS = "devices: those that were not given are refused by nodev alone ({})"


def close(layout: Layout) -> str:
    """Comes before any cgroup is made below the pod's own.

    :returns: what holds, in words for the user.
    :raises OSError: v1's controller refuses.
    """
    for hierarchy in layout.hierarchies:
        if hierarchy.version == 1 and "devices" in hierarchy.controllers:
            # One write per line: the files take no more.
            _write(f"{hierarchy.directory}/devices.deny", "a")
            for line in sysmounts.ALLOWED:
                _write(f"{hierarchy.directory}/devices.allow", line)
            return _HOLDS.format("the devices controller")
    for hierarchy in layout.hierarchies:
        if hierarchy.version == 2:
            from kurma_core.linux import device_program

            try:
                device_program.attach(hierarchy.directory, sysmounts.ALLOWED)
            except OSError as error:
                return _LACKS.format(error.strerror)
            return _HOLDS.format("a program of the cgroup")
    return _LACKS.format("this host has no cgroups")


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"cannot write {value!r}: {error.strerror}", path) from None
    finally:
        os.close(fd)
