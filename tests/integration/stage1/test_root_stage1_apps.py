"""Apps under a small stage1 that really runs them, and the same pod file under the default stager."""

import json
import shutil
from pathlib import Path

import pytest

from kurma_core.linux import mounts
from tests.integration.stage1.conftest import BASIC
from tests.kit.images import archive
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SMALL = Path(__file__).parent / "small"
#: What an app sees, told on a volume, a file for each subject.
LOOK = """t() { cat > /data/$AC_APP_NAME.$1; }
echo "$(id -u) $(id -g) $(id -G) $(pwd) $GIVEN $OF_IMAGE $AC_APP_NAME" | t self
env | grep -v -e ^_= -e ^SHLVL= -e ^PWD= -e ^OLDPWD= | sed "s|http://.*|URL|" | sort | t environment
awk '$5 !~ "^/etc/" {print $5}' /proc/self/mountinfo | sort | t mounts
{ cat /fixed/file; touch /fixed/new 2>/dev/null || echo read-only; } | t fixed
hostname | t hostname
grep -e ^Cap -e ^NoNewPrivs -e ^Seccomp: /proc/self/status | t capabilities
cat /proc/1/comm | t first
cat /proc/self/uid_map /proc/self/gid_map | tr -s " " | t map
stat -c "%u %g %a %n" / /bin /bin/busybox /etc/passwd | t owners
ls -A / /dev | t files
exit """


def small_image(stage1s, name, version, entrypoints):
    """The small one as a stage1 image. :returns: the stager's name."""
    root = stage1s.directory / f"{name}-root"
    shutil.copytree(SMALL, root)
    annotations = [{"name": f"coreos.com/rkt/stage1/{entry}", "value": f"/ex/{entry}"} for entry in entrypoints]
    annotations.append({"name": "coreos.com/rkt/stage1/interface-version", "value": str(version)})
    path = archive(
        str(root), str(stage1s.directory / f"{name}.aci"), f"example.com/{name}", annotations=annotations
    )
    stage1s.pin(path)
    return f"rkt:{path}"


@pytest.fixture(scope="module")
def small(stage1s):
    return small_image(stage1s, "small", 2, BASIC)


@pytest.fixture(scope="module")
def own(stage1s, exported):
    """The default stager as a stage1."""
    stage1s.pin(exported)
    return f"rkt:{exported}"


def pod(kurma, data):
    def app(name, code, user, group):
        command = {"exec": ["/bin/sh", "-c", f"{LOOK}{code}"], "user": user, "group": group}
        given = [{"name": "GIVEN", "value": "a=b"}]
        points = [{"name": "data", "path": "/data/"}, {"name": "fixed", "path": "/fixed", "readOnly": True}]
        command |= {"workingDirectory": "/tmp", "environment": given, "mountPoints": points}
        command |= {"supplementaryGIDs": [77]}
        return {"name": name, "image": kurma.image, "app": command}

    return {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [app("one", 5, "alice", "users"), app("two", 0, "0", "0")],
        # Else, the first that fails ends the pod under the exported stager, as under rkt.
        "annotations": [{"name": "kurma.io/lifecycle", "value": "all"}],
        "volumes": [
            {"name": "data", "kind": "host", "source": str(data)},
            {"name": "fixed", "kind": "host", "source": str(data.parent / "fixed"), "readOnly": True},
        ],
    }


def observe(stage1s, stager, name, place, *words):
    """What that pod file gives under a stager: exit code, state, the apps' statuses, and what each app has seen of
    itself, by subject; and the pod, as it is shown."""
    data = place / "data"
    for directory in (data, place / "fixed"):
        directory.mkdir(mode=0o777)
        directory.chmod(0o777)
    (place / "fixed/file").write_text("on the host\n")
    file = place / "pod.json"
    file.write_text(json.dumps(pod(stage1s, data)))
    done = stage1s("run", "--stager", stager, "--hostname", "same", "--name", name, *words, "--pod", str(file))
    assert stager == "default" or done.returncode == 5, done.stderr
    shown = stage1s.show(name)
    apps = {app: (each["exitCode"], each["exited"], each["exitReason"]) for app, each in shown["apps"].items()}
    seen = {each.name: each.read_text() for each in data.iterdir()}
    return {"code": done.returncode, "state": shown["state"], "status": apps, **seen}, shown


