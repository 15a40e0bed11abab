"""What a stager leaves written: ``/pod/status.json``, and what its ``status`` call-in prints. Untrusted, both.

Shapes: the Kurma Stager Specification ("status"), with ``running: false`` understood too (G5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import StagerError
from kurma_core.json_text import loads
from kurma_core.linux.beneath import AT_FDCWD
from kurma_core.linux.regular_file import open_regular
from kurma_core.models.pod import ETC_CONTENTS, ETC_FILES, REASONS, AppExecution, AppStatus

#: More than this from a stager is nonsense.
LIMIT = 1 << 20
_MOST = 1 << 31
#: Bytes of a log's name: those of the files that were turned over are longer.
_NAME = 240
#: Executions of one app, at most.
_EARLIER = 100
#: Notes at most, and characters of any text.
_NOTES, _TEXT = 100, 4096
#: Of ``status.json``.
_VERSION = 1


def read_status_file(directory: str) -> tuple[dict[str, AppStatus], tuple[str, ...]] | None:
    """Apps and notes of ``pod/status.json`` below a pod's directory; None: the stager keeps no such file.

    :raises StagerError: it is there and nonsense.
    """
    try:
        # The stager may have put anything there: a link to a secret of the host, a device.
        fd = open_regular(AT_FDCWD, f"{directory}/pod/status.json", os.O_RDONLY | os.O_NOFOLLOW, resolve=0)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StagerError(f"the stager is wrong: its status.json cannot be read: {error.strerror}") from None
    try:
        with open(fd, "rb", closefd=False) as stream:
            text = stream.read(LIMIT + 1)
    except OSError as error:
        raise StagerError(f"the stager is wrong: its status.json cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    value = _decode(text, "its status.json")
    version = value.get("version", _VERSION)
    if isinstance(version, bool) or version != _VERSION:
        raise StagerError(f"the stager is wrong: its status.json has version {version!r:.40}, not {_VERSION}")
    notes = value.get("notes")
    told = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    return parse_apps(value.get("apps"), "its status.json"), tuple(_clean(note) for note in told[:_NOTES])


def unready(directory: str) -> list[str]:
    """Apps of the pod in that directory that are to say that they are ready, and have not."""
    try:
        found = read_status_file(directory)
    except StagerError:
        return []
    return [] if found is None else [name for name, app in found[0].items() if app.ready is False]


def parse_status_output(text: bytes) -> dict[str, AppStatus]:
    """:param text: what the ``status`` call-in printed.
    :raises StagerError: it is not what the specification says.
    """
    return parse_apps(_decode(text, "its status call-in"), "its status call-in")


def _decode(text: bytes, what: str) -> dict[str, Any]:
    if len(text) > LIMIT:
        raise StagerError(f"the stager is wrong: {what} has more than {LIMIT} bytes")
    try:
        value = loads(text, own=True)
    except ValueError as error:
        raise StagerError(f"the stager is wrong: {what} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} is no JSON object")
    return value


def parse_apps(value: object, what: str) -> dict[str, AppStatus]:
    """Checks and converts a mapping of app name to status."""
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} names no apps")
    for name in value:
        # It goes in front of each line of the app's log, among others.
        if not name.isprintable():
            raise StagerError(f"the stager is wrong: {what} names an app {name!r:.80}")
    return {name: _app(name, status, what) for name, status in value.items()}


def _clean(text: str) -> str:
    """Halves of surrogate pairs, which JSON can name, are no text: nothing could write them out again."""
    return text[:_TEXT].encode("utf-8", "replace").decode()


class _Reading:
    """The values of one app's object."""

    def __init__(self, name: str, value: object, what: str) -> None:
        if not isinstance(value, Mapping):
            raise StagerError(f"the stager is wrong: {what}: {name} is no object")
        self._name = name
        self._value = value
        self._what = what

    def number(self, key: str, lowest: int, highest: int) -> int | None:
        found = self._value.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not lowest <= found <= highest:
            raise StagerError(f"the stager is wrong: {self._what}: {self._name}: {key} is {found!r}")
        return found

    def text(self, key: str) -> str | None:
        found = self._value.get(key)
        return _clean(found) if isinstance(found, str) else None

    def log(self) -> str | None:
        log = self._value.get("log")
        if not isinstance(log, str) or not log:
            return None
        # What is printable can be encoded; NUL is not.
        if "/" in log or log.startswith(".") or not log.isprintable() or len(os.fsencode(log)) > _NAME:
            raise StagerError(f"the stager is wrong: {self._what}: {self._name}: log is {log!r:.80}")
        return log

    def reason(self) -> str | None:
        reason = self.text("exitReason")
        return reason if reason in REASONS else None

    def earlier(self) -> tuple[AppExecution, ...]:
        """The executions before this one, the last few of them."""
        found = self._value.get("earlier")
        if not isinstance(found, list):
            return ()
        kept = found[-_EARLIER:]
        return tuple(
            _Reading(self._name, one, self._what).execution(len(found) - len(kept) + place)
            for place, one in enumerate(kept)
        )

    def files(self) -> dict[str, str]:
        found = self._value.get("files")
        if not isinstance(found, Mapping):
            return {}
        return {name: found[name] for name in ETC_FILES if found.get(name) in ETC_CONTENTS}

    def execution(self, place: int) -> AppExecution:
        """:param place: counted from 0, where it says nothing itself."""
        instance = self.number("instance", 0, _MOST)
        return AppExecution(
            instance=place if instance is None else instance,
            **self.end(),
        )

    def end(self) -> dict[str, Any]:
        """The fields of :class:`AppEnd`."""
        return {
            "exit_code": self.number("exitCode", 0, 255),
            "reason": self.reason(),
            "message": self.text("message"),
            "started_at": self.text("startedAt"),
            "finished_at": self.text("finishedAt"),
            "log": self.log(),
            "signal": self.number("signal", 1, 64),
        }


def _app(name: str, value: object, what: str) -> AppStatus:
    reading = _Reading(name, value, what)
    found: Mapping[str, Any] = value  # type: ignore[assignment]
    exited = found.get("exited") is True or found.get("running") is False
    return AppStatus(
        name=name,
        pid=None if exited else reading.number("pid", 1, 1 << 22),
        exited=exited,
        log_dropped=reading.number("logDropped", 0, 1 << 62) or 0,
        instance=reading.number("instance", 0, _MOST),
        restarts=reading.number("restarts", 0, _MOST) or 0,
        restarting=found.get("restarting") is True and not exited,
        ready=None if exited or not isinstance(found.get("ready"), bool) else found["ready"],
        status_text=None if exited else reading.text("statusText"),
        earlier=reading.earlier(),
        files=reading.files(),
        **reading.end(),
    )


def exit_code(apps: Mapping[str, AppStatus], order: list[str]) -> int:
    """The pod's exit code: the first non-zero of its apps in manifest order, else 0."""
    for name in order:
        status = apps.get(name)
        if status is not None and status.exit_code:
            return status.exit_code
    return 0
