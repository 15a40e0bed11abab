"""Machines with images, and what they say of their progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kurma_core.images.manager import ImageManager


@dataclass
class Machine:
    """A state directory with its images, and what the user was told."""

    images: ImageManager
    state: Path
    notes: list[str]

    def partials(self) -> list[Path]:
        directory = self.state / "images" / "partial"
        return sorted(directory.iterdir()) if directory.exists() else []


MakeMachine = Callable[..., Machine]


def watched_steps(machines: Sequence[Machine]) -> list[str]:
    """The steps that the stores of these machines come to from now on. What one has extracted is put in place only
    once another waits for the same, or has had five seconds to."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        deadline = time.monotonic() + 5
        while name == "extracted" and time.monotonic() < deadline:
            if any("waiting for another fetch of the same" in note for here in machines for note in here.notes):
                break
            time.sleep(0.02)

    for here in machines:
        here.images.store.step = step
    return steps


class Bar:
    """What a progress bar is told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int | None]] = []
        self.done = 0
        self.skipped = 0
        self.finished = 0

    def start(self, what: str, total: int | None, kind: str = "bytes") -> None:
        self.started.append((what, total))

    def skip(self, count: int) -> None:
        self.done += count
        self.skipped += count

    def advance(self, count: int) -> None:
        self.done += count

    def finish(self) -> None:
        self.finished += 1
