"""kurmad's socket and run directory: what stands in the way, what is taken away, and what cannot be."""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.errors import KurmaError
from tests.kit.client import open_client
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root


def answers(path):
    connection = Connection.find(path)
    if connection is not None:
        connection.close()
    return connection is not None


@pytest.fixture
def fails(make_house, tmp_path):
    """``fails(run)``: the error of a daemon whose run directory is prepared by ``run(path)``."""

    def look(prepare, state=None):
        house = make_house({"state_dir": str(tmp_path / "state"), "run_dir": state or str(tmp_path / "run")})
        prepare(tmp_path / "run")
        command = [*KURMA, "--config", house.config_file, "daemon", "run"]
        environment = {name: value for name, value in os.environ.items() if name != "KURMA_DIR"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
        assert done.returncode == 125
        return done.stderr.splitlines()

    return look


def test_what_is_in_the_way_is_left_there(fails, tmp_path):
    def directory(run):
        (run / "kurmad.sock").mkdir(parents=True)

    def file(run):
        (run / "kurmad.sock").rmdir()
        (run / "kurmad.sock").write_text("precious")

    for prepare in (directory, file):
        line, hint = fails(prepare)
        assert line == f"kurma: cannot make the socket {tmp_path}/run/kurmad.sock: another file has that name"
        assert hint == "  hint: check that file, and remove it"
    assert (tmp_path / "run" / "kurmad.sock").read_text() == "precious"


def test_a_run_directory_that_cannot_be_used(fails, tmp_path):
    def full(run):
        run.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2,mode=755", "none", run], check=True)
        (run / "filler").write_text("")

    def anybodys(run):
        run.mkdir()
        run.chmod(0o777)

    line, hint = fails(full)
    subprocess.run(["umount", tmp_path / "run"], check=True)
    (tmp_path / "run").rmdir()
    why = "no free inodes (No space left on device)"
    assert line == f"kurma: kurmad's socket cannot be at {tmp_path}/run/kurmad.sock: {why}"
    assert hint == "  hint: make room there"
    line, hint = fails(anybodys)
    assert line.startswith(
        f"kurma: the run directory {tmp_path}/run: users other than root can write it (owner 0, mode 0777)"
    )
    assert hint.startswith("  hint: chown root")
    line, hint = fails(lambda _: None, "/proc/run")
    assert line == "kurma: kurmad's socket cannot be at /proc/run/kurmad.sock: No such file or directory"
    assert hint == "  hint: `run_dir` in kurma.yml names it"


def test_a_path_longer_than_the_kernel_takes(tmp_path, make_house):
    deep = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 5)
    command = [*KURMA, "--dir", str(deep), "daemon", "run"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    path = f"{deep}/run/kurmad.sock"
    assert len(path) > 150
    until(lambda: answers(path), "the daemon")
    with open_client(make_house().config_file, str(deep)) as client:
        assert client.remote
    process.terminate()
    assert process.wait(20) == 0
    assert not os.path.exists(path)


@pytest.mark.full
def test_a_socket_that_is_removed_comes_back(kurmad, ask):
    daemon = kurmad()
    kept = ask(daemon)
    first = os.stat(daemon.socket)
    os.unlink(daemon.socket)
    daemon.wait_up()
    second = os.stat(daemon.socket)
    assert (second.st_mode, second.st_gid) == (first.st_mode, first.st_gid)
    assert ask(daemon).pods() == kept.pods()  # who was connected still is
    # Another socket in its place is not another daemon.
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{daemon.socket}.other")
        os.rename(f"{daemon.socket}.other", daemon.socket)
        daemon.wait_up()
    # Nor is a lock that is gone leave for one.
    os.unlink(f"{daemon.house.state}/run/kurmad.lock")
    until(lambda: os.path.exists(f"{daemon.house.state}/run/kurmad.lock"), "the lock")
    second = subprocess.run(daemon.command, capture_output=True, text=True, timeout=20)
    assert (second.returncode, second.stderr) == (125, f"kurma: a kurmad serves {daemon.house.state} already\n")
    # Nor does it mind the whole directory's end.
    for number in range(3):
        os.rename(f"{daemon.house.state}/run", f"{daemon.house.state}/removed.{number}")
        daemon.wait_up()
        shutil.rmtree(f"{daemon.house.state}/removed.{number}")
    # Nor somebody who removes it slowly.
    os.unlink(f"{daemon.house.state}/run/kurmad.lock")
    os.unlink(daemon.socket)
    time.sleep(0.25)
    shutil.rmtree(f"{daemon.house.state}/run", ignore_errors=True)
    daemon.wait_up()
    daemon.wait_said("was removed: kurmad listens there anew")
    assert daemon.end() == 0
    assert not os.path.exists(daemon.socket)


def test_a_state_directory_that_is_gone_ends_it(tmp_path, kurmad, make_house):
    house = make_house({"run_dir": str(tmp_path / "run"), "state_dir": str(tmp_path / "state")})
    command = [*KURMA, "--config", house.config_file, "daemon", "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: answers(str(tmp_path / "run" / "kurmad.sock")), "the daemon")
    until((tmp_path / "state" / "events").exists, "the state directory")

    def gone():
        shutil.rmtree(tmp_path / "state", ignore_errors=True)  # kurmad may be writing the plugins' index
        return not (tmp_path / "state").exists()

    until(gone, "its removal")
    shutil.rmtree(tmp_path / "run")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 125
    assert errors.splitlines()[-1] == f"kurma: {tmp_path}/state, which kurmad serves, is gone"
    assert not (tmp_path / "run" / "kurmad.sock").exists()


def test_a_state_directory_that_is_moved_ends_it(kurmad, ask):
    """With its run directory in it, and while stagers are made for pods to come: none makes it anew."""
    daemon = kurmad()
    state = daemon.house.state
    with ask(daemon) as client:
        record = client.prepare(daemon.house.request("true", ephemeral=True))
        client.launch(record.uuid)
        os.rename(state, f"{state}x")
        try:
            assert daemon.process.wait(20) == 125
            assert not os.path.exists(state)
        finally:
            shutil.rmtree(state, ignore_errors=True)
            os.rename(f"{state}x", state)
    assert daemon.log.read_text().splitlines()[-1] == f"kurma: {state}, which kurmad serves, is gone"


@pytest.mark.parametrize("how", ["above", "another"])
def test_a_state_directory_that_is_not_what_it_was_ends_it(tmp_path, make_house, how):
    above = tmp_path / "above"
    above.mkdir()
    house = make_house({"run_dir": str(tmp_path / "run"), "state_dir": str(above / "state")})
    command = [*KURMA, "--config", house.config_file, "daemon", "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: answers(str(tmp_path / "run" / "kurmad.sock")), "the daemon")
    until((above / "state" / "events").exists, "the state directory")
    moved = above if how == "above" else above / "state"
    moved.rename(tmp_path / "moved")
    if how == "another":
        moved.mkdir()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 125
    assert errors.splitlines()[-1] == f"kurma: {above}/state, which kurmad serves, is gone"
    assert how == "another" or not above.exists()


def test_its_log_comes_back_with_its_directory(kurmad, make_house):
    house = make_house()
    run = Path(house.state, "run")
    run.mkdir(exist_ok=True)
    daemon = kurmad("--log-file", str(run / "kurmad.log"), house=house)
    shutil.rmtree(run)
    daemon.wait_up()
    until((run / "kurmad.log").exists, "the log")
    until(lambda: "was removed: kurmad listens there anew" in (run / "kurmad.log").read_text(), "what it says")
    os.unlink(run / "kurmad.log")
    assert daemon.end() == 0
    assert "ends; pods that run go on" in (run / "kurmad.log").read_text()


def test_it_needs_no_standard_descriptors(make_house):
    house = make_house()
    which = ["--dir", house.state, "--config", house.config_file]
    code = "import os, sys; os.closerange(0, 3); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    process = subprocess.Popen([sys.executable, "-c", code, "-m", "kurma_core.cli.main", *which, "daemon", "run"])
    path = f"{house.state}/run/kurmad.sock"
    until(lambda: answers(path), "the daemon")
    assert [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)] == ["/dev/null"] * 3
    with house.connect() as client:
        record = client.prepare(house.request("echo hello"))
        answer = client.launch(record.uuid)
        assert answer.uuid == record.uuid
        assert client.wait(record.uuid).exit_code == 0
        assert [text.text for text in client.logs(record.uuid)] == [b"hello"]
    process.terminate()
    process.wait(20)


def test_signals(kurmad):
    """SIGPIPE is nothing to it; a second SIGTERM ends it where the first is not enough."""
    daemon = kurmad()
    daemon.process.send_signal(signal.SIGPIPE)
    daemon.wait_up()
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(20) in (0, -signal.SIGTERM)


def test_others_than_root_are_told(make_house, tmp_path):
    house = make_house()
    command = [*KURMA, "--config", house.config_file, "daemon", "run"]
    tmp_path.chmod(0o755)
    done = subprocess.run(command, capture_output=True, text=True, user=65534, group=65534, timeout=20)
    assert done.returncode == 125
    assert done.stderr.startswith("kurma: only root can run kurmad\n") or "ermission" in done.stderr


def test_without_descriptors_callers_are_sent_away(kurmad, ask):
    daemon = kurmad()
    pid = daemon.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    connected = Connection.open(daemon.socket)
    connected.request("GET", "/v1/version").read()

    def refused():
        """Who has looked whether it is up may be gone only by now, and leave room."""
        used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        free = min(set(range(len(used) + 1)) - used)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, hard))
        with Connection.open(daemon.socket) as another:
            answer = another.request("GET", "/v1/version")
            return answer.read() if answer.status == 503 else b""

    try:
        assert b"cannot open a file: the host's limit is reached" in until(refused, "the refusal")
        assert connected.request("GET", "/v1/version").status == 200
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        connected.close()
    assert ask(daemon).version()
    daemon.wait_said("a connection was refused: there are too many open files")


