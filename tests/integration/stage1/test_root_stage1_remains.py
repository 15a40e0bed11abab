"""What is left of pods under stage1 images is taken away, whatever has become of the pods' own directories, and
whatever entrypoints do (Z2, Z6)."""

import os
import shutil
import signal
import subprocess

import pytest

from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.models.image import RenderedLayer
from kurma_core.value import replace
from tests.integration.stage1.driven import UUID, driven
from tests.kit.command import KURMA
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Ends at once, and leaves a tree of mounts.
SHORT = """mkdir made; mount -t tmpfs tmpfs made; mkdir made/below; mount -t tmpfs tmpfs made/below
echo $$ > pid; echo 3 > stage1/rootfs/rkt/status/app; exit 3
"""
LONG = "echo $$ > pid; exec sleep 1000\n"


def started(found, pod, null):
    found.driver.prepare(pod)
    return found.driver.start(pod, null)


def ended(found, pod, null):
    """A pod that has run, and is taken down."""
    running = started(found, pod, null)
    code = running.wait(20)
    running.close()
    found.driver.cleanup(pod.directory, pod.cgroup)
    return code


def test_a_pod_whose_directory_is_removed_by_hand(stage1s):
    """Its stage1's gc entrypoint is run, as for any other; nothing is left. Others are left alone."""
    stage1 = stage1s.stage1(2, SHORT, ("run", "gc"))
    uuids = []
    for name in ("by-hand", "kept"):
        done = stage1s("run", "--stager", stage1.stager, "--net", "none", "--name", name, stage1s.image)
        assert (done.returncode, "resolv.conf" in done.stderr) == (3, False), done.stderr
        uuids.append(stage1s.show(name)["uuid"])
    gone, kept = uuids
    foreign = stage1s.pods / "run" / "notes"
    foreign.mkdir()
    shutil.rmtree(stage1s.directory / "state/pods" / gone)
    said = stage1s.out("gc", "--dry-run", "--grace-period", "1h")
    assert f"pod {gone}: its directory is gone: what its stager has of it would be removed\n" == said
    assert stage1s.place(gone) == "run"
    done = stage1s("gc", "--grace-period", "1h")
    line = f"pod {gone}: its directory is gone: the stager's leftovers are removed\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")
    assert (stage1s.place(gone), stage1s.place(kept)) == ("", "run")
    assert stage1.call("gc").words == [gone]
    assert stage1s.out("gc", "--grace-period", "1h") == ""
    assert foreign.is_dir()
    foreign.rmdir()
    assert stage1s("rm", "kept").returncode == 0


@pytest.mark.parametrize("collected", ["rm", "gc"])
@pytest.mark.parametrize(
    "later",
    [
        {"stagers": {}},
        {"stagers": {"old": {"driver": "default"}}},
        {"stagers": {}, "plugins": {"stagers": {"rkt": {"enabled": False}}}},
        {"plugins": {"stagers": {"rkt": {"config": {"patience": "long"}}}}},
    ],
    ids=["removed", "changed", "disabled", "wrong"],
)
def test_a_pod_whose_stager_is_no_longer_configured(stage1s, later, collected):
    """18.3: it is stopped and removed by the plugin that has started it."""
    stage1 = stage1s.stage1(2, LONG, ("run", "gc", "stop"), scripts={"stop": "kill $(cat pid)\n"})
    stage1s.configure(stagers={"old": {"driver": "rkt", "image": stage1.path}})
    null = subprocess.DEVNULL  # the pod outlives its owner
    words = ("run", "--stager", "old", "--net", "none", "--name", "x", stage1s.image)
    owner = stage1s.popen("--host", "local", *words, stdout=null, stderr=null)
    try:
        until(lambda: '"running"' in stage1s("show", "x", "--format", "json").stdout, "the pod")
        uuid = stage1s.show("x")["uuid"]
        stage1s.configure(**later)
        owner.kill()
        owner.wait()
        assert stage1s.show("x")["state"] == "running"
        stage1s.out("--host", "local", "stop", "x")
        assert stage1.call("stop").words == [uuid]
        if collected == "rm":
            stage1s.out("rm", "x")
        else:
            stage1s.out("gc", "--grace-period", "0s")
        assert stage1.call("gc").words == [uuid]
        assert stage1s.place(uuid) == ""
    finally:
        owner.kill()
        owner.wait()
        stage1s.configure(stagers={}, plugins={})
        stage1s("rm", "--force", "x")


