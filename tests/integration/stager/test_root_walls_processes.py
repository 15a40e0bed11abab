"""Who may look into whom: apps of one pod, PID 1, the stager, the host, other pods (H2). Asked from inside."""

import os

import pytest
from kurma_stager_default.inside.app import sandbox

from kurma_core.linux import capabilities
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.staging.aci_stager import StagerImage
from kurma_core.value import replace

pytestmark = pytest.mark.root

PYTHON = ["/opt/stager/bin/python3", "-IuS", "-c"]
CALLS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "setns": 308},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "setns": 268},
}[os.uname().machine]

#: ``probe(pid)``: the names of the ways into a process that are open.
PROBE = f"""
import os
from kurma_core.linux import libc
CALLS = {CALLS!r}
SEIZE, DETACH, NEWNS = 0x4206, 17, 0x20000

def vector(buffer):
    return libc.words(libc.address(buffer), len(buffer))

def map_file(pid):
    os.stat(f"/proc/{{pid}}/map_files/" + os.listdir(f"/proc/{{pid}}/map_files")[0])

def seize(pid):
    libc.syscall(CALLS["ptrace"], SEIZE, pid, 0, 0)
    try:
        libc.syscall(CALLS["ptrace"], DETACH, pid, 0, 0)
    except OSError:
        pass  # it has not stopped; it goes on when we end

def getfd(pid):
    held = os.pidfd_open(pid)
    try:
        os.close(libc.syscall("pidfd_getfd", held, 1, 0))
    finally:
        os.close(held)

def memory(pid):
    with open(f"/proc/{{pid}}/mem", "rb") as file:
        pass

def move(name):
    def call(pid):
        buffer = bytearray(8)
        with open(f"/proc/{{pid}}/maps") as file:
            start = int(file.readline().split("-")[0], 16)
        libc.syscall(CALLS[name], pid, vector(buffer), 1, libc.words(start, 8), 1, 0)
    return call

WAYS = {{
    "root": lambda pid: os.listdir(f"/proc/{{pid}}/root/"),
    "cwd": lambda pid: os.listdir(f"/proc/{{pid}}/cwd/"),
    "fd": lambda pid: os.stat(f"/proc/{{pid}}/fd/1"),
    "exe": lambda pid: os.readlink(f"/proc/{{pid}}/exe"),
    "environ": lambda pid: open(f"/proc/{{pid}}/environ", "rb").read(),
    "maps": lambda pid: open(f"/proc/{{pid}}/maps").read(),
    "map_files": map_file,
    "auxv": lambda pid: open(f"/proc/{{pid}}/auxv", "rb").read(),
    "mem": memory,
    "namespace": lambda pid: os.readlink(f"/proc/{{pid}}/ns/mnt"),
    "ptrace": seize,
    "pidfd_getfd": getfd,
    "process_vm_readv": move("process_vm_readv"),
    "kcmp": lambda pid: libc.syscall(CALLS["kcmp"], os.getpid(), pid, 0, 1, 1),
}}

def probe(pid):
    found = []
    for name, way in WAYS.items():
        try:
            way(pid)
            found.append(name)
        except OSError as error:
            assert error.errno in (1, 13, 2, 3), (name, error)
    return " ".join(found) or "none"

def named(name):
    while True:
        for pid in os.listdir("/proc"):
            if pid.isdigit():
                try:
                    with open(f"/proc/{{pid}}/comm") as file:
                        if file.read().strip() == name:
                            return int(pid)
                except OSError:
                    pass
"""
EVERY_WAY = {
    *("root", "cwd", "fd", "exe", "environ", "maps", "map_files", "auxv", "mem", "namespace"),
    *("ptrace", "pidfd_getfd", "process_vm_readv", "kcmp"),
}

#: A child of one's own, then the other app, then PID 1; and what of the host can be seen.
SPY = (
    PROBE
    + """
pid = os.fork()
if pid == 0:
    os.read(os.pipe()[0], 1)
print("own", probe(pid))
print("other", probe(named("sleep")))
print("first", probe(1))
print("end")
import time; time.sleep(1000)
"""
)


def every(*but):
    """Every capability there is."""
    names = capabilities.names(range(capabilities.last_cap() + 1))
    return tuple(name for name in names if name not in but)


def app(argv, user="0", **fields):
    return {"exec": argv, "user": user, "group": user, **fields}


def answers(text):
    return {key: rest.split() for key, _, rest in (line.partition(" ") for line in text.splitlines())}


