"""Each version of the interface, word by word, as a stage1 of that version notes it (Z2 to Z7); and entrypoints
that hang or are killed while its pod runs."""

import os
import signal
import threading

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.models.streams import Stdio
from kurma_core.value import replace
from tests.integration.stage1.conftest import RECORDER, Recorded
from tests.integration.stage1.driven import UUID, driven
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

READY = "ln -s ready stage1/rootfs/rkt/supervisor-status\n"
SHORT = f"{READY}echo $$ > pid; echo 3 > stage1/rootfs/rkt/status/app; exit 3\n"
LONG = f"{READY}echo $$ > pid; exec sleep 1000\n"
HANGS = "echo stuck; sleep 1000"


WALLS = ["--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp"]
DNS = "--dns-conf-mode=resolv=stage0,hosts=stage0"
FIRST = ["--debug", "--net=host"]
#: What its ``run`` is told by the version that it keeps to, and how many notes are made of what it is not told.
TOLD = {
    None: ([], 6),
    1: ([], 6),
    2: (["--hostname=test"], 5),
    3: (["--hostname=test", *WALLS], 2),
    4: (["--hostname=test", DNS, *WALLS], 1),
    5: (["--hostname=test", DNS, *WALLS], 1),
    6: (["--hostname=test", DNS, *WALLS, "--ipc=parent"], 0),
}


@pytest.mark.parametrize("version", TOLD)
def test_a_version(tmp_path, pod, null, version):
    """All that an admin may say, and a pod ask for: passed where the version has it, else withheld and told."""
    record = tmp_path / "record"
    scripts = {
        name: RECORDER.format(record=record, name=name) + (SHORT if name == "run" else "")
        for name in ("run", "gc")
    }
    config = {
        "debug": True,
        "lift": ["seccomp", "paths", "capabilities"],
        "ipc": "parent",
        "localConfig": "/etc/rkt",
    }
    pod = replace(
        pod, dns={"nameservers": ("192.0.2.1",)}, hosts=(("192.0.2.2", ("db",)),), asked=("dns", "hosts")
    )
    with driven(tmp_path, scripts, config=config, version=version) as found:
        found.driver.prepare(pod)
        running = found.driver.start(pod, null)
        assert running.wait(20) == 3
        running.close()
        found.driver.cleanup(pod.directory, pod.cgroup)
        assert found.driver.discard(pod.directory) == ()
    later, notes = TOLD[version]
    assert len(found.notes) == notes, found.notes
    assert all(f"it keeps to interface version {version or 1}, and" in note for note in found.notes)
    (run,), (gc,) = ([Recorded(each) for each in record.glob(f"{name}.*")] for name in ("run", "gc"))
    assert run.words == [*FIRST, "--local-config=/etc/rkt", *later, UUID]
    local = ["--local-config", "/etc/rkt"] if (version or 1) >= 5 else []
    assert gc.words == ["--debug", *local, UUID]
    pods = f"{found.state}/pods"
    assert (run.cwd.strip(), gc.cwd.strip()) == (f"{pods}/run/{UUID}", f"{pods}/exited-garbage/{UUID}")
    assert run.program == f"{pods}/run/{UUID}/stage1/rootfs/ex/run"
    number = run.environment["RKT_LOCK_FD"]
    assert run.descriptors[number] == f"{pods}/run/{UUID}"
    assert (run.lock, gc.lock) == ("held\n", "held\n")
    assert int(run.parent) == int(gc.parent) == os.getpid()
    assert {"pod", "pod-created", "pod.lck", "stage1/manifest", "stage1TreeStoreID"} <= run.files
    etc = {"stage1/rootfs/etc/rkt-resolv.conf", "stage1/rootfs/etc/rkt-hosts", "stage1/rootfs/rkt/env/app"}
    assert etc <= run.files


def mutable(pod):
    """The pod, made without apps; and the same with its app, to be added."""
    empty = PodManifest.parse({**pod.manifest.to_json(), "apps": []})
    return replace(pod, keep=True, apps=(), manifest=empty, plans={}), replace(pod, keep=True)


