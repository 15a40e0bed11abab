"""System calls with root's rights, on this machine: overlay, cgroups, network namespaces, capabilities."""

import errno
import os
import signal
import struct
import subprocess
import sys
import traceback
import uuid
from pathlib import Path

import pytest
from kurma_stager_rkt.unmount import unmount_below

from kurma_core.linux import beneath, capabilities, clone, libc, mounts, namespaces, process
from kurma_core.linux.cgroups import CgroupTree, Layout, controllers
from kurma_core.trees import overlay

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left():
    before = [(one.target, one.fstype) for one in mounts.mountinfo()]
    opened = descriptors()
    yield
    after = [(one.target, one.fstype) for one in mounts.mountinfo()]
    # The first network namespace makes /run/netns a shared mount, for good.
    assert [one for one in after if one not in before and one[0] != "/run/netns"] == []
    # Those that other tests left to a thread or to the collector may go meanwhile.
    assert descriptors() - opened == set()


def descriptors():
    """This process's, each with what it leads to."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # the one that the list was read by
            continue
    return found


@pytest.fixture
def base():
    """A directory on a file system that can hold an upper directory; mounts below it go."""
    path = Path(f"/run/kurma-test-{uuid.uuid4().hex[:8]}")
    path.mkdir()
    yield path
    unmount_below(str(path))
    fd = os.open("/run", os.O_PATH)
    beneath.remove_tree(fd, path.name)
    os.close(fd)


def attach(mount_fd, place):
    place.mkdir(exist_ok=True)
    mounts.move_mount_to(mount_fd, str(place))
    os.close(mount_fd)


def layers(base, count, name="sha512-" + "0" * 128):
    made = []
    for number in range(count):
        layer = base / f"{name}-{number:03}"
        layer.mkdir()
        (layer / f"file{number}").write_text(str(number))
        (layer / "same").write_text(str(number))
        made.append(str(layer))
    return made


@pytest.mark.vm
@pytest.mark.parametrize("one_by_one", [None, False], ids=["as-the-kernel-can", "one-string"])
def test_overlay_of_sixty_long_named_layers(base, one_by_one):
    lowers = layers(base, 60)
    for name in ("upper", "work"):
        (base / name).mkdir()
    fd = overlay.mount_overlay(lowers, f"{base}/upper", f"{base}/work", one_by_one=one_by_one)
    attach(fd, base / "m")
    assert (base / "m" / "same").read_text() == "0", "the first is on top"
    assert len(list((base / "m").iterdir())) == 61
    (base / "m" / "new").write_text("")
    assert (base / "upper" / "new").exists()


@pytest.mark.vm
def test_overlay_paths_that_options_cannot_hold(base):
    lowers = layers(base, 2, "a:b,c\\d" + "e" * 200)
    attach(overlay.mount_overlay(lowers), base / "m")
    assert (base / "m" / "file1").read_text() == "1"
    with pytest.raises(OSError) as caught:
        (base / "m" / "x").write_text("")
    assert caught.value.errno == errno.EROFS


@pytest.mark.vm
def test_overlay_errors_name_their_cause(base):
    lowers = layers(base, 2)
    with pytest.raises(FileNotFoundError) as missing:
        overlay.mount_overlay([*lowers, f"{base}/nope"])
    assert missing.value.filename == f"{base}/nope"
    with pytest.raises(OSError, match="the same layer twice") as twice:
        overlay.mount_overlay([*lowers, lowers[0]])
    assert twice.value.filename == lowers[0]
    with pytest.raises(OSError, match="501 layers"):
        overlay.mount_overlay(["/"] * 501)


def test_mount_options_are_never_cut(base):
    with pytest.raises(OSError, match="do not fit") as caught:
        mounts.mount("overlay", str(base), "overlay", 0, "lowerdir=" + "x" * 4096)
    assert caught.value.errno == errno.E2BIG


@pytest.mark.vm
def test_read_only_binds_hold_for_submounts(base):
    (base / "source" / "sub").mkdir(parents=True)
    attach(mounts.new_filesystem("tmpfs", {"mode": "0700", "size": "1m"}), base / "source" / "sub")
    (base / "target").mkdir()
    mounts.bind_path(str(base / "source"), str(base / "target"), attributes=mounts.ATTR_RDONLY)
    for place in ("target", "target/sub"):
        with pytest.raises(OSError) as caught:
            (base / place / "x").write_text("")
        assert caught.value.errno == errno.EROFS
    (base / "source" / "sub" / "x").write_text("")


def test_a_bad_option_is_explained():
    with pytest.raises(OSError, match=r"tmpfs: .*nonsense"):
        mounts.new_filesystem("tmpfs", {"nonsense": "1"})


def test_remove_tree_crosses_no_mount(base):
    (base / "tree" / "sub").mkdir(parents=True)
    (base / "other").mkdir()
    (base / "other" / "kept").write_text("")
    mounts.bind_path(str(base / "other"), str(base / "tree" / "sub"))
    fd = os.open(base, os.O_PATH)
    with pytest.raises(OSError) as caught:
        beneath.remove_tree(fd, "tree")
    assert caught.value.errno == errno.EXDEV
    assert (base / "other" / "kept").exists()
    assert unmount_below(str(base / "tree")) == 1
    assert unmount_below(str(base / "tree")) == 0
    beneath.remove_tree(fd, "tree")
    os.close(fd)
    assert (base / "other" / "kept").exists()


def test_unmount_below_takes_stacks_and_busy_ones(base):
    for _ in range(2):
        attach(mounts.new_filesystem("tmpfs"), base / "m")
    attach(mounts.new_filesystem("tmpfs"), base / "m" / "inner")
    busy = os.open(base / "m" / "inner", os.O_RDONLY)
    assert unmount_below(str(base / "m")) >= 3
    assert mounts.mounts_at_or_below(str(base / "m")) == []
    os.close(busy)


def stacked_host(place):
    """Mounts as a host has them: shared, and one of them upon another at the same place."""
    for target in (place, place / "pts", place / "pts"):
        target.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
        subprocess.run(["mount", "--make-shared", target], check=True)
    return place


def ids(place):
    return [one.id for one in mounts.mounts_at_or_below(str(place))]


@pytest.mark.vm
def test_unmount_below_leaves_stacked_mounts_of_the_host(base):
    """A path leads to the upper one alone; an unmount upon the lower one is repeated on its peer of the host."""
    host, pod = stacked_host(base / "host"), base / "pod"
    before = ids(host)
    for covered in (False, True):
        (pod / "dev").mkdir(parents=True, exist_ok=True)
        attach(mounts.new_filesystem("tmpfs"), pod)
        (pod / "dev").mkdir()
        subprocess.run(["mount", "--rbind", host, pod / "dev"], check=True)
        subprocess.run(["mount", "--rbind", host, pod], check=True)
        if covered:  # a tree that another one hides
            attach(mounts.new_filesystem("tmpfs"), base)
            pod.mkdir()
            attach(mounts.new_filesystem("tmpfs"), pod)
            assert unmount_below(str(base)) > 8
            assert ids(base) == []
        else:
            assert unmount_below(str(pod)) == 7
            assert ids(host) == before


@pytest.mark.vm
def test_unmount_below_refuses_what_would_go_elsewhere(base):
    """What the host mounts over a mount that the pod has of it, whose tree has no root of the pod's own."""
    host, pod = stacked_host(base / "host"), base / "pod"
    (pod / "own").mkdir(parents=True)
    (pod / "of-host").mkdir()
    subprocess.run(["mount", "--rbind", host, pod / "of-host"], check=True)
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", pod / "own"], check=True)
        subprocess.run(["mount", "--make-shared", pod / "own"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", host], check=True)
    before = ids(host)
    with pytest.raises(OSError, match="cannot be unmounted") as raised:
        unmount_below(str(pod))
    assert (raised.value.errno, raised.value.filename) == (errno.EBUSY, str(pod / "of-host"))
    assert ids(host) == before
    assert ids(pod / "own") == []


def test_network_namespaces_are_made_and_deleted_twice():
    path = f"/run/netns/kurma-test-{uuid.uuid4().hex[:8]}"
    script = (
        "import sys; from kurma_core.linux import namespaces\n"
        "namespaces.make_netns(sys.argv[1]); namespaces.raise_lo(); namespaces.raise_lo()"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script, path], check=True, timeout=60)
        assert namespaces.is_pinned(path)
        again = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60)
        assert "FileExistsError" in again.stderr
        home = os.stat("/proc/self/ns/net").st_ino
        with namespaces.in_netns(path):
            assert os.stat("/proc/self/ns/net").st_ino == os.stat(path).st_ino != home
            assert "UP" in subprocess.run(["ip", "link", "show", "lo"], capture_output=True, text=True).stdout
        assert os.stat("/proc/self/ns/net").st_ino == home
        # What `ip netns` makes of it
        assert os.path.basename(path) in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
        namespaces.unpin(path)
        namespaces.unpin(path)
        assert not os.path.lexists(path)
    with pytest.raises(OSError, match="cannot enter the network namespace") as caught:
        namespaces.enter_netns(path)
    assert caught.value.filename == path
    namespaces.raise_lo()


