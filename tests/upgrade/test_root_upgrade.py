"""Upgrade and downgrade with pods running: two built versions, one after the other, on one state directory."""

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest

from tests.docs.blocks import Shell, blocks
from tests.docs.pages import find_page
from tests.kit.command import Kurma, one_line
from tests.kit.images import busybox_archive, shell
from tests.kit.waiting import until
from tests.upgrade.conftest import NEWER, OLDER

pytestmark = [pytest.mark.root, pytest.mark.full]

TICKS = "trap 'exit 0' TERM; trap 'echo usr1' USR1; i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
ECHO = "trap 'exit 0' TERM; echo up; while :; do read -r line && echo got $line; done"
WEB = "mkdir -p /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"
SLEEP = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"


class Daemons:
    """Daemons of both versions on one state directory, one at a time."""

    def __init__(self, directory, versions):
        config, state = directory / "kurma.json", directory / "state"
        image = busybox_archive(str(directory), shell("true"))
        self.kurmas = {
            version: Kurma(state, config, image, str(program))
            for version, program in zip((OLDER, NEWER), versions, strict=True)
        }
        self.state = state
        self.log = directory / "kurmad.log"
        self.process = None
        initial = {"name": "initial", **template(image, [], main=SLEEP)}
        config.write_text(json.dumps({"stop_timeout": 3, "initial_pods": [initial]}))

    def start(self, version):
        """Starts kurmad of that version, and waits until it has looked at all pods. :returns: its command."""
        kurma = self.kurmas[version]
        with self.log.open("wb") as log:
            self.process = kurma.popen("daemon", "run", stdout=log, stderr=log)
        until(lambda: self._looked(kurma), lambda: f"kurmad: {self.log.read_text()}")
        return kurma

    def _looked(self, kurma):
        assert self.process.poll() is None, self.log.read_text()
        done = kurma("info", "--format", "json")
        daemon = json.loads(done.stdout)["daemon"] if done.returncode == 0 else None
        return daemon is not None and daemon["pid"] == self.process.pid and daemon["recovered"]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait(20)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.end()
        print(self.log.read_text())  # shown if the test has failed
        kurma = self.kurmas[NEWER]
        for uuid in kurma.out("list", "--quiet").split():
            kurma("rm", "--force", uuid)
        kurma("gc", "--grace-period", "0")
        kurma("network", "rm", "default")


@pytest.fixture
def daemons(tmp_path, versions):
    with contextlib.closing(Daemons(tmp_path, versions)) as daemons:
        yield daemons


def template(image, networks, **scripts):
    open_input = [{"name": "kurma.io/stdin", "value": "true"}]
    apps = [
        {"name": name, "image": image, "app": shell(script), "annotations": open_input if script == ECHO else []}
        for name, script in scripts.items()
    ]
    return {"apps": apps, "networks": networks}


def run(kurma, name, script, *options, net="none"):
    """Runs a pod in the background."""
    words = ("--name", name, "--net", net, *options, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
    kurma.out("run", "-d", *words)


def pids(kurma, *names):
    """PIDs of the stagers and of the apps of these pods."""
    pods = [kurma.pod(name) for name in names]
    return [(pod["stagerPid"], [app["pid"] for app in pod["apps"].values()]) for pod in pods]


def states(kurma):
    return {pod["name"]: pod["state"] for pod in kurma.json("list")}


def ticks(kurma, reference):
    return re.findall(r"(?m)^\d+$", kurma.out("logs", reference))


def address(kurma, name):
    (pod,) = [one for one in kurma.json("list") if one["name"] == name]
    (network,) = [one for one in pod["networks"] if one["network"] == "default"]
    return network["addresses"][0].partition("/")[0]


def page(host, port):
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=20) as answer:
        return answer.read()


def stager_image(kurma, name):
    """The ID of the image of a running pod's stager."""
    uuid = kurma.pod(name)["uuid"]
    return json.loads((kurma.state / "pods" / uuid / "state.json").read_text())["stager"]["image"]


def prestarted(kurma):
    return set((kurma.state / "pods").glob(".half-*"))


