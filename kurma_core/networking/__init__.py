"""Networks of pods: which a pod joins and under what interface names, joining and leaving them, in order (W1–W8).

A driver (:class:`kurma_core.hookspecs.network.Network`) does what its kind of network needs; here are the names,
the order of things, the undo, and what holds for networks of every kind.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.host import NetworkInfo
    from kurma_core.networking.manager import Networking, namespace_path
    from kurma_core.networking.requests import parse_net, parse_port, parse_ports

__all__ = ["NetworkInfo", "Networking", "namespace_path", "parse_net", "parse_port", "parse_ports"]

_HOMES = {"NetworkInfo": "catalog", "Networking": "manager", "namespace_path": "manager"}


def __getattr__(name: str) -> object:
    """Loaded when first asked for: who only reads a command line has no use for the manager."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'requests')}"), name)
    globals()[name] = found
    return found