@pytest.fixture
def tree():
    tree = CgroupTree(f"kurma-test-{uuid.uuid4().hex[:8]}/pod")
    yield tree
    tree.kill()
    tree.remove()
    tree.remove()
    assert not tree.exists()
    for directory in tree.directories():
        assert not os.path.exists(os.path.dirname(directory))


@pytest.mark.vm
def test_cgroup_life(tree):
    with pytest.raises(FileNotFoundError):
        tree.write("memory", "memory.limit_in_bytes", "1")
    tree.create()
    tree.create()
    assert all(os.path.isdir(directory) for directory in tree.directories())
    sleeper = subprocess.Popen(["sleep", "60"])
    tree.add(sleeper.pid)
    for directory in tree.directories():
        os.mkdir(f"{directory}/app")
    if tree.layout.of("cpuset").version == 1:
        for file in ("cpuset.cpus", "cpuset.mems"):
            child = tree.file("cpuset", file).replace("/pod/", "/pod/app/")
            Path(child).write_text(tree.read("cpuset", file))
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60 & wait"])
    for directory in tree.directories():
        Path(f"{directory}/app/cgroup.procs").write_text(str(stubborn.pid))
    assert {sleeper.pid, stubborn.pid} <= set(tree.pids())
    with pytest.raises(OSError, match=r"Invalid argument|No such") as caught:
        tree.write("cpu", "cpu.shares" if tree.layout.kind != "v2" else "cpu.weight", "nonsense")
    assert tree.name in str(caught.value.filename)
    tree.kill()
    assert tree.pids() == []
    assert sleeper.wait(10) == stubborn.wait(10) == -signal.SIGKILL
    tree.kill()
    tree.remove()


