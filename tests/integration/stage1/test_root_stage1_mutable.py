"""Mutable pods under stage1 images: apps that come and go by the crossing entrypoints (Z4, Z6, G10)."""

import contextlib
import json
import os
import subprocess

import pytest

from kurma_core.linux.mounts import mounts_at_or_below
from tests.integration.stage1.conftest import BASIC, OF_APPS
from tests.integration.stage1.test_root_stage1_apps import small_image
from tests.integration.stage1.test_root_stage1_life import state
from tests.kit.command import KURMA
from tests.kit.waiting import until

pytestmark = pytest.mark.root

APP_VERBS = OF_APPS[:4]
#: Without a stop entrypoint: their pods are ended by a signal.
ENOUGH = ("run", "enter", "gc", *APP_VERBS)
#: Runs until it is told to end; its app entrypoints do what the app's name says.
LONG = """trap 'exit 0' TERM
ln -s ready stage1/rootfs/rkt/supervisor-status
sleep 1000 & echo $$ > pid
while :; do wait; done
"""
ADD = """cp pod "$out/pod"
case $1 in *full) echo no room; echo at all; exit 3;; *killer) kill -9 $PPID;; esac
"""
SCRIPTS = {
    "app/add": ADD,
    "app/start": "ls stage1/rootfs/rkt/status > $out/status; case $1 in *broken) echo broken; exit 1;; esac\n",
    "app/stop": "case $1 in *mute) exit 5;; esac; echo 4 > stage1/rootfs/rkt/status/${1#--app=}\n",
    "app/rm": """test -e let && exit 0
case $1 in *full|*killer|*stays) echo no such app; exit 1;; *leaver) touch let; kill -9 $PPID;; esac
""",
}


@contextlib.contextmanager
def foreground(kurma, *words, stdin=subprocess.DEVNULL):
    """A command in front of its pod, whose name is the last word; until the pod runs, and ended after that."""
    command = subprocess.Popen(
        [*KURMA, *words], env=kurma.environment, stdin=stdin, stderr=subprocess.PIPE, text=True
    )
    name = words[-1]
    try:
        until(lambda: command.poll() is not None or state(kurma, name) == "running", f"pod {name}")
        assert command.poll() is None, command.communicate()
        yield kurma.show(name)
        assert kurma("stop", name).returncode == 0
        assert command.wait(20) == 0, command.communicate()
    finally:
        if command.poll() is None:
            kurma("stop", "--force", name)
        command.communicate(timeout=20)


def empty_file(kurma):
    file = kurma.directory / "empty.json"
    file.write_text(json.dumps({"acKind": "PodManifest", "acVersion": "0.8.11", "apps": []}))
    return str(file)


def empty_pod(kurma, stager, name):
    words = ("--stager", stager, "--net", "none", "--pod", empty_file(kurma))
    return foreground(kurma, "run", *words, "--name", name)


def of_app(place, app):
    """All that is there of an app, but in the pod's manifest."""
    found = [
        path for path in place.rglob(app) if "overlay" not in path.parts or path.parent.name in ("upper", "work")
    ]
    return [*found, *place.glob(f"stage1/rootfs/rkt/status/{app}-*")]


def names_in(manifest):
    return [app["name"] for app in json.loads(manifest)["apps"]]


@pytest.fixture(scope="module")
def recording(stage1s):
    """A stager that notes its calls, with a configuration, and one running mutable pod of it."""
    stage1 = stage1s.stage1(5, LONG, ENOUGH, scripts=SCRIPTS)
    config = {"debug": True, "lift": ["paths", "capabilities"]}
    section = {"driver": "rkt", "image": stage1.path, "config": config}
    stage1s.configure(stagers={"changing": section})
    with empty_pod(stage1s, "changing", "changes") as pod:
        yield stage1, pod, stage1s.pods / "run" / pod["uuid"]


