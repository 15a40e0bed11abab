"""The default stager as a stage1 image, driven by nothing but what the implementor's guide says (Z9)."""

import contextlib
import json
import os
import pty
import select
import signal
import stat as stat_module
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.integration import entering
from tests.integration.stage1.laid_out import BareHost
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root
#: Bytes that the kernel takes at least before somebody reads.
PIPE = 65536


def shell(name, script, **more):
    of_app = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0", **more}
    return {"name": name, "app": of_app}


@pytest.fixture(scope="module")
def host(tmp_path_factory, exported):
    host = BareHost(tmp_path_factory.mktemp("bare"), exported)
    yield host
    host.clear()


@contextlib.contextmanager
def running(pod, *words, **how):
    """The ``run`` entrypoint, until its pod runs; killed at the end, if it is still there."""
    process = pod.begin("run", *words, pod.uuid, **how)
    try:
        until(lambda: pod.pid() or process.poll() is not None, "the pod's pid file")
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def cgroups(pod):
    walk = os.walk("/sys/fs/cgroup")  # others' come and go meanwhile
    return [directory for directory, _, _ in walk if directory.endswith(f"/rkt-{pod.uuid}")]


def processes(pod):
    """All that are in the pod's cgroups, of the machine's numbers."""
    found = set()
    for directory in cgroups(pod):
        for file in Path(directory).rglob("cgroup.procs"):
            found.update(map(int, file.read_text().split()))
    return found


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stat(pid):
    return dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )


def test_the_manifest(host):
    annotations = {each["name"]: each["value"] for each in host.manifest["annotations"]}
    assert annotations == {
        "coreos.com/rkt/stage1/run": "/stage1/run",
        "coreos.com/rkt/stage1/enter": "/stage1/enter",
        "coreos.com/rkt/stage1/gc": "/stage1/gc",
        "coreos.com/rkt/stage1/stop": "/stage1/stop",
        "coreos.com/rkt/stage1/interface-version": "6",
    }
    pod = host.pod(shell("web", "true"))
    image = host.image / "rootfs"
    assert not (image / "opt/stage2").exists()
    # A real stage0 does not make these, whatever the guide says.
    assert sorted(each.name for each in (image / "rkt").iterdir()) == ["env", "status"]
    assert pod.rootfs.is_dir()


@pytest.mark.full
def test_over_an_overlay(host):
    """rkt's default: the image's tree below, and an app's own in it."""
    before = host.mounts
    pod = host.pod(
        shell("web", "echo changed > /tmp/file; cat /data/from-image; sleep 1000"),
        shell("db", "touch /tmp/of-db; exec sleep 1000"),
        overlaid=True,
    )
    with running(pod, "--net=host", "--local-config=/etc/rkt") as process:
        assert process.stdout.readline() == b"seed\n"
        assert os.readlink(pod.rootfs / "rkt/supervisor-status") == "ready"
        enter = ("enter", f"--pid={pod.pid()}", "--appname=web", "--")
        assert pod.call(*enter, "/bin/sh", "-c", "cat /tmp/file; ls /tmp") == (0, "changed\nfile\n", "")
        assert pod.call("stop", pod.uuid)[0] == 0
        assert process.wait(30) == 143
    assert pod.statuses == {"web": 143, "db": 143}
    upper = pod.place / "overlay/tree-web/upper/web"
    assert (upper / "tmp/file").read_text() == "changed\n"
    assert pod.call("gc", "--debug", "--local-config", "/etc/rkt", pod.uuid)[0] == 0
    assert not cgroups(pod)
    pod.unmount()
    assert host.mounts == before


def test_one_app_that_fails_ends_the_pod(host):
    """As under rkt; one that succeeds does not. The code is that of the one that has failed first."""
    waiting = "trap 'echo asked; exit 4' TERM; echo up; while :; do sleep 0.05; done"
    pod = host.pod(shell("one", waiting), shell("two", "read x < /tmp/go; exit 3"), shell("three", "true"))
    os.mkfifo(pod.rootfs / "opt/stage2/two/rootfs/tmp/go")
    with running(pod, "--net=host") as process:
        line = process.stdout.readline()
        assert line == b"up\n", (pod.statuses, process.communicate())
        until(lambda: pod.statuses.get("three") == 0)
        assert process.poll() is None
        (pod.rootfs / "opt/stage2/two/rootfs/tmp/go").write_text("\n")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (3, b"asked\n", b"")
    assert pod.statuses == {"one": 4, "two": 3, "three": 0}
    pod = host.pod(shell("one", "exec sleep 1000"), {"name": "two", "app": {"exec": ["/none"], "user": "0"}})
    code, _, err = pod.run("--net=host")
    assert (code, err.startswith("stage1: app two: /none")) == (127, True), err


