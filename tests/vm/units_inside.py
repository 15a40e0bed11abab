"""Runs in a virtual machine whose first program is systemd (see ``check_units.py``): the units as daemon.md
has them installed, what their pods outlive, and clocks that jump. In this order: each goes on where the one before
has ended."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.linux.cgroups import CgroupTree
from tests.docs.pages import find_page
from tests.kit import waiting
from tests.kit.images import archive, busybox_root

_PROJECT = Path(__file__).parents[2]
_SOCKET = "/run/kurma/kurmad.sock"
_PODS = Path("/var/lib/kurma/pods")
#: Seconds: everything takes ten times as long here, and more beside other work.
_PATIENCE = 180
_HOUR = 3600
_TICKS = "trap 'exit 7' TERM; i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.2; done"


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    assert not check or done.returncode == 0, done
    return done.stdout.strip()


def systemctl(*words, check=True):
    return run("systemctl", *words, check=check)


def of_unit(name, unit="kurmad.service"):
    return systemctl("show", unit, "-p", name, "--value")


def kurma(*words, check=True):
    return run("kurma", *words, check=check)


def until(condition, what, patience=_PATIENCE):
    waiting.until(condition, lambda: f"{what}: {journal()}", patience)


def journal():
    return run("journalctl", "-u", "kurmad.service", "-o", "cat", "--no-pager", "-n", "200")


def pod(name):
    with Connection.open(_SOCKET) as connection:
        answer = connection.request("GET", f"/v1/pods/{name}")
        return json.loads(answer.read())


def log(name):
    """Its lines, as they are on disk: nobody starts kurmad by looking."""
    (found,) = Path(_uuid_directory(name), "pod/logs").glob("*.log")
    return found.read_text().splitlines()


def _uuid_directory(name):
    return os.path.realpath(_PODS / "names" / name)


def assert_no_tick_is_lost():
    numbers = [int(line.split()[-1]) for line in log("ticks")]
    assert numbers == list(range(1, len(numbers) + 1))


def app_of(name):
    """PID of its program: what that starts looks like it for a moment, and comes later."""
    found = []
    for pid in CgroupTree(f"kurma/{pod(name)['uuid']}").pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0"):
                found.append(pid)
    return min(found)


def limits(pid):
    """Of memory, of its cgroup and those above."""
    place = Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::")
    files = [
        path / "memory.max" for path in (Path(f"/sys/fs/cgroup{place}"), *Path(f"/sys/fs/cgroup{place}").parents)
    ]
    return [int(text) for text in (file.read_text().strip() for file in files if file.exists()) if text != "max"]


def start(name, script, *options):
    words = ("--net", "none", "--insecure-options", "image", *options, "--exec", "/bin/sh")
    kurma("run", "-d", "--name", name, *words, "example.com/busybox", "--", "-c", script)
    until(lambda: pod(name)["state"] != "starting", f"pod {name}")


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """What docs/howto/daemon.md says."""
    text = find_page("daemon.md").read_text()
    (block,) = re.findall(r"^## By systemd\n.*?^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = "\n".join(line.removeprefix("# ") for line in block.splitlines())
    subprocess.run(["sh", "-ec", commands], cwd=_PROJECT, check=True, timeout=_PATIENCE)
    directory = tmp_path_factory.mktemp("image")
    path = archive(busybox_root(directory / "root"), directory / "busybox.aci", "example.com/busybox")
    kurma("image", "fetch", "--insecure-options", "image", str(path))


def test_it_is_up_as_documented():
    assert systemctl("is-active", "kurmad.socket", "kurmad.service", "kurma-gc.timer").split() == ["active"] * 3
    assert (of_unit("Type"), of_unit("StatusText"), of_unit("NRestarts")) == ("notify", "0 pods", "0")
    status = os.stat(_SOCKET)
    group = next(line for line in Path("/etc/group").read_text().splitlines() if line.startswith("kurma:"))
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o660, 0, int(group.split(":")[2]))
    assert Path(f"/proc/{of_unit('MainPID')}/oom_score_adj").read_text() == "-900\n"


def test_the_first_command_starts_it():
    inode = os.stat(_SOCKET).st_ino
    systemctl("stop", "kurmad.service")
    assert systemctl("is-active", "kurmad.service", "kurmad.socket", check=False).split() == ["inactive", "active"]
    assert kurma("list", "--format", "json") == "[]"
    assert systemctl("is-active", "kurmad.service") == "active"
    assert os.stat(_SOCKET).st_ino == inode
    with Connection.open(_SOCKET) as connection:
        assert json.loads(connection.request("GET", "/v1/pods").read()) == []


def test_pods_outlive_it():
    """Reload, stop and start, restart, a kill: they run on, and what happened meanwhile is known."""
    start("ticks", _TICKS, "--memory", "64Mi")
    start("ends", "trap 'exit 5' TERM; while :; do sleep 0.2; done")
    app, other = app_of("ticks"), app_of("ends")
    assert of_unit("StatusText") == "2 pods"
    assert 64 << 20 in limits(app)
    main = of_unit("MainPID")
    systemctl("reload", "kurmad.service")
    until(lambda: "the configuration was read again" in journal(), "reload")
    assert (of_unit("MainPID"), of_unit("ActiveState")) == (main, "active")
    # A reload that is refused fails; kurmad serves on.
    wrong = Path("/etc/kurma/kurma.d/wrong.yml")
    wrong.parent.mkdir(parents=True, exist_ok=True)
    wrong.write_text("renderr: copy\n")
    assert subprocess.run(["systemctl", "reload", "kurmad.service"], check=False, timeout=_PATIENCE).returncode
    wrong.unlink()
    systemctl("reload", "kurmad.service")
    assert (of_unit("MainPID"), of_unit("ActiveState")) == (main, "active")
    systemctl("stop", "kurmad.service")
    assert not os.path.exists(f"/proc/{main}")
    before = len(log("ticks"))
    os.kill(other, signal.SIGTERM)  # and nobody is there to see it
    until(lambda: not os.path.exists(f"/proc/{other}") and len(log("ticks")) > before, "end of the other one")
    systemctl("start", "kurmad.service")
    until(lambda: of_unit("StatusText") == "1 pod", "adopted pod")
    until(lambda: pod("ends")["state"] != "running", "teardown of the other one")
    assert (pod("ends")["state"], pod("ends")["exitCode"]) == ("stopped", 5)
    systemctl("daemon-reload")
    systemctl("restart", "kurmad.service")
    until(lambda: of_unit("StatusText") == "1 pod", "adopted pod")
    os.kill(int(of_unit("MainPID")), signal.SIGKILL)
    until(lambda: of_unit("NRestarts") == "1" and of_unit("ActiveState") == "active", "restart of the unit")
    until(lambda: of_unit("StatusText") == "1 pod", "adopted pod")
    assert app_of("ticks") == app
    assert 64 << 20 in limits(app)
    assert_no_tick_is_lost()


def test_one_that_hangs_is_replaced():
    drop_in = Path("/etc/systemd/system/kurmad.service.d/watchdog.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nWatchdogSec=9\n")
    systemctl("daemon-reload")
    systemctl("restart", "kurmad.service")
    main, restarts = of_unit("MainPID"), int(of_unit("NRestarts"))
    time.sleep(20)
    assert of_unit("MainPID") == main  # it says that it is well
    os.kill(int(main), signal.SIGSTOP)
    until(lambda: int(of_unit("NRestarts")) == restarts + 1, "end of one that hangs")
    until(lambda: of_unit("ActiveState") == "active" and of_unit("StatusText") == "1 pod", "adopted pod")
    assert of_unit("MainPID") != main
    drop_in.unlink()
    systemctl("daemon-reload")
    systemctl("restart", "kurmad.service")


def _jump(hours):
    time.clock_settime(time.CLOCK_REALTIME, time.time() + hours * _HOUR)


def _count(name):
    return pod(name)["restart"]["count"]


def test_a_clock_that_is_set_back_keeps_no_pod_waiting():
    """Neither under the daemon that has planned its start, nor under the next one."""
    start("again", "echo here; exit 3", "--restart", "always")
    until(lambda: _count("again") >= 2, "restarts")
    _jump(-5)
    before = _count("again")
    until(lambda: _count("again") >= before + 2, "restarts after that", 60)
    systemctl("stop", "kurmad.service")
    _jump(-5)
    systemctl("start", "kurmad.service")
    before = _count("again")
    until(lambda: _count("again") > before, "restart by the next one", 120)
    kurma("stop", "again")
    assert_no_tick_is_lost()
    _jump(10)


def test_the_timer_runs_gc_and_a_jump_removes_nothing_that_is_fresh():
    """The clock is set forward by two days: the day's removal is due. What has ended long ago by the clock, and a
    moment ago in truth, is kept."""
    drop_in = Path("/etc/systemd/system/kurma-gc.timer.d/now.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Timer]\nRandomizedDelaySec=0\n")  # what is late waits for up to an hour as well
    systemctl("daemon-reload")
    systemctl("restart", "kurma-gc.timer")
    uuid = pod("again")["uuid"]
    old = _PODS / pod("ends")["uuid"]
    runs = of_unit("ExecMainStartTimestampMonotonic", "kurma-gc.service")
    assert of_unit("NextElapseUSecRealtime", "kurma-gc.timer")
    _jump(48)
    until(
        lambda: of_unit("ExecMainStartTimestampMonotonic", "kurma-gc.service") != runs,
        "run of the timer's service",
    )
    until(lambda: of_unit("ActiveState", "kurma-gc.service") == "inactive", "its end")
    assert of_unit("Result", "kurma-gc.service") == "success"
    assert (_PODS / uuid).is_dir()
    assert old.is_dir()
    assert pod("ticks")["state"] == "running"
    kurma("gc", "--grace-period", "0s")
    assert not (_PODS / uuid).exists()
    assert not old.exists()
    # Images that nobody has used are as old as the clock says: they can be fetched again.
    kurma("stop", "ticks")
    assert (pod("ticks")["state"], pod("ticks")["exitCode"]) == ("stopped", 7)


def test_it_goes_as_it_came():
    kurma("rm", "ticks")
    systemctl("disable", "--now", "kurmad.socket", "kurmad.service", "kurma-gc.timer")
    assert systemctl("is-active", "kurmad.service", "kurmad.socket", check=False).split() == ["inactive"] * 2
    assert not os.path.exists(_SOCKET)
    assert not [name for name in os.listdir("/run/netns") if name.startswith("kurma-")]
    assert not os.path.isdir("/sys/fs/cgroup/kurma") or not [
        entry.name for entry in os.scandir("/sys/fs/cgroup/kurma") if entry.is_dir()
    ]
