"""Pods and service managers: sockets handed over, readiness told on, and what Kurma itself was given (Y4)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kurma_stager_default import image as stager_image

from kurma_core.errors import KurmaError, ManifestError, StagerError
from tests.kit.command import KURMA
from tests.kit.images import archive, busybox_root
from tests.kit.waiting import until

pytestmark = pytest.mark.root

READY = [{"name": "appc.io/executor/supports-systemd-notify", "value": "true"}]
SPEAKER = Path(__file__).parents[1] / "stager" / "speaker.py"
EXEC = ["/opt/stager/bin/python3", "-IS", "/speaker.py"]
ENVIRONMENT = [{"name": "PYTHONHOME", "value": "/opt/stager"}]


@pytest.fixture(scope="session")
def speaker_archives(tmp_path_factory):
    """Two images of busybox and Kurma's interpreter; the second one says that it tells when it is ready."""
    directory = tmp_path_factory.mktemp("speaker")
    root = str(directory / "root")
    os.mkdir(root)
    stager_image.build(root)
    busybox_root(root)
    shutil.copy(SPEAKER, root)
    app = {"exec": [*EXEC, "say=hello"], "user": "0", "group": "0", "environment": ENVIRONMENT}
    return [
        archive(root, str(directory / "plain.aci"), "example.com/speaker", app=app),
        archive(root, str(directory / "ready.aci"), "example.com/ready", app=app, annotations=READY),
    ]


@pytest.fixture
def speaking(make_house, speaker_archives, served):
    """``speaking(CONFIG)``: a house whose image can."""

    def make(config=None, *, ready=False):
        house = served(make_house({"stop_timeout": 3, **(config or {})}))
        house.image = house.client.here.images.fetch(speaker_archives[ready]).id
        return house

    return make


def speak(*words, ports=(), user="0"):
    given = [
        {"name": name, "port": number, "protocol": "tcp", "socketActivated": True, **more}
        for name, number, more in ports
    ]
    return {
        "exec": [*EXEC, *words],
        "user": user,
        "group": "0" if user == "0" else "100",
        "environment": ENVIRONMENT,
        "ports": given,
    }


def ask(house, pod, port, app=None):
    """From inside of the pod's network."""
    return house.enter(pod.uuid, "sh", "-c", f"nc 127.0.0.1 {port} < /dev/null", app=app)


def test_a_plain_user_of_a_user_namespace(speaking):
    """Its sockets are its pod's, on a port that it could not take itself; its readiness comes through, too."""
    house = speaking(ready=True)
    words = ("environment", "tell=READY=1;STATUS=at port 80", "serve=9")
    with house.running({"main": speak(*words, ports=[("www", 80, {})], user="alice")}, userns="auto") as pod:
        code, out, err = ask(house, pod, 80)
        assert (code, out[:10]) == (0, "served by "), err
        app = house.client.pod(pod.uuid).apps[0]
        assert app.ready is True
        until(lambda: house.client.pod(pod.uuid).apps[0].says == "ready: at port 80")
        assert app.to_json()["ready"] is True
        # The host has nothing there.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", 80), timeout=5)
    assert house.client.pod(pod.uuid).apps[0].ready is None


def test_published_ports_lead_to_it(speaking):
    house = speaking()
    app = speak("sleep=0.2", "serve=1", ports=[("www", 8080, {"count": 2})])
    again = [{"name": "kurma.io/restart", "value": "always"}]
    ports = [{"name": "www", "hostPort": 18080}]
    with house.running({"main": app}, net="default", ports=ports, annotations=again):
        told = set()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", 18080), timeout=10) as connection:
                told.add(connection.makefile().read())
        assert len(told) == 3
    house.client.network_rm("default")


def test_one_port_is_one_apps(speaking):
    """Refused before there is a pod."""
    house = speaking()
    before = house.uuids()
    apps = {"a": speak(ports=[("x", 80, {"count": 3})]), "b": speak(ports=[("y", 82, {})])}
    with pytest.raises(ManifestError) as caught:
        house.client.prepare(house.request(apps))
    assert str(caught.value) == (
        "invalid manifest: app b: $.ports[0].port: expected a port that no other socketActivated port of the pod "
        'has, found 82/tcp, which is "x" of app a'
    )
    assert house.uuids() == before
    house.client.rm(house.client.prepare(house.request({**apps, "b": speak(ports=[("y", 83, {})])})).uuid)


