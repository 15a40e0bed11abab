"""The hook of the Linux isolators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, HostCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kurma_core.hookspecs.driver import DriverContext
    from kurma_isolators_linux.driver import LinuxIsolators


def _create(context: DriverContext) -> LinuxIsolators:
    from kurma_isolators_linux.driver import LinuxIsolators

    return LinuxIsolators()


@hookimpl
def kurma_checks() -> Sequence[HostCheck]:
    """AppArmor's files and program, if the kernel enforces its profiles."""
    return tuple(apparmor_checks())


def apparmor_checks(root: str = "") -> Iterator[HostCheck]:
    """:param root: the directory that holds ``/sys``."""
    import os

    from kurma_core.linux.programs import find_program

    try:
        with open(f"{root}/sys/module/apparmor/parameters/enabled") as file:
            enabled = file.read().strip() == "Y"
    except OSError:
        enabled = False
    if not enabled:
        return
    if not os.path.exists(f"{root}/sys/kernel/security/apparmor/profiles"):
        hint = "mount -t securityfs securityfs /sys/kernel/security"
        yield HostCheck("AppArmor", False, "its profiles cannot be read", hint)
    elif find_program("apparmor_parser") is None:
        yield HostCheck("AppArmor", False, "no program loads its profiles", "apt-get install apparmor")
    else:
        yield HostCheck("AppArmor", True)


@hookimpl
def kurma_isolator() -> Driver:
    from kurma_isolators_linux import driver

    return Driver(
        _create,
        isolators=driver.ISOLATORS,
        default_isolators=driver.DEFAULTS,
        exclusive=driver.EXCLUSIVE,
        gated=driver.GATED,
    )