def test_there_is_no_python_there(host):
    """The bare host is as bare as it says."""
    pod = host.pod(shell("web", "true"))
    code, out, _ = pod.call("gc", pod.uuid)
    assert (code, out) == (0, "")
    found = subprocess.run(
        ["/bin/sh", "-c", "ls / /usr /bin/python3 /work 2>&1; command -v python3 kurma"],
        preexec_fn=host.enter,
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert "ls: /usr: No such file" in found.stdout
    assert "ls: /bin/python3: No such file" in found.stdout
    assert found.returncode == 127


@pytest.mark.vm
def test_its_life(host):
    """pid and ppid, the lock, the walls, enter, stop, the exit code, gc; and what is left: nothing."""
    before = host.mounts
    trap = "trap 'echo bye; exit 9' TERM; while :; do sleep 0.05; done"
    pod = host.pod(shell("web", trap, user="1000", group="100"), shell("db", "exec sleep 1000"))
    with running(pod, "--net=host") as process:
        first, parent = pod.pid(), pod.pid("ppid")
        assert children(parent) == [first]
        assert stat(first)["NSpid"].split()[-1] == "1"
        assert stat(first)["Name"] == "kurma-init"
        assert pod.held()
        assert host.mounts == before
        assert pod.statuses == {}
        enter = ("enter", f"--pid={first}", "--appname=web", "--")
        seen = "id -u; id -g; ls /; cat /proc/1/comm; echo $AC_APP_NAME; hostname; exit 4"
        code, out, err = pod.call(*enter, "/bin/sh", "-c", seen)
        names = ["bin", "data", "dev", "etc", "proc", "root", "sys", "tmp"]
        expected = ["1000", "100", *names, "kurma-init", "web", f"rkt-{pod.uuid}"]
        assert (code, out.split(), err) == (4, expected, "")
        assert pod.call(*enter, "/bin/none")[0] == 127
        assert pod.call(*enter, "/bin/sh", "-c", "exit 4", closed=(0,))[0] == 4
        code, _, err = pod.call("enter", f"--pid={first}", "--appname=none", "--", "/bin/true")
        assert code == 2
        assert "no app 'none'" in err
        code, _, err = pod.call("enter", "--pid=1", "--appname=web", "--", "/bin/true")
        assert (code, err) == (125, f"stage1: --pid=1: the pod's first process is {first}\n")
        code, _, err = pod.call("gc", pod.uuid)
        assert (code, err) == (125, f"stage1: the pod runs: process {process.pid}\n")
        ours = processes(pod)
        assert len(ours) >= 2
        assert pod.call("stop", pod.uuid) == (0, "", "")
        out, _ = process.communicate(timeout=30)
        # The first of those that are not 0, in the manifest's order.
        assert (process.returncode, out) == (9, b"bye\n")
    assert pod.statuses == {"web": 9, "db": 143}
    assert not pod.held()
    until(lambda: not [pid for pid in (*ours, first, parent) if alive(pid)], "the end of all")
    assert pod.call("stop", pod.uuid)[0] == 0
    assert pod.call("enter", f"--pid={first}", "--appname=web", "--", "/bin/true")[0] == 125
    assert cgroups(pod)
    assert pod.call("gc", pod.uuid) == (0, "", "")
    assert pod.call("gc", "--debug", pod.uuid)[0] == 0
    assert not cgroups(pod)
    assert host.mounts == before


@pytest.mark.full
@pytest.mark.parametrize("how", ["force", "kill", "first", "parent"])
def test_its_end_by_force(host, how):
    """Also of the entrypoint alone, or of PID 1 or its parent: with any, all that is the pod's goes."""
    pod = host.pod(shell("web", "trap '' TERM; sleep 1000 & wait; sleep 1000"))
    with running(pod, "--net=none") as process:
        ours = {pod.pid(), pod.pid("ppid"), *processes(pod)}
        if how == "force":
            assert pod.call("stop", "--force", pod.uuid) == (0, "", "")
        elif how == "kill":
            process.kill()
        else:
            os.kill(pod.pid() if how == "first" else pod.pid("ppid"), signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        if how in ("force", "kill"):
            assert process.returncode == -signal.SIGKILL
        elif (how, process.returncode) != ("first", 137):  # the app's end, which is the first that is known of it
            assert (process.returncode, err) == (125, b"stage1: the pod's PID 1 has ended\n")
        until(lambda: not [pid for pid in ours if alive(pid)])
    assert pod.statuses in ({}, {"web": 137})
    assert not pod.held()
    assert pod.call("gc", pod.uuid) == (0, "", "")
    assert not cgroups(pod)


@pytest.mark.full
def test_killed_while_it_starts(host):
    """At any moment: gc leaves nothing."""
    for delay in (0.02, 0.05, 0.08, 0.12):
        pod = host.pod(shell("web", "exec sleep 1000"))
        process = pod.begin("run", "--net=host", pod.uuid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.communicate(timeout=30)
        until(lambda pod=pod: not processes(pod))
        assert not pod.held()
        assert pod.call("gc", pod.uuid) == (0, "", "")
        assert not cgroups(pod)


LOOK = """echo "$(id -u) $(id -g) $(pwd) $A|$B|$C|$D"
cat /etc/resolv.conf; cat /etc/hosts; hostname; cat /etc/hostname
cat /fixed/file; touch /fixed/new || echo read-only; echo written > /data/file; ls -ld /empty; touch /nowhere
ls /sys/class/net; cat /proc/self/limits > /dev/null && echo end"""


def test_what_an_app_has(host):
    (host.root / "srv/data").mkdir()
    (host.root / "srv/fixed").mkdir()
    (host.root / "srv/fixed/file").write_text("from the host\n")
    points = [{"name": name, "path": f"/{name}"} for name in ("data", "fixed", "empty")]
    given = [{"name": "A", "value": "of\nB=two lines"}, {"name": "C", "value": "of the manifest"}]
    app = shell("web", LOOK, user="alice", group="users", environment=given, mountPoints=points)
    app["app"]["workingDirectory"] = "/tmp"
    volumes = [
        {"name": "data", "kind": "host", "source": "/srv/data"},
        {"name": "fixed", "kind": "host", "source": "/srv/fixed", "readOnly": True},
        {"name": "empty", "kind": "empty", "mode": "0750", "uid": 1000, "gid": 7},
    ]
    os.chmod(host.root / "srv/data", 0o777)
    pod = host.pod({**app, "readOnlyRootFS": True}, volumes=volumes)
    (pod.rootfs / "rkt/env/web").write_text("A=of\nB=two lines\nC=of stage0\nD=d=e\n")
    (pod.rootfs / "etc/rkt-resolv.conf").write_text("# comment\nnameserver 192.0.2.1\nsearch example.com\n")
    (pod.rootfs / "etc/rkt-hosts").write_text("127.0.0.1 localhost\n192.0.2.7 other more\n")
    code, out, err = pod.run("--net=none", "--hostname=named")
    lines = out.splitlines()
    assert lines[:2] == ["1000 100 /tmp of", "B=two lines||of stage0|d=e"]
    assert lines[2:5] == ["# comment", "nameserver 192.0.2.1", "search example.com"]
    assert lines[5:8] == ["127.0.0.1 localhost", "192.0.2.7 other more", "127.0.0.1 named"]
    assert lines[8:12] == ["named", "named", "from the host", "read-only"]
    assert lines[12].split()[:4:3] == ["drwxr-x---", "7"]
    assert lines[13:] == ["lo", "end"]
    assert code == 0
    assert "/nowhere: Read-only file system" in err
    assert (host.root / "srv/data/file").read_text() == "written\n"
    assert not (host.root / "srv/fixed/new").exists()


MODES = [
    ([], "nameserver 192.0.2.1", "192.0.2.7 other\n127.0.0.1 named"),
    (["--dns-conf-mode=resolv=stage0,hosts=stage0"], "nameserver 192.0.2.1", "192.0.2.7 other\n127.0.0.1 named"),
    (["--dns-conf-mode=resolv=none,hosts=default"], "the image's", "192.0.2.7 other\n127.0.0.1 named"),
    (["--dns-conf-mode=resolv=host,hosts=host"], "the host's", "the host's"),
]


@pytest.mark.full
@pytest.mark.parametrize(("words", "resolv", "hosts"), MODES)
def test_whose_names(host, words, resolv, hosts):
    """What stage0 has written wins over the image's own files, though one is a link that leads nowhere."""
    (host.root / "etc").mkdir(exist_ok=True)
    for name in ("resolv.conf", "hosts"):
        (host.root / "etc" / name).write_text("the host's\n")
    pod = host.pod(shell("web", "cat /etc/resolv.conf; cat /etc/hosts"))
    of_image = pod.rootfs / "opt/stage2/web/rootfs/etc"
    (of_image / "resolv.conf").symlink_to("/run/resolv.conf")
    (pod.rootfs / "opt/stage2/web/rootfs/run").mkdir()
    (pod.rootfs / "opt/stage2/web/rootfs/run/resolv.conf").write_text("the image's\n")
    (of_image / "hosts").write_text("the image's\n")
    (pod.rootfs / "etc/rkt-resolv.conf").write_text("nameserver 192.0.2.1\n")
    (pod.rootfs / "etc/rkt-hosts").write_text("192.0.2.7 other\n")
    assert pod.run("--net=none", "--hostname=named", *words) == (0, f"{resolv}\n{hosts}\n", "")
    pod = host.pod(shell("web", "cat /etc/hosts"))
    (pod.rootfs / "opt/stage2/web/rootfs/etc/hosts").write_text("the image's\n")
    own = f"the image's\n127.0.0.1\trkt-{pod.uuid}\n"  # its own file, and the pod's name
    expected = "the host's\n" if "host," in str(words) else own
    assert pod.run("--net=none", *words) == (0, expected, "")


def test_mount_points_without_volumes(host):
    """Each begins empty, or as the image has it, where that was one of Docker's; and goes with the pod."""
    points = [{"name": "v", "path": "/data"}, {"name": "fixed", "path": "/fixed", "readOnly": True}]
    look = "ls /data; ls -ldn /data; echo mine > /data/file && touch /fixed/x || echo read-only"
    pod = host.pod(shell("web", look, mountPoints=points), shell("db", "ls /data", mountPoints=points[:1]))
    manifest = pod.rootfs / "opt/stage2/db/manifest"
    notes = [{"name": "appc.io/docker/repository", "value": "library/db"}]
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "annotations": notes}))
    code, out, err = pod.run("--net=host")
    lines = out.splitlines()
    (listed,) = [line for line in lines if line.startswith("drwxr-xr-x")]
    assert (code, sorted(lines)) == (0, sorted([listed, "from-image", "read-only"]))
    assert listed.split()[2:4] == ["0", "0"]
    said = [line for line in err.splitlines() if line.startswith("stage1: ")]
    assert said == [
        f"stage1: app {app}: no volume {name} for {path}: an empty one is made, that goes with the pod"
        for app, name, path in (("web", "v", "/data"), ("web", "fixed", "/fixed"), ("db", "v", "/data"))
    ]
    assert not (pod.rootfs / "opt/stage2/web/rootfs/data/file").exists()


