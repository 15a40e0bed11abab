"""Exec, attach and port-forward of real containers, over the URLs that kurmad's service gives (C18, C18a)."""

import contextlib
import json
import os
import socket

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri
from websockets.sync.client import connect

from plugins.cri.tests.conftest import refused
from plugins.cri.tests.spdy_client import Refused, SpdyClient
from plugins.cri.tests.streaming_parts import messages
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
SHELL = ("sh", "-c")


def exec_url(node, container, *command, **fields):
    request = cri.ExecRequest(container_id=container, cmd=command, **fields)
    return node.runtime.Exec(request).url


def attach_url(node, container, **fields):
    return node.runtime.Attach(cri.AttachRequest(container_id=container, **fields)).url


@contextlib.contextmanager
def spdy(url, *names, **options):
    client = SpdyClient(url, **options)
    try:
        yield client, *(client.open(name) for name in ("error", *names))
    finally:
        client.close()


@contextlib.contextmanager
def websocket(url, version="v5.channel.k8s.io"):
    with connect(url.replace("http:", "ws:"), subprotocols=[version], compression=None, proxy=None) as socket:
        yield socket


def read_until(websocket, *words):
    """Reads messages until the output has these words. :returns: the output."""
    text = b""
    while not all(word in text for word in words):
        text += websocket.recv(timeout=20)[1:]
    return text


def processes(node, container):
    pod = next(pod for pod in node.house.client.pods() if container in pod.images)
    return [one.command for one in node.house.client.processes(pod.uuid, container)]


