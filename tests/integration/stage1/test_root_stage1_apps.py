"""Apps under a small stage1 that really runs them, and the same pod file under the default stager."""

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.pods.support import archive, until

pytestmark = pytest.mark.root

SMALL = Path(__file__).parent / "small"
#: What an app sees, told on a volume.
LOOK = 'echo "$(id -u) $(id -g) $(pwd) $GIVEN $OF_IMAGE $AC_APP_NAME" > /data/$AC_APP_NAME; exit '


@pytest.fixture(scope="module")
def small(stage1s):
    root = stage1s.directory / "small-root"
    shutil.copytree(SMALL, root)
    names = ("run", "enter", "stop", "gc")
    annotations = [{"name": f"coreos.com/rkt/stage1/{name}", "value": f"/ex/{name}"} for name in names]
    annotations.append({"name": "coreos.com/rkt/stage1/interface-version", "value": "2"})
    path = archive(str(root), str(stage1s.directory / "small.aci"), "example.com/small", annotations=annotations)
    stage1s.pin(path)
    return f"rkt:{path}"


def pod(kurma, data):
    def app(name, code, user, group):
        command = {"exec": ["/bin/sh", "-c", f"{LOOK}{code}"], "user": user, "group": group}
        given = [{"name": "GIVEN", "value": "a=b"}]
        point = {"name": "data", "path": "/data"}
        command |= {"workingDirectory": "/tmp", "environment": given, "mountPoints": [point]}
        return {"name": name, "image": kurma.image, "app": command}

    return {
        "acKind": "PodManifest",
        "acVersion": "0.8.11",
        "apps": [app("one", 5, "alice", "users"), app("two", 0, "0", "0")],
        "volumes": [{"name": "data", "kind": "host", "source": str(data)}],
    }


def test_the_same_as_under_the_default_stager(stage1s, small, tmp_path):
    found = {}
    for stager in ("default", small):
        data = tmp_path / stager[:3]
        data.mkdir(mode=0o777)
        data.chmod(0o777)
        file = tmp_path / f"{stager[:3]}.json"
        file.write_text(json.dumps(pod(stage1s, data)))
        name = f"same-{stager[:3]}"
        done = stage1s("run", "--stager", stager, "--net", "host", "--name", name, "--pod", str(file))
        shown = stage1s.show(name)
        apps = {app: (each["exitCode"], each["exited"], each["exitReason"]) for app, each in shown["apps"].items()}
        written = {each.name: each.read_text() for each in data.iterdir()}
        found[stager] = (done.returncode, shown["state"], apps, written)
    assert found["default"] == found[small]
    code, state, apps, written = found[small]
    assert (code, state) == (5, "stopped")
    assert apps == {"one": (5, True, "exited"), "two": (0, True, "exited")}
    assert written == {"one": "1000 100 /tmp a=b  one\n", "two": "0 0 /tmp a=b  two\n"}


def test_it_is_entered_and_stopped(stage1s, small):
    """By the small one's own entrypoints, in the app's root; its volume is unmounted with it."""
    words = ("--net", "host", "--name", "long", "--exec", "/bin/sleep", stage1s.image, "--", "1000")
    command = stage1s.popen("run", "--stager", small, *words)
    try:
        until(lambda: "running" in stage1s("list").stdout or command.poll() is not None)
        assert command.poll() is None, command.communicate()
        assert stage1s.out("enter", "long", "--", "/bin/sh", "-c", "ls /data; id -u") == "from-image\n0\n"
        assert stage1s("stop", "long").returncode == 0
        assert command.wait(20) == 143
        assert stage1s("rm", "long").stderr == ""
    finally:
        command.kill()
        command.communicate()