@pytest.mark.vm
def test_a_device_as_a_volume(host):
    """It works where it is mounted, as its volume says; an app that has no such volume cannot open it."""
    number = os.makedev(1, 11)  # the kernel's log: nothing is written to it here
    os.mknod(host.root / "srv/kmsg", 0o600 | stat_module.S_IFCHR, number)
    isolators = [isolator("os/linux/capabilities-retain-set", {"set": ["CAP_SYSLOG", "CAP_MKNOD"]})]
    look = ": < {0} && echo reads; : > {0} && echo writes; mknod /tmp/own c 1 11; : > /tmp/own && echo escaped"
    volumes = [
        {"name": "rw", "kind": "host", "source": "/srv/kmsg"},
        {"name": "ro", "kind": "host", "source": "/srv/kmsg", "readOnly": True},
    ]
    apps = []
    for name, path in (("rw", "/dev/log-of-kernel"), ("ro", "/ro"), ("none", "/none")):
        app = shell(name, f"( {look.format(path)}; true ) > /tmp/said 2>/tmp/errors; true", isolators=isolators)
        mounts = [{"volume": name, "path": path}] if name != "none" else []
        apps.append({**app, "mounts": mounts})
    pod = host.pod(*apps, volumes=volumes)
    assert pod.run("--net=host") == (0, "", "")
    said = {app["name"]: pod.rootfs / f"opt/stage2/{app['name']}/rootfs/tmp" for app in apps}
    assert {name: (place / "said").read_text() for name, place in said.items()} == {
        "rw": "reads\nwrites\n",
        "ro": "reads\n",
        "none": "",
    }
    assert "/ro: Operation not permitted" in (said["ro"] / "errors").read_text()


