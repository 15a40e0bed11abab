"""The image store: archives read, checked and extracted once, images kept by content."""

from __future__ import annotations

from kurma_core.image_store.store import ImageStore
from kurma_core.image_store.tar_entries import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

    from kurma_core.appc.image import ImageManifest
    from kurma_core.image_store.archive_stream import Decrypt
    from kurma_core.image_store.builder import build_archive
    from kurma_core.image_store.staging import StagedImage

__all__ = ["ImageStore", "Limits", "StagedImage", "build_archive", "validate"]

_LAZY = {"build_archive": "builder", "StagedImage": "staging"}


def validate(stream: BinaryIO, limits: Limits | None = None, decrypt: Decrypt | None = None) -> ImageManifest:
    """Read an image archive to its end and check all of it; nothing is written.

    :raises ArchiveError: it is no image, or broken. :raises HostileArchiveError: it would not be extracted.
    :raises ManifestError: its manifest breaks the specification.
    """
    from kurma_core.image_store.archive_layout import validate

    return validate(stream, limits, decrypt)


def __getattr__(name: str) -> Any:
    """Looking something up in the store, as every start of a pod does, loads none of what reads archives."""
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
