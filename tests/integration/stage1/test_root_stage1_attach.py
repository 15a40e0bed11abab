"""Attaching to apps under stage1 images, by the crossing entrypoint (Z6, G9)."""

import json
import os
import pty
import subprocess

import pytest

from tests.integration.stage1.test_root_stage1_mutable import APP_VERBS, LONG, SCRIPTS, empty_file, foreground
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root

ENTRYPOINTS = ("run", "enter", "gc", "attach")
#: Says something, and what it is told; the app ends meanwhile if that is "end".
ATTACH = """read word; echo "told: $word"; echo aside >&2
case $word in end) echo 7 > stage1/rootfs/rkt/status/app;; fail) exit 254;; esac
"""


def pod_file(kurma, name, **annotations):
    listed = [{"name": f"kurma.io/{key}", "value": value} for key, value in annotations.items()]
    app = {"name": "app", "image": kurma.image, "annotations": listed}
    file = kurma.directory / f"{name}.json"
    file.write_text(json.dumps({"acKind": "PodManifest", "acVersion": "0.8.11", "apps": [app]}))
    return str(file)


def streams(kurma, uuid):
    """What the app's annotations say to stage1."""
    (app,) = json.loads((kurma.pods / "run" / uuid / "pod").read_text())["apps"]
    prefix = "coreos.com/rkt/stage2/"
    return {
        each["name"].removeprefix(prefix): each["value"]
        for each in app.get("annotations", [])
        if each["name"].startswith(prefix)
    }


def of_all(mode):
    return dict.fromkeys(("stdin", "stdout", "stderr"), mode)


def run_streams(stage1s, stage1):
    """The words that run an app whose streams can be attached to."""
    file = pod_file(stage1s, "streams", stdin="true")
    return "run", "--stager", stage1.stager, "--net", "none", "--pod", file


