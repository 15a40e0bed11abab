"""The fork server (``kurma.io/stager/forks``): forked stagers are like executed ones; it ends with its owner."""

import json
import os
import signal
import subprocess
import sys

import pytest

from kurma_core.errors import HostError
from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from kurma_core.spawn_plan import Bind, RootPlan, SpawnPlan
from kurma_core.spawner.client import Spawner
from kurma_core.staging.stager_process import begin, keep_fork_server
from kurma_core.staging.stager_root import waiting_root
from kurma_core.value import replace
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

#: Keeps a fork server, says which, and stays.
_OWNER = """
import json, sys, time
from kurma_core.appc.image import ImageManifest
from kurma_core.spawner.client import Spawner
from kurma_core.staging.stager_process import StagerImage, keep_fork_server
image = StagerImage("sha512-" + "0" * 128, sys.argv[1], ImageManifest.parse(json.loads(sys.argv[2])))
spawner = Spawner()
keep_fork_server(spawner, "default", image)
print(spawner.fork_server.pid, flush=True)
time.sleep(1000)
"""
#: Lines of ``/proc/PID/status`` that tell what a process may do, and how it treats signals.
_SAME = ("Umask", "Uid", "Gid", "Groups", "Seccomp", "NoNewPrivs")


def started(stager, setup, forks):
    """Starts the pod's stager. :param forks: by the fork server."""
    if forks:
        keep_fork_server(stager.spawner, "default", stager._image())
    null = os.open("/dev/null", os.O_RDWR)
    try:
        return stager.start(setup, Stdio(null, null, null))
    finally:
        os.close(null)


def server_of(pod):
    server = pod.stager.spawner.fork_server
    return None if server is None else server.pid


def look(pid):
    """The properties of a running stager that /proc shows to other processes."""
    with open(f"/proc/{pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file.read().splitlines())
    status = {name: value.split() for name, value in lines.items() if name.startswith(("Cap", "Sig", *_SAME))}
    del status["SigQ"]
    with open(f"/proc/{pid}/limits") as file:
        status["limits"] = file.read()
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    status["parent"], leader = int(fields[1]), int(fields[3])
    status["leads its session"] = leader == pid
    status["program"] = os.stat(f"/proc/{pid}/exe").st_ino
    status["directory"] = os.readlink(f"/proc/{pid}/cwd")
    kinds = ("mnt", "net", "pid_for_children", "ipc", "uts", "user", "cgroup", "pid")
    status["namespaces"] = [os.path.samefile(f"/proc/{pid}/ns/{kind}", f"/proc/self/ns/{kind}") for kind in kinds]
    status["root"] = sorted(os.listdir(f"/proc/{pid}/root"))
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    status["descriptors"] = sorted(os.path.basename(link.partition(":")[0]) for link in links)
    return status


def test_a_forked_stager_is_like_one_that_is_executed(pods):
    found = []
    for forks in (False, True):
        pod = pods({"main": shell("echo here; exec sleep 1000")}, begin=lambda *of, how=forks: started(*of, how))
        pod.started()
        pod.wait_log("here")
        pid = pod.process.pid
        assert (server_of(pod) is not None) == forks
        with open(f"/proc/{pid}/cgroup") as file:
            own = {line.rstrip("\n").partition(":")[2] for line in file if pod.setup.cgroup in line}
        assert own
        assert pid in CgroupTree(pod.setup.cgroup).pids()
        found.append(look(pid))
        assert pod.run("cat", "/etc/hostname")[0] == 0
        assert pod.stop() == 0
    assert found[0]["parent"] == os.getpid()
    assert found[0] == found[1]


def test_the_fork_server_keeps_nothing_of_a_pod(pods):
    """After a fork it has no descriptor, cgroup or namespace of the pod, and nothing of it in its memory."""
    environment = [("SECRET", "of-this-pod")]
    pod = pods(
        {"main": shell("exec sleep 1000")}, environment=environment, begin=lambda *of: started(*of, True)
    ).started()
    server = server_of(pod)
    assert sorted(os.listdir(f"/proc/{server}/fd")) == ["0", "1", "2", "6"]
    with open(f"/proc/{server}/cgroup") as file, open("/proc/self/cgroup") as ours:
        assert file.read() == ours.read()
    for kind in ("net", "pid", "ipc", "uts"):
        assert os.path.samefile(f"/proc/{server}/ns/{kind}", f"/proc/self/ns/{kind}")
    assert not os.path.samefile(f"/proc/{server}/ns/mnt", f"/proc/{pod.process.pid}/ns/mnt")
    with open(f"/proc/{server}/maps") as maps, open(f"/proc/{server}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            first, last = (int(one, 16) for one in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(first)
                content = memory.read(last - first)
                assert pod.setup.uuid.encode() not in content
                assert b"of-this-pod" not in content
    assert pod.stop() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)])
