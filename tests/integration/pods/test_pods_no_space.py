"""A disk without free bytes or inodes, and directories that somebody removed: pods are ended all the same."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess

import pytest

from kurma_core.errors import KurmaError
from tests.kit.archives import file, image
from tests.kit.command import KURMA
from tests.kit.host import links, small_file_system
from tests.kit.house import both_ways
from tests.kit.waiting import alive, until

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Fills the app's root file system, and goes on.
GREEDY = (
    "trap 'exit 3' TERM; dd if=/dev/zero of=/filler bs=1M 2>/dev/null; echo full; while :; do sleep 0.02; done"
)


@pytest.fixture
def small_disk(tmp_path):
    with small_file_system(tmp_path / "small", "size=96m") as path:
        yield path


@pytest.fixture
def small(make_house, small_disk, busybox_image):
    """A house on a small disk, with the images in place."""
    house = make_house({"stop_timeout": 2}, state=f"{small_disk}/state", image=busybox_image)
    record, _ = house.run("true")
    house.client.rm(record.uuid)
    return house


def free(path):
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def fill(path):
    with open(f"{path}/filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def filled_by_its_app(house, path):
    run = house.launch(GREEDY)
    until(lambda: free(path) < 1 << 20, "a full disk")
    fill(path)  # also the pages of files that Kurma has removed since
    return run


def nothing_left(house, uuid):
    assert uuid not in house.uuids()
    assert not os.path.exists(f"/run/netns/kurma-{uuid}")
    assert not os.path.exists(f"/sys/fs/cgroup/kurma/{uuid}")


@pytest.mark.parametrize("force", [False, True])
def test_an_app_that_has_filled_the_disk_is_stopped(small, small_disk, force):
    """Its end frees what it wrote, and is recorded."""
    before = free(small_disk)
    run = filled_by_its_app(small, small_disk)
    record = small.client.stop(run.uuid, force=force)
    assert record.state in ("stopped", "errored")
    run.wait()
    assert small.state_of(run.uuid)["steps"] == []
    assert free(small_disk) > before - (1 << 20)
    assert os.path.exists(small.path(run.uuid, "pod/logs/main.log"))
    small.client.rm(run.uuid)
    nothing_left(small, run.uuid)


@pytest.mark.parametrize("end", ["rm", "gc"])
def test_a_dead_pod_that_has_filled_the_disk(small, small_disk, end):
    run = filled_by_its_app(small, small_disk)
    run.kill()
    pid = small.state_of(run.uuid)["stager"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its end")
    if end == "rm":
        small.client.rm(run.uuid)
    else:
        assert not small.client.gc(grace=0).failed
        small.client.gc(grace=0)
    nothing_left(small, run.uuid)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("force", [False, True])
def test_a_disk_that_stays_full(small, small_disk, dead, force):
    """The pod itself has hardly anything that its end could free."""
    run = small.launch("trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done")
    run.wait_output("ready")
    pid = small.state_of(run.uuid)["stager"]["pid"]
    if dead:
        run.kill()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "its end")
    fill(small_disk)
    if not dead and not force:
        assert small.client.stop(run.uuid).state in ("stopped", "errored")
        # How its app ended, a stager that cannot write may be unable to tell.
        assert run.wait() not in (0, 125), run.errors
    small.client.rm(run.uuid, force=force)
    nothing_left(small, run.uuid)


def test_an_ephemeral_pod_on_a_full_disk(small, small_disk):
    run = small.launch("trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done", ephemeral=True)
    run.wait_output("ready")
    fill(small_disk)
    run.signal(signal.SIGTERM)
    assert run.wait() not in (0, 125), run.errors
    assert "Traceback" not in run.errors
    nothing_left(small, run.uuid)


def test_what_a_log_lacks_is_told(small, small_disk):
    """H7: by `logs`, and in the pod's record, though nobody could write it into the log."""
    run = small.launch("echo begun; until [ -e /dev/shm/full ]; do sleep 0.02; done; seq 1 9999; exit 3")
    run.wait_output("begun")
    fill(small_disk)
    assert small.enter(run.uuid, "touch", "/dev/shm/full")[0] == 0
    assert run.wait() == 3, run.errors
    (app,) = small.client.pod(run.uuid).apps
    assert app.exit_code == 3
    assert app.log_dropped == 48_888
    assert app.to_json()["logDropped"] == 48_888
    begun, *others = [text.text for text in small.client.logs(run.uuid)]
    assert begun == b"begun"
    # A few bytes of a block that is there already may have been left for this.
    assert others in ([], [b"[kurma: 48888 bytes of output were dropped, the log could not be written]"])
    assert small.notes[-1] == "app main: 48888 bytes of its output were dropped: its log could not be written"
    small.client.rm(run.uuid)