@pytest.mark.vm
def test_what_stage0_switches_off(host):
    """--disable-…, and --ipc=parent; beside a pod of which nothing is."""
    look = "grep -e CapBnd -e Seccomp: /proc/self/status; grep -c ' /proc/s' /proc/self/mountinfo"
    look += "; readlink /proc/self/ns/ipc; ls /dev/shm"
    isolators = [
        isolator("os/linux/capabilities-retain-set", {"set": ["CAP_KILL"]}),
        isolator("os/linux/seccomp-retain-set", {"set": ["@appc.io/empty"]}),
    ]
    shown = [f"file-of-{os.getpid()}"]
    shared = Path("/dev/shm") / shown[0]
    off = [f"--disable-{name}" for name in ("capabilities-restriction", "paths", "seccomp")]
    shared.touch()
    try:
        code, out, _ = host.pod(shell("web", look, isolators=isolators)).run(*off, "--ipc=parent")
        lines = out.splitlines()
        bounding = Path("/proc/self/status").read_text().partition("CapBnd:\t")[2].split()[0]
        assert (code, lines[:3]) == (0, [f"CapBnd:\t{bounding}", "Seccomp:\t0", "0"])
        assert lines[3] == os.readlink("/proc/self/ns/ipc")
        assert shown[0] in lines[4:]
        code, out, _ = host.pod(shell("web", look, isolators=isolators[:1])).run("--ipc=auto")
    finally:
        shared.unlink()
    lines = out.splitlines()
    assert (code, lines[:2]) == (0, ["CapBnd:\t0000000000000020", "Seccomp:\t2"])
    assert int(lines[2]) > 0
    assert lines[3] != os.readlink("/proc/self/ns/ipc")
    assert lines[4:] == []


