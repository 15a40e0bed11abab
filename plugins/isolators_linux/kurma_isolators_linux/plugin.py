"""The hook of the Linux isolators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import DriverContext
    from kurma_core.hookspecs.isolator import Isolator


def _create(context: DriverContext) -> Isolator:
    from kurma_isolators_linux.driver import LinuxIsolators

    return LinuxIsolators()


@hookimpl
def kurma_isolator() -> Driver[Isolator]:
    return Driver(_create)
