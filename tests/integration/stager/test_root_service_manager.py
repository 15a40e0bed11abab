"""What an app gets that a service manager would give it: its listening sockets, a socket to say that it is ready
(Y4; sd_listen_fds(3), sd_notify(3))."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kurma_core.errors import StagerError
from kurma_core.staging.stager_process import StagerImage
from tests.integration.stager.conftest import TestPod
from tests.kit.waiting import until

pytestmark = pytest.mark.root

READY = {"appc.io/executor/supports-systemd-notify": "true"}
Speak = Callable[..., dict[str, Any]]
Pods = Callable[..., TestPod]


@pytest.fixture(scope="session")
def speaking_root(tmp_path_factory: pytest.TempPathFactory, stager_tree: StagerImage) -> str:
    """A layer with Kurma's own interpreter, and the program that it is to run."""
    path = tmp_path_factory.mktemp("speaker")
    shutil.copytree(stager_tree.path, path, dirs_exist_ok=True, symlinks=True)
    shutil.copy(Path(__file__).with_name("speaker.py"), path / "speaker.py")
    (path / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nalice:x:1000:100:Alice:/:/bin/sh\n")
    return str(path)


@pytest.fixture
def talk(pods: Pods, speaking_root: str, busybox_root: str) -> Pods:
    """``talk({"main": APP}, …)``: a pod of such apps."""

    def start(apps: dict[str, dict[str, Any]], **more: Any) -> TestPod:
        return pods(apps, roots=[speaking_root, busybox_root], **more)

    return start


def speak(*words: str, ports: list[dict[str, Any]] | None = None, user: str = "0", **more: Any) -> dict[str, Any]:
    command = ["/opt/stager/bin/python3", "-IS", "/speaker.py", *words]
    environment = [{"name": "PYTHONHOME", "value": "/opt/stager"}]
    return {"exec": command, "user": user, "group": "", "environment": environment, "ports": ports or [], **more}


def port(name: str, number: int, protocol: str = "tcp", **more: Any) -> dict[str, Any]:
    return {"name": name, "port": number, "protocol": protocol, "socketActivated": True, **more}


def asked(number: int, address: str = "127.0.0.1") -> str:
    with socket.create_connection((address, number), timeout=10) as connection:
        return connection.makefile().read()


def is_open(number: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", number), timeout=10).close()
    except OSError:
        return False
    return True


def runs(pod: TestPod) -> bool:
    """Whether the stager has said so already."""
    try:
        pod.process.wait_running(0)
    except StagerError:
        return False
    return True


def test_sockets_are_handed_over(talk: Pods) -> None:
    """In the manifest's order, ranges spelled out, a name for each, for its own PID; nothing else is open."""
    ports = [
        port("web", 8701, count=2),
        {"name": "other", "port": 8710, "protocol": "tcp"},
        port("dns", 8753, "udp"),
        port("admin", 8705),
    ]
    app = speak("environment", "descriptors", "serve=2", "echo=2", ports=ports, user="alice")
    pod = talk({"main": app}).started()
    log = pod.wait_log("5 False")
    assert asked(8701).startswith("served by ")
    assert asked(8701, "::1").startswith("served by ")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(10)
        asking.sendto(b"hello", ("127.0.0.1", 8753))
        assert asking.recv(100) == b"HELLO"
    assert pod.ended() == 0, pod.log()
    log = pod.log()
    pid = next(line.split()[1] for line in log.splitlines() if line.startswith("pid"))
    assert pid != str(os.getpid())
    assert log.splitlines() == [
        "LISTEN_FDS 4",
        f"LISTEN_PID {pid}",
        "LISTEN_FDNAMES web:web:dns:admin",
        "NOTIFY_SOCKET None",
        f"pid {pid}",
        "open [0, 1, 2, 3, 4, 5, 6]",
        "3 True ('::', 8701) True",
        "4 True ('::', 8702) True",
        "5 False ('::', 8753) True",
        "6 True ('::', 8705) True",
    ]
    for number in (8701, 8702, 8705):
        with pytest.raises(ConnectionRefusedError):
            asked(number)


def test_each_app_gets_its_own(talk: Pods) -> None:
    """And an app that has none finds nothing of it; nor do handlers, and what is run in an app."""
    handlers = [{"name": "pre-start", "exec": speak("environment")["exec"]}]
    apps = {
        "one": speak("environment", "descriptors", "serve=1", ports=[port("a", 8711)], eventHandlers=handlers),
        "two": speak("environment", "descriptors", "serve=1", ports=[port("b", 8712)]),
        "none": speak("environment", "sleep=60"),
    }
    pod = talk(apps).started()
    for app, number in (("one", 8711), ("two", 8712)):
        assert f"3 True ('::', {number})" in pod.wait_log("3 True", f"{app}.log")
        assert "open [0, 1, 2, 3]" in pod.log(f"{app}.log")
    assert pod.wait_log("pid", "none.log").startswith("LISTEN_FDS None\nLISTEN_PID None\nLISTEN_FDNAMES None\n")
    handler, _, main = pod.log("one.log").partition("pid")
    assert handler.startswith("LISTEN_FDS None\n")
    assert "LISTEN_FDS 1\n" in main
    code, out, err = pod.run(*speak("environment")["exec"], app="one")
    assert (code, out.splitlines()[:3], err) == (
        0,
        ["LISTEN_FDS None", "LISTEN_PID None", "LISTEN_FDNAMES None"],
        "",
    )
    for number in (8711, 8712):
        asked(number)
    pod.stop()


@pytest.mark.full
def test_nobody_is_refused_while_the_app_is_started_again(talk: Pods) -> None:
    """From before its first start on."""
    app = speak("sleep=0.2", "serve=1", ports=[port("web", 8721)])
    pod = talk({"main": app}, app_annotations={"kurma.io/restart": "always"})
    until(lambda: os.path.exists(f"{pod.directory}/pod/status.json"))
    assert len({asked(8721) for _ in range(4)}) == 4
    assert pod.app()["restarts"] >= 3
    assert pod.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        asked(8721)


def test_what_one_execution_does_to_its_sockets(talk: Pods) -> None:
    """The next one finds them listening."""
    app = speak("deafen", "await=/tmp/listen", ports=[port("web", 8725)])
    pod = talk({"main": app}, app_annotations={"kurma.io/restart": "always"}).started()
    for _ in range(2):
        until(lambda: not is_open(8725))
        pod.run("/bin/touch", "/tmp/listen")
        until(lambda: is_open(8725))
    pod.stop()


def test_a_port_that_is_taken(talk: Pods) -> None:
    with socket.create_server(("0.0.0.0", 8731)):
        pod = talk({"web": speak(ports=[port("www", 8730, count=2)])})
        assert pod.ended() == 1
    assert pod.output() == ("app web: port www: 8731/tcp cannot be listened on: Address already in use\n")


# --- readiness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["0", "alice"])
def test_the_pod_runs_once_its_apps_are_ready(talk: Pods, tmp_path: Path, user: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    from kurma_core.models.pod import MountSetup

    words = ("environment", "tell=STATUS=loads", "await=/v/go", "tell=READY=1;STATUS=serves;MAINPID=1", "sleep=60")
    pod = talk(
        {"main": speak(*words, user=user)},
        app_annotations=READY,
        volumes={"v": str(volume)},
        mounts={"main": [MountSetup("v", "/v", False)]},
    )
    assert "NOTIFY_SOCKET /dev/notify" in pod.wait_log("pid")
    until(lambda: pod.app()["statusText"] == "loads")
    assert not runs(pod)
    assert (pod.app()["ready"], pod.app()["phase"]) == (False, "main")
    with pytest.raises(
        StagerError, match=r"^the pod does not run within 0\.1 s: app main has not said its READY=1$"
    ):
        pod.process.wait_running(0.1)
    (volume / "go").touch()
    pod.started()
    assert pod.app()["ready"] is True
    until(lambda: pod.app()["statusText"] == "serves")
    # Neither it nor what is run in it may change the socket; and there is none in a command's environment.
    _, out, _ = pod.run("/bin/sh", "-c", "chmod 0 /dev/notify; rm -f /dev/notify; ls -l /dev/notify; env")
    assert "srw-rw-rw-" in out
    assert "NOTIFY_SOCKET" not in out
    pod.stop()


def test_what_it_says_later(talk: Pods, tmp_path: Path) -> None:
    """A flood of it is written down once in a while; what is no word of it is passed over."""
    words = ("tell=READY=1", "flood=3000", "tell=STATUS=a\x1b[31mb;nonsense", f"tell={'x' * 5000}READY=1")
    pod = talk({"main": speak(*words, "tell=STOPPING=1", "sleep=60")}, app_annotations=READY).started()
    until(lambda: pod.app()["ready"] is False)
    until(lambda: pod.app()["statusText"] == "a [31mb")
    pod.stop()


@pytest.mark.full
def test_how_often_it_is_written_down(talk: Pods) -> None:
    pod = talk(
        {"main": speak("tell=READY=1", "flood=2000", "say=done", "sleep=60")}, app_annotations=READY
    ).started()
    seen, end = set(), time.monotonic() + 2.5
    while time.monotonic() < end:
        seen.add(os.stat(f"{pod.directory}/pod/status.json").st_ino)
        time.sleep(0.001)
    assert pod.app()["statusText"] == "number 1999"
    assert len(seen) <= 5
    pod.stop()


def test_one_that_is_started_again_is_ready_anew(talk: Pods) -> None:
    """And one that ends without a word holds nobody up."""
    app = speak("tell=READY=1", "await=/tmp/end")
    pod = talk({"main": app}, app_annotations={**READY, "kurma.io/restart": "always"}).started()
    assert pod.app()["ready"] is True
    pod.run("/bin/touch", "/tmp/end")
    until(lambda: pod.app()["restarts"] == 1 and pod.app()["ready"])
    pod.stop()
    assert "ready" not in pod.app()
    silent = talk({"main": speak("say=silent")}, app_annotations=READY)
    silent.started()
    assert silent.ended() == 0


def test_nobody_else_reaches_it(talk: Pods) -> None:
    """It stands in the app's own root: neither another app of the pod, nor a handler, makes it ready."""
    early = speak("tell=READY=1")["exec"]
    telling = [
        {"name": "pre-start", "exec": ["/bin/sh", "-c", f"NOTIFY_SOCKET=/dev/notify exec {' '.join(early)}"]}
    ]
    pod = talk({"main": speak("say=runs", "sleep=60", eventHandlers=telling)}, app_annotations=READY)
    pod.wait_log("runs")
    time.sleep(0.2)
    assert pod.app()["ready"] is False
    assert not runs(pod)
    pod.stop()
