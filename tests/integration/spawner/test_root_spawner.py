"""The spawner with real namespaces and a root of busybox."""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, HostError
from kurma_core.linux import beneath, mounts, namespaces, process
from kurma_core.linux.cgroups import CgroupTree, controllers
from kurma_core.spawn_plan import (
    Bind,
    Directory,
    EnterPlan,
    File,
    Overlay,
    RootPlan,
    SpawnPlan,
    Symlink,
    UserMap,
    cgroups,
    proc,
    sysfs,
    tmpfs,
)
from kurma_core.spawner.client import Spawner

pytestmark = pytest.mark.root
PATH = {"PATH": "/bin"}


@pytest.fixture(autouse=True)
def nothing_left():
    before = {(one.target, one.fstype) for one in mounts.mountinfo()}
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    namespaces.unshare_directory("/run/kurma/userns")
    after = {(one.target, one.fstype) for one in mounts.mountinfo()}
    assert {one for one in after - before if one[0] != "/run/netns"} == set()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def spawner():
    with Spawner() as spawner:
        yield spawner


@pytest.fixture
def base():
    path = Path(f"/run/kurma-test-{uuid.uuid4().hex[:8]}")
    (path / "low" / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", path / "low" / "bin")
    for name in ("sh", "ls", "cat", "sleep", "touch", "readlink", "hostname", "id", "grep"):
        (path / "low" / "bin" / name).symlink_to("busybox")
    yield path
    fd = os.open("/run", os.O_PATH)
    beneath.remove_tree(fd, path.name)
    os.close(fd)


def plain_root(base, *operations):
    return RootPlan((Overlay((str(base / "low"),), scratch=True, attributes=("nodev",)), proc(), *operations))


class Output:
    """A pipe for a program's output; the writing end closes with ``text``."""

    def __init__(self):
        self.read_end, self.fd = os.pipe()

    def text(self):
        os.close(self.fd)
        with os.fdopen(self.read_end) as file:
            return file.read()


def ended(started):
    """Waits for a child as its parent; its exit code."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])
    finally:
        os.close(started.pidfd)


def run(spawner, script, root, **more):
    output = Output()
    plan = SpawnPlan(("sh", "-c", script), PATH, root=root, fds={1: output.fd, 2: output.fd}, **more)
    started = spawner.start(plan)
    text = output.text()
    return ended(started), text


@contextlib.contextmanager
def running(spawner, root, script="echo >&4; exec 4>&-; while :; do sleep 1; done", **more):
    ready = Output()
    fds = {4: ready.fd, 2: 2}
    started = spawner.start(SpawnPlan(("sh", "-c", script), PATH, root=root, fds=fds, new_session=True, **more))
    assert ready.text() == "\n", "descriptor 4 was written to and closed"
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        assert ended(started) == -signal.SIGKILL


def test_exit_code_and_root(spawner, base):
    code, text = run(spawner, "ls /; touch /made; pwd; exit 42", plain_root(base, tmpfs("/tmp", mode="1777")))
    assert code == 42
    assert text.split() == ["bin", "proc", "tmp", "/"]
    assert sorted(entry.name for entry in (base / "low").iterdir()) == ["bin"], "the layer is untouched"


def test_only_the_planned_mounts_are_seen(spawner, base):
    code, text = run(spawner, "cat /proc/self/mountinfo", plain_root(base))
    assert code == 0
    assert [mounts.Mount(line).target for line in text.splitlines()] == ["/", "/proc"]


def test_only_the_given_descriptors_are_open(spawner, base):
    lock = os.open(base / "lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(lock, True)  # the worst case
    fcntl.flock(lock, fcntl.LOCK_EX)
    with running(spawner, plain_root(base)) as started:
        links = {
            name: os.readlink(f"/proc/{started.pid}/fd/{name}") for name in os.listdir(f"/proc/{started.pid}/fd")
        }
        assert set(links) <= {"0", "1", "2", "10"}, links
        assert links["0"] == links["1"] == "/dev/null"
        assert not any("socket" in link or "lock" in link for link in links.values())
        os.close(lock)
        again = os.open(base / "lock", os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)


def test_signals_and_umask_are_as_usual(spawner, base):
    # No shell between: that would have handlers of its own.
    output = Output()
    plan = SpawnPlan(("cat", "/proc/self/status"), PATH, root=plain_root(base), fds={1: output.fd})
    started = spawner.start(plan)
    fields = dict(line.split(":\t", 1) for line in output.text().splitlines())
    assert ended(started) == 0
    assert fields["Umask"] == "0022"
    assert [fields[name] for name in ("SigBlk", "SigIgn", "SigCgt")] == ["0" * 16] * 3


def test_binds_files_links_and_host_name(spawner, base):
    (base / "data").mkdir()
    (base / "data" / "inner").write_text("data")
    (base / "file").write_text("file")
    root = plain_root(
        base,
        Bind(str(base / "data"), "/volumes/a b", read_only=True),
        Bind(str(base / "file"), "/etc/one"),
        Directory("/pod/x", 0o750, 7, 8),
        File("/manifest", b"{}", 0o600),
        Symlink("/opt/link", "/manifest"),
    )
    script = """
    cat "/volumes/a b/inner" /etc/one /opt/link; echo; hostname
    ls -ldn /pod/x; ls -ln /manifest
    touch "/volumes/a b/x" || echo refused
    """
    code, text = run(spawner, script, root, namespaces=frozenset({"uts"}), hostname="the-pod")
    assert code == 0
    lines = text.splitlines()
    assert lines[:2] == ["datafile{}", "the-pod"]
    assert lines[2].startswith("drwxr-x---")
    assert lines[2].split()[2:4] == ["7", "8"]
    assert lines[3].startswith("-rw-------")
    assert lines[-1] == "refused"
    assert os.uname().nodename != "the-pod"


def test_targets_stay_inside_whatever_links_the_image_holds(spawner, base):
    (base / "low" / "evil").symlink_to("../../../../../../etc")
    (base / "data").mkdir()
    (base / "data" / "inner").write_text("data")
    code, text = run(spawner, "cat /etc/new/inner", plain_root(base, Bind(str(base / "data"), "/evil/new")))
    assert (code, text) == (0, "data")
    assert not os.path.exists("/etc/new")


def test_links_on_the_way_to_a_source(spawner, base):
    (base / "data").mkdir()
    (base / "link").symlink_to("data")
    with pytest.raises(HostError, match="link on /v") as caught:
        spawner.start(SpawnPlan(("sh",), PATH, root=plain_root(base, Bind(f"{base}/link", "/v", links=False))))
    assert caught.value.data["errno"] == errno.ELOOP


@pytest.mark.parametrize("recursive", [True, False])
def test_links_that_lead_over_the_root(spawner, base, recursive):
    """The new root lies on top of the host's ``/``: a source must not lead into it, whatever the way."""
    (base / "mark").write_text("the host's")
    (base / "up").symlink_to("/".join([".."] * (len(base.parts) + 2)))
    (base / "back").symlink_to(f"up{base}/mark")
    (base / "down").symlink_to("/")
    root = plain_root(
        base,
        Bind(f"{base}/back", "/one"),
        *[
            Bind(source, f"/{name}", recursive=recursive)
            for name, source in (("up", f"{base}/up"), ("down", f"{base}/down"), ("all", "/"))
        ],
    )
    code, text = run(spawner, "cat /one; for place in up down all; do echo; ls /$place; done", root)
    names = "".join(f"{name}\n" for name in sorted(os.listdir("/")) if name[0] != ".")
    assert (code, text) == (0, "\n".join(["the host's", names, names, names]))


def test_more_binds_than_descriptors(base):
    """Their sources are open all at once; the program has the limit that it would have without."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with Spawner() as spawner:
            root = plain_root(base, *[Bind(str(base / "low"), f"/many/{number}") for number in range(300)])
            code, text = run(spawner, "ls /many | wc -l; ls -d /many/299/bin; ulimit -n", root)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (code, text.split()) == (0, ["300", "/many/299/bin", "256"])


def test_a_failing_operation_names_itself(spawner, base):
    with pytest.raises(HostError, match=r"bind /nope on /volumes/a: No such file") as caught:
        spawner.start(SpawnPlan(("sh",), PATH, root=plain_root(base, Bind("/nope", "/volumes/a"))))
    assert caught.value.data == {"step": "bind", "path": "/nope on /volumes/a", "errno": errno.ENOENT}
    with pytest.raises(HostError, match=r"overlay /: .*nope"):
        spawner.start(SpawnPlan(("sh",), PATH, root=RootPlan((Overlay((f"{base}/low", f"{base}/nope")),))))
    with pytest.raises(HostError, match="directory /nowhere"):
        spawner.start(SpawnPlan(("sh",), PATH, root=plain_root(base), cwd="/nowhere"))
    with pytest.raises(HostError, match="join /run/netns/nope"):
        spawner.start(SpawnPlan(("sh",), PATH, netns_path="/run/netns/nope"))


def test_a_program_that_cannot_be_executed(spawner, base):
    (base / "low" / "script").write_text("#!/bin/nope\n")
    (base / "low" / "script").chmod(0o755)
    with pytest.raises(CommandNotFoundError, match="cannot start /bin/nope: not found"):
        spawner.start(SpawnPlan(("/bin/nope",), root=plain_root(base)))
    with pytest.raises(CommandNotExecutableError, match="interpreter /bin/nope is missing"):
        spawner.start(SpawnPlan(("/script",), root=plain_root(base)))


def test_user_and_groups(spawner, base):
    code, text = run(spawner, "id -u; id -g; id -G", plain_root(base), uid=1000, gid=1001, groups=(5, 6))
    assert (code, text.split()) == (0, ["1000", "1001", "1001", "5", "6"])


def test_a_pid_namespace_with_its_own_proc(spawner, base):
    code, text = run(spawner, "echo $$; ls -d /proc/[0-9]*", plain_root(base), namespaces=frozenset({"pid"}))
    assert code == 0
    assert text.split()[0] == "1"
    assert len(text.split()) <= 3


def test_given_upper_directories_keep_what_is_written(spawner, base):
    for name in ("upper", "work"):
        (base / name).mkdir()
    overlay = Overlay((str(base / "low"),), upper=str(base / "upper"), work=str(base / "work"))
    code, _ = run(spawner, "echo kept > /made", RootPlan((overlay,)))
    assert code == 0
    assert (base / "upper" / "made").read_text() == "kept\n"


@pytest.fixture
def netns():
    path = f"/run/netns/kurma-test-{uuid.uuid4().hex[:8]}"
    yield path
    namespaces.unpin(path)
    namespaces.unpin(path)


def test_network_namespace_and_its_sysfs(spawner, base, netns):
    spawner.make_namespace(netns)
    with pytest.raises(HostError, match="exists") as caught:
        spawner.make_namespace(netns)
    assert caught.value.data["errno"] == errno.EEXIST
    script = "readlink /proc/self/ns/net; ls /sys/class/net; touch /sys/x || echo read-only"
    code, text = run(spawner, script, plain_root(base, sysfs()), netns_path=netns)
    assert code == 0
    assert text.splitlines()[0] == f"net:[{os.stat(netns).st_ino}]"
    assert os.stat("/proc/self/ns/net").st_ino != os.stat(netns).st_ino
    assert text.splitlines()[1] == "lo"
    assert text.splitlines()[-1] == "read-only"


def test_network_namespace_of_a_user_namespace(spawner, netns):
    userns = f"/run/kurma/userns/{os.path.basename(netns)}"
    try:
        spawner.make_user_namespace(userns, UserMap(((0, 100_000, 65536),), ((0, 200_000, 65536),)))
        spawner.make_namespace(netns, userns=userns)
        fd = os.open(netns, os.O_RDONLY)
        owner = fcntl.ioctl(fd, 0xB701)  # NS_GET_USERNS
        assert os.fstat(owner).st_ino == os.stat(userns).st_ino != os.stat("/proc/self/ns/user").st_ino
        os.close(owner)
        os.close(fd)
        with pytest.raises(HostError, match="exists"):
            spawner.make_user_namespace(userns, UserMap(((0, 100_000, 65536),), ((0, 200_000, 65536),)))
    finally:
        namespaces.unpin(userns)
        namespaces.unpin(userns)
    assert not os.path.lexists(userns)


def test_a_user_namespace_that_the_kernel_refuses_leaves_nothing(spawner, netns):
    userns = f"/run/kurma/userns/{os.path.basename(netns)}"
    with pytest.raises(HostError, match="uid_map"):
        spawner.make_user_namespace(userns, UserMap(((0, 0, 0),), ((0, 0, 1),)))
    with pytest.raises(HostError, match="cannot enter the user namespace"):
        spawner.make_namespace(netns, userns=userns)
    assert not os.path.lexists(userns)
    assert not os.path.lexists(netns)


@pytest.fixture
def tree():
    tree = CgroupTree(f"kurma-test-{uuid.uuid4().hex[:8]}/pod")
    tree.create()
    yield tree
    tree.kill()
    tree.remove()
    assert not tree.exists()


def test_cgroup_is_joined_and_is_all_that_is_seen(spawner, base, tree):
    root = plain_root(base, sysfs(), *cgroups(tree))
    with running(spawner, root, cgroup=tuple(tree.directories())) as started:
        assert tree.pids()[:1] == [started.pid]
        inside = f"/proc/{started.pid}/root/sys/fs/cgroup"
        for source, place in tree.mount_plan():
            assert os.stat(f"{inside}/{place}").st_ino == os.stat(source).st_ino
            # Writable: a stager makes its apps' cgroups here
            os.mkdir(f"{inside}/{place}/app")
            assert os.path.isdir(f"{source}/app")


@pytest.mark.parametrize("child_of_caller", [True, False])
def test_a_cgroup_that_was_killed_can_be_joined(spawner, base, tree, child_of_caller):
    """A child that the kernel would have die at its birth is seen off, and another one is made."""
    with running(spawner, plain_root(base), cgroup=tuple(tree.directories())) as started:
        callins = CgroupTree(f"{tree.name}/callins")
        callins.create()
        for kill in (False, True):
            if kill:
                callins.kill()
            output = Output()
            entered = spawner.enter(
                EnterPlan(
                    started.pid,
                    ("cat", "/proc/self/cgroup"),
                    started.pidfd,
                    PATH,
                    cgroup=tuple(callins.directories()),
                    fds={1: output.fd},
                    child_of_caller=child_of_caller,
                )
            )
            assert {line.split(":")[2] for line in output.text().splitlines()} == {f"/{callins.name}"}
            if child_of_caller:
                assert ended(entered) == 0
            else:
                assert process.wait_pidfd(entered.pidfd, 10)
                os.close(entered.pidfd)


def test_a_cgroup_that_cannot_be_joined(spawner, base, tree):
    missing = f"{tree.directories()[0]}-gone"
    with pytest.raises(HostError, match=f"cannot start true: cgroup {missing}: No such file or directory"):
        spawner.start(SpawnPlan(("true",), cgroup=(missing,)))
    for unified in (one for one in tree.directories() if os.path.exists(f"{one}/cgroup.subtree_control")):
        os.mkdir(f"{unified}/child")
        with open(f"{unified}/cgroup.subtree_control", "w") as file:
            file.write("".join(f"+{controller} " for controller in controllers(unified)))
        with pytest.raises(
            HostError, match=f"cannot start true: fork process: {unified}: Device or resource busy"
        ):
            spawner.start(SpawnPlan(("true",), cgroup=(unified,)))


def test_entering_and_binding_into(spawner, base, tree, netns):
    spawner.make_namespace(netns)
    (base / "late").mkdir()
    (base / "late" / "file").write_text("came late")
    root = plain_root(base, sysfs(), File("/mark", b"inside"))
    with running(spawner, root, netns_path=netns, cgroup=tuple(tree.directories())) as started:
        late = Bind(str(base / "late"), "/layers/late", read_only=True)
        spawner.bind_into(started.pid, [late, Directory("/empty")], pidfd=started.pidfd)
        with pytest.raises(HostError, match=f"cannot mount into process {started.pid}: bind /nope on /x"):
            spawner.bind_into(started.pid, [Bind("/nope", "/x")])

        def fails():
            with pytest.raises(HostError, match="at work"):
                spawner.probe()
            raise KeyError("meanwhile")

        # Both have happened, and the next answer is the next question's.
        with pytest.raises(KeyError, match="meanwhile"):
            spawner.bind_into(started.pid, [Directory("/other")], pidfd=started.pidfd, meanwhile=fails)
        assert os.path.isdir(f"/proc/{started.pid}/root/other")
        with pytest.raises(HostError, match="bind /nope on /x"):
            spawner.bind_into(started.pid, [Bind("/nope", "/x")], meanwhile=lambda: None)
        output = Output()
        script = (
            "cat /mark /layers/late/file; echo; ls /sys/class/net; cat /proc/self/cgroup; "
            "cat <&3; touch /layers/late/x; exit 7"
        )
        document = Output()
        os.write(document.fd, b"document")
        os.close(document.fd)
        entered = spawner.enter(
            EnterPlan(
                started.pid,
                ("sh", "-c", script),
                started.pidfd,
                PATH,
                cgroup=tuple(tree.directories()),
                fds={1: output.fd, 3: document.read_end},
            )
        )
        os.close(document.read_end)
        lines = output.text().splitlines()
        assert ended(entered) == 7
        assert lines[:2] == ["insidecame late", "lo"]
        assert all(line.endswith(f":/{tree.name}") for line in lines[2:-1])
        assert lines[-1] == "document"
        assert not (base / "late" / "x").exists()
        with pytest.raises(CommandNotFoundError):
            spawner.enter(EnterPlan(started.pid, ("/opt/stager/status",)))
    assert not started.identity.alive()
    with pytest.raises(HostError, match="it has ended") as caught:
        spawner.enter(EnterPlan(started.pid, ("sh",)))
    assert caught.value.data["errno"] == errno.ESRCH


def test_taking_away_what_was_bound(spawner, base):
    (base / "tree").mkdir()
    (base / "tree" / "file").write_text("here")
    (base / "one").write_text("a file")
    with running(spawner, plain_root(base, Directory("/kept"))) as started:
        binds = [Bind(str(base / "tree"), "/layers/a", read_only=True), Bind(str(base / "one"), "/layers/b")]
        spawner.bind_into(started.pid, binds, pidfd=started.pidfd)
        # A second time, as after a death between the mount and its record.
        spawner.bind_into(started.pid, binds[:1], pidfd=started.pidfd)
        inside = f"/proc/{started.pid}/root"
        opened = os.open(f"{inside}/layers/a/file", os.O_RDONLY)
        places = ["/layers/a", "/layers/b", "/never/was", "/layers/nor-this"]
        spawner.unbind_from(started.pid, places, pidfd=started.pidfd)
        assert os.listdir(f"{inside}/layers") == []
        with open(f"/proc/{started.pid}/mountinfo") as file:
            assert "/layers/" not in file.read()
        assert os.read(opened, 10) == b"here"  # who has it keeps it
        os.close(opened)
        assert (base / "tree" / "file").read_text() == "here"
        spawner.unbind_from(started.pid, places, pidfd=started.pidfd)
        os.symlink("/layers", f"{inside}/way")
        with pytest.raises(HostError, match=f"cannot unmount from process {started.pid}: unmount /way/a"):
            spawner.unbind_from(started.pid, ["/way/a"])
    with pytest.raises(HostError, match="it has ended"):
        spawner.unbind_from(started.pid, ["/layers/a"])


def test_entering_a_pid_namespace_does_not_move_the_spawner(spawner, base):
    with running(spawner, plain_root(base), namespaces=frozenset({"pid"})) as started:
        output = Output()
        plan = EnterPlan(
            started.pid,
            ("readlink", "/proc/self"),
            environment=PATH,
            fds={1: output.fd},
            namespaces=frozenset({"mount", "pid"}),
        )
        entered = spawner.enter(plan)
        inside = int(output.text())
        assert ended(entered) == 0
        assert inside < 100 < entered.pid
        code, text = run(spawner, "echo $$", plain_root(base))
        assert code == 0
        assert int(text) > 100


def test_its_death_harms_nothing_and_it_comes_again(spawner, base):
    with running(spawner, plain_root(base)) as started:
        os.kill(spawner._pid, signal.SIGKILL)
        os.waitid(os.P_PID, spawner._pid, os.WEXITED | os.WNOWAIT)
        assert started.identity.alive()
        assert run(spawner, "exit 3", plain_root(base))[0] == 3


def test_an_interrupted_request_does_not_answer_the_next(spawner, base):
    spawner.open()
    os.kill(spawner._pid, signal.SIGSTOP)

    def interrupt(*_):
        os.kill(spawner._pid, signal.SIGCONT)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            spawner.bind_into(1, [Bind("/nope", "/x")])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert run(spawner, "exit 3", plain_root(base))[0] == 3


def test_not_the_callers_child(spawner, base):
    started = spawner.start(SpawnPlan(("sh", "-c", "exit 5"), PATH, root=plain_root(base), child_of_caller=False))
    with pytest.raises(ChildProcessError):
        os.waitpid(started.pid, 0)
    assert process.wait_pidfd(started.pidfd, 10)
    os.close(started.pidfd)


DYING = """
import os, signal, sys
from kurma_core.spawner.client import Spawner
from kurma_core.spawn_plan import SpawnPlan
with Spawner() as spawner:
    signal_number = signal.SIGKILL if sys.argv[1] == "kill" else None
    started = spawner.start(SpawnPlan(("/bin/busybox", "sleep", "60"), parent_death_signal=signal_number))
    print(started.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("told", ["kill", "stay"])
def test_when_the_caller_dies(told):
    done = subprocess.run([sys.executable, "-c", DYING, told], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    try:
        pidfd = process.pidfd_open(pid)
    except ProcessLookupError:
        assert told == "kill"
        return
    try:
        assert process.wait_pidfd(pidfd, 5 if told == "kill" else 0.1) == (told == "kill")
        if told == "stay":
            process.pidfd_send_signal(pidfd, signal.SIGKILL)
            assert process.wait_pidfd(pidfd, 5)
    finally:
        os.close(pidfd)