def kurma(house, *words):
    """The command: its exit code, and what it says, without notes on unverified images."""
    command = [*KURMA, "--dir", house.state, "--config", house.config_file]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "are not verified" not in line]
    return done.returncode, said


def leave_inodes(disk, count):
    """Makes or removes files until so many inodes are free."""
    have = os.listdir(f"{disk}/files") if os.path.isdir(f"{disk}/files") else os.mkdir(f"{disk}/files") or []
    names = sorted(map(int, have))
    while os.statvfs(disk).f_ffree < count:
        os.unlink(f"{disk}/files/{names.pop()}")
    while os.statvfs(disk).f_ffree > count:
        names.append(names[-1] + 1 if names else 0)
        os.close(os.open(f"{disk}/files/{names[-1]}", os.O_CREAT | os.O_WRONLY))


def has_no_inodes(answer):
    code, said = answer
    assert (code, len(said)) == (125, 2), said
    line, hint = said
    assert line.startswith("kurma: ")
    assert "no free inodes (no space left on device)" in line.lower()
    assert hint.startswith("  hint: ")


@pytest.fixture
def few_inodes(tmp_path):
    with small_file_system(tmp_path / "small", "size=96m,nr_inodes=2000") as path:
        yield path


@both_ways
def test_no_free_inodes(few_inodes, make_house, served, busybox_image, way):
    """Whatever is asked for fails in one line that tells inodes from bytes; the pod that runs goes on, and its end
    is recorded once there is room."""
    config = {"stop_timeout": 2, "daemon": {"prestarted_stagers": 0}}
    house = make_house(config, state=f"{few_inodes}/state", image=busybox_image)
    record, _ = house.run("true", net="default")
    house.client.rm(record.uuid)
    served(house)
    run = house.launch("trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done", host=None)
    run.wait_output("ready")
    other = f"{few_inodes}/../other.aci"
    with open(other, "wb") as out:
        out.write(image(*[file(f"rootfs/f{one}", b"x") for one in range(30)], name="example.com/other"))
    trusted = "--insecure-options=image"
    # At the pod's directory, its lock, its name, a record, its addresses, its names, and in the stager.
    for left in (0, 1, 2, 7, 12, 14, 20, 24, 29, 33, 38):
        leave_inodes(few_inodes, left)
        has_no_inodes(kurma(house, "run", trusted, "example.com/busybox", "--exec", "/bin/true"))
        leave_inodes(few_inodes, 100)
        for uuid in house.uuids():
            if uuid != run.uuid:
                house.client.rm(uuid)
                nothing_left(house, uuid)
    for left in (0, 10):
        leave_inodes(few_inodes, left)
        has_no_inodes(kurma(house, "image", "fetch", trusted, other))
        assert os.listdir(f"{house.state}/images/tmp") == []
    leave_inodes(few_inodes, 0)
    more = ("app", "add", run.uuid, "example.com/busybox", "--name=more", trusted, "--exec", "/bin/true")
    has_no_inodes(kurma(house, *more))
    leave_inodes(few_inodes, 100)
    assert kurma(house, *more) == (0, [])
    leave_inodes(few_inodes, 2)
    has_no_inodes(kurma(house, "app", "start", run.uuid, "more"))

    def stager_has_written():
        written = os.listdir(f"{house.state}/pods/{run.uuid}/pod")
        apps = house.client.pod(run.uuid).apps
        return (
            apps[1].state == "start-failed"
            and "status.json.next" in written
            and "status.json.after" not in written
        )

    until(stager_has_written, "the app's end in status.json")
    leave_inodes(few_inodes, 0)
    if way == "here":
        has_no_inodes(kurma(house, "daemon", "run"))
    assert house.client.pod(run.uuid).state == "running"
    stopped = house.client.stop(run.uuid)
    assert (stopped.state, stopped.reason) == ("stopped", None)
    assert run.wait() == 3, run.errors
    leave_inodes(few_inodes, 100)
    house.client.gc(grace=10_000)
    assert house.state_of(run.uuid)["state"] == "stopped"
    house.client.rm(run.uuid)
    nothing_left(house, run.uuid)
    if way == "kurmad":
        with open(f"{house.state}/kurmad.log") as log:
            said = log.read()
        assert "Traceback" not in said
        assert "internal error" not in said


