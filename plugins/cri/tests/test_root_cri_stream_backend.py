"""Exec and attach by the client API: what a command and its client do to each other (C18)."""

import contextlib
import json
import time

import pytest
from kurma_cri.streaming import backend as backend_module
from kurma_cri.streaming.backend import ClientBackend
from kurma_cri.streaming.requests import AttachStreams, ExecStreams

from plugins.cri.tests.spdy_client import SpdyClient
from plugins.cri.tests.streaming_parts import serving
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]
SUCCESS = {"metadata": {}, "status": "Success"}


@pytest.fixture
def make_client(house):
    """``make_client(script, *streams)``: the streams of a command in a pod."""
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(house.running({"main": "sleep 1000", "input": INPUT, "terminal": TERMINAL}))
        server = stack.enter_context(serving(ClientBackend(house.client)))

        def make(script, *names, app="main", tty=False, attach=False, command=()):
            given = dict.fromkeys(names, True)
            if attach:
                request = AttachStreams(pod=pod.uuid, app=app, tty=tty, **given)
            else:
                request = ExecStreams(
                    pod=pod.uuid, app=app, command=command or ("/bin/sh", "-c", script), tty=tty, **given
                )
            client = SpdyClient(server.url(request))
            stack.callback(client.close)
            return client, *(client.open(name) for name in ("error", *names, *(["resize"] if tty else [])))

        make.processes = lambda: [one.command for one in house.client.processes(pod.uuid)]
        make.uuid = pod.uuid
        yield make


INPUT = {
    "app": shell("while read line; do echo got $line; done; echo end; sleep 1000"),
    "annotations": [{"name": "kurma.io/stdin", "value": "true"}],
}
TERMINAL = {
    "app": shell("stty -echo; while read line; do stty size; echo got $line; done"),
    "annotations": [{"name": "kurma.io/terminal", "value": "true"}],
}


def status_of(error):
    return json.loads(error.read_all())


def test_a_command_that_does_not_read_its_input(make_client):
    _, error, stdin = make_client("exit 7", "stdin")
    stdin.send(b"x" * (1 << 20))
    assert status_of(error)["details"]["causes"][0]["message"] == "7"


def test_a_child_that_keeps_the_output(make_client):
    begun = time.monotonic()
    _, error, stdout = make_client("sleep 1000 & echo begun", "stdout")
    assert (stdout.read_all(), status_of(error)) == (b"begun\n", SUCCESS)
    assert time.monotonic() - begun < 100


def test_output_that_is_not_read_waits(make_client):
    client, error, stdout = make_client("head -c 50000000 /dev/zero", "stdout")
    client.reads.clear()
    until(lambda: "head" in str(make_client.processes()))
    client.reads.set()
    stdout.wait(lambda stream: stream.ended)
    assert (len(stdout.data), status_of(error)) == (50_000_000, SUCCESS)


def test_output_that_is_not_wanted_is_dropped(make_client):
    _, error, stderr = make_client("head -c 5000000 /dev/zero; echo done >&2", "stderr")
    assert (stderr.read_all(), status_of(error)) == (b"done\n", SUCCESS)


def test_output_whose_client_has_reset_it(make_client):
    """As a pipe whose reader has gone."""
    _, error, stdout = make_client("yes; echo $? >&2", "stdout")
    stdout.read(1)
    stdout.reset()
    assert status_of(error) == SUCCESS


def test_a_command_that_ignores_signals_is_killed(make_client, monkeypatch):
    monkeypatch.setattr(backend_module, "_PATIENCE", 0.3)
    client, _, stdout = make_client("trap '' TERM; echo begun; while :; do sleep 0.1; done", "stdout")
    assert stdout.read(6) == b"begun\n"
    client.close()
    until(lambda: not any("trap" in command for command in make_client.processes()))


def test_a_command_that_is_not_there(make_client):
    _, error, stderr = make_client(None, "stderr", command=("/no/such",))
    assert b"/no/such" in stderr.read_all()
    assert status_of(error)["details"]["causes"][0]["message"] == "127"
    _, error, _ = make_client("true", "stdout", app="other")
    assert status_of(error)["reason"] == "InternalError"


def test_the_end_of_input_at_a_terminal(make_client):
    _, error, stdin, stdout, _ = make_client("cat; echo end", "stdin", "stdout", tty=True)
    stdin.send(b"no newline", fin=True)
    assert stdout.read_all().endswith(b"no newlineend\r\n")
    assert status_of(error) == SUCCESS


def test_attached_clients_share_an_app(make_client):
    one, _, stdin, stdout = make_client("", "stdin", "stdout", app="input", attach=True)
    _, error, watched = make_client("", "stdout", app="input", attach=True)

    def told():
        stdin.send(b"one\n")
        return watched.data

    until(told)
    assert stdout.read(8).startswith(b"got one\n")
    # A client that vanishes does not end the app's input.
    one.close()
    _, _, stdin, stdout = make_client("", "stdin", "stdout", app="input", attach=True)
    stdin.send(b"two\n")
    stdout.wait(lambda stream: b"got two\n" in stream.data)
    watched.wait(lambda stream: b"got two\n" in stream.data)
    assert not error.ended


def test_a_terminal_is_attached_to(make_client):
    _, _, stdin, stdout, resize = make_client("", "stdin", "stdout", app="terminal", tty=True, attach=True)
    resize.send(b'{"Width":99,"Height":33}')
    stdin.send(b"one\n")
    stdout.wait(lambda stream: b"got one" in stream.data)

    def sized():
        stdin.send(b"again\n")
        return b"33 99" in stdout.data

    until(sized)