@pytest.mark.full
@pytest.mark.parametrize(("point", "mount"), [("/in/", "/in"), ("/in", "/./in"), ("//in/.", None)])
def test_a_place_that_is_written_otherwise(host, point, mount):
    """By the image's author, and by who mounts something there: the same place, as read-only as he says."""
    (host.root / "srv/volume").mkdir(exist_ok=True)
    app = shell("app", "touch /in/x || grep -c ' /in ' /proc/self/mountinfo")
    app["app"]["mountPoints"] = [{"name": "v", "path": point, "readOnly": True}]
    app["mounts"] = [{"volume": "v", "path": mount}] if mount else []
    pod = host.pod(app, volumes=[{"name": "v", "kind": "host", "source": "/srv/volume"}])
    assert pod.run("--net=host") == (0, "1\n", "touch: /in/x: Read-only file system\n")
    assert pod.call("gc", pod.uuid) == (0, "", "")


def test_no_path_is_asked_in_an_apps_root(host, tmp_path):
    """H2: of main, of handlers and of what is entered, none that the app can influence while there are rights."""
    handlers = [
        {"name": "pre-start", "exec": ["/bin/echo", "before"]},
        {"name": "post-stop", "exec": ["/bin/echo", "after"]},
    ]
    pod = host.pod(shell("web", "trap 'exit 9' TERM; while :; do sleep 0.05; done", eventHandlers=handlers))
    with entering.traced(tmp_path) as found, running(pod, "--net=host") as process:
        enter = ("enter", f"--pid={pod.pid()}", "--appname=web", "--", "/bin/echo", "entered")
        assert pod.call(*enter)[:2] == (0, "entered\n")
        assert pod.call("stop", pod.uuid)[0] == 0
        process.wait(20)
    # The tests' own way into the bare host leads to an entrypoint.
    windows = [window for _, window in found() if "/stage1/" not in window.program]
    entering.check(windows, ["before", "trap", "entered", "after"])