def test_a_start_looks_at_no_pod_that_has_ended(stage1s, tmp_path):
    """Nor does it list those that there are: with a hundred of them, it takes no longer."""
    stage1 = stage1s.stage1(2, SHORT, ("run",))
    ended = []
    for name in ("ended", "another"):
        words = ("run", "--stager", stage1.stager, "--net", "none", "--name", name, stage1s.image)
        assert stage1s(*words).returncode == 3
        ended.append(stage1s.show(name)["uuid"])
    log = tmp_path / "log"
    strace = ["strace", "-f", "-qq", "-y", "-s", "4096", "-o", str(log), "-e", "trace=%file,getdents64"]
    words = ("run", "--stager", stage1.stager, "--net", "none", "--name", "new", stage1s.image)
    done = subprocess.run(
        [*strace, *KURMA, *words],
        env=stage1s.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    lines, own = log.read_text(errors="replace").splitlines(), stage1s.show("new")["uuid"]
    state = f"{stage1s.directory}/state/"
    assert any(own in line for line in lines)
    assert [line for line in lines if any(uuid in line for uuid in ended)] == []
    listed = {line.partition("<")[2].partition(">")[0] for line in lines if "getdents64(" in line}
    of_pods = [path for path in listed if path.startswith(state) and "/pods" in path and own not in path]
    assert of_pods == []
    for name in ("ended", "another", "new"):
        assert stage1s("rm", name).returncode == 0


def test_one_that_runs_still(stage1s):
    """It is told which process that is; once it has ended, it is removed."""
    stage1 = stage1s.stage1(2, LONG, ("run",))
    words = ("run", "--stager", stage1.stager, "--net", "none", "--name", "lost", stage1s.image)
    # Its stage1 has these descriptors, and goes on.
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = subprocess.Popen([*KURMA, *words], env=stage1s.environment, **null)
    try:
        until(lambda: "running" in stage1s("list").stdout or command.poll() is not None)
        pod = stage1s.show("lost")
    finally:
        command.kill()
        command.wait()
    uuid, pid = pod["uuid"], pod["stagerPid"]
    shutil.rmtree(stage1s.directory / "state/pods" / uuid)
    done = stage1s("gc", "--grace-period", "1h")
    why = f"process {pid}, or one of its stage1, holds its lock"
    assert (done.returncode, done.stdout) == (
        0,
        f"pod {uuid}: its directory is gone, and it runs: left: {why}\n",
    ), done.stderr
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    done = stage1s("gc", "--grace-period", "1h")
    assert (done.returncode, "the stager's leftovers are removed" in done.stdout) == (0, True), done.stderr
    assert "has no gc entrypoint" in done.stderr
    assert stage1s.place(uuid) == ""
    assert not CgroupTree(f"kurma/{uuid}").exists()
    assert not mounts_at_or_below(str(stage1s.pods))


#: Of the host's mounts: all of them in the app's root, as stage1-fly has /dev there, and in the pod's directory.
BIND = """app=stage1/rootfs/opt/stage2/app/rootfs/dev; mkdir -p $app over
mount --rbind {host} $app; mount -t tmpfs tmpfs over; mkdir over/it
mount --rbind {host} over/it; mount -t tmpfs tmpfs over
"""


@pytest.mark.parametrize("storage", ["copy", "overlay"])
def test_the_hosts_mounts_are_left(tmp_path, pod, null, stacked, storage):
    """Shared as the host's are, and one upon another at the same place: after a run, a start that failed, a pod
    over whose mounts the host has mounted something, a gc entrypoint that binds them, and one that fails."""
    bind = BIND.format(host=stacked.path)
    for run, gc in ((SHORT, bind), ("exit 9\n", f"{bind}exit 9\n"), (LONG, bind)):
        with driven(tmp_path, {"run": bind + run, "gc": gc}, config={"storage": storage}) as found:
            running = started(found, pod, null)
            if run == LONG:
                assert running.wait_running(20)
                stacked.cover()
            else:
                assert running.wait(20) in (3, 9)
            found.driver.cleanup(pod.directory, pod.cgroup)
            running.wait(20)
            running.close()
            assert not mounts_at_or_below(found.state)
            assert stacked.whole()
            found.driver.discard(pod.directory)
            assert not mounts_at_or_below(found.state)
            assert stacked.whole()
            assert found.images.remains() == set()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("(trap '' TERM; exec sleep 1000) & sleep 1000", "its gc entrypoint did not end within 1 s"),
        ("echo half; kill -KILL $$", "its gc entrypoint ended with status 137: half"),
        ("#!/no/such/shell\n", "its gc entrypoint was not run: stage1 image example.com/stage1: entrypoint gc: "),
    ],
    ids=["hangs", "killed", "cannot be executed"],
)
def test_a_gc_entrypoint_that(tmp_path, pod, null, script, told):
    """The pod goes all the same, and all that it has started; that is told in one line."""
    with driven(tmp_path, {"run": SHORT, "gc": f"{script}\n"}, config={"patience": 1}) as found:
        assert ended(found, pod, null) == 3
        (line,) = found.driver.discard(pod.directory)
        assert line.startswith(told), line
        assert found.images.remains() == set()
        assert not CgroupTree(f"{pod.cgroup}-gc").exists()
        assert not mounts_at_or_below(str(tmp_path))