def test_attached(stage1s):
    """With the caller's descriptors; its exit code, or the app's that has ended well meanwhile."""
    stage1 = stage1s.stage1(5, LONG, ENTRYPOINTS, scripts={"attach": ATTACH})
    words = run_streams(stage1s, stage1)
    with foreground(stage1s, *words, "--name", "streams") as pod:
        assert streams(stage1s, pod["uuid"]) == of_all("stream")
        done = stage1s("attach", "streams", input="hello\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "told: hello\n", "aside\n")
        (call,) = stage1.calls("attach")
        assert call.words == ["--action=auto-attach", "--app=app"]
        place = f"{stage1s.pods}/run/{pod['uuid']}"
        assert call.cwd.strip() == place
        assert {key: call.environment[key] for key in call.environment if key != "PATH"} == {
            "RKT_STAGE1_ENTERCMD": f"{place}/stage1/rootfs/ex/enter",
            "RKT_STAGE1_ENTERPID": (stage1s.pods / "run" / pod["uuid"] / "pid").read_text().strip(),
        }
        assert stage1s("attach", "streams", input="fail\n").returncode == 254
        assert stage1s("attach", "--no-stdin", "streams", input="x\n").returncode == 0
        of_output = ["--tty-in=false", "--tty-out=false", "--stdin=false", "--stdout=true", "--stderr=true"]
        assert stage1.calls("attach")[-1].words == ["--action=custom-attach", "--app=app", *of_output]
        done = stage1s("attach", "--detach-keys", "ctrl-a", "streams", input="x\n")
        assert "it cannot be told of --detach-keys" in done.stderr
        assert stage1s("attach", "streams", input="end\n").returncode == 7
        assert len(stage1.calls("attach")) == 4


@pytest.mark.full
def test_a_terminal(stage1s):
    """Of one's own, for an app that is to have one; what attaches may leave the caller's as it likes."""
    raw = "stty raw -echo 2>/dev/null; stty -a > $out/settings 2>/dev/null; exit 0\n"
    stage1 = stage1s.stage1(5, LONG, ENTRYPOINTS, scripts={"attach": raw})
    words = ("run", "--stager", stage1.stager, "--net", "none", "--pod", pod_file(stage1s, "tty", terminal="true"))
    with foreground(stage1s, *words, "--name", "tty") as pod:
        assert streams(stage1s, pod["uuid"]) == of_all("tty")
        assert stage1s("attach", "--no-stdin", "tty").returncode == 0
        assert stage1.calls("attach")[-1].words[2:4] == ["--tty-in=false", "--tty-out=true"]
        ours, theirs = pty.openpty()
        before = subprocess.check_output(["stty", "-g"], stdin=theirs)
        done = subprocess.run(
            [*KURMA, "attach", "tty"], env=stage1s.environment, stdin=theirs, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert "-icanon" in stage1.calls("attach")[-1].settings
        assert subprocess.check_output(["stty", "-g"], stdin=theirs) == before
        os.close(ours)
        os.close(theirs)


@pytest.mark.full
def test_none_to_attach_to(stage1s):
    """One whose standard input is its pod's own, and one of an image that has no such entrypoint."""
    stage1 = stage1s.stage1(5, LONG, ENTRYPOINTS)
    reader, writer = os.pipe()
    words = ("run", "-i", "--stager", stage1.stager, "--net", "none", stage1s.image, "--name", "own")
    with foreground(stage1s, *words, stdin=reader) as pod:
        assert "--interactive" in stage1.call("run").words
        assert streams(stage1s, pod["uuid"]) == of_all("interactive")
        assert "no other command can attach to it" in stage1s("attach", "own").stderr
    os.close(reader)
    os.close(writer)
    stage1 = stage1s.stage1(4, LONG, ("run", "enter"))
    words = run_streams(stage1s, stage1)
    with foreground(stage1s, *words, "--name", "bare") as pod:
        assert streams(stage1s, pod["uuid"]) == {}
        done = stage1s("attach", "bare")
        assert done.returncode == 125
        assert "has no entrypoint attach" in done.stderr


@pytest.mark.full
def test_by_way_of_kurmad(stage1s):
    """An app in the background has a standard input for who attaches; apps come, and go; and come again."""
    scripts = {"attach": ATTACH, **SCRIPTS}
    stage1 = stage1s.stage1(5, LONG, (*ENTRYPOINTS, *APP_VERBS), scripts=scripts)
    words = ("--stager", stage1.stager, "--net", "none", "--name")
    with open(stage1s.directory / "kurmad.log", "ab") as stream:
        daemon = subprocess.Popen([*KURMA, "daemon", "run"], env=stage1s.environment, stderr=stream)
    try:
        until(lambda: (stage1s.directory / "state/run/kurmad.sock").exists())
        stage1s.out("run", "-d", "-i", *words, "behind", stage1s.image)
        assert "--interactive" not in stage1.call("run").words
        uuid = stage1s.show("behind")["uuid"]
        assert streams(stage1s, uuid) == of_all("stream")
        done = stage1s("attach", "behind", input="end\n")
        assert (done.returncode, done.stdout, done.stderr) == (7, "told: end\n", "aside\n")
        stage1s.out("run", "-d", *words, "changing", "--pod", empty_file(stage1s))
        uuid = stage1s.show("changing")["uuid"]
        stage1s.out("app", "add", "--start", "changing", "--name", "one", "-t", stage1s.image)
        assert streams(stage1s, uuid) == of_all("tty")
        for _ in range(2):
            app = stage1s.show("changing")["apps"]["one"]
            assert (app["exited"], app["startedAt"] is not None) == (False, True)
            assert stage1s("stop", "changing").returncode == 0
            assert stage1s("start", "-d", "changing").returncode == 0
        assert [call.words[0] for call in stage1.calls("app/start")] == ["--app=one"] * 3
        assert stage1s("app", "rm", "--force", "changing", "one").returncode == 0
        assert stage1s.show("changing")["apps"] == {}
        assert stage1s("rm", "--force", "behind", "changing").returncode == 0
    finally:
        stage1s("rm", "--force", "behind", "changing")  # nothing, where all has gone well
        daemon.terminate()
        assert daemon.wait(20) == 0