def test_what_a_command_has_that_is_entered(host, tmp_path):
    """Nothing that its caller has open: from a directory of the host's, the host could be read."""
    (tmp_path / "of-the-host").touch()
    pod = host.pod(shell("app", "exec sleep 1000"))
    theirs = os.open(tmp_path, os.O_RDONLY)
    with running(pod, "--net=host"):
        try:
            os.set_inheritable(theirs, True)
            look = f"ls /proc/self/fd/{theirs}/; ls -l /proc/self/fd"
            words = (f"--pid={pod.pid()}", "--appname=app", "--", "/bin/sh", "-c", f"{{ {look}; }} 2>&1")
            code, out, _ = pod.call("enter", *words)
        finally:
            os.close(theirs)
        assert f"ls: /proc/self/fd/{theirs}/: No such file" in out, (code, out)
        assert "of-the-host" not in out
        numbers = {line.split(" -> ")[0].split()[-1] for line in out.splitlines() if " -> " in line}
        assert numbers == {"0", "1", "2"}, out
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    assert pod.call("gc", pod.uuid) == (0, "", "")


def test_handlers_and_what_an_app_writes(host):
    """H4; and the app's root is the one that stage0 has laid out: others look there."""
    handlers = [
        {"name": "pre-start", "exec": ["/bin/sh", "-c", "echo before > /tmp/before"]},
        {"name": "post-stop", "exec": ["/bin/sh", "-c", "echo after > /tmp/after"]},
    ]
    image = {"exec": ["/bin/sh", "-c", "cat /tmp/before; kill -9 $$"], "user": "0", "group": "0"}
    pod = host.pod({"name": "web", "image": {**image, "eventHandlers": handlers}})
    code, out, err = pod.run("--debug")
    assert (code, out) == (137, "before\n")
    assert "stage1: landlock: " in err or "stage1: devices: " in err
    assert pod.statuses == {"web": 137}
    tmp = pod.rootfs / "opt/stage2/web/rootfs/tmp"
    assert sorted(each.name for each in tmp.iterdir()) == ["after", "before"]


def test_a_status_that_cannot_be_written(host):
    """It ends no pod, and no other app."""
    pod = host.pod(shell("one", "exit 0"), shell("two", "sleep 0.3; echo two; exit 4"))
    (pod.rootfs / "rkt/status/one").mkdir()
    assert pod.run() == (4, "two\n", "")
    assert (pod.rootfs / "rkt/status/two").read_text() == "4\n"


def isolator(name, value):
    return {"name": name, "value": value}


@pytest.mark.vm
def test_isolators(host):
    look = "grep -e CapBnd -e NoNewPrivs /proc/self/status; cat /proc/self/oom_score_adj; sleep 1000"
    isolators = [
        isolator("os/linux/capabilities-retain-set", {"set": ["CAP_KILL"]}),
        isolator("os/linux/no-new-privileges", True),
        isolator("os/linux/oom-score-adj", 123),
        isolator("resource/memory", {"limit": "64Mi"}),
        isolator("resource/cpu", {"limit": "500m"}),
        isolator("resource/unheard-of", {"limit": "1"}),
    ]
    pod = host.pod(shell("web", look, isolators=isolators))
    with running(pod, "--net=host") as process:
        said = [process.stdout.readline() for _ in range(3)]
        assert said == [b"CapBnd:\t0000000000000020\n", b"NoNewPrivs:\t1\n", b"123\n"]
        files = {"memory.limit_in_bytes": "67108864", "memory.max": "67108864"}
        files |= {"cpu.cfs_quota_us": "50000", "cpu.max": "50000 100000"}
        found = {}
        for directory in cgroups(pod):
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    found[file] = Path(directory, "app-web", file).read_text().strip()
        assert len(found) == 2
        assert found == {file: files[file] for file in found}
        pod.call("stop", pod.uuid)
        _, err = process.communicate(timeout=30)
        assert err == b"stage1: app web: isolator resource/unheard-of is not known to this stage1, and ignored\n"
    assert pod.call("gc", pod.uuid)[0] == 0


