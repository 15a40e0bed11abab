"""The hook of the Linux isolators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import DriverContext
    from kurma_isolators_linux.driver import LinuxIsolators


def _create(context: DriverContext) -> LinuxIsolators:
    from kurma_isolators_linux.driver import LinuxIsolators

    return LinuxIsolators()


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
