"""A daemon that is started for a pod that outlives its command, and that ends when nobody needs it any more."""

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.client.remote import start_kurmad
from kurma_core.errors import HostError, KurmaError, PrivilegeError, UsageError
from kurma_core.linux.files import locked
from tests.kit.client import open_client
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root
#: A pod that outlives this process; its UUID and its owner's PID are printed.
DETACHED = """
import json, sys
from kurma_core.appc.template import PodTemplate
from kurma_core.client import Settings, connect
from kurma_core.api.pods import PodRequest
config, state, template = sys.argv[1:]
with connect(Settings(config, state), start=True) as client:
    record = client.prepare(PodRequest(PodTemplate.parse(json.loads(template))))
    record = client.launch(record.uuid)
    print(record.uuid, record.owner, record.state)
"""


class Starter:
    """Starts daemons by asking for them, and knows which there are."""

    def __init__(self, house):
        self.house = house
        self.run = f"{house.state}/run"

    def connect(self, **settings):
        return open_client(self.house.config_file, self.house.state, start=True, **settings)

    def begin(self, script="sleep 1000"):
        """A process that asks for a pod that runs on."""
        words = [self.house.config_file, self.house.state, json.dumps(self.house.template({"main": script}))]
        command = [sys.executable, "-c", DETACHED, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def daemons(self):
        """PIDs of the daemons that run for this state directory."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
                words = file.read().split("\0")
                if start_kurmad._PROGRAM in words and self.house.state in words and alive(int(pid)):
                    found.append(int(pid))
        return found

    def end(self):
        for pid in self.daemons():
            os.kill(pid, signal.SIGTERM)
        until(lambda: not self.daemons(), "the end of the daemons")


@pytest.fixture
def starter(make_house):
    starter = Starter(make_house({"stop_timeout": 1}))
    yield starter
    starter.end()


@pytest.mark.full
def test_twenty_at_once_get_one_daemon_and_twenty_pods(starter):
    asking = [starter.begin() for _ in range(20)]
    answers = [process.communicate(timeout=90) for process in asking]
    assert [error for _, error in answers if error] == []
    said = [out.split() for out, _ in answers]
    assert [process.returncode for process in asking] == [0] * 20
    assert {state for _, _, state in said} == {"running"}
    assert len({uuid for uuid, _, _ in said}) == 20
    (daemon,) = starter.daemons()
    assert {int(owner) for _, owner, _ in said} == {daemon}


def test_a_daemon_that_another_command_has_started_is_waited_for(starter):
    """That command was killed meanwhile: its daemon serves the directory, and has no socket yet."""
    os.makedirs(starter.run, exist_ok=True)
    log = Path(starter.run, "kurmad.log")
    with open(f"{starter.run}/kurmad.lock", "w") as serves:
        fcntl.flock(serves, fcntl.LOCK_EX)
        asking = starter.begin()
        until(lambda: log.exists() and "serves" in log.read_text(), "the refusal of a second daemon")
        assert asking.poll() is None
    out, error = asking.communicate(timeout=90)
    assert (asking.returncode, error) == (0, "")
    assert out.split()[2] == "running"


def test_the_daemon_has_nothing_of_its_caller(starter, tmp_path, monkeypatch):
    """Neither terminal nor descriptors, directory, umask, ignored signals or secrets."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KURMA_PASSPHRASE", "a secret")
    monkeypatch.setenv("https_proxy", "http://proxy.example")
    before = os.umask(0o077)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with starter.connect() as client:
            assert client.remote
            assert client.pods() is not None
    finally:
        signal.signal(signal.SIGHUP, ignored)
        os.umask(before)
    os.close(write)
    assert os.read(read, 1) == b""  # nobody has its other end
    os.close(read)
    (pid,) = starter.daemons()
    assert os.getsid(pid) not in (pid, os.getsid(0))
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
    assert links == ["/dev/null", f"{starter.run}/kurmad.log", f"{starter.run}/kurmad.log"]
    with open(f"/proc/{pid}/environ") as file:
        environment = dict(pair.split("=", 1) for pair in file.read().split("\0") if pair)
    assert "KURMA_PASSPHRASE" not in environment
    assert environment["https_proxy"] == "http://proxy.example"
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    assert fields["Umask"] == "0022"
    assert not int(fields["SigIgn"], 16) & 1
    assert stat.S_IMODE(os.stat(f"{starter.run}/kurmad.log").st_mode) == 0o600
    with open(f"{starter.run}/kurmad.log") as file:
        assert f"kurmad: serves {starter.house.state} at" in file.read()