def test_an_end_that_cannot_be_recorded(house, monkeypatch):
    """How the pod ended is told all the same; it is taken down, and can be removed."""

    def full(path, content, mode=0o600):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with house.running("trap 'exit 3' TERM; echo ready; while :; do sleep 0.02; done") as pod:
        uuid = pod.uuid
        until(lambda: "ready" in house.log(pod), "the trap")
        monkeypatch.setattr("kurma_core.pods.record.pod_directory.replace_file", full)
        pod.stop(force=False)
        record = pod.finish()
        assert record.exit_code == 3
        assert record.state == "stopped"
        assert "No space left on device; the pod was stopped and cleaned up" in house.notes[-1]
    assert house.state_of(uuid)["state"] == "running"
    assert not os.path.exists(f"/sys/fs/cgroup/kurma/{uuid}")
    assert house.client.gc(grace=0).failed
    assert house.client.stop(uuid).state == "stopped"
    house.client.rm(uuid)
    nothing_left(house, uuid)


@pytest.mark.parametrize("end", ["signal", "kill"])
def test_a_directory_that_somebody_removed(house, end):
    """The owner takes down what it knows, and says what happened."""
    before, names = links(), house.names()
    run = house.launch("sleep 1000")
    uuid = run.uuid
    network = house.launch("sleep 1000", net="default")
    pids = [house.state_of(each)["stager"]["pid"] for each in (uuid, network.uuid)]
    for each in (uuid, network.uuid):
        gone = house.path(each)
        os.rename(gone, f"{house._scratch}/{each}")
        shutil.rmtree(f"{house._scratch}/{each}", ignore_errors=True)
    for pod, pid in zip((run, network), pids, strict=True):
        if end == "signal":
            pod.signal(signal.SIGTERM)
        elif alive(pid):  # it may have ended by itself, with nowhere to write to
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # The signal may also come when all has been done and said, and the process is about to exit.
        assert pod.wait() in (125, -signal.SIGTERM)
        assert "its directory was removed while it ran" in pod.errors
        assert "Traceback" not in pod.errors
        assert not alive(pid)
    for each in (uuid, network.uuid):
        nothing_left(house, each)
    assert not [link for link in links() if link.startswith(("veth", "kv"))]
    house.client.network_rm("default")
    assert links() <= before, "its bridge may have been there before"
    assert house.names() <= names
    with pytest.raises(KurmaError):
        house.client.pod(uuid)


@pytest.mark.parametrize(
    "moment", ["kurma_core.pods.run.owner:OwnedPod.records", "kurma_core.pods.inside.logs:Following.__init__"]
)
def test_a_directory_removed_before_anybody_looks_at_its_logs(house, moment):
    names = house.names()
    run = house.launch("sleep 1000", faults=[["entering with removal", moment]], wait=None)
    assert (run.wait(), run.errors) == (
        125,
        f"pod {run.uuid}: its directory was removed while it ran, so kurma stopped it\n",
    )
    nothing_left(house, run.uuid)
    assert house.names() <= names
