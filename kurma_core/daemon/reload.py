"""Reloads of kurmad: reads the configuration again, checks it, has it take effect, reports what has changed."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import ConfigChange, ErrorFacts, PluginChange, ReloadReport
from kurma_core.api.wire import error_to_json
from kurma_core.client.local.managers import problems
from kurma_core.config.schema import SCHEMA
from kurma_core.errors import HostError, KurmaError
from kurma_core.formats.timestamps import timestamp
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from kurma_core.client.local.managers import Managers
    from kurma_core.config import Config
    from kurma_core.config.schema import Key
    from kurma_core.journal import Journal
    from kurma_core.plugins.registry import PluginRegistry

Json = Any
_LOG = logging.getLogger("kurmad")
#: Settings that hold from the daemon's start to its end.
_FIXED = ("state_dir", "run_dir")
#: Shapes of values that are reported as they are. Others may hold addresses with passwords, or options of plugins.
_SHOWN = {
    *("boolean", "count", "few", "ratio", "duration", "size", "some size", "user namespace", "word"),
    *("path", "paths", "boolean by name", "fingerprints", "image names", "image digests"),
}


class Reloads:
    """Reads the configuration again, checks it, and has it take effect.

    :param load: reads the configuration.
    :param managers: those of the configuration in force.
    :param take_over: has new managers take effect; None: neither the configuration nor a plugin is new, and no
        plugin that failed works now.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        managers: Callable[[], Managers],
        take_over: Callable[[Managers | None], None],
    ) -> None:
        self._load = load
        self._managers = managers
        self._take_over = take_over
        #: When the configuration in force was read, and when a newer one was refused since.
        self.read_at = timestamp()
        self.refused_at: str | None = None
        self._lock = threading.Lock()
        self._waiting: list[_Request] = []
        self._closed = False

    def request(self) -> ReloadReport:
        """Has the main thread reload, and waits for its report. :raises HostError: kurmad ends."""
        asked = _Request()
        with self._lock:
            if self._closed:
                asked.done.set()
            else:
                self._waiting.append(asked)
                os.kill(os.getpid(), signal.SIGHUP)
        asked.done.wait()
        if asked.report is None:
            raise HostError("cannot reload kurmad: it is ending")
        return asked.report

    def reload(self) -> ReloadReport:
        """Reloads, and answers all requests that wait. Only the main thread does.

        Keeps the present configuration if ``kurma config check`` finds a problem.
        """
        waiting, report = self._taken(), None
        try:
            report = self._reload()
        finally:
            for request in waiting:
                request.answer(report)
        return report

    def close(self) -> None:
        """Answers requests that nothing answers any more."""
        with self._lock:
            self._closed = True
        for request in self._taken():
            request.answer(None)

    def _taken(self) -> list[_Request]:
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def _reload(self) -> ReloadReport:
        at, present = timestamp(), self._managers()
        managers: Managers | None = None
        files = present.config.config_files
        wrong: tuple[KurmaError, ...]
        plugins: tuple[PluginChange, ...] = ()
        try:
            read = self._load()
            files = read.config_files
            config = with_fixed(present.config, read)
            changed = tuple(config_changes(present.config.values, config.values))
            # Running pods keep the managers of their start.
            managers = present.successor(config)
            wrong = problems(managers)
            if not wrong:
                failed = present.registry.failures()
                now = {key: managers.registry.status(*key) for key in failed}
                mended = {key for key, (status, _) in now.items() if status == "ok"}
                configured = {(kind, name) for kind, names in config.plugins.items() for name in names}
                plugins = tuple(plugin_changes(present.registry, managers.registry, mended, configured))
                same = failed == {key: reason for key, (_, reason) in now.items()}
                if not changed and same and all(one.before == one.after for one in plugins):
                    managers = None
                else:
                    managers.warm()
        except KurmaError as error:
            wrong = (error,)
        if wrong:
            self.refused_at = at
            facts = tuple(ErrorFacts.from_json(error_to_json(error)["error"]) for error in wrong)
            report = ReloadReport(at=at, in_force=self.read_at, files=files, problems=facts)
        else:
            self.read_at, self.refused_at = at, None
            fixed = tuple(changed_keys(present.config, read)[1])
            report = ReloadReport(at=at, in_force=at, files=files, changed=changed, fixed=fixed, plugins=plugins)
            self._take_over(managers)
        _tell(report, self._managers().journal)
        return report


