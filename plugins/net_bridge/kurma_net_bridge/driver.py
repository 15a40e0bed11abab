"""The driver of bridge networks (W8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import AttachmentContext
from kurma_core.models import NetworkResult
from kurma_net_bridge.settings import parse_settings

Json = Any


class BridgeNetwork:
    """:param state_dir: of this driver. :param note: tells the user something in one line."""

    def __init__(self, state_dir: str, note: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._note = note

    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong."""
        parse_settings(config)

    def add(self, context: AttachmentContext) -> NetworkResult:
        raise NetworkError("bridge networks cannot be joined yet", network=context.attachment.network)

    def delete(self, context: AttachmentContext) -> None:
        """Nothing has been made."""

    def check(self, context: AttachmentContext) -> None:
        raise NetworkError("nothing was joined", network=context.attachment.network)

    def remove(self, config: Mapping[str, Json]) -> None:
        """Nothing has been made."""
