"""Reports the progress of long work to the caller."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of the progress of work. All calls are cheap; ``total`` is in bytes, None when unknown. Skipped bytes
    are done by an earlier attempt, and do not count for the speed."""

    def start(self, what: str, total: int | None) -> None: ...
    def skip(self, count: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...