NO_CLONE3 = ((0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x00050000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF0000))


def without_clone3():
    """A filter of system calls on this process, for good: no ``clone3``, as on an old kernel or in a container."""
    program = bytearray(b"".join(struct.pack("HBBI", *one) for one in NO_CLONE3))
    libc.prctl(38, 1, 0, 0, 0)
    libc.syscall("prctl", 22, 2, struct.pack("HxxxxxxQ", len(NO_CLONE3), libc.address(program)))


def born_in(directories, *, before=lambda: None):
    """How a process ended that forked a child into ``directories``, and the child's cgroups."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            before()
            child = clone.fork_into(directories)
            if child == 0:
                os.write(write_end, Path("/proc/self/cgroup").read_bytes())
                os._exit(7)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), {line.split(":", 2)[2] for line in text.splitlines()}


@pytest.mark.vm
@pytest.mark.parametrize("before", [lambda: None, without_clone3], ids=["clone3", "moved"])
def test_a_child_is_born_into_the_tree(tree, before):
    tree.create()
    assert born_in(tree.directories(), before=before) == (7, {f"/{tree.name}"})
    gone = [*tree.directories(), f"/sys/fs/cgroup/unified/{tree.name}-gone"]
    assert born_in(gone) == (9, set())


@pytest.mark.vm
def test_a_child_is_born_into_a_tree_that_was_killed(tree):
    """As Linux 6.18 will not have it at first."""
    tree.create()
    tree.kill()
    assert born_in(tree.directories()) == (7, {f"/{tree.name}"})
    other = CgroupTree(tree.name.replace("/pod", "/other"))
    other.create()
    try:
        assert born_in(other.directories(), before=lambda: tree.add(os.getpid())) == (7, {f"/{other.name}"})
    finally:
        other.remove()


@pytest.mark.vm
def test_a_leaf_leaves_the_controllers_to_the_trees_children(tree):
    """Where v2 has any; v1 has no such rule."""
    tree.create()
    unified = [one for one in tree.layout.hierarchies if one.version == 2 and controllers(one.directory)]
    leaf = tree.leaf("own")
    assert leaf == tree.leaf("own")
    assert set(leaf) ^ set(tree.directories()) == {
        path for one in unified for path in (f"{one.directory}/{tree.name}", f"{one.directory}/{tree.name}/own")
    }
    sleeper = subprocess.Popen(["sleep", "60"])
    for path in leaf:
        Path(path, "cgroup.procs").write_text(str(sleeper.pid))
    CgroupTree(f"{tree.name}/child").create()
    for one in unified:
        child = f"{one.directory}/{tree.name}/child"
        assert set(controllers(child)) == set(controllers(one.directory))
    assert tree.pids() == [sleeper.pid]
    tree.kill()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_kill_without_cgroup_kill(tree):
    """A host of v1 alone: the same, by signals to the processes listed."""
    tree.create()
    tree.layout = Layout([one for one in tree.layout.hierarchies if one.version == 1])
    sleeper = subprocess.Popen(["sleep", "60"])
    tree.add(sleeper.pid)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        tree.kill()
        assert sleeper.wait(10) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        tree.layout = Layout.detect()


def test_the_remembered_layout_follows_mounts():
    """Also on a directory that was there before."""
    assert os.environ.get("KURMA_TEST_HOST"), "changes this host's mounts: run it by tests/host"
    known = Layout.of_host()
    assert Layout.of_host() is known
    gone = known.hierarchies[-1]
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", gone.directory], check=True)
    try:
        # The mount below the new one is listed still: what counts is that the list is made anew.
        assert Layout.of_host() is not known
    finally:
        subprocess.run(["umount", gone.directory], check=True)
    assert [one.directory for one in Layout.of_host().hierarchies] == [one.directory for one in known.hierarchies]


COMERS = """
import os, sys
from kurma_core.linux.cgroups import CgroupTree
tree = CgroupTree(sys.argv[1])
cpuset = tree.layout.of("cpuset")
for _ in range(500):
    tree.create()
    if cpuset is not None and cpuset.version == 1 and not tree.read("cpuset", "cpuset.cpus"):
        sys.exit("no process gets in")
    tree.remove()
