"""The foreign stager of ``examples/stager_shell``, through the same engine (G8)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import StagerError
from kurma_core.models.pod import MountSetup
from kurma_core.staging.stager_process import StagerImage
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

EXAMPLE = Path(__file__).parents[3] / "examples" / "stager_shell"


@pytest.fixture(scope="module")
def shell_stager(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell-stager")
    subprocess.run([EXAMPLE / "build", path], check=True)
    manifest = ImageManifest.parse(json.loads((EXAMPLE / "manifest.json").read_text()))
    return StagerImage("sha512-" + "1" * 128, str(path), manifest)


@pytest.fixture
def shell_pods(pods, shell_stager):
    return lambda apps, **arguments: pods(apps, stager_image=shell_stager, **arguments)


def status(pod):
    return {
        name: (app.exit_code, app.reason) for name, app in pod.stager.status(pod.directory, pod.process).items()
    }


def test_two_apps(shell_pods, busybox_root, tmp_path):
    """Layers, environment, user, directory, words with every kind of quote; codes while it runs."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "mark").write_text("top\n")
    script = 'cat /mark; echo "$A"; id -u; pwd; echo "it\'s\tü"; exit 42'
    fields = {
        "user": "1000",
        "group": "100",
        "workingDirectory": "/home/alice",
        "environment": [{"name": "A", "value": "two\nlines 'quoted' \"twice\" $HOME \\n"}],
    }
    pod = shell_pods(
        {"long": shell("touch /written; exec sleep 1000"), "short": shell(script, **fields)},
        roots=[str(layer), busybox_root],
    ).started()
    wait_until(lambda: status(pod)["short"] == (42, "exited"), pod)
    assert status(pod)["long"] == (None, None)
    code, out, _ = pod.call("logs", "short")
    assert (code, out) == (0, "top\ntwo\nlines 'quoted' \"twice\" $HOME \\n\n1000\n/home/alice\nit's\tü\n")
    assert pod.call("logs", "nobody")[0] == 2
    assert not (layer / "written").exists()


def wait_until(condition, pod):
    until(condition, pod.output)


def test_it_ends_with_its_apps(shell_pods):
    pod = shell_pods({"one": shell("exit 3"), "two": shell("exit 0")})
    assert pod.ended() == 0, pod.output()


def test_stop(shell_pods):
    pod = shell_pods(
        {"main": shell("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.1; done")}
    ).started()
    wait_until(lambda: "up" in pod.call("logs", "main")[1], pod)
    assert pod.stop() == 0


def test_run(shell_pods):
    pod = shell_pods({"main": shell("touch /mark; exec sleep 1000")}).started()
    wait_until(lambda: pod.run("grep", "-q", "sleep", "/proc/1/comm")[0] == 0, pod)
    code, out, err = pod.run(
        "sh", "-c", "cat; ls /mark; cat /proc/1/comm; id -u; exit 9", stdin=b"in\n", user="5", group="6"
    )
    assert (code, out, err) == (9, "in\n/mark\nsleep\n5\n", "")
    assert pod.run("pwd", workingDirectory="/etc")[1] == "/etc\n"
    assert pod.run("id", "-u", user="alice", group="users")[1] == "1000\n"
    assert pod.run("true", tty=True)[0] == 125
    assert pod.run("true", supplementaryGIDs=[7])[0] == 125
    assert pod.run("true", user="nobody")[0] == 125
    assert pod.run("true", app="nobody")[0] == 2


def test_volumes_in_order(shell_pods, tmp_path):
    """One within the other, one of them read-only for this app alone; an empty one is filled from the image."""
    for name in ("outer", "inner", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "inner" / "host").write_text("from the host\n")
    pod = shell_pods(
        {
            "main": shell(
                "cat /v/in/host; touch /v/written; touch /v/in/refused; cat /etc/passwd | head -n 1; touch /etc/x"
            )
        },
        volumes={name: str(tmp_path / name) for name in ("outer", "inner", "empty")},
        mounts={
            "main": [
                MountSetup("outer", "/v", False, False),
                MountSetup("inner", "/v/in", True, False),
                MountSetup("empty", "/etc", False, True),
            ]
        },
    )
    assert pod.ended() == 0, pod.output()
    assert "from the host\n" in pod.output()
    assert "root:x:0:0" in pod.output()
    assert "Read-only file system" in pod.output()
    assert sorted(os.listdir(tmp_path / "outer")) == ["in", "written"]
    assert os.listdir(tmp_path / "inner") == ["host"]
    assert {"passwd", "x"} <= set(os.listdir(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("app", "mount", "said"),
    [
        ({"user": "nobody-knows"}, "/v", "passwd of its image has no 'nobody-knows'"),
        ({"supplementaryGIDs": [7]}, "/v", "knows no supplementary groups"),
        ({}, "/out/v", "/out/v is, or lies behind, a link"),
    ],
)
def test_what_it_cannot_do_fails_the_start(shell_pods, busybox_root, tmp_path, app, mount, said):
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "out").symlink_to("/")
    (tmp_path / "volume").mkdir()
    pod = shell_pods(
        {"main": shell("true", **app)},
        roots=[str(layer), busybox_root],
        volumes={"v": str(tmp_path / "volume")},
        mounts={"main": [MountSetup("v", mount, False, False)]},
    )
    with pytest.raises(StagerError, match=said):
        pod.started()


@pytest.mark.full
def test_a_post_stop_that_hangs_is_ended(shell_pods):
    """With all that it has started, also where whoever ends it has no time for that between two of them."""
    script = "(while :; do sleep 0.01; done) & echo after; exec sleep 1000"
    events = [{"name": "post-stop", "exec": ["/bin/sh", "-c", script]}]
    pod = shell_pods({"main": shell("exit 3", eventHandlers=events)})
    assert pod.ended(30) == 0, pod.output()
    assert "after" in pod.output()