def test_without_its_fork_server_a_stager_is_executed(pods, how):
    """It is dead, or hangs: the pod starts all the same, and the fork server is gone."""
    gone = []

    def begun(stager, setup):
        keep_fork_server(stager.spawner, "default", stager._image())
        gone.append(stager.spawner.fork_server.pid)
        os.kill(gone[0], how)
        null = os.open("/dev/null", os.O_RDWR)
        try:
            return stager.start(setup, Stdio(null, null, null))
        finally:
            os.close(null)

    pod = pods({"main": shell("exec sleep 1000")}, begin=begun).started()
    assert server_of(pod) is None
    assert not alive(gone[0])
    assert pod.stop() == 0


#: Programs in the place of a fork server, which answer wrongly. Each gets the request's socket for the answer.
_WRONG = """
import array, os, socket, sys, time
requests = socket.socket(fileno=6)
while True:
    text, fds, _, _ = socket.recv_fds(requests, 4096, 250)
    if not text:
        sys.exit()
    answer = socket.socket(fileno=fds[0])
    {}
    answer.close()
    for fd in fds[1:]:
        os.close(fd)
"""
_ANSWERS = {
    "nonsense": "answer.send(b'nonsense')",
    "nothing": "",
    "ready, but no process": "answer.send(b'ready')",
    "a process without its number": "pid = os.fork() or time.sleep(1000); fd = os.pidfd_open(pid); "
    "socket.send_fds(answer, [b'pid of it'], [fd]); os.close(fd)",
    "a process that ends": "pid = os.fork() or os._exit(0); fd = os.pidfd_open(pid); "
    "socket.send_fds(answer, [b'pid %d' % pid], [fd]); os.close(fd)",
    "a process that hangs": "pid = os.fork() or time.sleep(1000); fd = os.pidfd_open(pid); "
    "socket.send_fds(answer, [b'pid %d' % pid], [fd]); os.close(fd)",
}


class Begun:
    """Starts stagers without pods. ``with`` removes their cgroup."""

    def __init__(self, spawner, image, directory):
        self.spawner, self.image, self.directory = spawner, image, directory
        self.tree = CgroupTree(f"kurma-test/forks-{os.getpid()}")

    def __enter__(self):
        self.tree.create()
        return self

    def __exit__(self, *of):
        self.tree.remove()

    def begin(self):
        """Starts a stager, which ends since there is no pod."""
        root = waiting_root(self.image.path)
        output = f"{self.directory}/output"
        begun = begin(
            self.spawner,
            "default",
            self.image,
            root=root,
            network_namespace=None,
            cgroup=self.tree.name,
            output=output,
        )
        os.close(begun.ready)
        process.wait_pidfd(begun.process.pidfd)
        process.exit_status(begun.process.pidfd)
        os.close(begun.process.pidfd)

    def descriptors(self):
        """Those of the spawner: the standard streams and the socket of its owner, between two requests."""
        return os.listdir(f"/proc/{self.spawner._pid}/fd")


@pytest.fixture
def begun(stager_tree, tmp_path):
    with Spawner() as spawner, Begun(spawner, stager_tree, tmp_path) as found:
        yield found


