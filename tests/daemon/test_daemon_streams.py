"""What a client says on a stream: heard frame by frame; whoever says what is none is told so, and cut off."""

import contextlib
import json
import os
import resource
import select
import socket
import threading

import pytest

from kurma_core.api.wire import INPUT, LIMIT, LOG, MESSAGE, WINDOW, FrameReader, frame
from kurma_core.daemon.http import streams
from kurma_core.daemon.http.error_status import Gone
from kurma_core.daemon.http.streams import Caller
from kurma_core.errors import BusyError
from tests.kit.waiting import until


class Ends:
    """A stream in the daemon, and the client's end of it."""

    def __init__(self):
        self.client, self.server = socket.socketpair()
        self.client.settimeout(10)
        self.stream = streams.Stream(self.server, b"")
        self.arguments = {"terminal": False}
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
        (frame(LOG, b"x"), "a client must not send frames of kind 4"),
        (frame(MESSAGE, b"{"), "cannot read a message: "),
        (frame(MESSAGE, b"\xff"), "cannot read a message: "),
        (frame(MESSAGE, b"[" * 5000), "cannot read a message: "),
        (frame(MESSAGE, b"[1]"), "lacks the key"),
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


@pytest.mark.parametrize("kind", ["result", "error"])
def test_nothing_is_sent_after_the_last_message(ends, kind):
    """Other threads may still be about to: the relay of the input, say."""
    ends.stream.tell({"is": "note"})
    ends.stream.tell({"is": kind})
    with pytest.raises(Gone):
        ends.stream.tell({"is": "taken", "bytes": 1})
    assert ends.last() == {"is": kind}


def test_half_a_frame_and_nothing_more(ends, monkeypatch):
    monkeypatch.setattr(streams, "REQUEST_PATIENCE", 0.2)
    ends.listen()
    ends.client.sendall(frame(INPUT, b"whole") + frame(INPUT, b"half")[:-1])
    assert ends.last()["error"]["message"] == "the stream is broken: a frame is incomplete"
    assert ends.heard == [(INPUT, b"whole")]


def test_more_input_than_is_free(ends):
    """Nobody reads it: so much is kept, and not a byte more."""
    with Caller(ends.stream, ends.arguments) as caller:
        caller.open(terminal=False)
        ends.client.sendall(frame(INPUT, bytes(WINDOW - 1000)))
        ends.client.sendall(frame(INPUT, bytes(200_000)))
        assert "more than 262144 bytes of input" in ends.last()["error"]["message"]


def test_input_goes_on_as_it_is_read(ends):
    """Many windows of it, by who keeps to what is told to be taken; then its end."""
    sent, got = os.urandom(1 << 20), bytearray()
    with Caller(ends.stream, ends.arguments) as caller:
        stdin = os.dup(caller.open(terminal=False).stdin)
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
                said = [json.loads(payload) for _, payload in reader.frames()]
                free += sum(message["bytes"] for message in said if message["is"] == "taken")
        ends.client.sendall(frame(INPUT, b""))
        thread.join(10)
        os.close(stdin)
    assert bytes(got) == sent


def test_descriptors_of_a_client_are_dropped(ends):
    """However many come, with whatever is said: none stays open here."""
    before = set(os.listdir("/proc/self/fd"))
    null = os.open("/dev/null", os.O_RDWR)
    ends.listen()
    for _ in range(50):
        socket.send_fds(ends.client, [frame(MESSAGE, b'{"is": "go"}')], [null] * 100)
    os.close(null)
    ends.client.sendall(frame(INPUT, b"over"))
    until(lambda: ends.heard and ends.heard[-1] == (INPUT, b"over"))
    assert set(os.listdir("/proc/self/fd")) == before


def test_nobody_reads_what_is_put_out(ends):
    """The program finds its standard output closed, and no more than that."""
    with Caller(ends.stream, ends.arguments) as caller:
        stdio = caller.open(terminal=False)
        ends.client.sendall(frame(MESSAGE, b'{"is": "closed", "stream": "stdout"}'))
        poll = select.poll()
        poll.register(stdio.stdout, 0)
        assert poll.poll(10_000)
        with pytest.raises(BrokenPipeError):
            os.write(stdio.stdout, b"x")
        os.write(stdio.stderr, b"still")


def descriptors():
    return set(os.listdir("/proc/self/fd"))


def all_closed(before):
    """Soon: some are closed by threads of their own."""
    until(lambda: descriptors() == before, lambda: str(descriptors() - before))


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


@pytest.mark.parametrize(("terminal", "needed"), [(False, 9), (True, 9)])
def test_for_want_of_descriptors_none_is_left_open(terminal, needed):
    import termios  # noqa: F401 (which needs one, too, for a moment)

    def opened():
        ends = Ends()
        ends.arguments.update(terminal=terminal, rows=24, columns=80)
        return ends

    before = descriptors()
    for count in range(needed):
        with contextlib.closing(opened()) as ends, free(count):
            with (
                pytest.raises(OSError, match="Too many open files"),
                Caller(ends.stream, ends.arguments) as caller,
            ):
                caller.open(terminal=terminal)
        all_closed(before)
    with contextlib.closing(opened()) as ends, free(needed), Caller(ends.stream, ends.arguments) as caller:
        caller.open(terminal=terminal)
    all_closed(before)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", ["relay", "stream"])
def test_for_want_of_threads_none_is_left_open(ends, monkeypatch, terminal, name):
    ends.arguments.update(terminal=terminal, rows=24, columns=80)
    before, start = descriptors(), threading.Thread.start

    def refused(thread):
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with (
        pytest.raises(BusyError, match="cannot start a thread: the host's limit is reached"),
        Caller(ends.stream, ends.arguments) as caller,
    ):
        caller.open(terminal=terminal)
    all_closed(before)


def test_signals_and_the_end_of_who_asked(ends):
    with Caller(ends.stream, ends.arguments) as caller:
        stdio = caller.open(terminal=False)
        ends.client.sendall(frame(MESSAGE, b'{"is": "signal", "number": 15}'))
        os.set_blocking(stdio.signals, True)
        assert os.read(stdio.signals, 10) == b"\x0f"
        ends.client.close()
        assert os.read(stdio.signals, 10) == b""


@pytest.mark.parametrize("stream", [[], {}, 1, "stdin"])
def test_a_stream_that_there_is_not_is_told(ends, stream):
    with Caller(ends.stream, ends.arguments):
        ends.client.sendall(frame(MESSAGE, json.dumps({"is": "closed", "stream": stream}).encode()))
        assert "neither stdout nor stderr" in ends.last()["error"]["message"]


def test_a_name_that_is_not_utf8_is_told(ends):
    ends.stream.tell({"is": "note", "text": "\udc80"})
    ((_, payload),) = FrameReader(ends.client.recv(65536)).frames()
    assert json.loads(payload)["text"] == "\udc80"
