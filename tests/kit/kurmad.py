"""kurmad, in a process of its own, on the state directory of a house."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from kurma_core.client.remote.http import Connection
from tests.kit.waiting import until

_FRAGILE = os.path.join(os.path.dirname(__file__), "fragile.py")


class Kurmad:
    """A running daemon.

    :param house: whose state directory it serves.
    :param faults: where it kills itself once it is armed for one of them: see ``fragile.py``.
    :param code: directory of another copy of ``kurma_core``.
    :param wrap: a program, and its arguments, that executes it.
    """

    def __init__(self, house, *arguments, faults=(), code=None, wrap=()):
        self.house = house
        self.socket = f"{house.state}/run/kurmad.sock"
        self.log = Path(f"{house.state}/kurmad.log")
        which = ["--dir", house.state, "--config", house.config_file]
        self._arm = f"{house.state}/arm"
        fragile = [_FRAGILE, self._arm, json.dumps(faults)]
        program = fragile if faults else ["-m", "kurma_core.cli.main"]
        self.command = [*wrap, sys.executable, *program, *which, "daemon", "run", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=code
            )
        self.wait_up()

    def wait_up(self):
        """Until it answers."""

        def answers():
            connection = Connection.find(self.socket) if os.path.exists(self.socket) else None
            if connection is None:
                assert self.process.poll() is None, self.log.read_text()
                return False
            connection.close()
            return True

        until(answers, lambda: f"kurmad is up: {self.log.read_text()}")

    def wait_said(self, text):
        """Until that stands in its log: it answers before it says so, or after."""
        until(lambda: text in self.log.read_text(), f"{text!r} in the log")

    @contextlib.contextmanager
    def armed(self, fault):
        """In here it kills itself at that point, to which it must come."""
        with open(f"{self._arm}.new", "w") as file:
            json.dump(fault, file)
        os.rename(f"{self._arm}.new", self._arm)
        yield
        assert self.process.wait(20) == -signal.SIGKILL, fault
        os.unlink(self._arm)

    def end(self, number=signal.SIGTERM):
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)


def ended(daemon):
    """Sees a daemon that runs to its end, which must be a good one; in no case does it go on."""
    if daemon.process.poll() is None:
        try:
            assert daemon.end() == 0, daemon.log.read_text()
        finally:
            daemon.process.kill()
            daemon.process.wait(20)