def test_the_spawner_keeps_no_descriptor_of_a_forked_stager(begun):
    keep_fork_server(begun.spawner, "default", begun.image)
    server = begun.spawner.fork_server.pid
    for _ in range(5):
        begun.begin()
    # It answers before it closes what came with the request.
    until(lambda: len(begun.descriptors()) == 4, lambda: str(begun.descriptors()))
    assert begun.spawner.fork_server.pid == server


def test_a_spawner_that_dies_is_started_again_beside_its_fork_server(begun):
    keep_fork_server(begun.spawner, "default", begun.image)
    server, first = begun.spawner.fork_server.pid, begun.spawner._pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first), "its end")
    begun.begin()
    assert begun.spawner._pid != first
    assert begun.spawner.fork_server.pid == server


def test_a_cgroup_that_was_killed_before(begun):
    """The kernel kills a process that is cloned into it: the stager moves there, and the fork server goes on."""
    keep_fork_server(begun.spawner, "default", begun.image)
    server = begun.spawner.fork_server.pid
    begun.tree.kill()
    begun.begin()
    assert begun.spawner.fork_server.pid == server


@pytest.mark.parametrize(
    "answer",
    [pytest.param(name, marks=pytest.mark.full) if "hangs" in name else name for name in _ANSWERS],
)
def test_a_fork_server_that_answers_wrongly_is_ended(begun, answer):
    """The stager is executed, no process is left, and after three times it is not started again."""
    plan = SpawnPlan(argv=(sys.executable, "-c", _WRONG.format(_ANSWERS[answer])))
    for _ in range(3):
        begun.spawner.keep_fork_server(begun.image.id, plan)
        server = begun.spawner.fork_server.pid
        begun.begin()
        assert begun.spawner.fork_server is None
        assert not alive(server)
    until(lambda: len(begun.descriptors()) == 4, lambda: str(begun.descriptors()))
    begun.spawner.keep_fork_server(begun.image.id, plan)
    assert begun.spawner.fork_server is None
    begun.spawner.keep_fork_server("another", plan)
    assert alive(begun.spawner.fork_server.pid)


def test_a_root_that_cannot_be_made(stager_tree, tmp_path):
    """The error is the usual one, and the fork server goes on."""
    tree = CgroupTree(f"kurma-test/forks-{os.getpid()}")
    tree.create()
    try:
        with Spawner() as spawner:
            keep_fork_server(spawner, "default", stager_tree)
            server = spawner.fork_server.pid
            whole = waiting_root(stager_tree.path)
            missing = Bind("/nope", "/volumes/a")
            with pytest.raises(HostError, match="bind /nope on /volumes/a: No such file"):
                begin(
                    spawner,
                    "default",
                    stager_tree,
                    root=RootPlan((*whole.operations, missing)),
                    network_namespace=None,
                    cgroup=tree.name,
                    output=f"{tmp_path}/output",
                )
            assert spawner.fork_server.pid == server
            assert alive(server)
        assert not alive(server)
    finally:
        tree.remove()


def test_it_is_of_one_image(stager_tree):
    """A new image of the stager gets a new fork server, and the old one ends."""
    with Spawner() as spawner:
        keep_fork_server(spawner, "default", stager_tree)
        first = spawner.fork_server.pid
        keep_fork_server(spawner, "default", stager_tree)
        assert spawner.fork_server.pid == first
        keep_fork_server(spawner, "default", replace(stager_tree, id="sha512-" + "1" * 128))
        assert spawner.fork_server.pid != first
        assert not alive(first)


def test_it_ends_when_its_owner_is_killed(stager_tree):
    manifest = json.dumps(stager_tree.manifest.to_json())
    argv = [sys.executable, "-c", _OWNER, stager_tree.path, manifest]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        try:
            server = int(owner.stdout.readline())
            assert alive(server)
        finally:
            owner.kill()
    until(lambda: not alive(server), "its end")
