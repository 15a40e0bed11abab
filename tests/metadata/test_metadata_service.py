"""One thread serves many pods: fairly, for as long as clients behave, and no longer (M4)."""

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from kurma_core.errors import HostError
from kurma_core.metadata import http
from kurma_core.metadata.http import BODY_LIMIT
from kurma_core.metadata.service import CONNECTIONS, MetadataService
from tests.kit.waiting import until
from tests.metadata.metadata_fakes import OTHER, TOKEN, UUID, FakeFacts, Wire, listener, served

UUID_PATH = f"/{TOKEN}/acMetadata/v1/pod/uuid"
GET = f"GET {UUID_PATH} HTTP/1.1\nHost: a\n\n"
THIRD = "33333333-2222-4333-8444-555555555555"
SIGN = f"/{TOKEN}/acMetadata/v1/pod/hmac/sign"


def test_one_request_after_another():
    with served() as (address, _), Wire(address) as wire:
        for _ in range(3):
            answer = wire.say(GET).hear()
            assert (answer.status, answer.body) == (200, UUID.encode())
            assert answer.headers["connection"] == "keep-alive"
        answer = wire.say(f"HEAD {UUID_PATH} HTTP/1.1\nHost: a\n\n").hear(body=False)
        assert (answer.status, answer.headers["content-length"]) == (200, str(len(UUID)))
        answer = wire.say(f"GET {UUID_PATH} HTTP/1.1\nHost: a\nConnection: close\n\n").hear()
        assert answer.headers["connection"] == "close"
        assert wire.hear() is None


def test_http_1_0_closes():
    with served() as (address, _), Wire(address) as wire:
        assert wire.say(f"GET {UUID_PATH} HTTP/1.0\n\n").hear().body == UUID.encode()
        assert wire.hear() is None


def test_many_requests_at_once():
    with served() as (address, _), Wire(address) as wire:
        wire.say(GET * 50 + f"POST {SIGN} HTTP/1.1\nHost: a\nContent-Length: 9\n\ncontent=a" + GET)
        assert [wire.hear().status for _ in range(52)] == [200] * 52


def test_a_client_that_asks_before_it_sends():
    with served() as (address, _), Wire(address) as wire:
        wire.say(f"POST {SIGN} HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 9\n\n")
        assert wire.hear().status == 100
        assert wire.say("content=a").hear().status == 200


def test_what_is_refused_is_told_and_ends():
    with served() as (address, _), Wire(address) as wire:
        answer = wire.say(f"GET /{TOKEN[::-1]}/acMetadata/v1/pod/uuid HTTP/1.1\nHost: a\n\n").hear()
        assert answer.status == 401
        assert "www-authenticate" in answer.headers
        assert wire.say(GET).hear().status == 200
        assert wire.say("nonsense\n\n").hear().status == 400
        assert wire.hear() is None


def test_a_body_that_is_too_long():
    """The client hears why, though it sends what nobody reads."""
    with served() as (address, _), Wire(address) as wire:
        wire.say(f"POST {SIGN} HTTP/1.1\nHost: a\nContent-Length: {10 * BODY_LIMIT}\n\n")
        with contextlib.suppress(OSError):
            wire.say(b"x" * 10 * BODY_LIMIT)
        assert wire.hear().status == 413
        assert wire.hear() is None


def test_a_record_that_cannot_be_read_ends_nothing():
    facts = FakeFacts()
    facts.pod = {"apps": [{"name": "a", "image": {"id": "gone"}}, {"broken": 1}]}
    with served(facts) as (address, _), Wire(address) as wire:
        for app in ("a", "b"):
            answer = wire.say(f"GET /{TOKEN}/acMetadata/v1/apps/{app}/image/id HTTP/1.1\nHost: a\n\n").hear()
            assert answer.status == 500
            assert TOKEN.encode() not in answer.body
        assert wire.say(GET).hear().status == 200


