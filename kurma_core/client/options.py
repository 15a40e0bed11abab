"""Options that calls of the client share, by name. For those who check types: nobody else imports this."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from kurma_core.progress import Progress


class TextOptions(TypedDict, total=False):
    """Which of what apps write is read."""

    #: And what will be written.
    follow: bool
    #: Only the last so many lines (of all apps asked for) before what is followed.
    tail: int | None
    #: Nanoseconds since the epoch.
    since: int | None
    #: ``stdout`` or ``stderr``.
    stream: str | None


class LogOptions(TextOptions, total=False):
    """Which of a pod's output is read."""

    #: Only that execution of the app, by its number; -1: the one before the last.
    instance: int | None


class BringOptions(TypedDict, total=False):
    """How an image is brought into the store."""

    #: Relaxations for this run: ``image``, ``tls``, ``http``, ``pubkey``; told and recorded.
    insecure: Collection[str]
    progress: Progress | None


class FetchOptions(BringOptions, total=False):
    """How an image is fetched."""

    #: ``new`` (what is said nothing of) fetches what is not in the store, ``always`` asks the source each time;
    #: ``never``.
    pull: str


__all__ = ["BringOptions", "FetchOptions", "LogOptions", "TextOptions"]