def test_a_stop_entrypoint_that_hangs(tmp_path, pod, null):
    """It is given up, and the pod ended by a signal; what it has started ends with the pod."""
    scripts = {"run": LONG, "stop": "sleep 1000 & sleep 1000\n"}
    with driven(tmp_path, scripts, config={"patience": 1}) as found:
        running = started(found, pod, null)
        assert running.wait_running(20)
        found.driver.stop(pod.directory, running, force=False)
        assert running.wait(20) == 128 + signal.SIGTERM
        (note,) = found.notes
        assert note == "stager mine: its stop entrypoint did not end within 1 s: signals are sent"
        found.driver.cleanup(pod.directory, pod.cgroup)
        assert CgroupTree(pod.cgroup).pids() == []
        found.driver.discard(pod.directory)
        running.close()


def test_a_stop_by_force_that_changes_nothing(tmp_path, pod, null):
    """Its entrypoint says that it is done, and the pod goes on: it is killed."""
    with driven(tmp_path, {"run": LONG, "stop": "exit 0\n"}) as found:
        running = started(found, pod, null)
        assert running.wait_running(20)
        found.driver.stop(pod.directory, running, force=False)
        assert running.alive()
        found.driver.stop(pod.directory, running, force=True)
        assert running.wait(20) == 128 + signal.SIGKILL
        found.driver.cleanup(pod.directory, pod.cgroup)
        found.driver.discard(pod.directory)