def test_who_cannot_be_served_is_told_why(starter, monkeypatch):
    with pytest.raises(UsageError, match="--host local excludes kurmad"):
        starter.connect(host="local")
    with pytest.raises(HostError, match=r"cannot reach the daemon at /nowhere/kurmad\.sock"):
        starter.connect(host="unix:/nowhere/kurmad.sock")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(PrivilegeError, match=f"cannot reach a kurmad for {starter.house.state}"):
            starter.connect()
    assert starter.daemons() == []


def test_what_keeps_it_from_starting_is_the_callers_error(starter, monkeypatch):
    # Somebody has the lock of a daemon, and does not listen.
    monkeypatch.setattr(start_kurmad, "_PATIENCE", 0.5)
    with locked(f"{starter.run}/kurmad.lock"), pytest.raises(HostError) as caught:
        starter.connect()
    assert str(caught.value) == f"a kurmad serves {starter.house.state} already"
    # What ends it before it can say anything.
    monkeypatch.setattr(start_kurmad, "_PATIENCE", 30.0)
    monkeypatch.setattr(start_kurmad, "_PROGRAM", "import os; print('oh dear', file=open(2, 'w')); os._exit(1)")
    with pytest.raises(HostError, match="ended before it was ready") as caught:
        starter.connect()
    assert caught.value.hint == f"its log: {starter.run}/kurmad.log"
    with open(f"{starter.run}/kurmad.log") as file:
        assert file.read().endswith("oh dear\n")


def test_it_ends_when_it_has_had_nothing_to_do(starter, kurmad):
    daemon = kurmad("--idle-timeout", "0.5", house=starter.house)
    with starter.house.connect() as client:
        assert client.remote
        time.sleep(1)  # somebody is connected
        record = client.prepare(starter.house.request("trap 'exit 3' TERM; echo up; while :; do sleep 0.1; done"))
        client.launch(record.uuid)
        until(lambda: "up" in starter.house.log(client.pod(record.uuid)), "the trap")
    time.sleep(1)  # it owns a pod
    assert daemon.process.poll() is None
    with starter.house.connect() as client:
        client.stop(record.uuid)
    assert daemon.process.wait(20) == 0
    assert not os.path.exists(daemon.socket)
    assert "ends: nothing to do for 0.5 seconds" in daemon.log.read_text()
    assert starter.house.client.pod(record.uuid).exit_code == 3


#: A daemon to whom somebody comes in its last moment, as its run directory is removed, or its place taken.
LATE = """
import os, shutil, socket, sys
from kurma_core.cli.main import main
from kurma_core.daemon.http.server import Server
what, path, *arguments = sys.argv[1:]
shut, guests = Server.shut, []
def struck(server):
    if not guests:
        guests.append(socket.socket(socket.AF_UNIX))
        guests[0].connect(path)
        found = shut(server)
        shutil.rmtree(os.path.dirname(path))
        if what == "taken":
            os.makedirs(path)
        return found
    return shut(server)
Server.shut = struck
sys.exit(main(arguments[3:]))
"""


@pytest.mark.full
@pytest.mark.parametrize("what", ["removed", "taken"])
def test_who_comes_in_the_last_moment_and_what_goes(starter, kurmad, what):
    """It listens anew, or ends and says why: in no case is it there and deaf."""
    path = f"{starter.run}/kurmad.sock"
    wrap = (sys.executable, "-c", LATE, what, path)
    daemon = kurmad("--idle-timeout", "0.3", house=starter.house, wrap=wrap)
    if what == "removed":
        until(lambda: "was removed: kurmad listens there anew" in daemon.log.read_text(), "its listening anew")
        with starter.house.connect() as client:
            assert client.remote
        assert daemon.end() == 0
    else:
        assert daemon.process.wait(10) == 125
        assert daemon.log.read_text().endswith(
            f"cannot make the socket {path}: another file has that name\n  hint: check that file, and remove it\n"
        )
        os.rmdir(path)


@pytest.mark.full
def test_nobody_meets_a_daemon_that_ends(starter, monkeypatch):
    """Daemons that end as soon as they can, and callers that come all the time: each is served."""
    monkeypatch.setattr(start_kurmad, "IDLE", "0.01s")
    seen = set()
    deadline = time.monotonic() + 5
    for number in range(1000):
        with starter.connect() as client:
            client.version()
            seen.update(starter.daemons())
        time.sleep((number % 20) / 1000)
        # Where much else is going on, a daemon takes a second to start.
        if time.monotonic() > deadline and len(seen) > 3:
            break
    assert len(seen) > 3, "the daemons did not end meanwhile"


def test_a_daemon_that_cannot_be_started_for_want_of_a_place(make_house, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "run").write_text("")
    with pytest.raises(KurmaError, match=f"cannot make the run directory {tmp_path}/state/run: File exists"):
        open_client(make_house().config_file, str(tmp_path / "state"), start=True)
