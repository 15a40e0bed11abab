"""One thread serves many pods: fairly, for as long as clients behave, and no longer (M4)."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from kurma_core.errors import HostError
from kurma_core.metadata import connection
from kurma_core.metadata.http import BODY_LIMIT
from kurma_core.metadata.service import CONNECTIONS, MetadataService
from tests.metadata.metadata_fakes import OTHER, TOKEN, UUID, FakeFacts, Wire, listener, served

UUID_PATH = f"/{TOKEN}/acMetadata/v1/pod/uuid"
GET = f"GET {UUID_PATH} HTTP/1.1\nHost: a\n\n"
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
        monkeypatch.setattr(connection, name, seconds)
    monkeypatch.setattr("kurma_core.metadata.service._LOOK", 0.05)


def test_slow_clients_are_let_go(hurried):
    with served() as (address, _), Wire(address) as slow, Wire(address) as mute, Wire(address) as idle:
        idle.say(GET).hear()
        for byte in GET.replace("\n", "\r\n").encode()[:4]:
            slow.say(bytes([byte]))
            time.sleep(0.02)
        assert slow.hear().status == 408
        assert slow.hear() is mute.hear() is idle.hear() is None


def test_who_does_not_read_is_let_go(hurried):
    facts = FakeFacts()
    facts.pod = {"apps": [], "filler": "x" * (16 << 20)}
    with served(facts) as (address, service), Wire(address) as wire, Wire(address) as other:
        wire.say(f"GET /{TOKEN}/acMetadata/v1/pod/manifest HTTP/1.1\nHost: a\n\n")
        time.sleep(0.05)
        assert other.say(GET).hear().status == 200
        pod = service._pods[UUID]
        deadline = time.monotonic() + 5
        while pod.connections and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not pod.connections


def test_a_large_answer_comes_whole():
    facts = FakeFacts()
    facts.pod = {"apps": [], "filler": "x" * (4 << 20)}
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
