"""The call-in ``logs APP [--follow] [--tail N] [--since T] [--stream stdout|stderr] [--timestamps]``.

It prints the output of the app's current execution, byte for byte, both streams in order. It reads the log by
``kurma_core.formats.cri_log``, as the core does. With ``--follow``, it goes on with the app's later executions,
until the app has ended.
"""

from __future__ import annotations

import os
import select
import sys

from kurma_core.formats import cri_log
from kurma_core.formats.timestamps import moment
from kurma_core.linux.inotify import IN_MOVED_TO, Watch
from kurma_stager_default.inside.callins.control_client import Asking
from kurma_stager_default.inside.errors import SetupError, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kurma_core.formats.cri_log import Text

_POD = "/pod"
_LOGS = "/pod/logs"
_USAGE = 2
_WORDS = "logs APP [--follow] [--tail N] [--since T] [--stream stdout|stderr] [--timestamps]"


class UsageError(Exception):
    """The arguments are wrong."""


class Wanted:
    """The command-line arguments: the lines to print, and their format."""

    __slots__ = ("app", "follow", "since", "stream", "tail", "timestamps")

    def __init__(self, arguments: list[str]) -> None:
        self.app = ""
        self.follow = self.timestamps = False
        self.tail: int | None = None
        self.since: int | None = None
        self.stream: str | None = None
        left = list(arguments)
        while left:
            word, inline, value = left.pop(0).partition("=")
            if word in ("--follow", "--timestamps"):
                if inline:
                    raise UsageError(f"{word} takes no value")
                setattr(self, word[2:], True)
            elif word.startswith("-"):
                if not inline:
                    if not left:
                        raise UsageError(f"{word} needs a value")
                    value = left.pop(0)
                self._option(word, value)
            elif self.app:
                raise UsageError("one app at a time")
            else:
                self.app = word
        if not self.app:
            raise UsageError(f"usage: {_WORDS}")

    def _option(self, word: str, value: str) -> None:
        if word == "--tail":
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                raise UsageError(f"--tail {value}: not a number of lines")
            self.tail = int(value)
        elif word == "--since":
            try:
                self.since = moment(value)
            except ValueError:
                hint = "write 2026-01-31T12:00:00Z, 10m for the last ten minutes, or seconds since the epoch"
                raise UsageError(f"--since {value}: is not a time; {hint}") from None
        elif word == "--stream":
            if value not in ("stdout", "stderr"):
                raise UsageError(f"--stream {value}: neither stdout nor stderr")
            self.stream = value
        else:
            raise UsageError(f"no option {word}; usage: {_WORDS}")


class Printer:
    """Writes texts unchanged, or with a timestamp before each line."""

    def __init__(self, timestamps: bool, out: int) -> None:
        self._out = out
        self._timestamps = timestamps
        self._open: dict[str, bool] = {}

    def print(self, texts: Iterable[Text]) -> None:
        for _, at, stream, partial, text in texts:
            data = text if partial else text + b"\n"
            if self._timestamps and at:
                begun = self._open.get(stream, False)
                self._open[stream] = partial
                head = at.encode() + b" "
                data = data[:-1].replace(b"\n", b"\n" + head) + data[-1:]
                if not begun:
                    data = head + data
            view = memoryview(data)
            while view:
                view = view[os.write(self._out, view) :]


def _apps() -> dict[str, dict[str, Any]]:
    from kurma_stager_default.inside.callins.status import find

    return find()


def show(wanted: Wanted, app: dict[str, Any], out: int = 1) -> None:
    printer, chosen = Printer(wanted.timestamps, out), cri_log.Filter(wanted.since, wanted.stream)
    file = _file(wanted.app, app)
    if file is None:
        return
    watch: Watch | None = None
    if wanted.follow and not app["exited"]:
        Asking({"do": "follow"}).keep()
        watch = _watch(file.directory)
        file.chain.share()
    printer.print(cri_log.tail(filter(chosen, file.read_all()), wanted.tail, cri_log.plain))
    changed = True
    while watch is not None:
        # Read the status before the log: all output of an app is in the log before the status shows the app's end.
        if changed:
            app = _apps().get(wanted.app) or {"exited": True}
        printer.print(filter(chosen, file.read_all()))
        if app.get("log", file.name) != file.name:
            printer.print(filter(chosen, file.rest()))
            file.close()
            file = cri_log.LogFile(f"{_LOGS}/{app['log']}", wanted.app, cri_log.plain)
            file.chain.share()
        elif app["exited"]:
            break
        else:
            _wait(watch)
            changed = bool(watch.drain() & IN_MOVED_TO)
            continue
        changed = True
    printer.print(filter(chosen, file.rest()))


def _file(name: str, app: dict[str, Any]) -> cri_log.LogFile | None:
    """The log of an app's last execution; None: it has none."""
    if "log" in app:
        return cri_log.LogFile(f"{_LOGS}/{app['log']}", name, cri_log.plain)
    from kurma_stager_default.inside import manifest

    pod = manifest.load()
    found = pod.app(name)
    if found is None or not found.log_path or "instance" not in app:
        return None
    return cri_log.LogFile(f"{pod.log_directory}/{found.log_path}", name, cri_log.plain, root=pod.log_directory)


def _watch(directory: str) -> Watch:
    watch = Watch(directory)
    watch.add(_POD, IN_MOVED_TO)  # status.json
    return watch


def _wait(watch: Watch) -> None:
    """Waits for a change of the log or the status. :raises BrokenPipeError: our reader has closed its end."""
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(1, 0)
    for fd, events in poll.poll():
        if fd == 1 and events & (select.POLLERR | select.POLLNVAL):
            raise BrokenPipeError


def main() -> int:
    try:
        wanted = Wanted(sys.argv[1:])
        app = _apps().get(wanted.app)
        if app is None:
            raise UsageError(f"the pod has no app {wanted.app!r}")
        show(wanted, app)
    except UsageError as error:
        return _failed(str(error), _USAGE)
    except BrokenPipeError:
        return 0  # our reader has closed its end
    except SetupError as error:
        return _failed(str(error), 1)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror), 1)
    return 0


def _failed(text: str, code: int) -> int:
    complain(f"logs: {text}")
    return code
