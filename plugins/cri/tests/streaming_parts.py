"""A streaming server with a backend that does what a test says."""

import contextlib
import logging
import os
import socket
import threading

from kurma_cri.streaming.requests import AttachStreams, ExecStreams, PortForward
from kurma_cri.streaming.server import StreamingServer
from kurma_cri.streaming.sessions import Times
from kurma_cri.streaming.wire import GoneError
from websockets.exceptions import ConnectionClosedOK

from tests.kit.waiting import until

FORWARD = PortForward(pod="pod")


def exec_request(*names, kind=ExecStreams, tty=False):
    """A request with these streams."""
    command = {"command": ("true",)} if kind is ExecStreams else {}
    return kind(pod="pod", app="app", tty=tty, **command, **dict.fromkeys(names, True))


def attach_request(*names, tty=False):
    return exec_request(*names, kind=AttachStreams, tty=tty)


def echo(request, streams):
    """Sends the input back on stdout, and its length on stderr."""
    count = 0
    while data := streams.stdin.read():
        count += len(data)
        streams.stdout.write(data)
    if streams.stderr is not None:
        streams.stderr.write(f"{count}\n".encode())
    return 0


class ScriptedBackend:
    """:param run: does ``exec`` and ``attach``. :param ports: functions by port that serve one connection."""

    def __init__(self, run=echo, ports=None):
        self.run = run
        self.ports = ports or {}
        self.requests = []

    def exec(self, request, streams):
        self.requests.append(request)
        return self.run(request, streams)

    def attach(self, request, streams):
        self.requests.append(request)
        self.run(request, streams)

    def port_forward(self, pod, port):
        self.requests.append((pod, port))
        serve = self.ports[port]
        if isinstance(serve, Exception):
            raise serve
        ours, theirs = socket.socketpair()

        def work():
            with theirs:
                serve(theirs)

        threading.Thread(target=work, name="cri-test-port", daemon=True).start()
        return ours


def until_gone(streams):
    """Waits until the client has gone."""
    gone = threading.Event()
    streams.on_gone(gone.set)
    assert gone.wait(20)


def read_to_the_end(source):
    """:returns: what was read, and whether it came to its end, not the client's."""
    found = b""
    try:
        while data := source.read():
            found += data
    except GoneError:
        return found, False
    return found, True


def messages(websocket):
    """Yields the messages until the server closes the connection."""
    while True:
        try:
            yield websocket.recv(timeout=20)
        except ConnectionClosedOK:
            return


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("cri-")]


@contextlib.contextmanager
def serving(backend=None, *, address="127.0.0.1", **times):
    """A server; at its end no thread and no descriptor is left."""
    before = len(os.listdir("/proc/self/fd"))
    server = StreamingServer(
        address, 0, backend or ScriptedBackend(), logging.getLogger("streaming"), Times(**times)
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
        until(lambda: threads() == [], lambda: str(threads()))
        until(lambda: len(os.listdir("/proc/self/fd")) <= before, lambda: str(os.listdir("/proc/self/fd")))