def test_user_namespace(host):
    """--private-users: stage0 has shifted the files' owners; the pod's namespaces are the user namespace's."""
    first, count = 200_000, 65536
    look = "id -u; cat /proc/self/uid_map; echo x > /root/file; ls -ln /root/file; sleep 1000"
    pod = host.pod(shell("web", look))
    root = pod.rootfs / "opt/stage2/web/rootfs"
    for directory, names, files in os.walk(root):
        for name in (".", *names, *files):
            os.chown(os.path.join(directory, name), first, first, follow_symlinks=False)
    with running(pod, f"--private-users={first}:{count}", "--net=none") as process:
        lines = [process.stdout.readline().split() for _ in range(3)]
        assert lines[:2] == [[b"0"], [b"0", str(first).encode(), str(count).encode()]]
        assert lines[2][2:4] == [b"0", b"0"]
        status = (root / "root/file").stat()
        assert (status.st_uid, status.st_gid) == (first, first)
        assert stat(pod.pid())["Uid"].split()[0] == str(first)
        assert children(pod.pid("ppid")) == [pod.pid()]
        enter = ("enter", f"--pid={pod.pid()}", "--appname=web", "--")
        assert pod.call(*enter, "/bin/sh", "-c", "ping -c 1 127.0.0.1 > /dev/null && id -u") == (0, "0\n", "")
        assert pod.call("stop", "--force", pod.uuid)[0] == 0
    assert pod.call("gc", pod.uuid)[0] == 0


def test_input(host):
    """--interactive, from a pipe."""
    pod = host.pod(shell("web", "cat; echo end"))
    process = pod.begin("run", "--interactive", "--net=host", pod.uuid, stdin=subprocess.PIPE)
    out, _ = process.communicate(b"typed\n", timeout=30)
    assert (process.returncode, out) == (0, b"typed\nend\n")
    pod = host.pod(shell("web", "cat; echo end"))
    process = pod.begin("run", "--net=host", pod.uuid, stdin=subprocess.PIPE)
    out, _ = process.communicate(b"typed\n", timeout=30)
    assert (process.returncode, out) == (0, b"end\n")


def entered(pod, script):
    """By ``enter``, at a terminal of 44 rows: the exit code, and what stands there."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (44, 55))
    words = (f"--pid={pod.pid()}", "--appname=web", "--", "/bin/sh", "-c", script)
    process = pod.begin("enter", *words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    code = process.wait(30)
    os.set_blocking(master, False)
    said = os.read(master, 4096).split(b"\r\n")
    os.close(master)
    os.close(slave)
    return code, said[:-1]


def heard(master, text):
    """What a terminal shows, until it has shown ``text``."""
    said = b""
    while text not in said:
        assert select.select([master], [], [], 30)[0], said
        said += os.read(master, 1024)
    return said


def test_terminal(host):
    """--interactive, from a terminal: the app has one of its own, and the caller's is as it was afterwards."""
    pod = host.pod(shell("web", "stty size; tty; read x; echo got $x; exit 6"))
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 77))
    before = termios.tcgetattr(slave)

    process = pod.begin(
        "run",
        "--interactive",
        "--net=host",
        pod.uuid,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    try:
        assert b"33 77\r\n" in heard(master, b"/dev/")
        until(lambda: termios.tcgetattr(slave)[3] & termios.ICANON == 0, "the caller's terminal to be raw")
        assert entered(pod, "tty; stty size; exit 5") == (5, [b"/dev/pts/1", b"44 55"])
        os.write(master, b"this\r")
        heard(master, b"got this")
        assert process.wait(30) == 6
        assert not pod.held()
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def stands_still(pod):
    """Whether all of the pod's processes that write anything have written some, and no more for a moment."""

    def written():
        found = {}
        for pid in processes(pod):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/io").read_text()
                found[pid] = int(text.partition("wchar: ")[2].split()[0])
        return found

    before = written()
    time.sleep(0.3)
    return before == written() and any(count > PIPE for count in before.values())


@pytest.mark.full
def test_much_output(host):
    """At its reader's pace, to the last byte; and a reader who has gone harms no app."""
    size = 3_000_000
    pod = host.pod(shell("web", f"head -c {size} /dev/zero; echo end >&2; exit 3"))
    process = pod.begin("run", "--net=host", pod.uuid)
    until(pod.pid)
    until(lambda: pod.statuses or stands_still(pod), "the app to be held up by us")
    assert pod.statuses == {}
    out, err = process.communicate(timeout=60)
    assert (process.returncode, len(out), err) == (3, size, b"end\n")
    pod = host.pod(shell("web", f"head -c {size} /dev/zero; exit 3"))
    process = pod.begin("run", "--net=host", pod.uuid)
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=60)
    assert process.returncode == 3