@pytest.fixture
def hurried(monkeypatch):
    for name, seconds in (("REQUEST_TIME", 0.3), ("IDLE_TIME", 0.3), ("ANSWER_TIME", 0.3), ("FAREWELL_TIME", 0.1)):
        monkeypatch.setattr(http, name, seconds)
    monkeypatch.setattr("kurma_core.metadata.service._LOOK", 0.05)


def test_slow_clients_are_let_go(hurried):
    with served() as (address, _), Wire(address) as slow, Wire(address) as mute, Wire(address) as idle:
        idle.say(GET).hear()
        for byte in GET.replace("\n", "\r\n").encode()[:4]:
            slow.say(bytes([byte]))
            time.sleep(0.02)
        assert slow.hear().status == 408
        assert slow.hear() is mute.hear() is idle.hear() is None


@pytest.mark.parametrize("first", ["", GET])
def test_who_sends_byte_by_byte_is_let_go(hurried, first):
    """However long that goes on, also for a connection's second request; empty lines are none."""
    with served() as (address, _), Wire(address) as slow, Wire(address) as empty:
        for wire in (slow, empty):
            assert not first or wire.say(first).hear().status == 200
        ended, deadline = {slow: None, empty: None}, time.monotonic() + 5
        while None in ended.values() and time.monotonic() < deadline:
            for wire, said in ((slow, "A"), (empty, "\n")):
                if ended[wire] is None and select.select([wire.socket], [], [], 0.02)[0]:
                    ended[wire] = wire.hear() or "closed"
                with contextlib.suppress(OSError):
                    wire.say(said)
        assert getattr(ended[slow], "status", None) == 408
        assert ended[empty] == "closed"


def test_who_is_refused_and_goes_on_is_let_go(hurried):
    """Nobody reads more than a little of what comes then, nor for long."""
    with served() as (address, service), Wire(address) as mute, Wire(address) as endless:
        for wire in (mute, endless):
            assert wire.say("nonsense\n\n").hear().status == 400
        sent, piece = 0, b"x" * 65536
        with contextlib.suppress(OSError):
            while sent < 64 << 20:
                endless.socket.sendall(piece)
                sent += len(piece)
        assert sent < 64 << 20
        until(lambda: not service._pods[UUID].connections)


def test_what_is_ready_when_its_time_is_over(hurried, monkeypatch):
    """As after the owner itself was stopped for a while: several have sent more, and are late."""
    times = [0.0]
    monkeypatch.setattr("kurma_core.metadata.service.time", SimpleNamespace(monotonic=lambda: times[0]))
    with served(FakeFacts(), FakeFacts(OTHER)) as (addresses, service), contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(addresses[0])) for _ in range(4)]
        pod = service._pods[UUID]
        until(lambda: len(pod.connections) == 4)
        with service._lock:
            # One wakes the thread, which waits for the lock; the others come with its next round.
            wires[0].say("G")
            time.sleep(0.1)
            for wire in wires[1:]:
                wire.say("G")
            step, turns = pod.step, []

            def later(now):
                turns.append(now)
                if len(turns) == 1:
                    times[0] = 1000.0
                step(now)

            monkeypatch.setattr(pod, "step", later)

        def over():
            times[0] += 1000 if len(turns) > 1 else 0
            return not pod.connections

        until(over)
        assert turns[:2] == [0, 1000]
        with Wire(addresses[1]) as other:
            assert other.say(GET).hear().body == OTHER.encode()


def test_what_the_kernel_will_not_watch(hurried, monkeypatch):
    """An app of root's may use up what root may watch: connections wait, and nothing ends."""
    with served(FakeFacts(), FakeFacts(OTHER)) as (addresses, service), Wire(addresses[0]) as wire:
        assert wire.say(GET).hear().status == 200
        full, watch = [True], service.watch

        def refusing(fd, pod, events):
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            watch(fd, pod, events)

        monkeypatch.setattr(service, "watch", refusing)
        with Wire(addresses[1]) as other:
            assert other.say(GET).hear() is None
        until(lambda: service._pods[OTHER].paused)
        assert wire.say(GET).hear().status == 200
        service.serve(listener, TOKEN, FakeFacts(THIRD), early=True)
        with pytest.raises(HostError, match="cannot wait for the metadata service's connections: No space left"):
            service.wait(THIRD)
        full.clear()
        with Wire(addresses[1]) as other:
            assert other.say(GET).hear().status == 200