def test_an_app_comes_and_goes(stage1s, recording):
    """Its files first, then the entrypoint, called as the guide has it; and its way back (Z2, Z6)."""
    stage1, pod, place = recording
    run = stage1.call("run")
    assert run.words[-2:] == ["--mutable", pod["uuid"]]
    manifest = json.loads((place / "pod").read_text())
    assert {"name": "coreos.com/rkt/stage1/mutable", "value": "true"} in manifest["annotations"]
    assert (manifest["apps"], pod["apps"]) == ([], {})

    volume = ("--volume", "name=own,kind=empty", "--mount", "volume=own,target=/own")
    done = stage1s("app", "add", "changes", "--name", "one", *volume, stage1s.image)
    assert done.returncode == 0, done.stderr
    add = stage1.calls("app/add")[-1]
    lifted = ["--disable-capabilities-restriction", "--disable-paths"]
    assert add.words == ["--app=one", "--debug", f"--uuid={pod['uuid']}", *lifted]
    rootfs = f"{place}/stage1/rootfs"
    assert add.environment == {
        "RKT_STAGE1_ENTERCMD": f"{rootfs}/ex/enter",
        "RKT_STAGE1_ENTERPID": (place / "pid").read_text().strip(),
        "PATH": run.environment["PATH"],
    }
    assert add.cwd.strip() == str(place)
    assert add.program == f"{rootfs}/ex/app/add"
    assert add.descriptors["0"] == "/dev/null"
    others = {fd: what for fd, what in add.descriptors.items() if fd not in ("0", "1", "2")}
    assert all(what.endswith("/ex/app/add") for what in others.values()), others
    there = {
        "appsinfo/one/manifest",
        "appsinfo/one/treeStoreID",
        "stage1/rootfs/opt/stage2/one/manifest",
        "stage1/rootfs/opt/stage2/one/rootfs/bin/busybox",
        "stage1/rootfs/rkt/env/one",
        "stage1/rootfs/rkt/status/one-created",
    }
    assert there <= add.files
    known = json.loads(add.pod)
    assert [app["name"] for app in known["apps"]] == ["one"]
    assert known["apps"][0]["app"]["exec"][0] == "/bin/sh"
    assert [one["name"] for one in known["volumes"]] == ["own"]
    assert stage1s.show("changes")["apps"]["one"]["startedAt"] is None

    assert stage1s("app", "start", "changes", "one").returncode == 0
    start = stage1.calls("app/start")[-1]
    assert start.words == ["--app=one", "--debug"]
    assert start.status.split() == ["one-created", "one-started"]
    app = stage1s.show("changes")["apps"]["one"]
    assert (app["exited"], app["startedAt"] is not None) == (False, True)
    assert "already runs" in stage1s("app", "start", "changes", "one").stderr
    assert "it runs" in stage1s("app", "rm", "changes", "one").stderr

    assert stage1s("app", "stop", "changes", "one").returncode == 0
    assert stage1.calls("app/stop")[-1].words == ["--app=one", "--debug"]
    app = stage1s.show("changes")["apps"]["one"]
    assert (app["exited"], app["exitCode"]) == (True, 4)
    assert stage1s("app", "start", "changes", "one").returncode == 0
    assert not stage1s.show("changes")["apps"]["one"]["exited"]

    assert stage1s("app", "rm", "--force", "changes", "one").returncode == 0
    assert stage1.calls("app/rm")[-1].words == ["--app=one", "--debug"]
    assert of_app(place, "one") == []
    assert not mounts_at_or_below(f"{rootfs}/opt")
    gone = json.loads((place / "pod").read_text())
    assert (gone["apps"], gone.get("volumes", [])) == ([], [])


@pytest.mark.full
def test_an_entrypoint_fails(stage1s, recording):
    """It says why; what cannot be added is undone, what cannot be started or removed stays as it was."""
    stage1, _, place = recording

    def refused(*words):
        done = stage1s("app", *words)
        assert done.returncode == 125
        return done.stderr

    said = refused("add", "changes", "--name", "full", stage1s.image)
    name = os.path.basename(stage1.path).removesuffix(".aci")
    why = "entrypoint app/add ended with status 3: no room / at all"
    assert f"stage1 image example.com/{name}: {why}" in said
    assert stage1.calls("app/rm")[-1].words[0] == "--app=full"
    assert of_app(place, "full") == names_in((place / "pod").read_text()) == []
    for name in ("broken", "stays", "mute"):
        assert stage1s("app", "add", "changes", "--name", name, stage1s.image).returncode == 0
    assert "entrypoint app/start ended with status 1: broken" in refused("start", "changes", "broken")
    apps = stage1s.show("changes")["apps"]
    assert (apps["broken"]["startedAt"], apps["broken"]["exited"]) == (None, False)
    assert "entrypoint app/rm ended with status 1: no such app" in refused("rm", "changes", "stays")
    assert sorted(names_in((place / "pod").read_text())) == ["broken", "mute", "stays"]
    # It does not run, says its stage1; and nobody knows how it has ended.
    assert stage1s("app", "start", "changes", "mute").returncode == 0
    assert stage1s("app", "stop", "changes", "mute").returncode == 0
    assert stage1s.show("changes")["apps"]["mute"]["startedAt"] is None
    (place / "let").touch()
    assert stage1s("app", "rm", "changes", "broken", "mute", "stays").returncode == 0
    (place / "let").unlink()


