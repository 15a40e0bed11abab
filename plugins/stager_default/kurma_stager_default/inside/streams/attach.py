"""Standard input, terminals, and who is attached to the apps of a pod (G9, H8): the supervisor's part.

It carries input only. Output is in the log, where an attached call-in reads it at its own pace, so that one that
stands still keeps nobody: not the app, not the others, not the supervisor.
"""

from __future__ import annotations

import os

from kurma_core.linux import terminal
from kurma_stager_default.inside.app import child
from kurma_stager_default.inside.pod.app_run import WAITING, AppRun
from kurma_stager_default.inside.pod.control_socket import Refusal
from kurma_stager_default.inside.streams.app_log import STDOUT
from kurma_stager_default.inside.streams.app_stdin import AppInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_stager_default.inside.event_loop import Loop
    from kurma_stager_default.inside.pod.app_run import Instance
    from kurma_stager_default.inside.pod.control_socket import Conversation
    from kurma_stager_default.inside.streams.app_stdin import Source

# Bytes of output in one packet: as JSON they may take six times as much.
_PIECE = 8192


class Attaching:
    """:param stdin: the pod's standard input, for the app that wants it; -1: none.
    :param read: logs what an execution has written to that descriptor.
    """

    def __init__(self, loop: Loop, stdin: int, read: Callable[[Instance, int], None]) -> None:
        self._loop = loop
        self._stdin = stdin
        self._read = read
        self._inputs: dict[AppRun, AppInput] = {}
        self._people: dict[AppRun, list[Conversation]] = {}
        self._leaving: list[Conversation] = []

    # --- an execution ------------------------------------------------------------------------------------------

    def prepare(self, run: AppRun) -> None:
        """Before the main process is forked: it gets its terminal, or its pipe."""
        instance = run.instance
        assert instance is not None
        if run.app.terminal is not None:
            from kurma_stager_default.inside.streams.app_terminal import Handover

            instance.files.handover = Handover(run.app.terminal)
        if run not in self._inputs:
            self._inputs[run] = AppInput(self._loop, terminal=run.app.terminal is not None)
            if run.app.stdin and self._stdin >= 0:
                self._inputs[run].add(self._stdin).ended = True
                self._stdin = -1
        if run.app.terminal is None:
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(read, True)
            instance.files.stdin = read
            self._inputs[run].connect(write)

    def started(self, run: AppRun) -> None:
        """The main process has been forked."""
        instance = run.instance
        assert instance is not None
        if instance.files.stdin >= 0:
            os.close(instance.files.stdin)
            instance.files.stdin = -1
        handover = instance.files.handover
        if handover is not None:
            self._loop.watch(handover.fileno(), lambda _fd, _events: self.collect(run))

    def collect(self, run: AppRun) -> None:
        """The app's terminal, once its main process has made it."""
        instance = run.instance
        handover = None if instance is None else instance.files.handover
        if instance is None or handover is None:
            return
        master = handover.take()
        if master is None:
            return
        self._loop.unwatch(handover.fileno())
        handover.close()
        instance.files.handover = None
        instance.add_terminal(master, STDOUT)
        self._loop.watch(master, lambda fd, _: self._read(instance, fd))
        self._inputs[run].connect(os.dup(master))

    def over(self, run: AppRun) -> None:
        """The execution has ended, and what it wrote is in its log."""
        instance = run.instance
        assert instance is not None
        handover, instance.files.handover = instance.files.handover, None
        if handover is not None:
            self._loop.unwatch(handover.fileno())
            handover.close()
        if run in self._inputs:
            self._inputs[run].disconnect()
        for conversation in self._people.pop(run, []):
            self._leaving.append(conversation)
            conversation.answer({"exited": instance.code})
        if self._leaving:
            from kurma_stager_default.inside.pod.last_readers import Farewell

            Farewell(self._loop, self._leaving)

    def forget(self, run: AppRun) -> None:
        """The app has gone; nothing of it ran any more."""
        self._inputs.pop(run, None)

    def lingering(self) -> bool:
        """Somebody who was attached still writes out what there was."""
        return bool(self._leaving)

    # --- who is attached ---------------------------------------------------------------------------------------

    def attach(self, conversation: Conversation, request: dict[str, Any], runs: list[AppRun]) -> None:
        """``{"do": "attach", "app": NAME, "size": [ROWS, COLUMNS] or null}``; with its standard input's read end.

        The answer: ``{"terminal", "stdin", "log", "file", "at"}``: the log is read from that byte of that file on.
        What follows: ``{"size": …}``, ``{"eof": true}`` once its standard input has ended; at last comes
        ``{"exited": CODE}``.
        """
        name = request["app"]
        found = [run for run in runs if run.app.name == name]
        if not found:
            raise Refusal(f"the pod has no app {name!r}", 2)
        run = found[0]
        instance = run.instance
        if run.phase == WAITING and instance is not None:
            raise Refusal(f"app {name} does not run just now: it is about to be started again", 125)
        if run.phase != child.MAIN or instance is None or instance.started is None:
            over = instance is not None and instance.finished is not None
            raise Refusal(f"app {name} {'has ended' if over else 'has not been started yet'}", 125)
        given = self._inputs.get(run)
        takes = given is not None and given.target >= 0
        source: Source | None = None
        if conversation.fds and given is not None and takes:
            source = given.add(conversation.fds.pop(0))
        self._people.setdefault(run, []).append(conversation)
        instance.lost = lambda stream, data: self._offer(run, stream, data)
        conversation.on_packet = lambda value: self._said(run, source, value)
        conversation.on_end = lambda: self._left(run, conversation)
        self._resize(run, request.get("size"))
        answer: dict[str, Any] = {"terminal": run.app.terminal is not None, "stdin": takes}
        answer["log"] = os.path.basename(instance.log.path)
        try:
            status = os.stat(instance.log.path)
            answer["file"], answer["at"] = status.st_ino, status.st_size
        except OSError:
            pass  # nothing could be written yet: from its beginning, then
        conversation.answer(answer)

    def _said(self, run: AppRun, source: Source | None, value: dict[str, Any]) -> None:
        if value.get("eof") and source is not None:
            self._inputs[run].input_ended(source)
        self._resize(run, value.get("size"))

    def _offer(self, run: AppRun, stream: bytes, data: bytes) -> None:
        """What the log had no room for: who is attached and reads sees it all the same."""
        for start in range(0, len(data), _PIECE):
            text = data[start : start + _PIECE].decode("latin-1")
            for conversation in self._people.get(run, []):
                conversation.offer({"lost": text, "stream": stream.decode()})

    def _resize(self, run: AppRun, size: list[int] | None) -> None:
        if size is None:
            return
        rows, columns = size
        given = self._inputs.get(run)
        if run.app.terminal is None or given is None:
            return
        run.app.terminal = (int(rows), int(columns))  # of the next execution, too
        if given.target >= 0:
            terminal.set_size(given.target, int(rows), int(columns))

    def _left(self, run: AppRun, conversation: Conversation) -> None:
        people = self._people.get(run, [])
        if conversation in people:
            people.remove(conversation)
        if conversation in self._leaving:
            self._leaving.remove(conversation)