@pytest.fixture(scope="module")
def observed(stage1s, small, own, tmp_path_factory):
    """By stager."""
    stagers = {"default": "default", "exported": own, "small": small}
    return {
        name: observe(stage1s, stager, f"same-{name}", tmp_path_factory.mktemp(f"same-{name}"), "--net", "host")[0]
        for name, stager in stagers.items()
    }


@pytest.fixture(scope="module")
def mapped(stage1s, small, own, tmp_path_factory):
    """The same in a user namespace, with who owns on the host what the apps have written; ``FIRST`` stands for the
    first of its ids there."""
    found = {}
    for name, stager in {"default": "default", "exported": own, "small": small}.items():
        place = tmp_path_factory.mktemp(f"mapped-{name}")
        words = ("--net", "none", "--userns", "auto")
        seen, shown = observe(stage1s, stager, f"mapped-{name}", place, *words)
        first = shown["userNamespace"]["first"]
        for app in ("one", "two"):
            status = (place / f"data/{app}.self").stat()
            seen[f"{app}.owner"] = (status.st_uid - first, status.st_gid - first)
        found[name] = {
            # Under a stage1, only apps in the host's network have metadata.
            subject: value.replace(str(first), "FIRST").replace("AC_METADATA_URL=URL\n", "")
            if isinstance(value, str)
            else value
            for subject, value in seen.items()
        }
    return found


#: What the small one has no means for: namespaces, mounts of its own, and what the default stager adds by itself.
WITHOUT_SMALL = (".environment", ".mounts", ".fixed", ".hostname", ".capabilities", ".first", ".files", ".map")


@pytest.mark.full
@pytest.mark.parametrize("stager", ["exported", "small"])
def test_the_same_as_under_the_default_stager(observed, stager):
    """The shared one: a pod file, and what comes of it under the default stager run directly, under it as a
    stage1, and under another stage1."""
    expected = {
        subject: value
        for subject, value in observed["default"].items()
        if stager != "small" or not subject.endswith(WITHOUT_SMALL)
    }
    assert {subject: observed[stager].get(subject) for subject in expected} == expected


@pytest.mark.full
@pytest.mark.parametrize("stager", ["exported", "small"])
def test_the_same_in_a_user_namespace(mapped, stager):
    """Whoever makes it: the ids that the apps see, those that their files have on the host, their ends."""
    expected = {
        subject: value
        for subject, value in mapped["default"].items()
        if stager != "small" or not subject.endswith(WITHOUT_SMALL)
    }
    assert {subject: mapped[stager].get(subject) for subject in expected} == expected


def test_what_that_is_in_a_user_namespace(mapped):
    found = mapped["default"]
    assert (found["code"], found["state"]) == (5, "stopped")
    assert found["one.map"] == found["two.map"] == " 0 FIRST 65536\n" * 2
    assert (found["one.owner"], found["two.owner"]) == ((1000, 100), (0, 0))
    assert found["one.owners"].startswith("0 0 755 /\n0 0 755 /bin\n0 0 ")
    assert found["one.self"] == "1000 100 100 77 /tmp a=b  one\n"


def test_what_that_is(observed):
    """Of the default stager: so that the comparison is not one of nothing with nothing."""
    found = observed["default"]
    assert (found["code"], found["state"]) == (5, "stopped")
    assert found["status"] == {"one": (5, True, "exited"), "two": (0, True, "exited")}
    assert found["one.self"] == "1000 100 100 77 /tmp a=b  one\n"
    assert found["two.self"].startswith("0 0 ")
    assert "GIVEN=a=b\n" in found["one.environment"]
    assert "HOME=/\n" in found["one.environment"]
    assert found["one.fixed"] == "on the host\nread-only\n"
    assert found["one.hostname"] == "same\n"
    assert {"/", "/data", "/fixed", "/proc", "/sys", "/dev", "/dev/shm"} <= set(found["one.mounts"].split())
    assert "CapEff:\t0000000000000000\n" in found["one.capabilities"]
    assert found["one.first"] == "kurma-init\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--exec", "/none"), 127, "/none: not found"),
        (("--exec", "/etc/passwd"), 126, "/etc/passwd: is not executable (mode 0644)"),
        (("--user", "nobody-here"), 125, "no user 'nobody-here' in the image's /etc/passwd"),
        (("--workdir", "/none"), 125, "the working directory /none does not exist"),
    ],
)
def test_why_an_app_does_not_run_is_told_alike(stage1s, own, words, code, why):
    """In one line, by who has seen it: nobody else can say it."""
    for stager, told in (("default", "kurma: "), (own, "stage1: ")):
        done = stage1s("run", "--rm", "--stager", stager, "--net", "host", *words, stage1s.image)
        if code == 125 and stager == "default":
            told += "the pod cannot be started: "
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr == f"{told}app app: {why}\n"