@pytest.mark.parametrize(
    ("user", "rights"),
    [
        pytest.param("0", None, marks=pytest.mark.vm),
        ("1000", None),
        ("0", (*capabilities.names(capabilities.DEFAULT_SET), "CAP_SYS_PTRACE")),
        pytest.param("0", every("CAP_SYS_ADMIN", "CAP_PERFMON"), marks=pytest.mark.vm),
    ],
    ids=["root", "plain user", "root that may trace", "root with nearly all"],
)
def test_no_way_into_another_app(pods, stager_tree, busybox_root, user, rights):
    """Same user, same rights, one PID namespace; a command run in an app stands behind the same wall."""
    plans = {name: IsolatorPlan(capabilities=rights) for name in ("victim", "spy")}
    pod = pods(
        {"victim": app(["/bin/sleep", "1000"], user), "spy": app([*PYTHON, SPY], user)},
        roots=[stager_tree.path, busybox_root],
        plans=plans,
    ).started()
    found = answers(pod.wait_log("end", "spy.log"))
    # The probe works: into a child of its own it finds every way (map_files takes a right, or so does reading it).
    assert EVERY_WAY - set(found["own"]) <= {"map_files"}
    assert found["other"] == found["first"] == ["none"]
    script = PROBE + 'print("other", probe(named("sleep"))); print("first", probe(1))'
    code, out, err = pod.run(*PYTHON, script, app="spy")
    assert (code, out) == (0, "other none\nfirst none\n"), err


@pytest.mark.vm
def test_different_apps_without_landlock(pods, busybox_root, stager_without):
    """What is said of a kernel without it is so: the same user's app is reached, another user's is not."""
    stager = stager_without(444)
    spy = PROBE + 'print("other", probe(named("sleep"))); print("first", probe(1)); print("end")'
    roots = [stager.path, busybox_root]
    victim = app(["/bin/sleep", "1000"])
    pod = pods({"victim": victim, "spy": app([*PYTHON, spy])}, roots=roots, stager_image=stager).started()
    found = answers(pod.wait_log("end", "spy.log"))
    assert "root" in found["other"]
    assert found["first"] == ["none"]
    told = "landlock: not on this kernel; apps of the same user and capabilities reach each other through /proc"
    assert told in pod.document()["notes"]
    pod = pods({"victim": victim, "spy": app([*PYTHON, spy], "1000")}, roots=roots, stager_image=stager).started()
    assert answers(pod.wait_log("end", "spy.log"))["other"] == ["none"]
    # Root, but with less than the other has.
    plans = {"spy": IsolatorPlan(capabilities=("CAP_CHOWN",))}
    pod = pods({"victim": victim, "spy": app([*PYTHON, spy])}, roots=roots, stager_image=stager, plans=plans)
    assert answers(pod.started().wait_log("end", "spy.log"))["other"] == ["none"]


def test_what_profiling_lets_through_is_told(pods, stager_tree, busybox_root):
    """CAP_PERFMON reads environments past every wall, on kernels that have it so: that is said, and is all."""
    plans = {"spy": IsolatorPlan(capabilities=(*capabilities.names(capabilities.DEFAULT_SET), "CAP_PERFMON"))}
    roots = [stager_tree.path, busybox_root]
    pod = pods(
        {"victim": app(["/bin/sleep", "1000"]), "spy": app([*PYTHON, SPY])}, roots=roots, plans=plans
    ).started()
    found = answers(pod.wait_log("end", "spy.log"))
    assert set(found["other"]) <= {"environ", "maps", "auxv", "none"}
    assert any(note.startswith("app spy: CAP_PERFMON lets it read") for note in pod.document()["notes"])


@pytest.fixture
def stager_without(stager_tree):
    """``stager_without(number)``: the stager, as on a kernel that does not have that system call."""

    def make(number):
        load, equal, leave = 0x20, 0x15, 0x06
        program = b"".join(
            [
                sandbox.instruction(load, 0),
                sandbox.instruction(equal, number, 0, 1),
                sandbox.instruction(leave, 0x00050000 | 38),
                sandbox.instruction(leave, 0x7FFF0000),
            ]
        )
        manifest = stager_tree.manifest
        argv = manifest.app.exec
        start = (
            "import os\n"
            "from kurma_core.linux import libc\n"
            f"code = bytearray.fromhex({program.hex()!r})\n"
            "libc.syscall('seccomp', 1, 0, libc.words(len(code) // 8, libc.address(code)))\n"
            f"os.execv({argv[0]!r}, {list(argv)!r})\n"
        )
        changed = replace(manifest, app=replace(manifest.app, exec=(argv[0], "-IS", "-c", start)))
        return StagerImage(stager_tree.id, stager_tree.path, changed)

    return make