@pytest.mark.full
def test_nothing_wakes_a_daemon_that_has_nothing_to_do(kurmad, ask):
    """It owns pods, and watches another process's: nothing polls, unless more seldom than every five seconds."""
    daemon = kurmad()
    client = ask(daemon)
    pods = [client.prepare(daemon.house.request("while :; do sleep 100; done")).uuid for _ in range(20)]
    for uuid in pods:
        client.launch(uuid)
    other = daemon.house.launch("sleep 1000")

    def switches():
        """Times that its threads have been given the processor."""
        found = {}
        for task in os.listdir(f"/proc/{daemon.process.pid}/task"):
            # Those of what was asked before end.
            with (
                contextlib.suppress(FileNotFoundError),
                open(f"/proc/{daemon.process.pid}/task/{task}/status") as file,
            ):
                fields = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
                found[task, fields["Name"]] = int(fields["voluntary_ctxt_switches"])
        return found

    # What follows the starts, and its look for remains, come late on a busy machine: what polls comes again.
    woken = []
    for _ in range(4):
        before = switches()
        time.sleep(5)
        after = switches()
        woken.append({one: count - before.get(one, 0) for one, count in after.items() if count != before.get(one)})
        if not woken[-1]:
            break
    assert not woken[-1], woken
    for uuid in (*pods, other.uuid):
        client.stop(uuid, force=True)
    other.wait()


def test_what_the_daemon_takes_is_not_what_pods_begin_with(kurmad, ask):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
        daemon = kurmad()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    pid = daemon.process.pid
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)
    lowered = subprocess.run(["sh", "-c", "echo -900 >/proc/self/oom_score_adj"], stderr=subprocess.DEVNULL)
    with open("/proc/self/oom_score_adj") as file:
        own = file.read().strip()
    with open(f"/proc/{pid}/oom_score_adj") as file:
        assert file.read().strip() == ("-900" if lowered.returncode == 0 else own)  # not in every container
    script = "ulimit -n; cat /proc/self/oom_score_adj"
    client = ask(daemon)

    def told():
        record = client.prepare(daemon.house.request(script))
        client.launch(record.uuid)
        client.wait(record.uuid)
        return b" ".join(text.text for text in client.logs(record.uuid)).decode().split()

    assert told() == ["1000", own]
    # Nor with a spawner that had to be started again.
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        spawners = file.read().split()
    for spawner in spawners:
        os.kill(int(spawner), signal.SIGKILL)
    with contextlib.suppress(KurmaError):
        told()  # the first one may notice
    assert told() == ["1000", own]
