"""The supervisor's part of attaching: standard input, terminals and attached call-ins of a pod's apps.

It carries input only. Attached call-ins read the output from the log, at their own pace, so that a call-in that
does not read holds up neither the app nor the supervisor nor other call-ins.
"""

from __future__ import annotations

import os

from kurma_core.linux import terminal
from kurma_stager_default.inside.app import child
from kurma_stager_default.inside.pod.app_run import WAITING, AppRun
from kurma_stager_default.inside.pod.control_socket import Refusal
from kurma_stager_default.inside.streams.app_log import STDOUT, AppLog
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
    """Connects the apps' inputs and terminals, and serves attached call-ins.

    :param stdin: the pod's standard input, for the app that wants it; -1: none.
    :param read: logs an execution's output from that descriptor.
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
        """Makes the terminal or the input pipe, before the main process is forked."""
        instance = run.instance
        assert instance is not None
        if run.app.terminal is not None:
            from kurma_stager_default.inside.streams.app_terminal import Handover

            instance.files.handover = Handover(run.app.terminal)
        if run not in self._inputs:
            terminal_input = run.app.terminal is not None
            self._inputs[run] = AppInput(self._loop, terminal=terminal_input, ends=run.app.stdin_ends)
            if run.app.stdin and self._stdin >= 0:
                self._inputs[run].add(self._stdin).ended = True
                self._stdin = -1
        if run.app.terminal is None:
            read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.set_blocking(read, True)
            instance.files.stdin = read
            self._inputs[run].connect(write)

    def started(self, run: AppRun) -> None:
        """Closes the child's pipe end, and waits for the terminal, after the main process was forked."""
        instance = run.instance
        assert instance is not None
        if instance.files.stdin >= 0:
            os.close(instance.files.stdin)
            instance.files.stdin = -1
        handover = instance.files.handover
        if handover is not None:
            self._loop.watch(handover.fileno(), lambda _fd, _events: self.collect(run))

    def collect(self, run: AppRun) -> None:
        """Takes the master of the app's terminal, once its main process has sent it."""
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
        """Sends the exit code to the attached call-ins, after the end of an execution whose output is in its
        log."""
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
        """Drops the state of an app that was removed from the pod."""
        self._inputs.pop(run, None)

    def lingering(self) -> bool:
        """Whether an attached call-in still shows the rest of the output."""
        return bool(self._leaving)

    # --- attached call-ins -------------------------------------------------------------------------------------

    def attach(self, conversation: Conversation, request: dict[str, Any], runs: list[AppRun]) -> None:
        """Handles the request ``{"do": "attach", "app": NAME, "size": [ROWS, COLUMNS] or null}``, which carries
        the read end of the call-in's standard input.

        The answer is ``{"terminal", "stdin", "log", "outside", "file", "at"}``: the call-in reads the log from
        byte
        ``at`` of the file with the inode ``file``; ``outside`` is its path below the pod's log directory, if it is
        there. Later it sends ``{"size": …}``, and ``{"eof": true}`` when its standard
        input has ended. The supervisor's last packet is ``{"exited": CODE}``.
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
        takes = given is not None and given.target >= 0 and not given.ended
        source: Source | None = None
        if conversation.fds and given is not None and takes:
            source = given.add(conversation.fds.pop(0))
        self._people.setdefault(run, []).append(conversation)
        instance.lost = lambda stream, data: self._offer(run, stream, data)
        conversation.on_packet = lambda value: self._said(run, source, value)
        conversation.on_end = lambda: self._left(run, conversation)
        self._resize(run, request.get("size"))
        answer: dict[str, Any] = {"terminal": run.app.terminal is not None, "stdin": takes}
        answer["log"] = path = instance.log.path
        answer["outside"] = None if instance.plain_log or not run.app.log_path else run.app.log_path
        try:
            status = os.stat(path)
            answer["file"], answer["at"] = status.st_ino, status.st_size
        except OSError:
            pass  # no log file could be made yet: the call-in reads it from its beginning
        conversation.answer(answer)

    def _said(self, run: AppRun, source: Source | None, value: dict[str, Any]) -> None:
        if value.get("eof") and source is not None:
            self._inputs[run].input_ended(source)
        self._resize(run, value.get("size"))

    def _offer(self, run: AppRun, stream: bytes, data: bytes) -> None:
        """Sends output that could not be written to the log to the attached call-ins."""
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
        run.app.terminal = (int(rows), int(columns))  # also for the next execution
        if given.target >= 0:
            terminal.set_size(given.target, int(rows), int(columns))

    def _left(self, run: AppRun, conversation: Conversation) -> None:
        people = self._people.get(run, [])
        if conversation in people:
            people.remove(conversation)
            if not people and run.instance is not None and not isinstance(run.instance.log, AppLog):
                run.instance.log.leave()
        if conversation in self._leaving:
            self._leaving.remove(conversation)
