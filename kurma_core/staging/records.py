"""What a stager leaves written: ``/pod/status.json``, and what its ``status`` call-in prints. Untrusted, both.

Shapes: the Kurma Stager Specification ("status"), with ``running: false`` understood too (G5).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import StagerError
from kurma_core.models import AppStatus

#: More than this from a stager is nonsense.
LIMIT = 1 << 20
REASONS = ("exited", "killed", "oom", "start-failed")


def read_status_file(directory: str) -> tuple[dict[str, AppStatus], tuple[str, ...]] | None:
    """Apps and notes of ``pod/status.json`` below a pod's directory; None: the stager keeps no such file.

    :raises StagerError: it is there and nonsense.
    """
    try:
        # NOFOLLOW: the stager may write anything into its directory, a link to a secret of the host too.
        fd = os.open(f"{directory}/pod/status.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as stream:
        text = stream.read(LIMIT + 1)
    value = _decode(text, "its status.json")
    notes = value.get("notes")
    return (
        parse_apps(value.get("apps"), "its status.json"),
        tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else (),
    )


def parse_status_output(text: bytes) -> dict[str, AppStatus]:
    """:param text: what the ``status`` call-in printed.
    :raises StagerError: it is not what the specification says.
    """
    return parse_apps(_decode(text, "its status call-in"), "its status call-in")


def _decode(text: bytes, what: str) -> dict[str, Any]:
    if len(text) > LIMIT:
        raise StagerError(f"the stager is wrong: {what} has more than {LIMIT} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StagerError(f"the stager is wrong: {what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} is no JSON object")
    return value


def parse_apps(value: object, what: str) -> dict[str, AppStatus]:
    """Checks and converts a mapping of app name to status."""
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} names no apps")
    return {name: _app(name, status, what) for name, status in value.items()}


def _app(name: str, value: object, what: str) -> AppStatus:
    if not isinstance(value, Mapping):
        raise StagerError(f"the stager is wrong: {what}: {name} is no object")

    def number(key: str, lowest: int, highest: int) -> int | None:
        found = value.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not lowest <= found <= highest:
            raise StagerError(f"the stager is wrong: {what}: {name}: {key} is {found!r}")
        return found

    def text(key: str) -> str | None:
        found = value.get(key)
        return found[:4096] if isinstance(found, str) else None

    running = value.get("running")
    exited = value.get("exited") is True or running is False
    log = text("log")
    if log is not None and ("/" in log or log.startswith(".")):
        raise StagerError(f"the stager is wrong: {what}: {name}: log is {log!r}")
    reason = text("exitReason")
    return AppStatus(
        name=name,
        pid=None if exited else number("pid", 1, 1 << 22),
        exited=exited,
        exit_code=number("exitCode", 0, 255),
        reason=reason if reason in REASONS else None,
        message=text("message"),
        started_at=text("startedAt"),
        finished_at=text("finishedAt"),
        log=log,
        signal=number("signal", 1, 64),
        log_dropped=number("logDropped", 0, 1 << 62) or 0,
    )


def exit_code(apps: Mapping[str, AppStatus], order: list[str]) -> int:
    """The pod's exit code: the first non-zero of its apps in manifest order, else 0."""
    for name in order:
        status = apps.get(name)
        if status is not None and status.exit_code:
            return status.exit_code
    return 0