"""


@pytest.mark.full
def test_who_comes_first_and_who_goes_last_at_once(tree):
    """The shared parent is made and removed all the time; whoever is there takes processes."""
    parent = os.path.dirname(tree.name) + "-many"
    comers = [
        subprocess.Popen([sys.executable, "-c", COMERS, f"{parent}/{number}"], stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    assert [(comer.communicate(timeout=60)[1], comer.returncode) for comer in comers] == [("", 0)] * 3
    assert not CgroupTree(parent).exists()


def test_siblings_and_their_parent_stay(tree):
    other = CgroupTree(tree.name.replace("/pod", "/other"))
    tree.create()
    other.create()
    try:
        tree.remove()
        assert other.exists()
        assert all(os.path.isdir(directory) for directory in other.directories())
    finally:
        other.remove()


@pytest.mark.parametrize("name", ["", "/", "a//b", "../a", "a/./b", "kurma/cgroup.procs"])
def test_cgroup_names_that_lead_elsewhere(name):
    with pytest.raises(OSError) as caught:
        CgroupTree(name)
    assert caught.value.errno == errno.EINVAL


def status_after(keep, uid, granted):
    """The sets of a program that is exec'd after :func:`capabilities.apply`."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write_end, 1)

            def become():
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)

            capabilities.apply(keep, uid, granted=keep if granted else frozenset(), become=become)
            os.execv("/bin/cat", ["cat", "/proc/self/status"])
        finally:
            os._exit(9)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return tuple(
        capabilities.bits(int(fields[name], 16)) for name in ("CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb")
    )


