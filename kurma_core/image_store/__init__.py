"""The image store: archives read, checked and extracted once, images kept by content."""

from kurma_core.image_store.store import ImageStore
from kurma_core.image_store.tar_entries import Limits

__all__ = ["ImageStore", "Limits"]
