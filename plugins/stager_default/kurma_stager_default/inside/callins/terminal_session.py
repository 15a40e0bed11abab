"""Runs a command's session on a terminal of its own, and copies input and output between it and the call-in's.

All bytes go through this process. The session ends with the command: processes that the command leaves in it are
killed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from kurma_core.linux import process, terminal
from kurma_stager_default.inside import event_loop
from kurma_stager_default.inside.errors import complain
from kurma_stager_default.inside.event_loop import Loop
from kurma_stager_default.inside.streams import flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds from the hang-up of a command's terminal until the command is killed.
_PATIENCE = 2.0
# Most searches of the app's processes for those of the session, which may fork meanwhile.
_ROUNDS = 64


class Session:
    """The session of a command on a terminal.

    :param pid: the command, a child of this process and the leader of its session.
    :param master: the master of its terminal; closed at the end.
    :param members: returns the PIDs of all processes of the app.
    """

    def __init__(self, pid: int, master: int, members: Callable[[], list[int]]) -> None:
        self._pid = pid
        self._members = members
        # Two descriptors of the master, since the loop watches each for one direction only.
        self._master = master
        self._typed = os.dup(master)
        self._loop = Loop()
        self._output: flow.Flow | None = None
        self._input: flow.Flow | None = None
        self._held = terminal.Held(0) if os.isatty(0) else None
        self._size: tuple[int, int] | None = None
        self._status: int | None = None
        # the exit code, if the session does not end with the command
        self._code: int | None = None
        self._over = False
        self._typed_line = True

    def run(self) -> int:
        """Runs until the command has ended, or the user's terminal is gone. :returns: the exit code."""
        wake = event_loop.catch_signals()
        try:
            self._loop.watch(wake, self._on_signals)
            if self._held is not None:
                self._held.raw()
            self._resize()
            self._connect()
            self._reap()
            while not self._over:
                self._loop.turn()
        except OSError as error:
            complain(f"kurma: the terminal cannot be used: {error.strerror}")
            self._leave(125)
        finally:
            if self._held is not None:
                self._held.restore()
        if self._status is None:
            self._hang_up()
        code = os.waitstatus_to_exitcode(self._status or 0) if self._code is None else self._code
        return code if code >= 0 else 128 - code

    def _connect(self) -> None:
        target, room = flow.writer(1)
        self._output = flow.Flow(
            self._loop, self._master, target, room=room, ended=self._said_all, broken=self._nobody_reads
        )
        self._input = flow.Flow(
            self._loop,
            flow.reader(0),
            self._typed,
            ended=self._typed_all,
            broken=lambda: None,  # the command has closed its terminal; SIGCHLD reports its end
            look=self._note_line,
        )

    def _note_line(self, data: bytes) -> bytes:
        self._typed_line = data.endswith(b"\n")
        return data

    def _typed_all(self) -> None:
        """Handles the end of standard input: a terminal has been hung up; for a file, the end-of-file character is
        written to the command's terminal."""
        if self._held is not None:
            self._leave(128 + _signal.SIGHUP)
            return
        end = _end_character(self._master)
        # After an incomplete line, the first character only hands over that line.
        try:
            os.write(self._master, end if self._typed_line else end + end)
        except OSError:
            return  # the terminal has been hung up

    def _nobody_reads(self) -> None:
        self._leave(128 + (_signal.SIGPIPE if self._held is None else _signal.SIGHUP))

    def _said_all(self) -> None:
        """Handles the end of output: no process has the terminal open. The command may still run without it."""
        if self._status is not None:
            self._over = True

    def _on_signals(self, wake: int, _events: int) -> None:
        for number in os.read(wake, 4096):
            if number in event_loop.ENDING:
                self._leave(128 + number)
                return
            if number == _signal.SIGCONT and self._held is not None:
                self._held.raw()  # the shell has used the terminal while this process was stopped
            if number in (_signal.SIGWINCH, _signal.SIGCONT):
                self._resize()
        self._reap()

    def _resize(self) -> None:
        size = terminal.get_size(0) or terminal.get_size(1)
        if size is not None and size != self._size:
            self._size = size
            terminal.set_size(self._master, *size)

    def _reap(self) -> None:
        if self._status is not None:
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return
        self._status = status
        end_session(self._pid, self._members)
        if self._input is not None:
            self._input.stop()
        if self._output is None or self._output.over:
            self._over = True
        else:
            self._output.finish()

    def _leave(self, code: int) -> None:
        self._code = code
        self._over = True

    def _hang_up(self) -> None:
        """Closes the terminal, which makes the kernel send SIGHUP to the command; kills a command that goes on."""
        os.close(self._master)
        os.close(self._typed)
        fd = process.pidfd_open(self._pid)
        if not process.wait_pidfd(fd, _PATIENCE):
            try:
                process.pidfd_send_signal(fd, _signal.SIGKILL)
            except PermissionError:
                return  # its AppArmor profile forbids signals: it is killed with the app's cgroup
        os.waitpid(self._pid, 0)
        end_session(self._pid, self._members)


def end_session(leader: int, members: Callable[[], list[int]]) -> None:
    """Kills the processes of a session whose leader has ended."""
    for _ in range(_ROUNDS):
        found = [pid for pid in members() if _session(pid) == leader]
        if not found:
            return
        for pid in found:
            try:
                fd = process.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if _session(pid) == leader:  # the PID has not been reused
                    process.pidfd_send_signal(fd, _signal.SIGKILL)
                    process.wait_pidfd(fd, _PATIENCE)
            except ProcessLookupError:
                pass
            except PermissionError:
                return  # its AppArmor profile forbids signals: it is killed with the app's cgroup
            finally:
                os.close(fd)


def _session(pid: int) -> int | None:
    """The session that a process is in; None: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, _, session, *_ = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in (b"Z", b"X") else int(session)


def _end_character(master: int) -> bytes:
    import termios

    character: bytes = termios.tcgetattr(master)[6][termios.VEOF]
    return character
