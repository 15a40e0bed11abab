"""What pods use, as it changes: measured twice, the difference shown, and again."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kurma_core.cli import output
from kurma_core.cli.screen import Screen
from kurma_core.errors import PodNotFoundError, PodStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kurma_core.api.pods import ResourceUsage as Counted
    from kurma_core.api.pods import Usage
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

Json = Any


class _Row(NamedTuple):
    """:param app: None: the pod. :param cpu: per cent; None: nothing is known from before."""

    pod: Usage
    app: str | None
    counted: Counted
    cpu: float | None


class Figures:
    """:param interval: seconds between two looks. :param busiest: the order; else as they were made.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        session: Session,
        interval: float,
        format: str,
        *,
        apps: bool = False,
        no_legend: bool = False,
        busiest: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session
        self._interval = interval
        self._format = format
        self._apps = apps
        self._legend = not no_legend
        self._busiest = busiest
        self._sleep = sleep
        self._before: dict[str, Usage] = {}

    def show(self, pods: Sequence[str], *, once: bool) -> None:
        """:param pods: empty: all that run.

        :raises KurmaError: one of them does not run, or is not there, at the beginning.
        """
        screen = Screen.of(sys.stdout) if self._format == "table" and not once else None
        found = self._session.client.usage(pods)
        named = [one.uuid for one in found] if pods else []
        try:
            if screen is not None:
                screen.show(self._table(found))
            while True:
                self._before = {one.uuid: one for one in found}
                self._sleep(self._interval)
                found = self._look(named)
                if pods and not found and not once:
                    return
                if screen is not None:
                    screen.show(self._table(found))
                else:
                    self._print(found)
                if once:
                    return
        finally:
            if screen is not None:
                screen.leave()

    def _look(self, named: Sequence[str]) -> list[Usage]:
        """Those of them that still run."""
        try:
            return self._session.client.usage(named)
        except (PodNotFoundError, PodStateError):
            return [one for one in self._session.client.usage() if one.uuid in named]

    def _print(self, found: list[Usage]) -> None:
        if self._format == "table":
            for line in self._table(found):
                self._session.line(line)
            self._legend = False
        elif self._format == "json":
            import json

            self._session.line(json.dumps([self._json(one) for one in found], ensure_ascii=False))
        else:
            self._session.line("---\n" + output.formatted(self._format, [self._json(one) for one in found]))
        self._session.flush()

    def _rows(self, found: list[Usage]) -> Iterator[_Row]:
        rows = [_Row(one, None, one.total, self._percent(one)) for one in found]
        if self._busiest:
            rows.sort(key=lambda row: -(row.cpu or 0.0))
        for row in rows:
            yield row
            if self._apps:
                for name, counted in row.pod.apps.items():
                    yield _Row(row.pod, name, counted, self._percent(row.pod, name))

    def _percent(self, one: Usage, app: str | None = None) -> float | None:
        """Of one processor, since the last look."""
        before = self._before.get(one.uuid)
        if before is None:
            return None
        then, now = (each.total if app is None else each.apps.get(app) for each in (before, one))
        time_between = one.clock - before.clock
        if then is None or now is None or then.cpu is None or now.cpu is None or time_between <= 0:
            return None
        # A pod that was started again counts from nought.
        return 100 * (now.cpu - then.cpu) / time_between if now.cpu >= then.cpu else None

    def _table(self, found: list[Usage]) -> Iterator[str]:
        columns = [column for column in _COLUMNS if self._apps or column[0] != "APP"]
        return output.table(self._rows(found), columns, legend=self._legend)

    def _json(self, one: Usage) -> Json:
        value = one.to_json()
        value["cpuPercent"] = self._percent(one)
        for name, each in value["apps"].items():
            each["cpuPercent"] = self._percent(one, name)
        return value


def _size(count: int | None) -> str:
    return "" if count is None else output.size(count)


def _memory(one: Counted) -> str:
    return "" if one.memory is None else output.size(max(0, one.memory - (one.memory_reclaimable or 0)))


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _of_pod(row: _Row, value: int | None) -> str:
    return _size(value) if row.app is None else ""


_COLUMNS: list[Column] = [
    ("UUID", lambda row: row.pod.uuid[:8]),
    ("NAME", lambda row: row.pod.name),
    ("APP", lambda row: row.app or ""),
    ("CPU", lambda row: "" if row.cpu is None else f"{row.cpu:.1f}%"),
    ("MEMORY", lambda row: _memory(row.counted)),
    ("LIMIT", lambda row: _size(row.counted.memory_limit)),
    ("PIDS", lambda row: _text(row.counted.pids)),
    ("READ", lambda row: _size(row.counted.block_read)),
    ("WRITTEN", lambda row: _size(row.counted.block_written)),
    ("RECEIVED", lambda row: _of_pod(row, row.pod.network_received)),
    ("SENT", lambda row: _of_pod(row, row.pod.network_sent)),
]
