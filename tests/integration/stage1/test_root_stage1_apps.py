"""Apps under a small stage1 that really runs them, and the same pod file under the default stager."""

import json
import shutil
from pathlib import Path

import pytest

from kurma_core.linux import mounts
from tests.integration.pods.support import archive, until
from tests.integration.stage1.conftest import BASIC

pytestmark = pytest.mark.root

SMALL = Path(__file__).parent / "small"
#: What an app sees, told on a volume, a file for each subject.
LOOK = """t() { cat > /data/$AC_APP_NAME.$1; }
echo "$(id -u) $(id -g) $(id -G) $(pwd) $GIVEN $OF_IMAGE $AC_APP_NAME" | t self
env | grep -v -e ^_= -e ^SHLVL= -e ^PWD= -e ^OLDPWD= | sed "s|http://.*|URL|" | sort | t environment
awk '{print $5}' /proc/self/mountinfo | sort | t mounts
{ cat /fixed/file; touch /fixed/new 2>/dev/null || echo read-only; } | t fixed
hostname | t hostname
grep -e ^Cap -e ^NoNewPrivs -e ^Seccomp: /proc/self/status | t capabilities
cat /proc/1/comm | t first
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
        points = [{"name": "data", "path": "/data"}, {"name": "fixed", "path": "/fixed", "readOnly": True}]
        command |= {"workingDirectory": "/tmp", "environment": given, "mountPoints": points}
        command |= {"supplementaryGIDs": [77]}
        return {"name": name, "image": kurma.image, "app": command}

    return {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [app("one", 5, "alice", "users"), app("two", 0, "0", "0")],
        "volumes": [
            {"name": "data", "kind": "host", "source": str(data)},
            {"name": "fixed", "kind": "host", "source": str(data.parent / "fixed"), "readOnly": True},
        ],
    }


@pytest.fixture(scope="module")
def observed(stage1s, small, own, tmp_path_factory):
    """What the same pod file gives under each stager: exit code, state, the apps' statuses, and what each app has
    seen of itself, by subject."""
    found = {}
    for name, stager in {"default": "default", "exported": own, "small": small}.items():
        place = tmp_path_factory.mktemp(f"same-{name}")
        data = place / "data"
        for directory in (data, place / "fixed"):
            directory.mkdir(mode=0o777)
            directory.chmod(0o777)
        (place / "fixed/file").write_text("on the host\n")
        file = place / "pod.json"
        file.write_text(json.dumps(pod(stage1s, data)))
        words = ("--net", "host", "--hostname", "same", "--name", f"same-{name}", "--pod", str(file))
        done = stage1s("run", "--stager", stager, *words)
        shown = stage1s.show(f"same-{name}")
        apps = {app: (each["exitCode"], each["exited"], each["exitReason"]) for app, each in shown["apps"].items()}
        seen = {each.name: each.read_text() for each in data.iterdir()}
        assert name == "default" or done.returncode == 5, done.stderr
        found[name] = {"code": done.returncode, "state": shown["state"], "status": apps, **seen}
    return found


#: What the small one has no means for: namespaces, mounts of its own, and what the default stager adds by itself.
WITHOUT_SMALL = (".environment", ".mounts", ".fixed", ".hostname", ".capabilities", ".first", ".files")


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


def test_gc_takes_them_all(stage1s, observed):
    """With their gc entrypoints: no pod, mount or directory is left."""
    ended = stage1s("gc", "--grace-period", "0s")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not list(stage1s.pods.glob("*/*"))
    assert not [each for each in mounts.mountinfo() if each.target.startswith(str(stage1s.pods))]
    assert {f"same-{name}" for name in observed} & set(stage1s.out("list").split()) == set()
