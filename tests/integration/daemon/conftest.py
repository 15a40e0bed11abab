"""A kurmad of its own for a test, on a state directory whose stager and busybox image are there already."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.client import Settings, connect
from kurma_core.client.wire import Connection
from tests.integration.pods.conftest import (  # noqa: F401 (fixtures)
    busybox_id,
    busybox_image,
    foreign,
    make_house,
    served,
    session_state,
    way,
)
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
        self.command = [*wrap, sys.executable, *program, *which, "daemon", *arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=code
            )
        self.wait_up()

    def wait_up(self):
        deadline = time.monotonic() + 20
        while True:
            connection = Connection.open(self.socket, required=False) if os.path.exists(self.socket) else None
            if connection is not None:
                connection.close()
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

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


@pytest.fixture
def kurmad(make_house):  # noqa: F811
    """Makes daemons; those that run at the end are ended."""
    made = []

    def make(*arguments, house=None, **options):
        daemon = Kurmad(house or make_house(), *arguments, **options)
        made.append(daemon)
        return daemon

    yield make
    with contextlib.ExitStack() as stack:
        for daemon in made:
            stack.callback(ended, daemon)


def ended(daemon):
    """Sees a daemon that runs to its end, which must be a good one; in no case does it go on."""
    if daemon.process.poll() is None:
        try:
            assert daemon.end() == 0, daemon.log.read_text()
        finally:
            daemon.process.kill()
            daemon.process.wait(20)


@pytest.fixture
def ask():
    """A client that goes by way of a daemon."""
    clients = []

    def make(daemon):
        client = connect(Settings(daemon.house.config_file, daemon.house.state, host=f"unix:{daemon.socket}"))
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
