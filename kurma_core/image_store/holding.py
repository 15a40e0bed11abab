"""Images and trees that a command has found and no pod names yet: nothing takes them away meanwhile (S3)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from kurma_core.errors import ImageError, StoreError
from kurma_core.image_store import documents
from kurma_core.image_store.durable import share_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.models.image import ImageRecord

#: Times that an image is looked for which others remove before it can be held.
_TRIES = 20
#: The file whose time says when something was last used.
_TOUCHED = {"images": "used", "trees": "tree.json"}


class Holds:
    """What is held belongs to the block, and thread, that began with :meth:`keeping`. What comes into the store in
    such a block is held from the start.

    :param path_in: makes a path in the store of its parts.
    """

    def __init__(self, path_in: Callable[..., str]) -> None:
        self._path_in = path_in
        self._mine: ContextVar[dict[str, int] | None] = ContextVar("kurma_held_images", default=None)

    @contextlib.contextmanager
    def keeping(self, *, used: bool = True) -> Iterator[None]:
        """Images held inside stay at least until the block is left. Blocks may nest.

        :param used: they count as used then.
        """
        if self._mine.get() is not None:
            yield
            return
        held: dict[str, int] = {}
        token = self._mine.set(held)
        try:
            yield
        finally:
            self._mine.reset(token)
            for place, fd in held.items():
                # A sweep that has looked for pods already, and did not see the one made here, sees this.
                if used:
                    with contextlib.suppress(ImageError, OSError):
                        kind, _, ident = place.partition("/")
                        documents.touch(self._path_in(kind, ident, _TOUCHED[kind]), ident)
                os.close(fd)

    def found(self, what: str, find: Callable[[], ImageRecord]) -> ImageRecord:
        """What ``find`` finds or brings into the store, held.

        :param what: for people: what is looked for.
        :raises StoreError: somebody removes it each time.
        """
        for _ in range(_TRIES):
            record = find()
            if self.hold(record.id):
                return record
        raise StoreError(f"{what}: is removed from the store as fast as it comes", image=record.id)

    def hold(self, image_id: str, *, wait: bool = True) -> bool:
        """False: it is not in the store (any more). Outside of :meth:`keeping` nothing is held.

        :param wait: until it is decided whether somebody removes it; False: also if that is not known yet.
        """
        return self._hold(f"images/{image_id}", wait=wait)

    def hold_tree(self, tree_id: str) -> bool:
        """The same for a rendered tree."""
        return self._hold(f"trees/{tree_id}")

    def _hold(self, place: str, *, wait: bool = True) -> bool:
        held = self._mine.get()
        if held is None:
            return os.path.isdir(self._path_in(place))
        if place not in held:
            fd = share_lock(self._path_in(place), wait=wait)
            if fd is None:
                return False
            held[place] = fd
        return True
