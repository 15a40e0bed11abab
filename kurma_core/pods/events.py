"""Telling observers what happens to pods: after it is on disk, and never to a pod's harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.linux.clock import timestamp
from kurma_core.models import PodEvent

if TYPE_CHECKING:
    from kurma_core.pods.document import PodDocument
    from kurma_core.registry import PluginRegistry


class Events:
    """Broadcasts through the registry, which keeps observers' failures to itself."""

    def __init__(self, registry: PluginRegistry) -> None:
        self._registry = registry

    def tell(self, kind: str, document: PodDocument, detail: Mapping[str, Any] | None = None) -> None:
        self._registry.emit(PodEvent(kind, document.uuid, document.name, timestamp(), detail or {}))
