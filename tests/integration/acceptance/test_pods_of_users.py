"""A pod of two apps, start to end, and its life by command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import PROGRAM, Kurma, one_line
from tests.kit.waiting import until

pytestmark = pytest.mark.root
Start = Callable[..., subprocess.Popen[str]]

TWO = """
apps:
  - name: fine
    image: "@IMAGE@"
    app: {exec: [/bin/sh, -c, "echo fine; sleep 0.2"], user: "0", group: "0"}
  - name: failing
    image: "@IMAGE@"
    app: {exec: [/bin/sh, -c, "echo failing >&2; exit 42"], user: "0", group: "0"}
networks: [none]
"""


class TestTwoApps:
    """App Container Executor: apps of a pod; the first exit code that is not zero is the pod's."""

    @pytest.fixture
    def file(self, kurma: Kurma, tmp_path: Path) -> str:
        path = tmp_path / "pod.yml"
        path.write_text(TWO.replace("@IMAGE@", kurma.image))
        return str(path)

    def test_all_that_can_be_asked_afterwards(self, kurma: Kurma, file: str) -> None:
        done = kurma("run", "--name", "codes", "--pod", file)
        assert (done.returncode, done.stdout, done.stderr) == (42, "fine\n", "failing\n")
        (row,) = kurma.out("list", "--no-legend").splitlines()
        assert row.split()[1:4] == ["codes", "busybox.aci", "stopped"]
        assert row.split()[-1] == "fine,failing"
        pod = kurma.pod("codes")
        assert (pod["state"], pod["exitCode"], pod["owner"]) == ("stopped", 42, None)
        assert {name: app["exitCode"] for name, app in pod["apps"].items()} == {"fine": 0, "failing": 42}
        assert kurma.out("logs", "codes/fine") == "fine\n"
        failing = kurma("logs", "codes/failing")
        assert (failing.returncode, failing.stdout, failing.stderr) == (0, "", "failing\n")
        waited = kurma("wait", "codes")
        assert waited.returncode == 42
        assert "failing" in kurma.out("status", "codes")
        for _ in range(2):  # asking changes nothing
            assert kurma.pod("codes") == pod
        kurma.out("rm", "codes")
        one_line(kurma("logs", "codes"), "codes")
        assert kurma.json("list") == []

    def test_from_standard_input(self, kurma: Kurma, file: str) -> None:
        done = kurma("run", "--rm", "--pod", "-", input=Path(file).read_text())
        assert done.returncode == 42, done.stderr

    def test_options_of_one_app_are_refused(self, kurma: Kurma, file: str) -> None:
        one_line(kurma("run", "--pod", file, "-e", "A=b"), "--env", "2", code=2)


class TestLife:
    """Prepared, started, looked at, entered, signalled, stopped, started again."""

    def test_waiting_from_elsewhere(self, kurma: Kurma, background: Start) -> None:
        run = background("awaited", "while [ ! -e /go ]; do sleep 0.05; done; exit 9")
        wait = kurma.popen("wait", "awaited")
        status = kurma.popen("status", "awaited", "--wait", "--format", "json")
        time.sleep(0.3)
        assert wait.poll() is None
        assert status.poll() is None
        kurma.out("enter", "awaited", "--", "/bin/touch", "/go")
        out, _ = status.communicate(timeout=20)
        assert json.loads(out)["exitCode"] == 9
        wait.communicate(timeout=20)
        run.communicate(timeout=20)
        assert (wait.returncode, run.returncode) == (9, 9)

    def test_following_logs_from_elsewhere(self, kurma: Kurma, background: Start) -> None:
        background("talking", "for i in 1 2 3; do echo $i; sleep 0.1; done")
        assert kurma.out("logs", "-f", "talking") == "up\n1\n2\n3\n"
        assert kurma.out("logs", "--tail", "2", "talking") == "2\n3\n"

    def test_every_start_is_a_clean_copy(self, kurma: Kurma) -> None:
        script = "cat /mark 2>/dev/null || echo clean; echo used >/mark; exit 6"
        words = ("--name", "copy", "--net", "none", kurma.image, "--", "-c", script)
        uuid = kurma.out("prepare", *words).strip()
        one_line(kurma("stop", "nothing-of-the-kind"), "nothing-of-the-kind")
        for command in (("run-prepared",), ("start", "-a"), ("restart", "-a")):
            done = kurma(*command, uuid)
            assert (done.returncode, done.stdout) == (6, "clean\n"), done.stderr
        assert kurma.pod("copy")["uuid"] == uuid
        manifest = json.loads(kurma.out("cat-manifest", "copy"))
        assert manifest["acKind"] == "PodManifest"
        assert manifest["apps"][0]["app"]["exec"][-1] == script

    def test_a_restart_ends_what_runs(self, kurma: Kurma, background: Start) -> None:
        first = background(
            "again", "trap 'exit 0' TERM; [ ! -e /data/second ] || exit 8; while :; do sleep 0.1; done"
        )
        one_line(kurma("start", "again"), "running")
        second = kurma.popen("restart", "again")
        assert second.stdout is not None
        assert second.stdout.readline() == "up\n"
        first.communicate(timeout=20)
        assert kurma.pod("again")["state"] == "running"
        kurma.out("stop", "again")
        second.communicate(timeout=20)
        assert (first.returncode, second.returncode) == (0, 0)

    def test_signals_and_commands_inside(self, kurma: Kurma, background: Start) -> None:
        run = background("busy", "trap 'echo got it; exit 11' USR1; while :; do sleep 0.1; done")
        done = kurma("enter", "busy", "--", "/bin/sh", "-c", "id -u; hostname; exit 12")
        assert (done.returncode, done.stdout) == (12, "0\nbusy\n"), done.stderr
        one_line(kurma("kill", "-s", "NOPE", "busy"), "NOPE", code=2)
        one_line(kurma("enter", "busy/nobody"), "nobody", hint="busybox")
        one_line(kurma("rm", "busy"), "running", hint="kurma stop")
        kurma.out("kill", "-s", "USR1", "busy")
        out, _ = run.communicate(timeout=20)
        assert (run.returncode, out) == (11, "got it\n")
        one_line(kurma("enter", "busy"), "busy")


