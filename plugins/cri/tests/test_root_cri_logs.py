"""Logs, commands and ends of containers over the socket (C9, C16, C17)."""

import os
import re
import threading

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services

from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode

WRITER = "trap 'echo again' USR1; trap 'exit 7' QUIT; echo out; echo err >&2; while :; do sleep 0.05; done"


def texts(path):
    return sorted(" ".join(line.split(" ")[1:]) for line in path.read_text().splitlines())


def reopen(node, container):
    node.runtime.ReopenContainerLog(cri.ReopenContainerLogRequest(container_id=container))


def test_the_log_of_a_container(node, tmp_path):
    """It is where kubelet wants it before the start returns; kubelet rotates it; a removal leaves it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "logs").symlink_to("real")
    sandbox = node.run(log_directory=f"{tmp_path}/logs/pod")
    config = node.container_config(
        "sh", "-c", WRITER, log_path="main/0.log", stop_signal=cri.SIGNAL_SIGQUIT, stdin=True, stdin_once=True
    )
    container = node.create(sandbox, config)
    log = tmp_path / "real/pod/main/0.log"
    with refused(CODES.FAILED_PRECONDITION, "does not run"):
        reopen(node, container)
    assert not log.exists()
    node.start(container)
    assert log.exists()
    assert node.status(container).log_path == f"{tmp_path}/logs/pod/main/0.log"
    until(lambda: len(texts(log)) == 2, "its output")
    assert texts(log) == ["stderr F err", "stdout F out"]

    log.rename(tmp_path / "old")
    reopen(node, container)
    assert log.read_bytes() == b""
    pod = next(pod for pod in node.house.client.pods() if container in pod.images)
    os.kill(next(app.pid for app in pod.apps if app.name == container), 10)
    until(lambda: texts(log) == ["stdout F again"], "output in the new file")
    assert texts(tmp_path / "old") == ["stderr F err", "stdout F out"]

    assert node.status(container).stop_signal == cri.SIGNAL_SIGQUIT
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=container, timeout=100))
    assert node.status(container).exit_code == 7, "it got its stop signal"
    log.unlink()
    with refused(CODES.FAILED_PRECONDITION, "does not run"):
        reopen(node, container)
    assert not log.exists()
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    assert (tmp_path / "old").exists()
    with refused(CODES.INVALID_ARGUMENT, "log_path"):
        node.create(sandbox, node.container_config("true", name="out", log_path="../0.log"))
    mute = node.started(sandbox, "sh", "-c", "echo never", name="mute")
    assert node.wait_exited(mute).log_path == ""
    silent = node.started(sandbox, "sleep", "1000", name="silent")
    reopen(node, silent)  # there is nothing to do
    assert sorted(os.listdir(tmp_path / "real/pod")) == ["main"]


def run(node, container, *command, timeout=20):
    return node.runtime.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=command, timeout=timeout))


def test_commands_in_a_container(node):
    """Exit code and both outputs; at the time-out all of it is ended."""
    sandbox = node.run()
    container = node.started(sandbox, "sleep", "1000")
    answer = run(node, container, "sh", "-c", "echo out; echo err >&2; exit 3", timeout=0)
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, b"out\n", b"err\n")
    with refused(CODES.DEADLINE_EXCEEDED, "killed"):
        run(node, container, "sh", "-c", "(setsid sleep 1007 &) & sleep 1008", timeout=1)
    seen = run(node, container, "sh", "-c", "ps -o args | grep -c 'sleep 100[78]' || true")
    assert seen.stdout.strip() in (b"0", b"1"), "only the search itself"
    # A child that keeps the output does not delay the answer.
    assert run(node, container, "sh", "-c", "sleep 1009 & echo done", timeout=1000).stdout == b"done\n"
    created = node.create(sandbox, node.container_config("true", name="second"))
    with refused(CODES.FAILED_PRECONDITION, "does not run"):
        run(node, created, "true")
    with refused(CODES.INVALID_ARGUMENT, "cmd"):
        run(node, container)
    with refused(CODES.NOT_FOUND):
        run(node, "f" * 64, "true")


@pytest.mark.full
def test_output_of_a_command_is_capped(node):
    """The program is not blocked, and the answer is below 16 MiB as a whole."""
    container = node.started(node.run(), "sleep", "1000")
    script = "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 4"
    channel = grpc.insecure_channel(
        f"unix:{node.socket}",
        [("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", (16 << 20) - 1)],
    )
    with channel:
        stub = services.RuntimeServiceStub(channel)
        answer = stub.ExecSync(cri.ExecSyncRequest(container_id=container, cmd=["sh", "-c", script]))
    assert answer.exit_code == 4
    assert len(answer.stdout) + len(answer.stderr) > 16_000_000
    assert answer.ByteSize() < 16_777_216


@pytest.mark.full
def test_stops_of_containers_of_one_sandbox(node):
    """They do not wait for each other, and a shorter one ends an earlier one sooner."""
    sandbox = node.run()
    stubborn = ("sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done")
    one, two = (node.started(sandbox, *stubborn, name=name) for name in ("one", "two"))
    until(lambda: node.output(one) == node.output(two) == ["up"], "their output")

    def stop(container, timeout):
        node.runtime.StopContainer(cri.StopContainerRequest(container_id=container, timeout=timeout))

    waiting = threading.Thread(target=stop, args=(one, 1000))
    waiting.start()
    until(lambda: "asked" in node.output(one), "its stop signal")
    stop(two, 1)
    assert waiting.is_alive()
    stop(one, 0)
    waiting.join(20)
    assert not waiting.is_alive()
    assert {node.status(one).exit_code, node.status(two).exit_code} == {137}


def test_lines_of_a_log(node, tmp_path):
    """The form of each line; long lines in parts; the rest at the end; a terminal has one output."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    sandbox = node.run(log_directory=str(tmp_path))
    script = "head -c 40000 /dev/zero | tr '\\0' x; echo; printf rest"
    node.wait_exited(node.started(sandbox, "sh", "-c", script, name="long", log_path="long.log"))
    found = (tmp_path / "long.log").read_text().splitlines()
    for line in found:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(Z|[+-]\d\d:\d\d) stdout [PF] ", line)
    parts = [line.split(" ", 3)[2:] for line in found]
    whole = [tag for tag, _ in parts[:-1]]
    assert (whole[-1], set(whole[:-1])) == ("F", {"P"})
    assert "".join(text for _, text in parts[:-1]) == "x" * 40000
    assert all(len(text) <= 16384 for _, text in parts)
    assert parts[-1] == ["P", "rest"]
    terminal = node.started(
        sandbox, "sh", "-c", "echo out; echo err >&2", name="tty", tty=True, log_path="tty.log"
    )
    node.wait_exited(terminal)
    assert [line.rstrip() for line in texts(tmp_path / "tty.log")] == ["stdout F err", "stdout F out"]
    linked = node.create(sandbox, node.container_config("true", name="linked", log_path="link/0.log"))
    with pytest.raises(grpc.RpcError):
        node.start(linked)
    assert os.listdir(tmp_path / "elsewhere") == []
