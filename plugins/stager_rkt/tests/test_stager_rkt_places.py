"""Directories and locks of pods (Z2), and what stage1 writes there (Z5)."""

import fcntl
import os
import subprocess

import pytest
from kurma_stager_rkt.pod_directories import STATES, Places
from kurma_stager_rkt.pod_processes import is_ready, pod_pid, subcgroup
from kurma_stager_rkt.records import app_statuses

UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


@pytest.fixture
def places(tmp_path):
    return Places(str(tmp_path / "pods"))


def free(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_a_pods_life(places):
    """Its lock goes with it from directory to directory."""
    place = places.make(UUID)
    assert sorted(os.listdir(places.root)) == sorted(STATES)
    for state in ("prepare", "prepared", "run", "exited-garbage"):
        if state != "prepare":
            place.move(state)
        assert (places.find(UUID), place.path) == (state, f"{places.root}/{state}/{UUID}")
        assert not free(place.path)
        assert places.held(UUID)
    place.close()
    assert free(place.path)
    assert not places.held(UUID)
    again = places.take(UUID)
    again.remove()
    again.close()
    assert (places.find(UUID), places.take(UUID)) == (None, None)


def test_who_looks_at_a_lock_holds_none(places):
    """Two that look do not take each other for the pod's."""
    place = places.make(UUID)
    path = place.path
    place.close()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not places.held(UUID)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert places.held(UUID)
    os.close(fd)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"/machine.slice/machine-rkt\\x2d{UUID.replace('-', chr(92) + 'x2d')}.scope\n", True),
        (f"kurma/{UUID}/system.slice\n", False),
        (f"a/rkt-{UUID}", True),
        ("", False),
        ("/", False),
        ("user.slice", False),
    ],
)
def test_the_cgroup_that_stage1_names(tmp_path, text, found):
    """Only one that is named after the pod, also in systemd's words: who is in there is killed with the pod."""
    place = tmp_path / UUID
    place.mkdir()
    assert subcgroup(str(place)) == ""
    (place / "subcgroup").write_text(text)
    assert subcgroup(str(place)) == (text.strip().strip("/") if found else "")
    (place / "subcgroup").unlink()
    os.mkfifo(place / "subcgroup")
    assert subcgroup(str(place)) == ""


def test_all_pods(places):
    """In whatever state; what is not a pod's is passed over, and a place that is not there holds none."""
    assert places.uuids() == set()
    others = "246d7cef-fbf6-41da-a2f8-eba218597f9c", "346d7cef-fbf6-41da-a2f8-eba218597f9c"
    for uuid, state in zip((UUID, *others), ("run", "embryo", "exited-garbage"), strict=True):
        os.makedirs(places.path(state, uuid))
    for name in ("notes", UUID.replace("-", ""), UUID.upper()):
        os.makedirs(places.path("run", name))
    assert places.uuids() == {UUID, *others}


def test_a_move_is_on_disk(places, monkeypatch):
    """Both directories are synced, and no sooner than the rename."""
    place = places.make(UUID)
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((os.readlink(f"/proc/self/fd/{fd}"), os.listdir(fd)))
    )
    place.move("prepared")
    assert synced == [(f"{places.root}/prepared", [UUID]), (f"{places.root}/prepare", [])]
    place.close()


def test_the_lock_is_of_those_that_inherit_it(places):
    """Its maker's end does not free it; only the last holder's does."""
    place = places.make(UUID)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[place.fd])
    place.close()
    assert not free(place.path)
    with pytest.raises(BlockingIOError):
        places.take(UUID)
    child.communicate()
    assert free(place.path)


@pytest.mark.parametrize("text", ["", "no", "-1", "0", "99999999999", "12 13"])
def test_no_pid(tmp_path, text):
    (tmp_path / "pid").write_text(text)
    assert pod_pid(str(tmp_path)) is None


def test_pid(tmp_path):
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert pod_pid(str(tmp_path)) == os.getpid()


