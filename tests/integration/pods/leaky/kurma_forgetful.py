"""The same network, by a plugin that cannot be asked for leaks."""

from kurma_leaky import Forgetful

from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver


@hookimpl
def kurma_network():
    return Driver(Forgetful)
