"""kurmad as a service manager sees it: told when it is ready, sockets handed over, watched."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from kurma_core.client.remote.http import Connection
from tests.kit.waiting import until

pytestmark = pytest.mark.root
#: Becomes the daemon with descriptor 3 and LISTEN_PID, as systemd has it.
EXEC = """
import os, sys
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "kurma_core.cli.main", *sys.argv[1:]])
"""


class Manager:
    """The service manager's side."""

    def __init__(self, directory):
        self.address = f"{directory}/notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(20)

    def hear(self):
        """The next thing that it is told: values by name."""
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def silent(self, seconds):
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(4096) == b""
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(20)

    def drain(self, seconds):
        """What was under way."""
        until(lambda: self.silent(seconds))

    def close(self):
        self._socket.close()


@pytest.fixture
def manager(tmp_path):
    manager = Manager(tmp_path)
    yield manager
    manager.close()


@pytest.fixture
def serve(make_house, manager, tmp_path):
    """``serve(*arguments, sockets=…, **environment)``: a daemon as a service manager starts it."""
    started = []

    def start(*arguments, sockets=(), house=None, log="log", **environment):
        house = house or make_house({"stop_timeout": 1})
        words = ["--dir", house.state, "--config", house.config_file, "daemon", "run", *arguments]
        given = {**os.environ, "NOTIFY_SOCKET": manager.address, **environment}
        if sockets:
            given["LISTEN_FDS"] = str(len(sockets))

        def hand_over():
            for number, one in enumerate(sockets, 3):
                os.dup2(one.fileno(), number)

        with (tmp_path / log).open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", EXEC, *words],
                env=given,
                stderr=stderr,
                preexec_fn=hand_over,
                pass_fds=range(3, 3 + len(sockets)),
            )
        started.append(process)
        return house, process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def ask(path, target="/v1/version"):
    with Connection.open(path) as connection:
        answer = connection.request("GET", target)
        return answer.status, json.loads(answer.read())


def test_it_is_told_what_becomes_of_the_daemon(serve, manager, tmp_path):
    house, process = serve()
    assert manager.hear() == {"READY": "1", "STATUS": "0 pods"}
    path = f"{house.state}/run/kurmad.sock"
    assert ask(path)[0] == 200

    with house.connect() as client:
        record = client.prepare(house.request("sleep 1000"))
        client.launch(record.uuid)
        assert manager.hear() == {"STATUS": "1 pod"}
        client.stop(record.uuid, force=True)
        assert manager.hear() == {"STATUS": "0 pods"}
    process.send_signal(signal.SIGTERM)
    assert manager.hear()["STOPPING"] == "1"
    assert process.wait(20) == 0


def test_the_watchdog_hears_of_a_healthy_daemon_only(serve, manager):
    _, process = serve(WATCHDOG_USEC="900000")
    assert manager.hear()["READY"] == "1"
    heard = time.monotonic()
    for _ in range(4):
        assert manager.hear() == {"WATCHDOG": "1"}
    assert 0.9 <= time.monotonic() - heard < 5
    process.send_signal(signal.SIGSTOP)
    manager.drain(0.4)
    assert manager.silent(1)
    process.send_signal(signal.SIGCONT)
    assert manager.hear() == {"WATCHDOG": "1"}


@pytest.mark.full
def test_a_daemon_whose_thread_is_stuck_is_not_healthy(serve, manager, tmp_path, monkeypatch):
    """The thread that accepts connections is held up by something that it calls."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\n"
        "from kurma_core.daemon import kurmad\n"
        "kurmad._PATIENCE = 0.2\n"
        "kurmad.Daemon._look_at_run_directory = lambda self: time.sleep(1000)\n"
    )
    house, process = serve(WATCHDOG_USEC="600000", PYTHONPATH=str(tmp_path))
    assert manager.hear()["READY"] == "1"
    assert manager.hear() == {"WATCHDOG": "1"}
    with open(f"{house.state}/run/something", "w"):
        pass
    manager.drain(0.4)
    assert manager.silent(1.5)
    assert "kurmad is stuck" in (tmp_path / "log").read_text()
    os.unlink(f"{house.state}/run/something")
    process.kill()
    process.wait()


def test_a_socket_that_is_handed_over_is_used_and_left(serve, manager, make_house, tmp_path):
    house = make_house()
    os.makedirs(f"{house.state}/run", exist_ok=True)
    path = f"{house.state}/run/kurmad.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        os.chown(path, 0, 4711)
        before = os.stat(path)
        listener.listen()
        # Somebody has connected before there was a daemon.
        early = Connection.open(path)
        _, process = serve(sockets=[listener], house=house)
        assert manager.hear()["READY"] == "1"
        assert early.request("GET", "/v1/version").status == 200
        early.close()
        after = os.stat(path)
        assert (after.st_ino, after.st_mode, after.st_gid) == (before.st_ino, stat.S_IFSOCK | 0o600, 4711)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert os.stat(path).st_ino == before.st_ino
        # Who connects meanwhile waits for the next one.
        waiting = Connection.open(path)
        waiting.send(b"GET /v1/version HTTP/1.1\r\nHost: kurmad\r\n\r\n")
        assert manager.hear()["STOPPING"] == "1"
        _, process = serve("--idle-timeout", "0.3", sockets=[listener], house=house)
        assert waiting.line() == b"HTTP/1.1 200 "
        waiting.close()
        assert process.wait(10) == 0
        Connection.open(path).close()  # it listens still, for the manager
    os.unlink(path)


def test_what_is_handed_over_is_looked_at(serve, tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as inet, socket.socket(socket.AF_UNIX) as deaf:
        for one in (inet, deaf):
            _, process = serve(sockets=[one])
            assert process.wait(20) == 125
    lines = (tmp_path / "log").read_text().splitlines()
    assert (
        len([line for line in lines if re.match("kurma: descriptor 3, which the service manager has", line)]) == 2
    )


def test_nothing_of_it_reaches_what_the_daemon_starts(serve, manager):
    _, process = serve(WATCHDOG_USEC="30000000")
    assert manager.hear()["READY"] == "1"
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = file.read().split()
    with open(f"/proc/{children[0]}/environ") as file:
        names = {pair.partition("=")[0] for pair in file.read().split("\0")}
    assert not names & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID"}