@pytest.mark.parametrize("which", ["small", "own"])
def test_it_is_entered_and_stopped(stage1s, which, request):
    """By the image's own entrypoints, in the app's root; its volume is unmounted with it."""
    stager = request.getfixturevalue(which)
    words = ("--net", "host", "--name", "long", "--exec", "/bin/sleep", stage1s.image, "--", "1000")
    command = stage1s.popen("run", "--stager", stager, *words)
    try:
        until(lambda: "running" in stage1s("list").stdout or command.poll() is not None)
        assert command.poll() is None, command.communicate()
        assert stage1s.out("enter", "long", "--", "/bin/sh", "-c", "ls /data; id -u") == "from-image\n0\n"
        assert stage1s("stop", "long").returncode == 0
        assert command.wait(20) == 143
        assert stage1s("rm", "long").stderr == ""
    finally:
        stage1s("stop", "--force", "long")  # what a stage1 runs outlives a command that is killed
        command.kill()
        command.communicate()


def status_of(pid):
    """Its first uid and its map of them, as the host has them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (uid,) = (line.split()[1] for line in lines if line.startswith("Uid:"))
    return int(uid), Path(f"/proc/{pid}/uid_map").read_text().split()


def test_it_runs_in_a_user_namespace(stage1s, own):
    """Seen from both sides while it does: by enter, by its processes on the host, by the files that it makes."""
    words = ("--net", "none", "--userns", "auto", "--name", "inside", "--exec", "/bin/sh", stage1s.image)
    command = stage1s.popen("run", "--stager", own, *words, "--", "-c", "echo x > /root/new; exec sleep 1000")
    try:
        until(lambda: "running" in stage1s("list").stdout or command.poll() is not None)
        assert command.poll() is None, command.communicate()
        shown = stage1s.show("inside")
        ids = shown["userNamespace"]
        first, count = ids["first"], ids["count"]
        place = stage1s.pods / "run" / shown["uuid"]
        pid = int((place / "pid").read_text())
        assert status_of(pid) == (first, ["0", str(first), str(count)])
        new = place / "stage1/rootfs/opt/stage2/app/rootfs/root/new"
        until(new.exists)
        assert (new.stat().st_uid, new.stat().st_gid) == (first, first)
        look = "cat /proc/self/uid_map; id -u; stat -c %u /root/new; mknod /tmp/null c 1 3 || echo refused"
        said = stage1s.out("enter", "inside", "--", "/bin/sh", "-c", f"{{ {look}; }} 2> /dev/null").split()
        assert said == ["0", str(first), str(count), "0", "0", "refused"]
        assert stage1s("stop", "inside").returncode == 0
        assert command.wait(20) == 143
        until(lambda: not Path(f"/proc/{pid}").exists(), "the end of its first process")
        assert (stage1s("rm", "inside").stderr, place.exists()) == ("", False)
    finally:
        stage1s("stop", "--force", "inside")
        command.kill()
        command.communicate()


@pytest.mark.full
def test_gc_takes_them_all(stage1s, observed, mapped):
    """With their gc entrypoints: no pod, mount or directory is left."""
    ended = stage1s("gc", "--grace-period", "0s")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not list(stage1s.pods.glob("*/*"))
    assert not [each for each in mounts.mountinfo() if each.target.startswith(str(stage1s.pods))]
    assert {f"{kind}-{name}" for kind in ("same", "mapped") for name in observed} & set(
        stage1s.out("list").split()
    ) == set()