class TestTheForegroundEnds:
    """Whatever ends the command, `kurma gc` (after `kurma stop`, where the pod goes on) leaves a clean system."""

    @pytest.mark.parametrize(
        ("number", "code"), [(signal.SIGINT, 143), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
    )
    def test_by_a_signal(self, kurma: Kurma, background: Start, number: int, code: int) -> None:
        run = background("signalled", net="default")
        run.send_signal(number)
        _, err = run.communicate(timeout=20)
        assert (run.returncode, err) == (code, "")
        assert kurma.pod("signalled")["state"] == "stopped"
        self.clean(kurma)

    @pytest.mark.parametrize("script", ["exec sleep 1000", "yes more | head -n 20000; exec sleep 1000"])
    def test_by_a_closed_terminal(self, kurma: Kurma, background: Start, script: str) -> None:
        """A hang-up of the terminal whose session's leader the command is. It may be writing to it, since nobody
        reads what the terminal has."""
        ours, theirs = pty.openpty()
        run = background(
            "terminal",
            script,
            net="default",
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_controlling_terminal,
        )
        os.close(theirs)
        os.close(ours)
        assert run.wait(20) == 143
        assert kurma.pod("terminal")["state"] == "stopped"
        self.clean(kurma)

    def test_by_ctrl_c_on_a_terminal(self, kurma: Kurma, background: Start) -> None:
        ours, theirs = pty.openpty()
        run = background("typed", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_controlling_terminal)
        os.close(theirs)
        os.write(ours, b"\x03")
        assert run.wait(20) == 143
        os.close(ours)
        self.clean(kurma)

    @pytest.mark.full
    def test_by_kill(self, kurma: Kurma, background: Start) -> None:
        run = background("orphan", net="default")
        run.kill()
        run.communicate()
        assert "runs without an owner" in kurma.out("gc")
        assert kurma.pod("orphan")["state"] == "running"
        assert kurma.out("enter", "orphan", "--", "/bin/echo", "alive") == "alive\n"
        kurma.out("stop", "orphan")
        assert kurma.pod("orphan")["state"] == "stopped"
        self.clean(kurma)

    @pytest.mark.full
    def test_by_kill_and_its_pod_after_it(self, kurma: Kurma, background: Start) -> None:
        run = background("dead", net="default")
        pid = kurma.pod("dead")["stagerPid"]
        run.kill()
        run.communicate()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{pid}"), "the stager's end")
        assert "taken down" in kurma.out("gc")
        assert kurma.pod("dead")["state"] == "errored"
        self.clean(kurma)

    @pytest.mark.full
    def test_before_the_pod_is_up(self, kurma: Kurma) -> None:
        """At any moment of the start."""
        before = kurma.traces()
        for delay in (0.05, 0.15, 0.25, 0.35, 0.45):
            run = kurma.popen("run", "--rm", kurma.image, "--", "-c", "exec sleep 1000")
            time.sleep(delay)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=20)
            assert run.returncode in (130, 143, -signal.SIGINT), err
            assert out == ""
            assert len(err.splitlines()) <= 1, err
        assert kurma.traces() == before

    @pytest.mark.full
    def test_killed_before_the_pod_is_up(self, kurma: Kurma) -> None:
        for delay in (0.1, 0.2, 0.3, 0.4):
            run = kurma.popen("run", kurma.image, "--", "-c", "exec sleep 1000")
            time.sleep(delay)
            run.kill()
            run.communicate()
        kurma.out("gc")
        for pod in kurma.json("list"):
            assert pod["state"] in ("running", "errored", "prepared"), pod
            kurma.out("stop", pod["uuid"])
        self.clean(kurma)

    @staticmethod
    def clean(kurma: Kurma) -> None:
        """What is left is a record, which `gc` removes; mounts, cgroups, links and processes: see the fixture."""
        kurma.out("gc", "--grace-period", "0")
        for pod in kurma.json("list"):
            assert pod["state"] == "prepared", pod
            kurma.out("rm", pod["uuid"])
        traces = kurma.traces()
        assert not [path for path in traces if path.startswith(("pods/names/", "process "))]
        addresses = kurma.state / "networks" / "addresses" / "default"
        assert not [name for name in addresses.glob("*.*.*.*") if not name.name.startswith("last_")]
        kurma.out("network", "rm", "default")
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
        assert "veth" not in links
        assert "kurma-" not in links


def _controlling_terminal() -> None:
    """Runs in the child: it leads a session whose terminal is its standard input."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_the_command_is_the_one_that_is_installed(kurma: Kurma) -> None:
    done: Any = subprocess.run([PROGRAM, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == kurma.json("info")["version"]