def test_all_rights_find_an_empty_house(pods, stager_tree, busybox_root):
    """With every capability: PID 1 has nothing to give, in its root, its namespaces, its descriptors."""
    script = (
        PROBE
        + """
print("root", os.listdir("/proc/1/root/"))
print("fds", sorted(os.readlink(f"/proc/1/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/1/fd")))
comms = sorted(open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit())
print("comms", comms)
held = os.pidfd_open(1)
os.mkdir("/seen")
for name, flag in (("cgroup", 0x2000000), ("net", 0x40000000), ("mount", 0x20000)):
    libc.syscall(CALLS["setns"], held, flag)
    if name == "cgroup":
        libc.syscall("mount", b"own", b"/seen", b"cgroup2", 0, None)
        print("cgroups", sorted(each for each in os.listdir("/seen") if "." not in each))
print("mounts", os.listdir("/"), os.path.exists("/proc"))
print("end")
import time; time.sleep(1000)
"""
    )
    pod = pods(
        {"main": app([*PYTHON, script])},
        roots=[stager_tree.path, busybox_root],
        plans={"main": IsolatorPlan(capabilities=every())},
    ).started()
    seen = dict(line.partition(" ")[::2] for line in pod.wait_log("end").splitlines())
    assert seen["root"] == "[]"
    assert seen["fds"] == "['pipe']"
    assert seen["comms"] == "['kurma-init', 'python3']"
    # Below the pod's own cgroup (the stager's, where controllers are on), and nothing beside or above.
    assert set(seen["cgroups"].strip("[]").replace("'", "").split(", ")) <= {"", "app-main", "stager"}
    assert seen["mounts"] == "[] False"
    (note,) = [note for note in pod.document()["notes"] if note.startswith("app main: ")]
    assert "CAP_SYS_PTRACE" in note


def test_no_process_of_the_host_is_seen_or_signalled(pods, stager_tree, busybox_root):
    """Neither the stager nor this test, by whatever number, with every capability."""
    script = (
        PROBE
        + """
import sys
for pid in map(int, sys.argv[1:]):
    for name, way in (
        ("kill", lambda: os.kill(pid, 0)),
        ("pidfd", lambda: os.pidfd_open(pid)),
        ("proc", lambda: os.listdir(f"/proc/{pid}")),
    ):
        try:
            way()
            print(name, pid)
        except OSError as error:
            print(error.errno)
"""
    )
    pod = pods(
        {"main": app(["/bin/sleep", "1000"])},
        roots=[stager_tree.path, busybox_root],
        plans={"main": IsolatorPlan(capabilities=every())},
    ).started()
    strangers = [pod.process.pid, os.getpid(), pod.app()["pid"]]
    assert min(strangers) > 50, "too low a number could be one of the pod's own"
    code, out, err = pod.run(*PYTHON, script, *[str(pid) for pid in strangers])
    assert (code, out) == (0, "3\n3\n2\n" * 3), err


# --- what is shared --------------------------------------------------------------------------------------------

NAMESPACES = "for one in pid net ipc uts mnt cgroup user; do readlink /proc/self/ns/$one; done"
SHARED = ("pid", "net", "ipc", "uts")


def namespaces(pid):
    return {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in (*SHARED, "mnt", "cgroup", "user")}


def test_what_apps_share_and_what_not(pods):
    """H2: PID, network, IPC and UTS namespaces are the pod's, the mount namespace is the app's; no other pod's."""
    script = f"{NAMESPACES}; echo end; sleep 1000"
    shell = app(["/bin/sh", "-c", script])
    one, two = [pods({"a": shell, "b": shell}).started() for _ in range(2)]
    seen = {}
    for pod in (one, two):
        for name in "ab":
            *inside, _ = pod.wait_log("end", f"{name}.log").split()
            seen[pod, name] = outside = namespaces(pod.app(name)["pid"])
            # As the app itself sees it, so does the host.
            assert inside == list(outside.values())
            # A command run in the app is in all of them.
            code, out, _ = pod.run("/bin/sh", "-c", NAMESPACES, app=name)
            found = dict(zip(outside, out.split(), strict=True))
            assert code == 0
            assert {**found, "cgroup": ""} == {**outside, "cgroup": ""}
    for name in SHARED:
        assert seen[one, "a"][name] == seen[one, "b"][name]
    here = namespaces("self")
    for name in ("pid", "ipc", "uts", "mnt", "cgroup"):
        own = {seen[pod, app][name] for pod in (one, two) for app in "ab"}
        assert len(own) == (2 if name in SHARED else 4)
        assert here[name] not in own


def test_shared_memory_and_queues_are_the_pods(pods):
    """Apps of a pod meet in /dev/shm and in queues, under the pod's name; another pod sees none of it."""
    maker = app(
        ["/bin/sh", "-c", "echo x > /dev/shm/mark; touch /dev/mqueue/mark; hostname changed; echo up; sleep 1000"]
    )
    look = ["/bin/sh", "-c", "ls /dev/shm /dev/mqueue; hostname; ls -d /proc/[0-9]* | wc -l"]
    pod = pods({"maker": maker, "other": app(["/bin/sleep", "1000"])}).started()
    stranger = pods({"main": app(["/bin/sleep", "1000"])}).started()
    pod.wait_log("up", "maker.log")
    code, out, _ = pod.run(*look, app="other")
    assert code == 0
    assert out.split()[:5] == ["/dev/mqueue:", "mark", "/dev/shm:", "mark", "test-host"]
    code, out, _ = stranger.run(*look)
    assert out.split()[:4] == ["/dev/mqueue:", "/dev/shm:", "test-host", out.split()[3]]
    # PID 1, sleep, the shell, ls, wc
    assert int(out.split()[3]) <= 5