class _Request:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.report: ReloadReport | None = None

    def answer(self, report: ReloadReport | None) -> None:
        self.report = report
        self.done.set()


def _tell(report: ReloadReport, journal: Journal) -> None:
    """Writes the report to the log and the journal."""
    if report.problems:
        for problem in report.problems:
            _LOG.error("kept the old configuration: %s", problem.message)
        detail: dict[str, Json] = {"pid": os.getpid(), "problems": len(report.problems)}
        journal.tell("daemon", "reload-refused", None, "kurmad", detail)
        return
    for line in report.lines():
        _LOG.info("%s", line)
    keys = ", ".join(dict.fromkeys(change.key.partition(".")[0] for change in report.changed))
    _LOG.info(
        "the configuration was read again: %s", f"new: {keys}" if keys else "nothing that takes effect is new"
    )
    journal.tell("daemon", "reloaded", None, "kurmad", {"pid": os.getpid(), "changed": keys})


def changed_keys(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Keys of ``kurma.yml`` whose values have changed: those that take effect now, and those that do not."""
    keys = [key for key in new.values if new.values[key] != old.values.get(key)]
    return [key for key in keys if key not in _FIXED], [key for key in keys if key in _FIXED]


def with_fixed(old: Config, new: Config) -> Config:
    """The new configuration, with the old values of keys that cannot change."""
    values = {**new.values, **{key: old.values[key] for key in _FIXED}}
    return replace(new, values=values, state_dir=old.state_dir, run_dir=old.run_dir)


def config_changes(
    old: Mapping[str, Json], new: Mapping[str, Json], keys: tuple[Key, ...] = SCHEMA, prefix: str = ""
) -> Iterator[ConfigChange]:
    """The values that differ between two configurations. Values that may hold secrets are named alone."""
    for key in keys:
        path = prefix + key.name
        before: Json = old.get(key.name)
        after: Json = new.get(key.name)
        if before == after:
            continue
        if key.shape == "section":
            yield from config_changes(before or {}, after or {}, key.keys, f"{path}.")
        elif key.shape == "named":
            for name in dict.fromkeys((*before, *after)):
                if name not in before or name not in after:
                    yield ConfigChange(f"{path}.{name}", "new" if name in after else "removed")
                else:
                    yield from config_changes(before[name], after[name], key.keys, f"{path}.{name}.")
        # Plain text may be a locator, except at the top.
        elif key.shape in _SHOWN or (key.shape == "text" and not prefix):
            yield ConfigChange(path, "changed", before, after)
        else:
            yield ConfigChange(path, "changed")


def plugin_changes(
    old: PluginRegistry,
    new: PluginRegistry,
    mended: Collection[tuple[str, str]] = (),
    configured: Collection[tuple[str, str]] = (),
) -> Iterator[PluginChange]:
    """The plugins that differ between two registries, and those that have changed since kurmad loaded them.

    :param mended: plugins that failed and work now, by kind and name.
    :param configured: plugins that the configuration mentions, likewise: it is told each time if they fail.
    """
    before, after, failures = old.installed(), new.installed(), new.failures()
    for kind, name in sorted({*before, *after}):
        was, now = before.get((kind, name)), after.get((kind, name))
        outdated, failure = new.outdated(kind, name), failures.get((kind, name))
        if outdated:
            note = f"{outdated}: restart kurmad"
        elif failure is not None and (was != now or (kind, name) in configured):
            note = f"left out: {failure}"
        else:
            note = "works now" if (kind, name) in mended else ""
        if was != now or note:
            yield PluginChange(kind, name, was, now, note)