def test_without_a_descriptor_left_connections_wait(hurried, monkeypatch):
    with served() as (address, service), Wire(address) as wire:
        assert wire.say(GET).hear().status == 200
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        late = socket.socket()
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            late.connect(address)
            until(lambda: service._pods[UUID].paused)
            assert wire.say(GET).hear().status == 200
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        late.settimeout(10)
        late.sendall(GET.replace("\n", "\r\n").encode())
        assert late.recv(4096).startswith(b"HTTP/1.1 200 ")
        late.close()


def test_who_does_not_read_is_let_go(hurried):
    facts = FakeFacts()
    facts.pod = {"apps": [], "filler": "x" * (16 << 20)}
    with served(facts) as (address, service), Wire(address) as wire, Wire(address) as other:
        wire.say(f"GET /{TOKEN}/acMetadata/v1/pod/manifest HTTP/1.1\nHost: a\n\n")
        time.sleep(0.05)
        assert other.say(GET).hear().status == 200
        until(lambda: not service._pods[UUID].connections)


def test_a_large_answer_comes_whole():
    facts = FakeFacts()
    facts.pod = {"apps": [], "annotations": [], "filler": "x" * (4 << 20)}
    with served(facts) as (address, _), Wire(address) as wire:
        request = f"GET /{TOKEN}/acMetadata/v1/pod/manifest HTTP/1.1\nHost: a\n\n"
        for _ in range(2):
            assert wire.say(request).hear().json == facts.pod


def test_no_more_connections_than_that():
    """Of one pod; the oldest that is idle makes place, and one that is not keeps the next waiting."""
    with served(FakeFacts(), FakeFacts(OTHER)) as (addresses, service), contextlib.ExitStack() as stack:
        idle = stack.enter_context(Wire(addresses[0]))
        idle.say(GET).hear()
        busy = [stack.enter_context(Wire(addresses[0])).say("GET /") for _ in range(CONNECTIONS + 4)]
        assert idle.hear() is None
        time.sleep(0.1)
        assert len(service._pods[UUID].connections) == CONNECTIONS
        with Wire(addresses[1]) as other:
            assert other.say(GET).hear().body == OTHER.encode()
        for wire in busy[:8]:
            wire.socket.close()
        late = stack.enter_context(Wire(addresses[0]))
        assert late.say(GET).hear().status == 200


@pytest.mark.parametrize("said", ["", "G", f"GET /{TOKEN[::-1]}/a HTTP/1.1\nHost: a\n\nG", "nonsense\n\n"])
def test_who_has_no_token_keeps_nobody_waiting_for_long(monkeypatch, said):
    """In the host's network another pod may connect, and again and again; whoever had the token is not let go."""
    monkeypatch.setattr("kurma_core.metadata.service._LOOK", 0.1)
    with served(early=False) as (address, _), Wire(address) as trusted, contextlib.ExitStack() as stack:
        trusted.say(GET).hear()
        trusted.say("GET /")
        for _ in range(CONNECTIONS + 20):
            wire = stack.enter_context(Wire(address))
            with contextlib.suppress(OSError):
                wire.say(said)
        started = time.monotonic()
        assert stack.enter_context(Wire(address)).say(GET).hear().status == 200
        assert time.monotonic() - started < 4
        assert trusted.say(" HTTP/1.1\nHost: a\n\n").hear().status == 401