@pytest.mark.parametrize(("storage", "mounted"), [("copy", 1), ("overlay", 2), ("", 2)])
def test_how_roots_are_made(tmp_path, pod, null, storage, mounted):
    """Of all layers, the first on top, which stay as they are. The network is the host's."""
    layers = []
    for name, text in (("top", "high"), ("base", "low")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "both").write_text(text)
        (tmp_path / name / name).write_text(text)
        layers.append(RenderedLayer(f"sha512-{name}", str(tmp_path / name)))
    (app,) = pod.apps
    pod = replace(pod, apps=(replace(app, layers=tuple(layers)),))
    look = """printf '%s\n' "$@" > argv; grep -c " $PWD/" /proc/self/mountinfo > mounted
    cat stage1/rootfs/opt/stage2/app/rootfs/both stage1/rootfs/opt/stage2/app/rootfs/base > seen
    echo new > stage1/rootfs/opt/stage2/app/rootfs/both; echo new > stage1/rootfs/ex/new
    echo $$ > pid; echo 0 > stage1/rootfs/rkt/status/app; exit 0\n"""
    with driven(tmp_path, {"run": look}, config={"storage": storage}) as found:
        assert ended(found, pod, null) == 0
        (place,) = (tmp_path / "plugin/pods/run").iterdir()
        assert (place / "seen").read_text() == "highlow"
        assert int((place / "mounted").read_text()) == mounted
        assert (place / "argv").read_text().splitlines() == [
            "--net=host",
            f"--local-config={place}/local-config",
            "--hostname=test",
            UUID,
        ]
        assert (tmp_path / "top/both").read_text() == "high"
        assert not (tmp_path / "stage1/ex/new").exists()
        assert found.driver.status(pod.directory, None)["app"].exit_code == 0
        found.driver.discard(pod.directory)


def test_what_is_entered_when_nothing_is_named(tmp_path, pod, null, monkeypatch):
    """A shell; who has a terminal is told which one."""
    monkeypatch.setenv("TERM", "kurma-test")
    scripts = {"run": LONG, "enter": "printf '%s\n' \"$@\" $TERM > entered\n"}
    with driven(tmp_path, scripts) as found:
        running = started(found, pod, null)
        assert running.wait_running(20)
        assert found.driver.call(pod.directory, running, "run", ("app",), null, b"{}") == 0
        (place,) = (tmp_path / "plugin/pods/run").iterdir()
        words = (place / "entered").read_text().splitlines()
        assert words == [f"--pid={running.pid}", "--appname=app", "--", "/bin/sh", "kurma-test"]
        found.driver.stop(pod.directory, running, force=True)
        running.wait(20)
        found.driver.cleanup(pod.directory, pod.cgroup)
        found.driver.discard(pod.directory)


@pytest.mark.parametrize(
    ("scripts", "code", "why"),
    [
        ({"enter": "kill -KILL $$"}, 137, ""),
        ({}, None, "stage1 image example.com/stage1 has no entrypoint enter"),
        ({"enter": "#!/no/such/shell\n"}, None, "stage1 image example.com/stage1: entrypoint enter: cannot start"),
    ],
    ids=["killed", "missing", "cannot be executed"],
)
def test_an_enter_entrypoint_that_is(tmp_path, pod, null, scripts, code, why):
    with driven(tmp_path, {"run": LONG, **scripts}) as found:
        running = started(found, pod, null)
        assert running.wait_running(20)
        if code is None:
            with pytest.raises(StagerError) as raised:
                found.driver.call(pod.directory, running, "run", ("app",), null)
            assert raised.value.message.startswith(why)
        else:
            assert found.driver.call(pod.directory, running, "run", ("app",), null) == code
        assert running.alive()
        found.driver.cleanup(pod.directory, pod.cgroup)
        assert running.wait(20) == 128 + signal.SIGKILL
        found.driver.discard(pod.directory)
        running.close()


def test_a_run_entrypoint_that_is_killed(tmp_path, pod, null):
    """That is its status, and its app's is unknown. One that cannot be executed fails the start."""
    with driven(tmp_path, {"run": "echo $$ > pid; kill -KILL $$\n"}) as found:
        assert ended(found, pod, null) == 137
        status = found.driver.status(pod.directory, None)["app"]
        assert (status.exited, status.exit_code) == (True, None)
        found.driver.discard(pod.directory)
    shutil.rmtree(tmp_path / "stage1")
    with driven(tmp_path, {"run": "#!/no/such/shell\n"}) as found:
        with pytest.raises(StagerError, match=r"stage1 image example\.com/stage1: entrypoint run: cannot start"):
            started(found, pod, null)
        found.driver.cleanup(pod.directory, pod.cgroup)
        assert not mounts_at_or_below(str(tmp_path))
        found.driver.discard(pod.directory)
        assert found.images.remains() == set()