@pytest.mark.full
def test_who_adds_or_removes_is_killed(stage1s, recording):
    """Half an app is nobody's: the next collection of garbage takes it away."""
    _, _, place = recording
    assert stage1s("app", "add", "changes", "--name", "killer", stage1s.image).returncode == -9
    assert of_app(place, "killer")
    assert "killer" not in stage1s.show("changes")["apps"]
    done = stage1s("gc")
    assert "cleared of a half-made change of its apps" in done.stdout
    assert "app killer, which was half there: " in done.stderr
    assert stage1s("app", "add", "changes", "--name", "leaver", stage1s.image).returncode == 0
    assert stage1s("app", "rm", "changes", "leaver").returncode == -9
    assert "cleared of a half-made change of its apps" in stage1s.out("gc")
    assert stage1s.show("changes")["apps"] == {}
    assert of_app(place, "killer") == of_app(place, "leaver") == names_in((place / "pod").read_text()) == []
    (place / "let").unlink()


@pytest.mark.full
def test_images_that_keep_pods_as_they_are(stage1s):
    """One line says why: for a pod without apps at its start, else when its apps are to be changed."""
    stage1 = stage1s.stage1(5, LONG)
    done = stage1s("run", "--rm", "--stager", stage1.stager, "--net", "none", "--pod", empty_file(stage1s))
    assert done.returncode == 125
    why = "it has no entrypoint app/add, app/rm, app/start, app/stop"
    assert f"a pod without apps could never get any: {why}" in done.stderr
    assert stage1.calls("run") == []
    for entrypoints, why in (
        (("run",), "keeps pods as they are: it has no entrypoint app/add"),
        (ENOUGH, "this pod was made with its apps"),
    ):
        stage1 = stage1s.stage1(5, LONG, entrypoints)
        name = f"kept-{len(entrypoints)}"
        words = ("run", "--stager", stage1.stager, "--net", "none", stage1s.image, "--name", name)
        with foreground(stage1s, *words):
            assert "--mutable" not in stage1.call("run").words
            done = stage1s("app", "add", name, "--name", "more", stage1s.image)
            assert (done.returncode, why in done.stderr) == (125, True), done.stderr
            assert stage1.calls("app/add") == []


@pytest.mark.full
def test_apps_run(stage1s, tmp_path):
    """Really, in the small one; and again, when their pod is started anew."""
    small = small_image(stage1s, "small5", 5, (*BASIC, *APP_VERBS))
    shown = tmp_path / "shown"
    shown.mkdir()
    script = "echo $GIVEN >> /shown/$GIVEN; test $GIVEN = short && exit 6; sleep 1000"
    volume = ("--volume", f"name=shown,kind=host,source={shown}", "--mount", "volume=shown,target=/shown")
    with empty_pod(stage1s, small, "lives"):
        for name in ("short", "long"):
            words = ("--exec", "/bin/sh", "-e", f"GIVEN={name}", stage1s.image, "--", "-c", script)
            more = volume if name == "short" else volume[2:]
            done = stage1s("app", "add", "--start", "lives", "--name", name, *more, *words)
            assert done.returncode == 0, done.stderr
        until(lambda: stage1s.show("lives")["apps"]["short"]["exitCode"] == 6)
        assert not stage1s.show("lives")["apps"]["long"]["exited"]
        assert stage1s.out("enter", "lives/long", "--", "/bin/sh", "-c", "cat /shown/long").strip() == "long"
        assert stage1s("app", "stop", "lives", "long").returncode == 0
        assert stage1s.show("lives")["apps"]["long"]["exitCode"] == 143
        assert stage1s("app", "start", "lives", "long").returncode == 0
    assert stage1s.show("lives")["apps"]["long"]["exitCode"] == 143
    assert [len((shown / name).read_text().splitlines()) for name in ("short", "long")] == [1, 2]
    with foreground(stage1s, "start", "lives"):
        until(lambda: stage1s.show("lives")["apps"]["short"]["exitCode"] == 6)
        assert not stage1s.show("lives")["apps"]["long"]["exited"]
    assert [len((shown / name).read_text().splitlines()) for name in ("short", "long")] == [2, 3]
    assert stage1s("rm", "lives").stderr == ""
