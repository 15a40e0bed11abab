"""Reports the progress of long work to the caller."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how long work goes on. All calls are cheap; ``total`` is in bytes, None when unknown. What is skipped
    is done, but was there from an earlier attempt: it says nothing of the speed."""

    def start(self, what: str, total: int | None) -> None: ...
    def skip(self, count: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def finish(self) -> None: ...
