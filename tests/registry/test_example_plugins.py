"""The examples, installed from their wheels beside this checkout's Kurma, each used by its entry point (18)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kurma_core.linux.cgroups import Layout
from tests.kit.command import PROGRAM, Kurma
from tests.kit.images import busybox_archive, shell
from tests.kit.installed import build_examples, examples, pip
from tests.kit.waiting import until

#: An image that writes what it is started with. The example stager wants its program by path.
SCRIPT = "echo of the memo; ip -o addr"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A directory for ``PYTHONPATH``, as ``pip install --target`` makes it of the wheels."""
    directory = tmp_path_factory.mktemp("examples")
    build_examples(directory / "wheels")
    wheels = sorted((directory / "wheels").glob("*.whl"))
    pip("install", "--quiet", "--no-index", "--no-deps", "--target", directory / "site", *wheels)
    return directory / "site"


@pytest.fixture
def kurma(site, tmp_path):
    """``kurma`` with the examples; every part of a pod that can be one of them is."""
    (tmp_path / "memo").mkdir()
    image = busybox_archive(str(tmp_path), shell(SCRIPT))
    os.rename(image, tmp_path / "memo/box.aci")
    config = {
        "renderer": "flat",
        "stager": "solo",
        "stagers": {"solo": {"driver": "solo", "without_isolators": True}},
        "container_networks": [{"name": "cables", "plugin": "cable", "subnet": "10.91.0.0/29"}],
        "plugins": {
            "fetchers": {"memo": {"config": {"directory": str(tmp_path / "memo")}}},
            "isolators": {"nofile": {"config": {"most": 50}}},
            "observers": {"jsonlog": {"config": {"path": str(tmp_path / "events")}}},
            "services": {"webhook": {"config": {"url": "http://127.0.0.1:1/"}}},
        },
    }
    (tmp_path / "kurma.json").write_text(json.dumps(config))
    made = Kurma(tmp_path / "state", tmp_path / "kurma.json", image)
    made.environment |= {"PYTHONPATH": str(site)}
    return made


def test_all_are_found_by_their_distribution(kurma):
    found = {(row["kind"], row["name"]): row for row in kurma.json("plugins", "list")}
    for one in examples():
        row = found[one.kind, one.name]
        assert (row["status"], row["distribution"]) == ("ok", one.distribution), row


@pytest.mark.parametrize("one", examples(), ids=str)
def test_a_suite_makes_the_driver_of_an_entry_point(site, tmp_path, one):
    """As in ``load_driver(("kurma.stagers", "solo"), tmp_path)``."""
    (tmp_path / "memo").mkdir()
    needed = {"memo": {"directory": str(tmp_path / "memo")}, "webhook": {"url": "http://127.0.0.1:1/"}}
    config = needed.get(one.name, {})
    program = (
        "import sys; from kurma_testing import load_driver; "
        f"load_driver(({one.group!r}, {one.name!r}), {str(tmp_path)!r}, {config!r}); "
        f"print(sys.modules[{one.module!r}].__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site)


@pytest.mark.root
def test_one_pod_of_all_examples(kurma, tmp_path):
    """Fetched by memo, rendered by flat, on a cable, run by solo; its isolator compiled, its events written."""
    wanted = ("--isolator", 'example.com/nofile={"limit": 100}')
    options = ("--name", "box", "--insecure-options=image", "--net", "cables")
    # From any directory: the locator is a name, and not a path.
    done = kurma("run", *options, "memo:box", cwd="/")
    assert done.returncode == 0, done.stderr
    assert "of the memo\n" in done.stdout
    assert "10.91.0." in done.stdout
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event["name"] for event in events] == ["box"] * len(events)
    assert {"running", "stopped"} <= {event["event"] for event in events}
    kurma.out("rm", "box")
    # Solo applies no isolators, and says so of one that the user typed.
    refused = kurma("run", *options, *wanted, "memo:box")
    assert refused.returncode == 125
    assert "cannot enforce isolator example.com/nofile of app" in refused.stderr


