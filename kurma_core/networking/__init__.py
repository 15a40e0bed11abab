"""Networks of pods: which a pod joins and under what interface names, joining and leaving them, in order (W1–W8).

What a network *is* is its driver's (:class:`kurma_core.hookspecs.Network`); here are the names, the order of
things, the undo, and what holds for networks of every kind.
"""

from __future__ import annotations

from kurma_core.networking.catalog import NetworkInfo
from kurma_core.networking.manager import Networking, namespace_path
from kurma_core.networking.requests import parse_net, parse_port, parse_ports

__all__ = ["NetworkInfo", "Networking", "namespace_path", "parse_net", "parse_port", "parse_ports"]
