"""Telling observers what happens to pods, and writing it down: after it is on disk, and never to a pod's harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.linux.clock import timestamp
from kurma_core.models.pod import PodEvent

if TYPE_CHECKING:
    from kurma_core.journal import Journal
    from kurma_core.plugins.registry import PluginRegistry
    from kurma_core.pods.document import PodDocument


class Events:
    """Broadcasts through the registry, which keeps observers' failures to itself."""

    def __init__(self, registry: PluginRegistry, journal: Journal) -> None:
        self._registry = registry
        self._journal = journal

    def tell(
        self, kind: str, document: PodDocument, detail: Mapping[str, Any] | None = None, at: str | None = None
    ) -> None:
        """:param at: when it happened; None: now."""
        event = PodEvent(kind, document.uuid, document.name, at or timestamp(), detail or {})
        self._journal.tell("pod", kind, event.pod, event.name, event.detail, event.at)
        self._registry.emit(event)

    def ended(self, how: Mapping[str, Any], document: PodDocument) -> None:
        """:param how: its last ``state``, with ``exitCode`` and ``reason``."""
        detail = {key: how[key] for key in ("exitCode", "reason") if how.get(key) is not None}
        self.tell(str(how["state"]), document, detail)
