"""Events, as a client that works in process reads them: from the journal itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import HostError
from kurma_core.journal import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kurma_core.api.host import Event
    from kurma_core.journal import Journal

#: Letters of a UUID that are enough to mean the pods whose begins so.
_SHORTEST = 4


def wanted(pod: str | None, subjects: Collection[str], kinds: Collection[str]) -> Callable[[Event], bool]:
    """:param pod: name, UUID or the beginning of one: the pod itself may be gone."""

    def fits(event: Event) -> bool:
        if subjects and event.subject not in subjects:
            return False
        if kinds and event.kind not in kinds:
            return False
        if pod is None:
            return True
        if event.subject != "pod":
            return False
        begins = len(pod) >= _SHORTEST and (event.id or "").startswith(pod.lower())
        return begins or event.name == pod

    return fits


def read(journal: Journal, since: int | None, *, follow: bool) -> Iterator[Event]:
    """:raises HostError: the kernel lets nobody watch any more."""
    cursor = Cursor(journal, since)
    try:
        if not follow:
            yield from cursor.read()
            return
        from kurma_core.pods.waiting import wait_readable

        try:
            watch = journal.watch()
        except OSError as error:
            raise HostError(f"events cannot be followed: {error.strerror}", errno=error.errno) from None
        try:
            while True:
                yield from cursor.read()
                wait_readable(None, watch)
                watch.drain()
        finally:
            watch.close()
    finally:
        cursor.close()


__all__ = ["read", "wanted"]
