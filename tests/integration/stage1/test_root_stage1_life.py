"""A pod's life under a stage1: when it runs, how it is entered, how it ends, what is removed (Z2, Z5, Z6, Z8)."""

import os
import signal
import subprocess
import time

import pytest

from kurma_core.linux.mounts import mounts_at_or_below
from tests.integration.stage1.test_root_stage1_called import is_free
from tests.kit.command import KURMA
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

#: Runs until it is told to end; its app is ended with 7.
LONG = """trap 'echo 7 > stage1/rootfs/rkt/status/app; exit 7' TERM
sleep 1000 & echo $! > pid
while :; do wait; done
"""
#: Waits until the test lets it go on.
GATE = "while ! test -e go; do sleep 0.05 < /dev/null; done"


@pytest.fixture
def foreground(stage1s):
    """``foreground(stage1, name, *words)``: a command in front of its pod; ended with the test, as its pod."""
    started = []

    def start(stage1, name, *words):
        given = ("run", "--stager", stage1.stager, "--net", "none", "--name", name, *words, stage1s.image)
        command = subprocess.Popen(
            [*KURMA, *given],
            env=stage1s.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((command, name))
        return command

    yield start
    for command, name in started:
        if command.poll() is None:
            stage1s("stop", "--force", name)
        command.communicate(timeout=20)


def state(kurma, name):
    done = kurma("show", name, "--format", "json")
    return kurma.show(name)["state"] if done.returncode == 0 else None


def runs(kurma, name):
    until(lambda: state(kurma, name) == "running", f"pod {name}")
    return kurma.show(name)


@pytest.mark.parametrize(
    ("version", "script"),
    [
        (2, f"{GATE}; sleep 1000 & echo $! > pid"),
        pytest.param(2, f"{GATE}; sleep 1000 & echo $$ > ppid", marks=pytest.mark.full),
        pytest.param(5, f"{GATE}; sleep 1000 & echo $! > pid", marks=pytest.mark.full),
    ],
    ids=["pid, late", "ppid", "without supervisor-status"],
)
def test_when_it_runs_and_how_it_is_entered(stage1s, foreground, version, script):
    """Once it has named its pod's first process, at every version (Z5, Z6)."""
    first = "cat pid 2>/dev/null || cat /proc/$(cat ppid)/task/*/children"
    stage1 = stage1s.stage1(
        version, f"{script}\nwait; exit 0\n", scripts={"enter": f"({first}) | tr -d ' '; exit 9\n"}
    )
    name = f"runs-{time.monotonic_ns()}"
    command = foreground(stage1, name)
    until(lambda: stage1.calls("run"))
    pod = stage1s.show(name)
    assert pod["state"] == "starting"
    place = stage1s.pods / "run" / pod["uuid"]
    (place / "go").touch()
    pod = runs(stage1s, name)
    assert not is_free(place)
    app = pod["apps"]["app"]
    assert (app["exited"], app["startedAt"] is not None) == (False, True)
    done = stage1s("enter", name, "--", "/bin/ls", "-l", "--", "a b")
    call = stage1.call("enter")
    assert (done.returncode, done.stdout.strip()) == (9, call.words[0].removeprefix("--pid=")), done.stderr
    assert call.words[1:] == ["--appname=app", "--", "/bin/ls", "-l", "--", "a b"]
    assert call.cwd.strip() == str(place)
    assert alive(int(done.stdout))
    # It has no stop entrypoint's script: it is told by a signal, at which a shell without a trap ends.
    assert stage1s("stop", "--force", name).returncode == 0
    assert command.wait(20) != 0
    assert not alive(int(call.words[0].removeprefix("--pid=")))


def test_entered_with_what_stage1_cannot_be_told(stage1s, foreground):
    """Is refused before anything is run, by the option's name; what is the app's own anyway is not a wish."""
    stage1 = stage1s.stage1(2, "sleep 1000 & echo $! > pid; wait\n", ("run", "enter"))
    command = foreground(stage1, "plain")
    runs(stage1s, "plain")
    for words, hint in (
        (("--user", "1"), "leave it out: it runs as the app's own user"),
        (("--user", "alice:users"), "leave it out: it runs as the app's own user"),
        (("--group", "1"), "leave it out: it runs in the app's own group"),
        (("-e", "A=b"), "let the command set it: -- env NAME=VALUE COMMAND"),
        (("--workdir", "/tmp"), "let the command change to it: -- sh -c 'cd PATH; exec COMMAND'"),
    ):
        refused = stage1s("enter", *words, "plain", "--", "id")
        option = "--env" if words[0] == "-e" else words[0]
        why = f"cannot enter app app with {option}: a stage1 enters an app as the app itself"
        assert (refused.returncode, refused.stdout) == (125, "")
        assert refused.stderr == f"kurma: {why}\n  hint: {hint}\n"
    assert stage1.calls("enter") == []
    assert stage1s("enter", "--user", "0", "--group", "0", "plain", "--", "id").returncode == 0
    assert len(stage1.calls("enter")) == 1
    stage1s.out("stop", "plain")
    command.wait(20)


@pytest.mark.full
def test_who_has_entered_is_killed(stage1s, foreground):
    """What he has entered ends with him, as a call-in of any stager does."""
    stage1 = stage1s.stage1(
        2,
        "sleep 1000 & echo $! > pid; wait\n",
        ("run", "enter"),
        scripts={"enter": "echo $$ > entered.new; mv entered.new entered; exec sleep 1000\n"},
    )
    command = foreground(stage1, "entered")
    place = stage1s.pods / "run" / runs(stage1s, "entered")["uuid"]
    null = subprocess.DEVNULL
    words = [*KURMA, "enter", "entered", "--", "/bin/sh"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        entered = subprocess.Popen(words, env=stage1s.environment, stdin=null, stdout=null, stderr=null)
        until((place / "entered").exists)
        pid = int((place / "entered").read_text())
        assert alive(pid)
        entered.send_signal(number)
        assert entered.wait(20) == -number
        until(lambda pid=pid: not alive(pid), "the end of what was entered")
        (place / "entered").unlink()
    stage1s.out("stop", "entered")
    command.wait(20)


@pytest.mark.full
def test_it_never_says_that_it_runs(stage1s, foreground):
    """Its pod is taken down, and the error says what was waited for."""
    stage1s.configure(start_timeout="2s")
    for version in (1, 6):
        stage1 = stage1s.stage1(version, "echo 0 > pid; sleep 1000\n")
        command = foreground(stage1, f"never-{version}")
        _, told = command.communicate(timeout=30)
        assert command.returncode == 125
        assert "stage1 does not say within 2 s that its pod runs: neither pid nor ppid in" in told
        pod = stage1s.show(f"never-{version}")
        assert pod["state"] == "errored"
        assert is_free(stage1s.pods / "run" / pod["uuid"])
    stage1s.configure(start_timeout="60s")


@pytest.mark.full
def test_it_ends_before_it_says_so(stage1s):
    """With no exit code of an app: an error, of stage1's own exit code."""
    stage1 = stage1s.stage1(2, "exit 254\n")
    done = stage1s("run", "--stager", stage1.stager, "--net", "none", "--name", "early", stage1s.image)
    assert done.returncode == 254, done.stderr
    assert (stage1s.show("early")["state"], stage1s.show("early")["reason"]) == (
        "errored",
        "the stager ended with status 254",
    )


def test_stopped_by_its_entrypoint(stage1s, foreground):
    """With ``--force`` at need; it is the pod's own end that counts (Z6)."""
    for words, name in (((), "asked"), (("--force",), "forced")):
        stage1 = stage1s.stage1(
            2, LONG, scripts={"stop": 'kill -TERM "$(cat /proc/$(cat pid)/stat | cut -d" " -f4)"\n'}
        )
        command = foreground(stage1, name)
        uuid = runs(stage1s, name)["uuid"]
        assert stage1s("stop", *words, name).returncode == 0
        assert command.wait(20) == 7
        assert stage1.call("stop").words == [*words, uuid]
        pod = stage1s.show(name)
        assert (pod["state"], pod["exitCode"], pod["apps"]["app"]["exitCode"]) == ("stopped", 7, 7)
        assert stage1s.place(uuid) == "run"


@pytest.mark.full
def test_stopped_by_signals(stage1s, foreground):
    """Without the entrypoint, or where it fails; and by Ctrl-C in front of it."""
    for name, entrypoints, scripts in (("bare", ("run",), {}), ("fails", ("run", "stop"), {"stop": "exit 1\n"})):
        stage1 = stage1s.stage1(2, LONG, entrypoints, scripts=scripts)
        command = foreground(stage1, name)
        runs(stage1s, name)
        if name == "bare":
            command.send_signal(signal.SIGINT)
        else:
            assert "its stop entrypoint ended with status 1: signals are sent" in stage1s("stop", name).stderr
        assert command.wait(20) == 7
        assert stage1s.show(name)["state"] == "stopped"


@pytest.mark.full
def test_what_does_not_stop_is_killed(stage1s, foreground):
    """After twice the apps' time and some, or the one that is given; as docs/howto/stage1.md has it."""
    stage1s.configure(stop_timeout="1s")
    for words, least in (((), 7.0), (("--timeout", "1s"), 1.0)):
        stage1 = stage1s.stage1(2, "trap '' TERM\nsleep 1000 & echo $! > pid; wait\n", ("run",))
        command = foreground(stage1, "stubborn")
        runs(stage1s, "stubborn")
        began = time.monotonic()
        assert stage1s("stop", *words, "stubborn").returncode == 0
        assert time.monotonic() - began >= least
        assert command.wait(20) == 137
        stage1s.out("rm", "stubborn")
    stage1s.configure(stop_timeout="10s")


@pytest.mark.full
def test_stopped_and_says_nothing(stage1s, foreground):
    """One that dies of the signal, and leaves no exit codes: it was to end, and that is no error."""
    stage1 = stage1s.stage1(2, "sleep 1000 & echo $! > pid; wait\n", ("run",))
    command = foreground(stage1, "mute")
    runs(stage1s, "mute")
    stage1s.out("stop", "mute")
    assert command.wait(20) == 143
    pod = stage1s.show("mute")
    assert (pod["state"], pod["reason"], pod["exitCode"]) == ("stopped", None, 143)


def test_removed(stage1s, foreground):
    """Marked first, then its entrypoint is run, whatever that does; then nothing is left, mounts included."""
    gc = {
        "gc-well": (5, "mkdir -p ../marked; exit 0", ""),
        "gc-fails": (2, "echo out of order; exit 4", "its gc entrypoint ended with status 4: out of order"),
        "gc-none": (2, None, "has no gc entrypoint"),
    }
    mount = "mkdir -p made/below; mount -t tmpfs tmpfs made; mkdir made/below; mount -t tmpfs tmpfs made/below\n"
    for name, (version, script, told) in gc.items():
        entrypoints = ("run",) if script is None else ("run", "gc")
        ready = "ln -s ready stage1/rootfs/rkt/supervisor-status\n"
        stage1 = stage1s.stage1(
            version, f"{mount}{ready}echo $$ > pid; exit 0\n", entrypoints, scripts={"gc": f"{script}\n"}
        )
        section = {"driver": "rkt", "image": stage1.path, "config": {"debug": True, "localConfig": "/etc/rkt"}}
        stage1s.configure(stagers={"mine": section})
        done = stage1s("run", "--stager", "mine", "--net", "none", "--name", name, stage1s.image)
        assert done.returncode == 0, done.stderr
        uuid = stage1s.show(name)["uuid"]
        assert stage1s.place(uuid) == "run"
        # Its image is there as long as the pod.
        assert stage1s("image", "rm", stage1s.show(name)["stager"]).returncode != 0
        removed = stage1s("rm", name)
        assert (removed.returncode, told in removed.stderr) == (0, True), removed.stderr
        assert stage1s.place(uuid) == ""
        assert not mounts_at_or_below(str(stage1s.pods))
        if script is None:
            continue
        call = stage1.call("gc")
        local = ["--local-config", "/etc/rkt"] if version >= 5 else []
        assert call.words == ["--debug", *local, uuid]
        assert call.cwd.strip() == f"{stage1s.pods}/exited-garbage/{uuid}"
        assert call.lock == "held\n"
        assert "stage1/rootfs/rkt/status" in call.files


def test_again(stage1s):
    """A pod that is started anew has nothing of its run before."""
    stage1 = stage1s.stage1(
        2, "test ! -e was && touch was stage1/rootfs/was; echo $$ > pid; exit $?\n", ("run", "gc")
    )
    done = stage1s("run", "--stager", stage1.stager, "--net", "none", "--name", "again", stage1s.image)
    assert done.returncode == 0, done.stderr
    assert stage1s("start", "again").returncode == 0
    assert (len(stage1.calls("run")), len(stage1.calls("gc"))) == (2, 1)


@pytest.mark.full
def test_its_owner_is_killed(stage1s, foreground):
    """Stage1 goes on, and holds the lock; its end is recorded by whoever comes by, who takes it down."""
    stage1 = stage1s.stage1(2, LONG, ("run", "gc"))
    command = foreground(stage1, "orphan")
    uuid = runs(stage1s, "orphan")["uuid"]
    command.kill()
    command.wait()
    pod = stage1s.show("orphan")
    assert (pod["state"], pod["owner"]) == ("running", None)
    place = stage1s.pods / "run" / uuid
    assert not is_free(place)
    os.kill(pod["stagerPid"], signal.SIGTERM)
    until(lambda: not alive(pod["stagerPid"]))
    pod = stage1s.show("orphan")
    assert is_free(place)
    assert (pod["state"], pod["apps"]["app"]["exitCode"]) == ("stopped", 7)
    assert not mounts_at_or_below(str(place))
    assert stage1s("gc", "--grace-period", "0s").returncode == 0
    assert (stage1s.place(uuid), len(stage1.calls("gc"))) == ("", 1)


#: Leaves a process that is in none of the pod's cgroups any more, and names another one, which is none of its own.
STRAY = """sh -c 'for one in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do echo $$ > $one; done
echo $$ > stray; exec sleep 1000' 2>/dev/null &
while ! test -s stray; do sleep 0.02 < /dev/null; done
cp stray {record}; echo {other} > pid; exit 4
"""


def test_what_has_left_the_pods_cgroup(stage1s):
    """It goes with the pod, told by the lock that it has inherited. Who merely has the number that a file of the
    pod names does not."""
    record = stage1s.directory / "stray"
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            stage1 = stage1s.stage1(2, STRAY.format(record=record, other=other.pid), ("run", "gc"))
            words = ("--stager", stage1.stager, "--net", "none", "--name", "strays", stage1s.image)
            assert stage1s("run", *words).returncode == 4
            assert not alive(int(record.read_text()))
            assert other.poll() is None
            uuid = stage1s.show("strays")["uuid"]
            assert is_free(stage1s.pods / "run" / uuid)
        finally:
            other.kill()
    stage1s.out("rm", "strays")
    assert stage1s.place(uuid) == ""


def test_under_kurmad(stage1s):
    """The daemon owns it; what it prints is its log; a pod of the foreground has its caller's descriptors."""
    stage1 = stage1s.stage1(2, "echo out; echo err >&2\n" + LONG, ("run", "gc"))
    front = stage1s.stage1(2, "echo in front; echo $$ > pid; exit 5\n")
    broken = stage1s.stage1(2, "echo no luck; exit 3\n")
    log = stage1s.directory / "kurmad.log"
    with open(log, "ab") as stream:
        daemon = subprocess.Popen([*KURMA, "daemon", "run"], env=stage1s.environment, stderr=stream)
    try:
        until(lambda: (stage1s.directory / "state/run/kurmad.sock").exists())
        words = ("--net", "none", "--name")
        done = stage1s("run", "-d", "--stager", stage1.stager, *words, "behind", stage1s.image)
        assert done.returncode == 0, done.stderr + log.read_text()
        assert int(stage1.call("run").parent) == daemon.pid
        until(lambda: sorted(stage1s.out("logs", "behind").splitlines()) == ["err", "out"])
        shown = stage1s("run", "--stager", front.stager, *words, "front", stage1s.image)
        assert (shown.returncode, shown.stdout) == (5, "in front\n"), shown.stderr
        for name, rm in (("never", ()), ("gone", ("--rm",))):
            failed = stage1s("run", "-d", *rm, "--stager", broken.stager, *words, name, stage1s.image)
            assert (failed.returncode, len(failed.stdout)) == (3, 0 if rm else 37), failed.stderr
            assert f"kurma: pod {name}: the stager ended with status 3: no luck\n" in failed.stderr
        assert stage1s("start", "-d", "never").returncode == 3
        assert stage1s("stop", "behind").returncode == 0
        assert stage1s.show("behind")["apps"]["app"]["exitCode"] == 7
        assert stage1s("rm", "behind", "front", "never").returncode == 0
        assert stage1.call("gc").words == [stage1.calls("run")[0].words[-1]]
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0