class Attached:
    """``kurma attach`` on an app of :data:`ECHO`."""

    def __init__(self, kurma, reference):
        self.process = kurma.popen("attach", reference, stdin=subprocess.PIPE)
        self.ask("hello")

    def ask(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"got {word}\n"

    def end(self):
        """:returns: its exit code, and what it printed on standard error."""
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_new_version_goes_on_with_the_pods_of_the_old_one(daemons, tmp_path, number):
    old = daemons.start(OLDER)
    file = tmp_path / "two.json"
    file.write_text(json.dumps(template(old.image, [], ticks=TICKS, echo=ECHO)))
    old.out("run", "-d", "--name", "two", "--pod", str(file))
    run(old, "users", SLEEP, "--userns", "auto")
    run(old, "web", WEB, "-p", "18080:80", net="default")
    run(old, "again", SLEEP, "--restart", "always")
    run(old, "over", "exit 3")
    old.out("prepare", "--name", "later", "--exec", "/bin/sh", old.image, "--", "-c", SLEEP)
    until(lambda: states(old).get("initial") == "running", "the initial pod")
    until(lambda: states(old)["over"] == "stopped", "its end")
    old.out("kill", "-s", "KILL", "again")
    until(lambda: old.pod("again")["restart"]["count"] == 1 and states(old)["again"] == "running", "a restart")
    attached = Attached(old, "two/echo")
    half = until(lambda: prestarted(old), "a prestarted pod")
    running = ("two", "users", "web", "again", "initial")
    before, host, image = pids(old, *running), address(old, "web"), stager_image(old, "two")
    until(lambda: page(host, 80) == b"page\n", "the web server")
    assert "started by" not in old.out("show", "two")

    daemons.end(number)
    code, said = attached.end()
    assert code == 125
    assert said.startswith("kurma: "), said
    new = daemons.start(NEWER)

    # The pods are the same, and kurmad owns them.
    assert pids(new, *running) == before
    assert {new.pod(name)["owner"] for name in running} == {daemons.process.pid}
    assert states(new) == {**dict.fromkeys(running, "running"), "over": "stopped", "later": "prepared"}
    assert new.pod("over")["exitCode"] == 3
    assert (address(new, "web"), page(host, 80)) == (host, b"page\n")
    until(lambda: not half & prestarted(new), "the end of the prestarted pod of the old version")
    assert {new.pod(name)["stagerVersion"] for name in running} == {OLDER}
    assert f"started by Kurma {OLDER}" in new.out("show", "two")

    # Commands of the new version work on pods of the old one.
    seen = len(ticks(new, "two/ticks"))
    until(lambda: len(ticks(new, "two/ticks")) > seen, "more ticks")
    assert ticks(new, "two/ticks")[:seen] == [str(number) for number in range(1, seen + 1)], "without a gap"
    follower = new.popen("logs", "-f", "two/echo")
    assert follower.stdout.readline() == "up\n"
    assert new.out("enter", "two/ticks", "echo", "inside") == "inside\n"
    again = Attached(new, "two/echo")
    (tmp_path / "note").write_text("a note\n")
    new.out("cp", str(tmp_path / "note"), "two/ticks:/tmp/note")
    assert new.out("enter", "two/ticks", "cat", "/tmp/note") == "a note\n"
    assert "two" in new.out("stats", "--no-stream")
    new.out("kill", "-s", "USR1", "two/ticks")
    until(lambda: "usr1" in new.out("logs", "two/ticks"), "the signal")
    new.out("app", "add", "two", "--name", "third", "--start", "--exec", "/bin/sh", new.image, "--", "-c", SLEEP)
    until(lambda: "up" in new.out("logs", "two/third"), "the new app")
    new.out("kill", "-s", "KILL", "again")
    until(
        lambda: new.pod("again")["restart"]["count"] == 2 and states(new)["again"] == "running",
        "a restart, by a stager whose image is built first",
        60,
    )
    assert new.pod("again")["stagerVersion"] == NEWER
    new.out("start", "-d", "later")
    assert stager_image(new, "later") != image

    # The stager of the old version lacks a call-in.
    one_line(
        new("app", "stop", "two", "third"),
        "its stager default has no app-stop",
        hint=f"Kurma '{OLDER}' started it; for a stager of Kurma {NEWER}: kurma restart",
    )
    new.out("kill", "two/third")
    until(lambda: new.pod("two")["apps"]["third"]["exitCode"] == 0, "its end")
    new.out("app", "rm", "two", "third")

    # The image of the old stager stays while a pod uses it.
    new.out("stop", "users", "web", "initial")
    new.out("image", "gc", "--grace-period", "0")
    assert new("image", "show", image).returncode == 0
    assert new.out("enter", "two/ticks", "echo", "inside") == "inside\n"
    new.out("stop", "two")
    assert again.end() == (0, ""), "the app's end"
    assert follower.communicate(timeout=20)[1] == ""
    assert follower.returncode == 0
    new.out("image", "gc", "--grace-period", "0")
    assert new("image", "show", image).returncode == 125
    assert states(new)["later"] == "running"


def test_the_blocks_of_the_page(daemons, tmp_path, versions):
    """``docs/howto/upgrade.md`` shows what these versions print."""
    text = find_page("upgrade.md").read_text()
    text = text.replace("0.1.0", OLDER).replace("0.2.0", NEWER).replace("process 4711", "process …")
    check, show, stop = blocks(text)
    old = daemons.start(OLDER)
    until(lambda: states(old).get("initial") == "running", "the initial pod", 60)
    file = tmp_path / "web.json"
    file.write_text(json.dumps(template(old.image, [], main=SLEEP, sidecar=SLEEP)))
    old.out("run", "-d", "--name", "web", "--pod", str(file))
    # systemd does not run kurmad here.
    check.body = check.body.replace("systemctl restart kurmad", f"kill {daemons.process.pid}")
    environment = {**old.environment, "PATH": f"{versions[1].parent}:{os.environ['PATH']}"}
    (tmp_path / "here").mkdir()
    with Shell(tmp_path / "here", environment) as run:
        check.notes.append("fails")
        run.run_block(check)
        daemons.end()
        daemons.start(NEWER)
        run.run_block(show)
        run.run_block(stop)
    assert daemons.kurmas[NEWER].pod("web")["stagerVersion"] == NEWER


def records(state):
    """By path, the content of the records of pods."""
    return {path: path.read_bytes() for path in (state / "pods").glob("*/*.json")}


def test_a_downgrade_is_refused(daemons):
    """One line for each pod that a newer version has written; the pods run on, and nothing of them changes."""
    new = daemons.start(NEWER)
    run(new, "web", WEB, net="default")
    run(new, "over", "exit 3")
    until(lambda: states(new)["over"] == "stopped", "its end")
    until(lambda: states(new).get("initial") == "running", "the initial pod")
    half = until(lambda: prestarted(new), "a prestarted pod")
    before, host, image = pids(new, "web", "initial"), address(new, "web"), stager_image(new, "web")
    uuids = {name: new.pod(name)["uuid"] for name in ("web", "over", "initial")}
    daemons.end(signal.SIGKILL)
    kept = records(daemons.state)

    old = daemons.start(OLDER)
    listed = {pod["uuid"]: pod["state"] for pod in old.json("list")}
    assert {listed[uuid] for uuid in uuids.values()} == {"errored"}
    for uuid in uuids.values():
        said = f"pod {uuid}: ", "was written by a newer version of kurma"
        for words in (("show",), ("stop",), ("rm",), ("enter",)):
            more = ("true",) if words == ("enter",) else ()
            one_line(old(*words, uuid, *more), *said, hint="install that version again")
        (line,) = [line for line in daemons.log.read_text().splitlines() if said[0] in line]
        assert said[1] in line
    done = old("gc", "--grace-period", "0")
    assert done.returncode == 125
    assert all(f"pod {uuid}: left: " in done.stdout for uuid in uuids.values())
    old("image", "gc", "--grace-period", "0")
    # A pod of the old version runs beside them.
    run(old, "beside", SLEEP, net="default")
    assert address(old, "beside") != host
    old.out("rm", "--force", "beside")
    assert page(host, 80) == b"page\n"
    daemons.end()
    assert {path: content for path, content in records(daemons.state).items() if path in kept} == kept
    assert half <= prestarted(old), "left for the version that knows its steps"

    new = daemons.start(NEWER)
    assert pids(new, "web", "initial") == before
    assert new("image", "show", image).returncode == 0
    assert states(new) == {"web": "running", "initial": "running", "over": "stopped"}
    until(lambda: not half & prestarted(new), "the end of the prestarted pod")


def test_a_kurmad_of_another_version_is_told_by_info(daemons):
    old = daemons.start(OLDER)
    # It would end only after the start of its initial pod, which waits for the image of the stager.
    until(lambda: states(old).get("initial") == "running", "the initial pod", 60)
    new = daemons.kurmas[NEWER]

    def check():
        return {
            (one["by"], one["name"]): one for one in json.loads(new("info", "--check", "--format", "json").stdout)
        }

    found = check()["kurma", "kurmad"]
    assert not found["ok"]
    assert found["detail"].startswith(f"version {OLDER} runs, and this is {NEWER}")
    assert found["hint"] == f"kill {daemons.process.pid}"
    subprocess.run(["sh", "-c", found["hint"]], check=True)
    assert daemons.process.wait(20) == 0
    daemons.start(NEWER)
    assert check()["kurma", "kurmad"]["detail"] == f"it runs, version {NEWER}"