@pytest.mark.full
def test_apps_that_come_and_go(speaking):
    """One that is stopped is not asked for; `start` waits for one that says when it is ready."""
    house = speaking(ready=True)
    with house.running({"other": speak("tell=READY=1", "sleep=1000")}) as pod:
        app = speak("sleep=0.5", "tell=READY=1", "serve=9", ports=[("www", 80, {})])
        house.client.app_add(pod.uuid, house.request({"main": app}), start=True)
        assert {one.name: one.ready for one in house.client.pod(pod.uuid).apps} == {"other": True, "main": True}
        assert ask(house, pod, 80, "other")[0] == 0
        house.client.app_stop(pod.uuid, "main")
        assert ask(house, pod, 80, "other")[0] == 1
        house.client.app_start(pod.uuid, "main")
        assert ask(house, pod, 80, "other")[0] == 0
        house.client.app_stop(pod.uuid, "main")
        taken = house.enter(pod.uuid, "sh", "-c", "nc -l -p 80 < /dev/null & sleep 0.3; echo up", app="other")
        assert taken[1] == "up\n"
        with pytest.raises(StagerError, match=r"port www: 80/tcp cannot be listened on: Address already in use"):
            house.client.app_start(pod.uuid, "main")


@pytest.mark.full
def test_one_that_is_never_ready(speaking):
    """The pod does not come up, and the reason names the app; with time, nothing of it is left."""
    house = speaking({"start_timeout": 2}, ready=True)
    record = house.client.prepare(house.request({"a": speak("tell=READY=1"), "b": speak("say=no", "sleep=1000")}))
    with pytest.raises(StagerError, match=r"^the pod does not run within 2 s: app b has not said its READY=1$"):
        house.start(record.uuid)
    assert house.client.pod(record.uuid).state == "errored"


# --- Kurma itself as a service ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "way"), [("path", "here"), ("abstract", "here"), ("path", "kurmad")], indirect=["way"]
)
def test_a_unit_with_type_notify(speaking, tmp_path, address):
    """READY=1 once the pod runs, STOPPING=1 as it ends; neither this nor a socket of the unit goes any further."""
    house = speaking(ready=True)
    where = str(tmp_path / "notify") if address == "path" else f"@kurma-test-{os.getpid()}"
    template = tmp_path / "pod.json"
    volume = tmp_path / "v"
    volume.mkdir()
    app = speak("environment", "await=/v/go", "tell=READY=1", "sleep=1000")
    mounts = [{"volume": "v", "path": "/v"}]
    volumes = [{"name": "v", "kind": "host", "source": str(volume)}]
    document = {
        "apps": [{"name": "main", "image": house.image, "app": app, "mounts": mounts}],
        "volumes": volumes,
        "networks": ["none"],
    }
    template.write_text(json.dumps(document))
    environment = {
        **os.environ,
        "KURMA_DIR": house.state,
        "KURMA_CONFIG": house.config_file,
        "NOTIFY_SOCKET": where,
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "unit",
    }
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.create_server(("127.0.0.1", 0)) as given,
    ):
        manager.bind(where if address == "path" else "\0" + where[1:])
        manager.settimeout(20)
        become = (
            f"import os, sys; os.dup2({given.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid());"
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        with subprocess.Popen(
            [sys.executable, "-c", become, *KURMA, "run", "--pod", str(template), "--name", "unit"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[given.fileno()],
        ) as process:
            until(lambda: "pid" in said(house, "unit") or process.poll() is not None)
            assert process.poll() is None, process.stderr.read()
            assert said(house, "unit").startswith("LISTEN_FDS None\nLISTEN_PID None\nLISTEN_FDNAMES None\n")
            assert "NOTIFY_SOCKET /dev/notify\n" in said(house, "unit")
            record = house.client.pod("unit")
            assert record.state == "starting"
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{record.stager_pid}/environ").read_bytes()
            inode = os.stat(given.fileno()).st_ino
            holders = {pid for pid in os.listdir("/proc") if pid.isdigit() and holds(pid, inode)}
            assert holders <= {str(process.pid), str(os.getpid())}
            manager.setblocking(False)
            time.sleep(0.2)
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
            manager.settimeout(20)
            (volume / "go").touch()
            assert manager.recv(4096).decode() == "READY=1\nSTATUS=pod unit runs"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1"
            process.communicate(timeout=20)
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


def said(house, name):
    """What the app of a pod, which may not be there yet, has written so far."""
    try:
        record = house.client.pod(name)
        return house.log(record)
    except KurmaError:
        return ""


def holds(pid, inode):
    try:
        return any(
            f"socket:[{inode}]" == os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False
