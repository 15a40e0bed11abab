"""A person at a terminal, as the kernel sees one: a pty, a session with job control, a command in front."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.waiting import PATIENCE, until

# What a shell does: it leads the session, puts the command in front, waits for it, and takes the terminal back.
# It stays until it is told to go, since its end would hang the terminal up.
_SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
report, leash = int(sys.argv[1]), int(sys.argv[2])
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    for pair in filter(None, sys.argv[3].split(",")):
        fd, number = pair.split(":")
        os.dup2(int(fd), int(number))
    os.execvp(sys.argv[4], sys.argv[4:])
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
try:
    os.setpgid(pid, pid)
except OSError:
    pass
os.write(report, b"%d\\n" % pid)
status = os.waitpid(pid, 0)[1]
os.tcsetpgrp(0, os.getpgrp())
os.write(report, b"%d\\n" % os.waitstatus_to_exitcode(status))
os.read(leash, 1)
"""


class Person:
    """:param command: a program and its arguments, run in front at a terminal of this size.
    :param redirected: descriptors of the command that are not the terminal.
    """

    def __init__(
        self,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        rows: int = 24,
        columns: int = 80,
        redirected: Mapping[int, int] | None = None,
    ) -> None:
        self.screen = bytearray()
        self._seen = 0
        self._master, self.slave = os.openpty()
        self.resize(rows, columns)
        os.set_blocking(self._master, False)
        self.before = self.settings()
        self._report, report = os.pipe()
        leash, self._leash = os.pipe()
        redirected = redirected or {}
        moved = ",".join(f"{fd}:{number}" for number, fd in redirected.items())
        self._shell = subprocess.Popen(
            [sys.executable, "-IS", "-c", _SHELL, str(report), str(leash), moved, *command],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            pass_fds=(report, leash, *redirected.values()),
            start_new_session=True,
            env=dict(environment),
        )
        os.close(report)
        os.close(leash)
        self.pid = int(self._line())

    # -- the terminal --

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def raw(self) -> bool:
        return not self.settings()[3] & termios.ICANON

    def wait_raw(self) -> None:
        self._until(self.raw, "raw mode")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        os.close(self.slave)
        os.close(self._master)
        self.slave = self._master = -1

    # -- typing and reading --

    def type(self, data: bytes | str) -> None:
        """Whatever comes meanwhile is read, as a terminal does."""
        rest = data.encode() if isinstance(data, str) else data
        deadline = time.monotonic() + PATIENCE
        while rest:
            assert time.monotonic() < deadline, f"{len(rest)} bytes cannot be typed; {self.screen[-200:]!r}"
            _, writable, _ = select.select([], [self._master], [], 0.05)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self._master, rest) :]
            self._look()

    def type_blindly(self, data: bytes) -> int:
        """Types as much as goes in without anything being read; how much that was."""
        count = 0
        deadline = time.monotonic() + PATIENCE
        quiet = time.monotonic() + 1
        while count < len(data) and time.monotonic() < min(quiet, deadline):
            try:
                count += os.write(self._master, data[count:])
                quiet = time.monotonic() + 1
            except BlockingIOError:
                time.sleep(0.02)
        return count

    def expect(self, text: bytes | str) -> bytes:
        """Waits until it is on the screen, after what was last waited for; what came before it."""
        wanted = text.encode() if isinstance(text, str) else text

        def there() -> bool:
            self._look()
            return self.screen.find(wanted, self._seen) >= 0

        self._until(there, f"{wanted!r} on the screen")
        at = self.screen.find(wanted, self._seen)
        before = bytes(self.screen[self._seen : at])
        self._seen = at + len(wanted)
        return before

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._master, 65536):
                self.screen += data

    def _until(self, condition: Any, what: str) -> None:
        until(condition, lambda: f"no {what}: {bytes(self.screen[-1000:])!r}")

    # -- the command --

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def suspend(self) -> None:
        """Stops the command with SIGSTOP, and waits until it is stopped."""
        self.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        self._until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "a stopped command")

    def wait(self) -> int:
        """How the command ended, as Python says it; the screen is read meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not select.select([self._report], [], [], 0.02)[0]:
            assert time.monotonic() < deadline, f"it does not end: {bytes(self.screen[-1000:])!r}"
            self._look()
        code = int(self._line())
        self._look()
        return code

    def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n"):
            data = os.read(self._report, 1)
            assert data, "the shell has ended"
            text += data
        return text.decode()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._shell.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
        os.close(self._leash)
        try:
            self._shell.wait(5)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        for fd in (self._report, self.slave, self._master):
            if fd >= 0:
                os.close(fd)
