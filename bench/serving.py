"""A kurmad to be measured: of the environment's state directory, started and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

from kurma_core.client.remote.http import Connection


class Daemon:
    """:param work: where its log goes.
    :param environment: of its state directory and configuration; None: ours.
    """

    def __init__(self, work: str, environment: Mapping[str, str] | None = None) -> None:
        self._work = work
        self._environment = dict(os.environ if environment is None else environment)
        self.state = self._environment["KURMA_DIR"]
        self.socket = f"{self.state}/run/kurmad.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Seconds from its exec to its first answer."""
        address = f"{self._work}/notify"
        program = os.path.join(os.path.dirname(sys.executable), "kurmad")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(address)
            manager.settimeout(60)
            environment = {**self._environment, "NOTIFY_SOCKET": address}
            with open(f"{self._work}/kurmad.log", "ab") as log:
                begin = time.monotonic()
                self._process = subprocess.Popen([program], env=environment, stderr=log)
            manager.recv(1000)
            with self.connect() as connection:
                connection.request("GET", "/v1/version").read()
            taken = time.monotonic() - begin
        os.unlink(address)
        return taken

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def connect(self) -> Connection:
        found = Connection.open(self.socket)
        assert found is not None
        return found

    def end(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def private(self) -> int:
        """Bytes of memory that are its own."""
        with open(f"/proc/{self.pid}/smaps_rollup") as file:
            return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))
