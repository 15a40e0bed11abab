"""Tells the events of a pod's apps: each start and end of an execution once, also if kurmad was dead meanwhile.

The pod's owner compares what the stager reports with ``app_events.json``, which has the numbers of the executions
that were told. Any process may do it: it holds the file's lock. If a process dies between the journal and that
file, the next owner finds in the journal what is told already.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
from typing import TYPE_CHECKING, Any

from kurma_core.errors import KurmaError
from kurma_core.formats.timestamps import timestamp
from kurma_core.json_text import loads
from kurma_core.models.pod import AppStatus
from kurma_core.pods.record.pod_record import app_statuses
from kurma_core.pods.record.state import numbered
from kurma_core.staging.stager_status import read_status_file
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kurma_core.models.pod import AppExecution

    _Execution = AppExecution | AppStatus

    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodEnd
    from kurma_core.pods.services import Events

_FILE = "app_events.json"
_FLOCK = "hhqqi4x"
#: Most bytes of the file that are read.
_LIMIT = 1 << 20


class AppEvents:
    """Tells the events of one pod's apps. Any thread may use it.

    :param doubtful: a process that told events may have died: what the journal has is not told again.
    """

    def __init__(
        self, directory: PodDirectory, document: PodDocument, events: Events, *, doubtful: bool = False
    ) -> None:
        self._directory = directory
        self._document = document
        self._events = events
        self._doubtful = doubtful
        #: By app, the facts of its status that were looked at last.
        self._seen: Mapping[str, tuple[object, ...]] = {}

    def look(self) -> tuple[AppStatus, ...]:
        """Tells what the stager's status file has of new. Never fails. :returns: its statuses."""
        try:
            found = read_status_file(self._directory.path)
            if found is None:
                return ()
            state = self._directory.read_state()
            statuses = tuple([numbered(state, status) for status in found[0].values()])
            self.tell(statuses)
        except (KurmaError, OSError):
            return ()  # malformed, or the pod was just removed: the pod's end tells the rest
        return statuses

    def over(self, end: PodEnd) -> None:
        """Tells the ends of all apps of a pod that has ended, before that is recorded. Never fails."""
        try:
            state = self._directory.read_state()
            apps = state.apps if end.apps is None else end.apps
            state = replace(state, state=end.state, apps=apps, finished_at=timestamp())
            with contextlib.suppress(KurmaError):  # then as it was when the pod was taken over
                self._document = self._directory.read_document()
            self.tell(app_statuses(self._directory, self._document, state, None, None))
        except (KurmaError, OSError):
            return

    def tell(self, statuses: Iterable[AppStatus]) -> None:
        """Tells what these statuses have of new. :raises OSError: the file cannot be read or written."""
        now = list(statuses)
        seen = {one.name: (one.instance, one.started_at, one.finished_at, one.exited) for one in now}
        if seen == self._seen and not self._doubtful:
            return
        with _Locked(self._directory.file(_FILE)) as file:
            seq, told = file.read()
            news = [(status.name, *one) for status in now for one in _news(status, told)]
            # In the order in which they happened; an execution starts before it ends.
            news.sort(key=lambda one: one[2].finished_at or "" if one[1] == "stopped" else one[2].started_at or "")
            known = self._in_journal(seq) if self._doubtful and news else set()
            seq = self._events.last()
            for app, kind, one in news:
                if (kind, app, one.instance) not in known:
                    self._events.tell_app(kind, self._document, app, _detail(kind, one))
                started, ended = told.get(app, (0, 0))
                number = one.instance or 0
                told[app] = (number, ended) if kind == "started" else (started, number)
            if news:
                file.write(seq, told)
            self._seen, self._doubtful = seen, False

    def _in_journal(self, seq: int) -> set[tuple[str, str, int | None]]:
        """The events of this pod's apps behind that number."""
        return {
            (event.kind, event.name, event.detail.get("instance"))
            for event in self._events.since(seq)
            if event.subject == "app" and event.id == self._document.uuid
        }


def forget(directory: PodDirectory, app: str) -> None:
    """Forgets an app that was removed: an app of the same name begins anew. Repeatable, and never fails."""
    try:
        with _Locked(directory.file(_FILE)) as file:
            seq, told = file.read()
            if told.pop(app, None) is not None:
                file.write(seq, told)
    except OSError:
        return


def _news(status: AppStatus, told: dict[str, tuple[int, int]]) -> Iterator[tuple[str, _Execution]]:
    started, ended = told.get(status.name, (0, 0))
    every: tuple[_Execution, ...] = (*status.earlier, status)
    for one in every:
        number = one.instance or 0
        if one.started_at is not None and number > started:
            yield "started", one
        over = one.finished_at is not None or (isinstance(one, AppStatus) and one.exited)
        if over and number > ended:
            yield "stopped", one


def _detail(kind: str, one: _Execution) -> dict[str, Any]:
    found: dict[str, Any] = {"instance": one.instance}
    if kind == "stopped":
        found |= {"exitCode": one.exit_code, "reason": one.reason, "message": one.message}
    return {key: value for key, value in found.items() if value is not None}


class _Locked:
    """The file of numbers, opened and locked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> _Locked:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLKW, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self) -> tuple[int, dict[str, tuple[int, int]]]:
        """The journal's number when it was last written, and the numbers by app. Of a damaged file: nothing."""
        try:
            value = loads(os.pread(self._fd, _LIMIT, 0), own=True)
            apps = {str(app): (int(one[0]), int(one[1])) for app, one in value["apps"].items()}
            return int(value["seq"]), apps
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return 0, {}

    def write(self, seq: int, told: dict[str, tuple[int, int]]) -> None:
        text = json.dumps({"seq": seq, "apps": told}).encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))