@pytest.mark.full
def test_app_entrypoints_that_hang_or_are_killed(tmp_path, pod, null):
    """They are given up, with what they have said; the pod goes on. The app's root is found again wherever the
    image's own links have it."""
    scripts = {"run": LONG, "enter": "", "app/add": HANGS, "app/rm": "", "app/start": "echo half; kill -KILL $$"}
    (tmp_path / "stage1").mkdir()
    (tmp_path / "stage1/opt").symlink_to("/var/apps")
    empty, whole = mutable(pod)
    with driven(
        tmp_path, {**scripts, "app/stop": HANGS}, config={"patience": 1, "storage": "overlay"}, version=5
    ) as found:
        driver = found.driver
        driver.prepare(empty)
        running = driver.start(empty, null)
        assert running.wait_running(20)
        with pytest.raises(StagerError, match="entrypoint app/add did not end within 1 s: stuck"):
            driver.add_app(whole, running)
        root = f"{found.state}/pods/run/{UUID}/stage1/rootfs"
        assert mounts_at_or_below(f"{root}/var/apps/stage2/app")
        with pytest.raises(StagerError, match="entrypoint app/start ended with status 137: half"):
            driver.start_app(pod.directory, running, "app", 20)
        assert driver.status(pod.directory, running)["app"].started_at is None
        driver.remove_app(pod.directory, running, "app", ())
        assert not mounts_at_or_below(f"{root}/var/apps")
        assert os.listdir(f"{root}/var/apps/stage2") == []
        assert running.alive()
        driver.cleanup(pod.directory, pod.cgroup)
        assert running.wait(20) == 128 + signal.SIGKILL
        running.close()
        driver.discard(pod.directory)


def test_a_record_that_is_gone(tmp_path, pod, null):
    """Its copy in rkt's directory says how ``gc`` is called."""
    freed = tmp_path / "freed"
    with driven(tmp_path, {"run": SHORT, "gc": f'echo "$@" > {freed}\n'}) as found:
        found.driver.prepare(pod)
        running = found.driver.start(pod, null)
        assert running.wait(20) == 3
        running.close()
        found.driver.cleanup(pod.directory, pod.cgroup)
        os.unlink(f"{pod.directory}/stager/stage1.json")
        assert found.driver.discard(pod.directory) == ()
    assert freed.read_text() == f"{UUID}\n"


def test_an_enter_entrypoint_that_hangs(tmp_path, pod, null):
    """Is its caller's to end: by a signal, or by going away."""
    with driven(tmp_path, {"run": LONG, "enter": "echo $$ > entered; exec sleep 1000\n"}) as found:
        found.driver.prepare(pod)
        running = found.driver.start(pod, null)
        assert running.wait_running(20)
        entered = f"{found.state}/pods/run/{UUID}/entered"
        for number in (signal.SIGINT, signal.SIGTERM):
            ours, theirs = os.pipe()

            def end(number=number, fd=theirs):
                until(lambda: os.path.exists(entered))
                if number == signal.SIGINT:
                    os.write(fd, bytes([number]))
                else:
                    os.close(fd)

            helper = threading.Thread(target=end)
            helper.start()
            stdio = Stdio(null.stdin, null.stdout, null.stderr, signals=ours)
            assert found.driver.call(pod.directory, running, "run", ("app",), stdio) == 128 + number
            helper.join()
            os.unlink(entered)
            os.close(ours)
            if number == signal.SIGINT:
                os.close(theirs)
        assert running.alive()
        found.driver.cleanup(pod.directory, pod.cgroup)
        running.wait(20)
        running.close()
        found.driver.discard(pod.directory)


#: Leaves somebody in the cgroup of these files who has nothing of the pod's.
LEAVES = """(for file in {files}; do echo 0 > $file; done; exec sleep 1000 3<&- < /dev/null > /dev/null 2>&1) &
echo $! > {record}.new; mv {record}.new {record}
for file in {files}; do while ! grep -q "^$!$" $file; do sleep 0.02 < /dev/null; done; done
echo {name} > subcgroup; echo $$ > pid; exit 4
"""


def test_the_cgroup_that_stage1_has_put_its_processes_in(tmp_path, pod, null):
    """``subcgroup``: who is there goes with the pod, though nothing else says whose it is (Z5)."""
    record, tree = tmp_path / "left", CgroupTree(f"machine-{os.getpid()}-rkt-{UUID}")
    tree.create()
    try:
        text = LEAVES.format(files=" ".join(tree.procs_files()), record=record, name=f"/{tree.name}")
        with driven(tmp_path, {"run": text}) as found:
            found.driver.prepare(pod)
            running = found.driver.start(pod, null)
            assert running.wait(20) == 4
            running.close()
            left = int(record.read_text())
            assert alive(left)
            found.driver.cleanup(pod.directory, pod.cgroup)
            until(lambda: not alive(left))
            found.driver.discard(pod.directory)
    finally:
        tree.kill()
        tree.remove()