def test_a_pod_that_asks_and_asks_does_not_slow_another():
    """From many connections that never wait for their answers."""
    with served(FakeFacts(), FakeFacts(OTHER)) as (addresses, _):
        over = threading.Event()
        threads = [threading.Thread(target=_flood, args=(addresses[0], over)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            turns = []
            with Wire(addresses[1]) as wire:
                for _ in range(50):
                    before = service_turns(wire)
                    turns.append(before)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    # Fifty at once would be waited for if it came after all that others have sent.
    assert sorted(turns)[25] < 0.02


def test_one_request_of_a_pod_then_one_of_the_next():
    """However many connections one has, and however much they have sent (M4)."""
    turns = []

    class Counting(FakeFacts):
        def stamp(self):
            turns.append(self.uuid)
            return 0

    with served(Counting(), Counting(OTHER)) as (addresses, service), contextlib.ExitStack() as stack:
        many = [stack.enter_context(Wire(addresses[0])) for _ in range(4)]
        few = stack.enter_context(Wire(addresses[1]))
        for wire in (*many, few):
            assert wire.say(GET).hear().status == 200
        turns.clear()
        with service._lock:
            # One wakes the thread, which waits for the lock; the others come with its next round.
            many[0].say(GET * 10)
            time.sleep(0.1)
            for wire in (*many, few):
                wire.say(GET * 10)
        assert [few.hear().status for _ in range(10)] == [200] * 10
        assert [wire.hear().status for wire in many for _ in range(10)] == [200] * 40
    last = len(turns) - turns[::-1].index(OTHER)
    assert turns[:last].count(OTHER) == 10
    assert turns[:last].count(UUID) <= 12


def service_turns(wire):
    started = time.perf_counter()
    assert wire.say(GET).hear().status == 200
    return time.perf_counter() - started


def _flood(address, over):
    with socket.create_connection(address) as sock:
        sock.settimeout(0.05)
        requests = GET.replace("\n", "\r\n").encode() * 200
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                sock.sendall(requests)
                while sock.recv(1 << 16):
                    if over.is_set():
                        return


def test_a_pod_that_is_forgotten_is_served_no_more():
    with served(FakeFacts(), FakeFacts(OTHER)) as (addresses, service), Wire(addresses[0]) as wire:
        wire.say(GET).hear()
        service.forget(UUID)
        service.forget(UUID)
        assert wire.hear() is None
        with pytest.raises(ConnectionRefusedError):
            Wire(addresses[0])
        with Wire(addresses[1]) as other:
            assert other.say(GET).hear().status == 200
        service.close()
        service.close()
        with pytest.raises(ConnectionRefusedError):
            Wire(addresses[1])
        service.serve(listener, TOKEN, FakeFacts(), early=True)
        made = service.wait(UUID)
        with Wire((made.address, made.port)) as again:
            assert again.say(GET).hear().status == 200


def test_a_listener_that_cannot_be_made_is_told_to_who_waits():
    def broken():
        raise HostError("there is no place")

    with contextlib.closing(MetadataService()) as service:
        service.serve(broken, TOKEN, FakeFacts(), early=True)
        with pytest.raises(HostError, match="there is no place"):
            service.wait(UUID)
        service.serve(listener, TOKEN, FakeFacts(OTHER), early=True)
        service.wait(OTHER)


def test_it_sleeps_and_takes_no_signals():
    before = set(os.listdir("/proc/self/task"))
    with served() as (address, _):
        (thread,) = set(os.listdir("/proc/self/task")) - before
        with Wire(address) as wire:
            wire.say(GET).hear()
        time.sleep(0.1)
        with open(f"/proc/self/task/{thread}/status") as file:
            told = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        blocked = int(told["SigBlk"], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGWINCH):
            assert blocked & 1 << number - 1
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())

        def switches():
            with open(f"/proc/{os.getpid()}/task/{thread}/status") as file:
                return [line for line in file if "ctxt_switches" in line]

        time.sleep(1.2)
        before = switches()
        time.sleep(1.2)
        assert switches() == before