def mounted(*points):
    return [{"name": name, "path": f"/{name}"} for name in points]


@pytest.mark.parametrize(
    ("words", "apps", "said"),
    [
        (["--net=default"], [shell("a", "")], 'network "default" needs the CNI plugin "ptp", which is in none of'),
        (["--net"], [shell("a", "")], 'network "default" needs the CNI plugin "ptp"'),
        (["--net=back"], [shell("a", "")], "there is no network back: configured in /etc/rkt/net.d and built in "),
        (["--mutable"], [shell("a", "")], "unknown argument '--mutable'"),
        (["--private-users=1"], [shell("a", "")], "expected SHIFT:COUNT"),
        (["--interactive"], [shell("a", ""), shell("b", "")], "only in a pod of one app"),
        (
            [],
            [{**shell("a", ""), "mounts": [{"volume": "v", "path": "/v"}]}],
            "app a: there is no volume v for its mount at /v",
        ),
        (
            [],
            [shell("a", "", isolators=[isolator("os/linux/seccomp-remove-set", {"set": []})])],
            "cannot keep to it",
        ),
        ([], [shell("a", "", isolators=[isolator("resource/memory", {"limit": "many"})])], "not understood"),
        ([], [], "no apps"),
    ],
)
def test_what_it_cannot_do_is_told_in_a_line(host, words, apps, said):
    pod = host.pod(*apps)
    code, out, err = pod.run(*words)
    assert (code, out) == (125, "")
    assert err.startswith("stage1: ")
    assert err.count("\n") == 1
    assert said in err
    assert not cgroups(pod)
    assert pod.pid() == 0


@pytest.mark.full
def test_what_is_wrong_on_the_way(host):
    """A start that fails when much of it is done; a caller that is not stage0."""
    pod = host.pod(
        shell("a", "", mountPoints=mounted("v")), volumes=[{"name": "v", "kind": "host", "source": "/no"}]
    )
    assert pod.run() == (125, "", "stage1: volume v: /no: no such file or directory\n")
    assert not cgroups(pod)
    for wrong in ("{", "[]", '{"apps": [{"name": "../a"}]}', '{"apps": [{"name": "a", "app": {"exec": 5}}]}'):
        pod = host.pod(shell("a", ""))
        (pod.place / "pod").write_text(wrong)
        code, _, err = pod.run()
        assert (code, err.count("\n")) == (125, 1), err
        assert err.startswith("stage1: ")
        assert not cgroups(pod)
    pod = host.pod(shell("a", "exit 8"))
    (pod.rootfs / "opt/stage2/a/manifest").unlink()  # the pod says it all
    assert pod.run()[0] == 8
    pod = host.pod(shell("a", "", user="nobody-here"))
    code, _, err = pod.run("--net=host")
    assert (code, pod.pid()) == (125, 0)
    assert err == "stage1: app a: no user 'nobody-here' in the image's /etc/passwd\n"
    assert pod.call("gc", pod.uuid) == (0, "", "")
    pod = host.pod(shell("a", ""))
    os.close(pod.take_lock())
    code, _, err = pod.call("run", pod.uuid, env={"RKT_LOCK_FD": "0"})
    assert (code, err.count("\n")) == (125, 1)
    assert "RKT_LOCK_FD=0: not of the pod's directory" in err
