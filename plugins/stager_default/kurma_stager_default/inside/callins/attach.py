"""The call-in ``attach APP [--no-stdin] [--no-output] [--detach-keys KEYS]``: connects to an app's input and
output.

Standard input goes to the app until it ends; the app's later output goes to standard output and error. It ends
with the app, and with the app's exit code; with 0 if the user presses the detach keys.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from kurma_core.formats import cri_log, detach_keys
from kurma_core.linux import terminal
from kurma_core.linux.inotify import Watch
from kurma_stager_default.inside import event_loop
from kurma_stager_default.inside.callins.control_client import Asking, Gone, Refused
from kurma_stager_default.inside.errors import SetupError, complain
from kurma_stager_default.inside.event_loop import Loop
from kurma_stager_default.inside.streams import flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_USAGE = 2
_FAILED = 125
_KILLED = 137
_PF_EXITING = 0x4
# Most pieces of output to hold that could not be written to the log, and that our reader has not read yet.
_BESIDES = 128
# Seconds that the terminal stays raw after the app's end, while another process still shows output on it.
_GRACE = 2.0


class Wanted:
    """The command-line arguments. :raises SetupError: they are wrong."""

    __slots__ = ("app", "input", "keys", "output")

    def __init__(self, arguments: list[str]) -> None:
        self.app = ""
        self.input = True
        self.output = True
        keys = detach_keys.DEFAULT
        left = list(arguments)
        while left:
            word, inline, value = left.pop(0).partition("=")
            if word == "--no-stdin" and not inline:
                self.input = False
            elif word == "--no-output" and not inline:
                self.output = False
            elif word == "--detach-keys" and (inline or left):
                keys = value if inline else left.pop(0)
            elif word.startswith("-") or self.app:
                self.app = ""
                break
            else:
                self.app = word
        if not self.app:
            raise SetupError("usage: attach APP [--no-stdin] [--no-output] [--detach-keys KEYS]")
        try:
            self.keys = detach_keys.parse(keys)
        except ValueError as error:
            raise SetupError(f"{error}: write {detach_keys.HOW}") from None


class Shown:
    """Copies the app's output from its log to standard output and error, as fast as these are read."""

    def __init__(self, loop: Loop, app: str, answer: dict[str, Any], broken: Callable[[], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._out = {"stdout": flow.writer(1), "stderr": flow.writer(2)}
        try:
            self._watch = Watch(os.path.dirname(answer["log"]))
        except OSError as error:
            raise SetupError(f"{answer['log']} cannot be watched: {error.strerror}") from None
        root = answer["log"].removesuffix(f"/{answer['outside']}") if answer.get("outside") else None
        self._log = cri_log.LogFile(answer["log"], app, cri_log.plain, root=root)
        if "file" in answer:
            self._log.chain.start_at(answer["file"], answer["at"])
        self._log.chain.share()
        self._texts: Iterator[Any] = iter(())
        self._rest = b""
        self._besides: list[tuple[str, bytes]] = []
        self._to = "stdout"
        # The descriptor that the loop polls until it is writable, and a descriptor known to be writable; -1: none.
        self._waits = self._free = -1
        self._last: Callable[[], None] | None = None
        loop.watch(self._watch.fileno(), lambda _fd, _events: self.more())

    def finish(self, call: Callable[[], None]) -> None:
        """Ends the copying after the app's end. :param call: called when all output is written."""
        self._last = call
        self.more()

    def add(self, stream: str, data: bytes) -> None:
        """Adds output that could not be written to the log; it is shown after the log's."""
        if len(self._besides) < _BESIDES:
            self._besides.append((stream, data))
        self.more()

    def more(self) -> None:
        self._watch.drain()
        if self._waits < 0:
            self._go_on()

    def _go_on(self) -> None:
        while True:
            if not self._rest and not self._next():
                if self._last is not None:
                    self._loop.unwatch(self._watch.fileno())
                    self._last()
                return
            fd, room = self._out[self._to]
            if room < flow.CHUNK and self._free != fd:
                self._wait(fd)  # a write may block: poll before each piece
                return
            self._free = -1
            try:
                self._rest = self._rest[os.write(fd, self._rest[:room]) :]
            except BlockingIOError:
                self._wait(fd)
                return
            except OSError:
                self._loop.unwatch(self._watch.fileno())
                self._broken()
                return

    def _wait(self, fd: int) -> None:
        self._waits = fd
        self._loop.watch(fd, lambda _fd, _events: self._ready(), select.POLLOUT)

    def _ready(self) -> None:
        self._loop.unwatch(self._waits)
        self._free, self._waits = self._waits, -1
        self._go_on()

    def _next(self) -> bool:
        for fresh in (False, True):
            if fresh:
                self._texts = self._log.read_all()
            for _, _, stream, partial, text in self._texts:
                self._rest = text if partial else text + b"\n"
                self._to = stream
                if self._rest:
                    return True
        if self._besides:
            self._to, self._rest = self._besides.pop(0)
            return True
        return False


class Attached:
    """Attaches to the app, and runs the event loop until the app or the user ends it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._loop = Loop()
        self._code: int | None = None
        self._held: terminal.Held | None = None
        self._keys = detach_keys.DetachKeys(wanted.keys if os.isatty(0) else b"")
        self._size: tuple[int, int] | None = None
        self._shown: Shown | None = None
        self._input: flow.Flow | None = None
        self._terminal = False
        self._parent = os.getppid()

    def run(self) -> int:
        """:returns: the exit status. :raises SetupError, Refused: the app cannot be attached to."""
        wake = event_loop.catch_signals()
        read, write = os.pipe2(os.O_CLOEXEC) if self._wanted.input else (-1, -1)
        self._size = self._look_at_size()
        request = {"do": "attach", "app": self._wanted.app, "size": self._size}
        self._asking = Asking(request, [read] if read >= 0 else [])
        if read >= 0:
            os.close(read)
        answer, _ = self._asking.hear()
        if answer is None:
            raise Gone("the pod's supervisor has ended")
        self._terminal = answer["terminal"]
        try:
            self._loop.watch(wake, self._on_signals)
            self._loop.watch(self._asking.fileno(), lambda _fd, _events: self._hear())
            if self._wanted.output:
                self._shown = Shown(self._loop, self._wanted.app, answer, self._nobody_reads)
            if write >= 0 and answer["stdin"]:
                self._take_input(write)
            elif write >= 0:
                os.close(write)
            if not self._wanted.output:
                # Closes standard output: so the process that shows the output learns that the terminal is raw.
                os.dup2(2, 1)
            while self._code is None:
                self._loop.turn()
        finally:
            if self._held is not None:
                self._held.restore()
            self._asking.keep()
        return self._code

    def _take_input(self, write: int) -> None:
        if self._terminal and os.isatty(0):
            self._held = terminal.Held(0)
            self._held.raw()
        os.set_blocking(write, False)
        self._input = flow.Flow(
            self._loop,
            flow.reader(0),
            write,
            ended=self._typed_all,
            broken=lambda: None,  # the app has closed its standard input
            look=self._look,
        )

    def _look(self, data: bytes) -> bytes:
        goes_on = self._keys.look(data)
        if self._keys.seen:
            self._leave(0)
        return goes_on

    def _typed_all(self) -> None:
        if self._held is not None:
            self._leave(128 + _signal.SIGHUP)  # the terminal has gone
            return
        assert self._input is not None
        if _exits(self._parent):
            # The client was killed: that is no end of input for the app, which others may be attached to.
            self._leave(128 + _signal.SIGTERM)
            return
        self._input.close()
        self._say({"eof": True})

    def _nobody_reads(self) -> None:
        self._leave(128 + _signal.SIGPIPE)

    def _hear(self) -> None:
        try:
            value, _ = self._asking.hear()
        except Refused as refused:
            complain(f"kurma: {refused}")
            value = {"exited": refused.code}
        if value is not None and "lost" in value:
            if self._shown is not None:
                self._shown.add(value["stream"], value["lost"].encode("latin-1"))
            return
        self._loop.unwatch(self._asking.fileno())
        # Without an exit code: the supervisor was killed (see main).
        code = _KILLED if value is None else value["exited"]
        if self._input is not None:
            self._input.stop()
        if self._shown is None:
            # The process that shows the output ends this call-in when all is shown; only then the terminal may be
            # restored. Close the conversation, so that the pod does not wait for that.
            self._asking.close()
            self._loop.at(self, time.monotonic() + _GRACE, lambda: self._leave(code))
        else:
            self._shown.finish(lambda: self._leave(code))

    def _on_signals(self, wake: int, _events: int) -> None:
        for number in os.read(wake, 4096):
            if number in event_loop.ENDING:
                self._leave(128 + number)
                return
            if number == _signal.SIGCONT and self._held is not None:
                self._held.raw()
            if number in (_signal.SIGWINCH, _signal.SIGCONT):
                size = self._look_at_size()
                if size is not None and size != self._size:
                    self._size = size
                    self._say({"size": size})

    def _look_at_size(self) -> tuple[int, int] | None:
        """The terminal's size; None without input: a client that only watches does not set the app's size."""
        return (terminal.get_size(0) or terminal.get_size(1)) if self._wanted.input else None

    def _say(self, value: dict[str, Any]) -> None:
        try:
            self._asking.say(value)
        except SetupError:
            return  # the supervisor has ended: _hear() handles that

    def _leave(self, code: int) -> None:
        if self._code is None:
            self._code = code


def _exits(parent: int) -> bool:
    """Whether the parent has ended or is about to: the kernel shows that before it closes the parent's
    descriptors. A parent outside of our PID namespace has the PID 0, and its state cannot be read."""
    if os.getppid() != parent:
        return True
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            state, *_, flags = file.read().rpartition(b")")[2].split()[:7]
    except OSError:
        return os.getppid() != parent
    return state in (b"Z", b"X") or bool(int(flags) & _PF_EXITING)


def main() -> int:
    try:
        wanted = Wanted(sys.argv[1:])
    except SetupError as error:
        complain(f"kurma: {error}")
        return _USAGE
    try:
        return Attached(wanted).run()
    except Refused as refused:
        complain(f"kurma: {refused}")
        return refused.code
    except Gone:
        return _KILLED  # as if killed with the pod: the core reports that the pod has ended
    except SetupError as error:
        complain(f"kurma: {error}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"kurma: {where}{error.strerror}")
    return _FAILED