def test_capabilities_of_root_and_of_plain_users():
    """X2: all five sets."""
    keep, none = capabilities.DEFAULT_SET, frozenset()
    assert status_after(keep, 0, False) == (keep, keep, keep, none, none)
    assert status_after(keep, 1000, False) == (keep, none, none, none, none)
    one = frozenset({capabilities.parse("NET_BIND_SERVICE")})
    assert status_after(one, 1000, True) == (one, one, one, one, one)
    assert status_after(none, 0, True) == (none, none, none, none, none)


@pytest.mark.parametrize(("uid", "granted"), [(0, False), (1000, False), (1000, True)])
def test_a_right_until_exec_is_not_used_for_paths(uid, granted):
    """X2: it can be made use of, and until then nothing is done with it."""
    pid = os.fork()
    if pid == 0:
        try:
            late, keep = frozenset({capabilities.BITS["CAP_SYS_ADMIN"]}), capabilities.DEFAULT_SET
            more = keep if granted else frozenset()
            capabilities.apply(
                keep, uid, granted=more, until_exec=late, become=lambda: os.setresuid(uid, uid, uid)
            )
            held = keep if granted or uid == 0 else frozenset()
            assert capabilities.get()[:2] == (held, held | late)
            capabilities.use_all()
            assert capabilities.get()[:2] == (held | late, held | late)
            os._exit(0)
        finally:
            os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_end_of_a_process_that_is_no_child():
    """The kernel tells since 6.15; before, it is None."""
    parent = subprocess.Popen(
        ["sh", "-c", "exec 3<&0; sh -c 'read x <&3; exit 7' & echo $!; wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pidfd = process.pidfd_open(int(parent.stdout.readline()))
    assert process.exit_status(pidfd) is None
    parent.communicate(b"\n", 10)
    assert process.wait_pidfd(pidfd, 10)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert process.exit_status(pidfd) == (7 if release >= (6, 15) else None)
    os.close(pidfd)


@pytest.mark.vm
def test_a_leader_that_is_gone_is_no_process():
    """Its number is still that of its session and group: older kernels say of it something else than of others."""
    script = "sleep 1000 >/dev/null & echo $!; read end"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, **pipes) as leader:
        member = int(leader.stdout.readline())
        identity = process.ProcessIdentity.current(leader.pid)
    try:
        assert os.getsid(member) == leader.pid
        with pytest.raises(ProcessLookupError):
            process.pidfd_open(leader.pid)
        assert identity.open() is None
    finally:
        os.kill(member, signal.SIGKILL)


def test_who_pins_and_who_takes_the_directory_away_at_once(tmp_path):
    """No pin fails, or is lost; and nothing is left."""
    directory = str(tmp_path / "pins")

    def pins(number):
        for _ in range(200):
            path = f"{directory}/{number}"
            namespaces.pin("/proc/self/ns/user", path)
            if os.stat(path).st_ino != os.stat("/proc/self/ns/user").st_ino or not namespaces.mounted_on(
                directory
            ):
                os._exit(2)
            namespaces.unpin(path)
            namespaces.unshare_directory(directory)

    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                pins(number)
                os._exit(0)
            except OSError:
                traceback.print_exc()
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert not os.path.exists(directory)