def test_exec_over_spdy(node):
    container = node.started(node.run(), "sleep", "1000")
    streams = {"stdin": True, "stdout": True, "stderr": True}
    url = exec_url(node, container, *SHELL, "cat; echo failed >&2; exit 3", **streams)
    with spdy(url, *streams) as (_, error, stdin, stdout, stderr):
        stdin.send(b"some input\n" * 20_000, fin=True)
        assert stdout.read_all() == b"some input\n" * 20_000
        assert stderr.read_all() == b"failed\n"
        assert json.loads(error.read_all())["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    with pytest.raises(Refused, match="404"):
        SpdyClient(url)


def test_a_terminal_over_websocket(node):
    container = node.started(node.run(), "sleep", "1000")
    url = exec_url(node, container, "sh", stdin=True, stdout=True, tty=True)
    with websocket(url) as client:
        assert client.recv(timeout=20) == b"\x01"
        client.send(b'\x04{"Width":101,"Height":41}')
        client.send(b"\x00stty size; tty\n")
        read_until(client, b"41 101", b"/dev/pts/")
        client.send(b'\x04{"Width":102,"Height":42}')
        client.send(b"\x00sleep 0.1; stty size\n")
        read_until(client, b"42 102")
        client.send(b"\x00exit\n")
        *_, last = messages(client)
        assert last == b"\x03" + b'{"metadata": {}, "status": "Success"}'


@pytest.mark.full
def test_attach(node):
    container = node.started(node.run(), *SHELL, "read line; echo got $line; read line; exit 4", stdin=True)
    url = attach_url(node, container, stdin=True, stdout=True, stderr=True)
    with spdy(url, "stdin", "stdout", "stderr") as (_, _, stdin, stdout, _):
        stdin.send(b"one\n")
        stdout.read(8)
        assert bytes(stdout.data) == b"got one\n"
    # The app goes on after a client that has gone.
    url = attach_url(node, container, stdin=True, stdout=True)
    with spdy(url, "stdin", "stdout") as (_, error, stdin, stdout):
        stdin.send(b"two\n")
        assert json.loads(error.read_all())["status"] == "Success"
    assert node.wait_exited(container).exit_code == 4


@pytest.mark.full
@pytest.mark.parametrize("way", ["closes its input", "vanishes"])
@pytest.mark.parametrize("once", [True, False])
def test_the_input_of_an_app_ends_with_its_first_client_only_if_that_is_asked_for(node, once, way):
    command = (*SHELL, "while read line; do echo got $line; done; echo end; exec sleep 1000")
    container = node.started(node.run(), *command, stdin=True, stdin_once=once)
    fields = {"stdin": True, "stdout": True}
    with spdy(attach_url(node, container, **fields), *fields) as (client, _, stdin, stdout):
        stdin.send(b"one\n")
        stdout.read(8)
        if way == "vanishes":
            client.close()
        else:
            stdin.close()
            if once:
                stdout.wait(lambda stream: b"end" in stream.data)
    if once:
        until(lambda: "end" in node.output(container))
    else:
        with spdy(attach_url(node, container, **fields), *fields) as (_, _, stdin, stdout):
            stdin.send(b"two\n")
            assert stdout.read(8) == b"got two\n"


@pytest.mark.parametrize("host_network", [True, pytest.param(False, marks=pytest.mark.full)])
def test_port_forward(node, host_network):
    """To the pod's loopback addresses: other pods have the same port."""
    serve = "mkdir /www; echo from the pod >/www/index.html; exec httpd -f -p {}:{} -h /www"
    with (
        socket.create_server(("127.0.0.1", 0)) as free,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as other,
    ):
        port, six = free.getsockname()[1], other.getsockname()[1]
    one = node.run(host_network=host_network)
    for name, words in (("main", ("127.0.0.1", port)), ("six", ("[::1]", six))):
        container = node.started(one, *SHELL, serve.format(*words), name=name)
        until(lambda: any("httpd" in command for command in processes(node, container)))  # noqa: B023 - at once
    url = node.runtime.PortForward(cri.PortForwardRequest(pod_sandbox_id=one)).url
    client = SpdyClient(url, versions=["portforward.k8s.io"])

    def forward(number, port):
        error = client.open("error", port=str(port), requestid=str(number))
        error.close()
        return error, client.open("data", port=str(port), requestid=str(number))

    for number, open_port in enumerate((port, port, six)):
        error, data = forward(number, open_port)
        data.send(b"GET / HTTP/1.0\r\n\r\n")
        assert b"from the pod" in data.read_all()
        assert error.read_all() == b""
        data.close()
    error, data = forward(3, 1)
    assert b"port 1" in error.read_all()
    assert b"refused" in error.data
    data.wait(lambda stream: stream.status is not None)
    client.close()


@pytest.mark.full
def test_refusals(node):
    sandbox = node.run()
    container = node.create(sandbox, node.container_config("sleep", "1000"))
    with refused(CODES.FAILED_PRECONDITION, "does not run"):
        exec_url(node, container, "true", stdout=True)
    node.start(container)
    with refused(CODES.INVALID_ARGUMENT, "stdin, stdout and stderr"):
        exec_url(node, container, "true")
    with refused(CODES.INVALID_ARGUMENT, "tty"):
        attach_url(node, container, tty=True, stdout=True, stderr=True)
    with refused(CODES.INVALID_ARGUMENT, "cmd"):
        exec_url(node, container, stdout=True)
    with refused(CODES.NOT_FOUND):
        exec_url(node, "0" * 64, "true", stdout=True)
    with refused(CODES.INVALID_ARGUMENT, "65536"):
        node.runtime.PortForward(cri.PortForwardRequest(pod_sandbox_id=sandbox, port=[65536]))


@pytest.mark.full
def test_the_address_and_the_number_of_urls(make_node):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node = make_node(stream_address="127.0.0.2", stream_port=port)
    container = node.started(node.run(), "sleep", "1000")
    url = exec_url(node, container, "echo", "hello", stdout=True)
    assert url.startswith(f"http://127.0.0.2:{port}/exec/")
    with spdy(url, "stdout") as (_, _, stdout):
        assert stdout.read_all() == b"hello\n"
    for _ in range(1000):
        exec_url(node, container, "true", stdout=True)
    with refused(CODES.RESOURCE_EXHAUSTED, "1000"):
        exec_url(node, container, "true", stdout=True)


def held(node):
    """Descriptors and threads of kurmad's."""
    process = f"/proc/{node.daemon.process.pid}"
    return len(os.listdir(f"{process}/fd")), len(os.listdir(f"{process}/task"))


@pytest.mark.full
def test_nothing_is_left_of_clients(node):
    sandbox = node.run()
    container = node.started(sandbox, "sleep", "1000")

    def clients():
        for tty in (False, True):
            with spdy(exec_url(node, container, "echo", "hello", stdout=True, tty=tty), "stdout") as (
                client,
                error,
                out,
            ):
                if tty:
                    client.open("resize")
                assert out.read_all().strip() == b"hello"
                error.read_all()
            client = SpdyClient(exec_url(node, container, "cat", stdin=True, stdout=True, tty=tty))
            for name in ("error", "stdin", "stdout"):
                client.open(name)
            client.close()
            with websocket(attach_url(node, container, stdout=True)) as client:
                client.recv(timeout=20)
        url = node.runtime.PortForward(cri.PortForwardRequest(pod_sandbox_id=sandbox)).url
        client = SpdyClient(url, versions=["portforward.k8s.io"])
        for number in range(3):
            client.open("error", port="1", requestid=str(number))
            client.open("data", port="1", requestid=str(number), wait=False)
        client.close()

    clients()
    until(lambda: not any("cat" in command for command in processes(node, container)))
    before = held(node)
    for _ in range(5):
        clients()
    until(lambda: held(node) <= before, lambda: f"{held(node)}, before {before}")


@pytest.mark.full
@pytest.mark.parametrize("tty", [False, True])
def test_the_command_of_a_client_that_vanishes_is_ended(node, tty):
    container = node.started(node.run(), "sleep", "1000")
    url = exec_url(node, container, "sleep", "1001", stdin=True, stdout=True, tty=tty)
    client = SpdyClient(url)
    for name in ("error", "stdin", "stdout", *(["resize"] if tty else [])):
        client.open(name)
    until(lambda: any("1001" in command for command in processes(node, container)))
    client.close()
    until(lambda: not any("1001" in command for command in processes(node, container)))
