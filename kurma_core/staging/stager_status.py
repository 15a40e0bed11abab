"""Reads and checks a stager's ``/pod/status.json`` and the output of its ``status`` call-in, which are untrusted.

The format is in the Kurma Stager Specification ("status"); ``running: false`` is accepted, too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import StagerError
from kurma_core.json_text import loads
from kurma_core.linux.beneath import AT_FDCWD, open_regular
from kurma_core.models.pod import ETC_CONTENTS, ETC_FILES, REASONS, AppEnd, AppExecution, AppStatus
from kurma_core.schema import JsonValue, Made, Maybe, SchemaError, Whole, child
from kurma_core.value import field, fields, frozen

#: Most bytes of a status.
LIMIT = 1 << 20
_MOST = 1 << 31
#: Most bytes of a log's name, to which rotated files add a suffix.
_NAME = 240
#: Most earlier executions of one app.
_EARLIER = 100
#: Most notes, and most characters of any text.
_NOTES, _TEXT = 100, 4096
#: Most bytes of a status that is kept parsed.
_KEPT = 16384
#: Version of ``status.json``.
_VERSION = 1


def read_status_file(directory: str) -> tuple[dict[str, AppStatus], tuple[str, ...]] | None:
    """The apps and notes of ``pod/status.json`` below a pod's directory; None: the stager has not written one.

    :raises StagerError: the file cannot be read, or is malformed.
    """
    try:
        # The stager may have put a link to a secret of the host there, or a device.
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
    apps, notes = (_parsed if len(text) <= _KEPT else _parse)(text)
    return dict(apps), notes


def _parse(text: bytes) -> tuple[dict[str, AppStatus], tuple[str, ...]]:
    value = _decode(text, "its status.json")
    version = value.get("version", _VERSION)
    if isinstance(version, bool) or version != _VERSION:
        raise StagerError(f"the stager is wrong: its status.json has version {version!r:.40}, not {_VERSION}")
    notes = value.get("notes")
    told = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    return parse_apps(value.get("apps"), "its status.json"), tuple(_clean(note) for note in told[:_NOTES])


#: A file is read several times for one record, and for each event of its pod: only another text is parsed again.
_parsed = functools.lru_cache(maxsize=64)(_parse)


def unready(directory: str) -> list[str]:
    """The apps of the pod in that directory that should report their readiness, and have not."""
    try:
        found = read_status_file(directory)
    except StagerError:
        return []
    return [] if found is None else [name for name, app in found[0].items() if app.ready is False]


def parse_status_output(text: bytes) -> dict[str, AppStatus]:
    """Parses the output of the ``status`` call-in.

    :raises StagerError: it does not conform to the specification.
    """
    return parse_apps(_decode(text, "its status call-in"), "its status call-in")


def _decode(text: bytes, what: str) -> dict[str, Any]:
    if len(text) > LIMIT:
        raise StagerError(f"the stager is wrong: {what} has more than {LIMIT} bytes")
    try:
        value = loads(text, own=True)
    except ValueError as error:
        raise StagerError(f"the stager is wrong: {what}: {error}") from None
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} is not a JSON object")
    return value


def parse_apps(value: object, what: str) -> dict[str, AppStatus]:
    """Checks and converts a mapping of app name to status."""
    if not isinstance(value, dict):
        raise StagerError(f"the stager is wrong: {what} names no apps")
    for name in value:
        # Commands print the name, for example before each line of the app's log.
        if not name.isprintable():
            raise StagerError(f"the stager is wrong: {what} names an app {name!r:.80}")
    try:
        return {name: _app(name, status, child(what, name)) for name, status in value.items()}
    except SchemaError as error:
        raise StagerError(f"the stager is wrong: {error}") from None


def _clean(text: str) -> str:
    """Replaces lone surrogates, which JSON can contain and UTF-8 cannot encode."""
    return text[:_TEXT].encode("utf-8", "replace").decode()


def _note(value: object) -> str | None:
    return _clean(value) if isinstance(value, str) else None


def _log(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # A printable name can be encoded, and has no NUL.
    if "/" in value or value.startswith(".") or not value.isprintable() or len(os.fsencode(value)) > _NAME:
        raise ValueError(value)
    return value


#: Texts for people: values of other types are ignored.
_NOTE = Made("text", _note)
_REASON = Made("a reason", lambda value: value if isinstance(value, str) and value in REASONS else None)
_LOG = Made(f"a name of a file of at most {_NAME} bytes", _log)
_FLAG = Made("true or false", lambda value: value if isinstance(value, bool) else None)
_PID = Maybe(Whole(1, 1 << 22))


@frozen
class _Execution(JsonValue):
    """A stager's report on one execution of an app."""

    PARTIAL = True

    instance: int | None = field(default=None, shape=Whole(0, _MOST))
    exit_code: int | None = field(default=None, shape=Whole(0, 255))
    reason: str | None = field(default=None, key="exitReason", shape=_REASON)
    signal: int | None = field(default=None, shape=Whole(1, 64))
    message: str | None = field(default=None, shape=_NOTE)
    started_at: str | None = field(default=None, shape=_NOTE)
    finished_at: str | None = field(default=None, shape=_NOTE)
    log: str | None = field(default=None, shape=_LOG)

    def end(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(AppEnd)}


@frozen
class _Status(_Execution):
    """A stager's report on an app. ``pid`` is read only while the app runs."""

    pid: Any = None
    exited: bool | None = field(default=None, shape=_FLAG)
    running: bool | None = field(default=None, shape=_FLAG)
    log_dropped: int = field(default=0, shape=Whole(0, 1 << 62))
    restarts: int = field(default=0, shape=Whole(0, _MOST))
    restarting: bool | None = field(default=None, shape=_FLAG)
    ready: bool | None = field(default=None, shape=_FLAG)
    status_text: str | None = field(default=None, shape=_NOTE)
    earlier: Any = None
    files: Any = None


def _app(name: str, value: object, path: str) -> AppStatus:
    said = _Status.from_json(value, path)
    exited = said.exited is True or said.running is False
    # The last executions before this one; the number of one defaults to its place in the list.
    earlier = said.earlier if isinstance(said.earlier, list) else []
    first = max(0, len(earlier) - _EARLIER)
    executions = [
        (place, _Execution.from_json(one, f"{child(path, 'earlier')}[{place}]"))
        for place, one in enumerate(earlier[first:], first)
    ]
    files = said.files if isinstance(said.files, dict) else {}
    return AppStatus(
        name=name,
        pid=None if exited else _PID.read(said.pid, child(path, "pid")),
        exited=exited,
        log_dropped=said.log_dropped,
        instance=said.instance,
        restarts=said.restarts,
        restarting=said.restarting is True and not exited,
        ready=None if exited else said.ready,
        status_text=None if exited else said.status_text,
        earlier=tuple(
            AppExecution(instance=place if one.instance is None else one.instance, **one.end())
            for place, one in executions
        ),
        files={name: files[name] for name in ETC_FILES if files.get(name) in ETC_CONTENTS},
        **said.end(),
    )


def exit_code(apps: Mapping[str, AppStatus], order: list[str]) -> int:
    """The pod's exit code: the first non-zero of its apps in manifest order, else 0."""
    for name in order:
        status = apps.get(name)
        if status is not None and status.exit_code:
            return status.exit_code
    return 0
