"""What a client says on a stream: heard frame by frame; whoever says what is none is told so, and cut off."""

import contextlib
import json
import os
import resource
import socket
import threading
import time

import pytest

from kurma_core.client.frames import INPUT, LIMIT, LOG, MESSAGE, WINDOW, FrameReader, frame
from kurma_core.daemon import streams
from kurma_core.daemon.callers import Caller
from kurma_core.daemon.exchange import Gone
from kurma_core.errors import BusyError, UsageError


class Ends:
    """A stream in the daemon, and the client's end of it."""

    def __init__(self):
        self.client, self.server = socket.socketpair()
        self.client.settimeout(10)
        self.stream = streams.Stream(self.server, b"")
        self.query = {"stdio": "frames", "terminal": False}
        self.heard, self.left = [], threading.Event()

    def listen(self):
        self.stream.listen(lambda kind, value: self.heard.append((kind, value)), self.left.set)

    def last(self):
        """The last message, once the connection is closed."""
        data = b""
        while piece := self.client.recv(65536):
            data += piece
        *_, (kind, payload) = FrameReader(data).frames()
        assert kind == MESSAGE
        return json.loads(payload)

    def close(self):
        self.stream.close()
        self.client.close()
        self.server.close()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


def test_what_is_said_is_heard(ends):
    ends.listen()
    data = frame(INPUT, b"typed") + frame(MESSAGE, b'{"is": "go"}')
    for place in range(len(data)):
        ends.client.send(data[place : place + 1])
    ends.client.close()
    assert ends.left.wait(10)
    assert ends.heard == [(INPUT, b"typed"), (MESSAGE, {"is": "go"})]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"GET / HTTP/1.1", "a frame of kind 71"),
        (bytes([INPUT]) + (LIMIT + 1).to_bytes(4, "big"), f"and {LIMIT + 1} bytes"),
        (frame(LOG, b"x"), "a client sends no frames of kind 4"),
        (frame(MESSAGE, b"{"), "no JSON"),
        (frame(MESSAGE, b"\xff"), "no JSON"),
        (frame(MESSAGE, b"[" * 5000), "no JSON"),
        (frame(MESSAGE, b"[1]"), "does not say what it is"),
    ],
)
def test_garbage(ends, said, why):
    ends.listen()
    ends.client.sendall(said)
    message = ends.last()
    assert message["is"] == "error"
    assert message["error"]["message"].startswith("the stream is broken: ")
    assert why in message["error"]["message"]
    assert ends.left.wait(10)
    with pytest.raises(Gone):
        ends.stream.tell({"is": "note"})


def test_half_a_frame_and_nothing_more(ends, monkeypatch):
    monkeypatch.setattr(streams, "REQUEST_PATIENCE", 0.2)
    ends.listen()
    ends.client.sendall(frame(INPUT, b"whole") + frame(INPUT, b"half")[:-1])
    assert ends.last()["error"]["message"] == "the stream is broken: the rest of a frame does not come"
    assert ends.heard == [(INPUT, b"whole")]


def test_more_input_than_is_free(ends):
    """Nobody reads it: so much is kept, and not a byte more."""
    with Caller(ends):
        ends.client.sendall(frame(INPUT, bytes(WINDOW - 1000)))
        ends.client.sendall(frame(INPUT, bytes(200_000)))
        assert "more than 262144 bytes of input" in ends.last()["error"]["message"]


def test_input_goes_on_as_it_is_read(ends):
    """Many windows of it, by who keeps to what is told to be taken; then its end."""
    sent, got = os.urandom(1 << 20), bytearray()
    with Caller(ends) as caller:
        stdin = os.dup(caller.stdio.stdin)
        caller.started()

        def read():
            while data := os.read(stdin, 65536):
                got.extend(data)

        thread = threading.Thread(target=read)
        thread.start()
        reader, free, rest = FrameReader(), WINDOW, sent
        while rest:
            piece, rest = rest[: min(free, 50_000)], rest[min(free, 50_000) :]
            ends.client.sendall(frame(INPUT, piece))
            free -= len(piece)
            while not free or (free < 50_000 and rest):
                reader.feed(ends.client.recv(65536))
                free += sum(json.loads(payload)["bytes"] for _, payload in reader.frames())
        ends.client.sendall(frame(INPUT, b""))
        thread.join(10)
        os.close(stdin)
    assert bytes(got) == sent


@pytest.mark.parametrize("count", [0, 2, 4])
def test_three_descriptors_are_lent(ends, count):
    """No fewer, and no more; none of them stays open."""
    before = set(os.listdir("/proc/self/fd"))
    null = os.open("/dev/null", os.O_RDWR)
    socket.send_fds(ends.client, [frame(MESSAGE, b'{"is": "stdio", "terminal": false}')], [null] * count)
    with pytest.raises(UsageError, match="three descriptors are to come"):
        ends.stream.lent()
    os.close(null)
    assert set(os.listdir("/proc/self/fd")) == before


def test_lent_descriptors(ends):
    read, write = os.pipe()
    socket.send_fds(ends.client, [frame(MESSAGE, b'{"is": "stdio", "terminal": true}')], [read, write, write])
    ends.query["stdio"] = "lent"
    with Caller(ends) as caller:
        assert caller.stdio.terminal
        os.write(caller.stdio.stdout, b"there")
        assert os.read(read, 10) == b"there"
        ends.client.sendall(frame(INPUT, b"x"))
        assert "by the descriptor that was lent" in ends.last()["error"]["message"]
    os.close(write)
    assert os.read(read, 10) == b""
    os.close(read)


def descriptors():
    return set(os.listdir("/proc/self/fd"))


def all_closed(before):
    """Soon: some are closed by threads of their own."""
    deadline = time.monotonic() + 10
    while descriptors() != before:
        assert time.monotonic() < deadline, descriptors() - before
        time.sleep(0.01)


@contextlib.contextmanager
def free(count):
    """So many descriptors can be opened inside, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + count + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize(("terminal", "needed"), [(False, 9), (True, 5)])
def test_for_want_of_descriptors_none_is_left_open(ends, terminal, needed):
    import termios  # noqa: F401 (which needs one, too, for a moment)

    ends.query.update(terminal=terminal, rows=24, columns=80)
    before = descriptors()
    for count in range(needed):
        with free(count), pytest.raises(OSError, match="Too many open files"):
            Caller(ends)
        all_closed(before)
    with free(needed), Caller(ends):
        pass
    all_closed(before)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", ["carrier", "stream"])
def test_for_want_of_threads_none_is_left_open(ends, monkeypatch, terminal, name):
    ends.query.update(terminal=terminal, rows=24, columns=80)
    before, start = descriptors(), threading.Thread.start

    def refused(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(BusyError, match="as many threads as the host lets it have"):
        Caller(ends)
    all_closed(before)


def test_signals_and_the_end_of_who_asked(ends):
    with Caller(ends) as caller:
        ends.client.sendall(frame(MESSAGE, b'{"is": "signal", "number": 15}'))
        os.set_blocking(caller.stdio.signals, True)
        assert os.read(caller.stdio.signals, 10) == b"\x0f"
        ends.client.close()
        assert os.read(caller.stdio.signals, 10) == b""