@pytest.fixture
def posted():
    """A server's address, and what was posted to it."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", bodies
        server.shutdown()
        thread.join()


@pytest.mark.root
def test_a_service_in_kurmad_and_a_command(strangers, posted):
    """18: kurmad posts what happens to a pod, and ``kurma uptime`` shows how long the pod has run."""
    address, bodies = posted
    memo = strangers.config.with_name("memo")
    strangers.configured(
        strangers.config,
        plugins={
            "fetchers": {"memo": {"config": {"directory": str(memo)}}},
            "services": {"webhook": {"config": {"url": address}, "required": True}},
        },
    )
    log = strangers.config.with_name("kurmad.log")
    with log.open("wb") as stream:
        daemon = subprocess.Popen([PROGRAM, "daemon", "run"], env=strangers.environment, stderr=stream)
    try:
        until(lambda: "service webhook: running" in log.read_text(), log.read_text)
        words = ("--name", "box", "--net", "none", "--insecure-options=image", "--exec", "/bin/sleep")
        strangers.out("run", "-d", *words, "memo:box", "--", "1000")
        (line,) = strangers.out("uptime").splitlines()
        assert line.split()[1] == "box"
        assert list(json.loads(strangers.out("uptime", "--json"))) == ["box"]
        assert strangers.out("uptime", "--least", "1000") == ""
        strangers.out("stop", "box")
        until(lambda: "stopped" in [body["kind"] for body in bodies], lambda: str(bodies))
        assert {body["name"] for body in bodies} == {"box"}
        assert [body["kind"] for body in bodies].count("running") == 1
        strangers.out("rm", "box")
    finally:
        daemon.terminate()
        assert daemon.wait(20) == 0, log.read_text()


READ = "umask; awk '{print $19}' /proc/self/stat; ionice; cat /proc/self/limits | awk '/open files/ {print $4}'"
ISOLATORS = {
    "umask": "0027",
    "nice": 9,
    "io-priority": {"class": "best-effort", "level": 6},
    "nofile": {"limit": 40},
    "cgroups": 3,
}
SHOWN = "0027\n9\nbest-effort: prio 6\n40\n"


@pytest.fixture
def strangers(kurma, tmp_path):
    """The same under Kurma's own stager, which knows nothing of these isolators."""
    command = Kurma(kurma.state, tmp_path / "default.json", str(tmp_path / "memo/box.aci"))
    command.configured(
        command.config, plugins={"fetchers": {"memo": {"config": {"directory": str(tmp_path / "memo")}}}}
    )
    command.environment |= {"PYTHONPATH": kurma.environment["PYTHONPATH"]}
    return command


def typed(**isolators):
    return [
        word
        for name, value in isolators.items()
        for word in ("--isolator", f"example.com/{name}={json.dumps(value)}")
    ]


@pytest.mark.root
@pytest.mark.parametrize("userns", ["none", "auto"])
def test_isolators_of_strangers_need_no_stager_of_their_own(strangers, userns):
    """18: main and a command that is run later have them, also in a user namespace; each is enforced."""
    words = ("--name", "box", "--net", "none", "--userns", userns, "--insecure-options=image", *typed(**ISOLATORS))
    pod = strangers.popen("run", *words, "--exec", "/bin/sh", "memo:box", "--", "-c", f"{READ}; exec sleep 1000")
    try:
        assert "".join(pod.stdout.readline() for _ in range(4)) == SHOWN
        assert strangers.out("enter", "box", "--", "/bin/sh", "-c", READ) == SHOWN
        reports = {one["name"]: one["outcome"] for one in strangers.pod("box")["isolators"]}
        wanted = {f"example.com/{name}": "enforced" for name in ISOLATORS}
        if Layout.detect().of("cgroup") is None:
            wanted["example.com/cgroups"] = "ignored"
        assert wanted.items() <= reports.items()
        strangers.out("stop", "box")
    finally:
        pod.kill()
        pod.communicate()
        strangers("rm", "--force", "box")


@pytest.mark.root
def test_a_strangers_power_needs_a_grant(strangers):
    """18."""
    image = ("--name", "box", "--net", "none", "--insecure-options=image")
    app = {"exec": ["/bin/sh", "-c", "awk '{print $19}' /proc/self/stat"], "user": "0", "group": "0"}
    app["isolators"] = [{"name": "example.com/nice", "value": -3}]
    pod = json.dumps({"apps": [{"name": "main", "image": "memo:box", "app": app}]})
    refused = strangers("run", *image, "--pod", "-", input=pod)
    assert refused.returncode == 125
    assert "example.com/nice" in refused.stderr
    done = strangers("run", *image, "--grant", "example.com/nice", "--pod", "-", input=pod)
    assert (done.returncode, done.stdout) == (0, "-3\n"), done.stderr
    strangers.out("rm", "box")