def test_ppid(tmp_path):
    """The one child of that process; while it has none, or two, nobody is named."""
    parent = subprocess.Popen(
        ["sh", "-c", "read x; sleep 100 & read x; sleep 100 & read x; kill %1 %2"], stdin=subprocess.PIPE
    )
    (tmp_path / "ppid").write_text(str(parent.pid))
    assert pod_pid(str(tmp_path)) is None
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    child = None
    while child is None:
        child = pod_pid(str(tmp_path))
    with open(f"/proc/{child}/stat") as stream:
        assert int(stream.read().rpartition(")")[2].split()[1]) == parent.pid
    parent.stdin.write(b"\n")
    parent.stdin.flush()
    while pod_pid(str(tmp_path)) == child:
        pass
    assert pod_pid(str(tmp_path)) is None
    parent.communicate(b"\n")


def test_pid_by_a_link(tmp_path):
    os.symlink("/proc/self/loginuid", tmp_path / "pid")
    assert pod_pid(str(tmp_path)) is None


@pytest.mark.parametrize("name", ["pid", "ppid"])
def test_pid_that_is_no_file(tmp_path, name):
    """A directory; a pipe that somebody holds open, and has written nothing to, or a PID."""
    (tmp_path / name).mkdir()
    assert pod_pid(str(tmp_path)) is None
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    pipe = os.open(tmp_path / name, os.O_RDWR)
    assert pod_pid(str(tmp_path)) is None
    os.write(pipe, b"1")
    assert pod_pid(str(tmp_path)) is None
    os.close(pipe)


def test_supervisor_status(tmp_path):
    rkt = tmp_path / "stage1/rootfs/rkt"
    assert not is_ready(str(tmp_path))
    rkt.mkdir(parents=True)
    for target, ready in (("starting", False), ("ready", True)):
        (rkt / "supervisor-status").symlink_to(target)
        assert is_ready(str(tmp_path)) is ready
        (rkt / "supervisor-status").unlink()
    (rkt / "supervisor-status").write_text("ready")
    assert not is_ready(str(tmp_path))


@pytest.mark.parametrize("root", ["stage1/rootfs", "overlay/deps-sha512-1/upper"])
def test_exit_codes(tmp_path, root):
    """Also in an overlay's upper directory, where nothing is mounted any more."""
    for app in ("one", "two", "three", "four", "five"):
        (tmp_path / "appsinfo" / app).mkdir(parents=True)
    (tmp_path / "stage1TreeStoreID").write_text("deps-sha512-1")
    status = tmp_path / root / "rkt/status"
    status.mkdir(parents=True)
    (status / "one").write_text("42\n")
    (status / "two").write_text("300")
    (status / "three").symlink_to("one")
    (status / "five").mkdir()
    (tmp_path / "pid").write_text("1")
    found = app_statuses(str(tmp_path), alive=True)
    assert (found["one"].exit_code, found["one"].state) == (42, "exited")
    assert {found[app].state for app in ("two", "three", "four", "five")} == {"running"}
    assert app_statuses(str(tmp_path), alive=False)["four"].state == "created"


def test_what_an_app_writes_is_nobodys_exit_code(tmp_path):
    """Also where its root's writable side looks like stage1's."""
    for app in ("rkt", "other"):
        (tmp_path / "appsinfo" / app).mkdir(parents=True)
    (tmp_path / "stage1TreeStoreID").write_text("deps-sha512-1")
    status = tmp_path / "overlay/deps-sha512-2/upper/rkt/status"
    status.mkdir(parents=True)
    (status / "other").write_text("0")
    assert app_statuses(str(tmp_path), alive=True)["other"].exit_code is None


def test_apps_before_it_runs(tmp_path):
    (tmp_path / "appsinfo/one").mkdir(parents=True)
    assert app_statuses(str(tmp_path), alive=True)["one"].state == "created"
    assert app_statuses(str(tmp_path / "none"), alive=True) == {}
