"""Health checks by HTTP and TCP, against servers in the pod's network namespace; some are hostile (21)."""

import contextlib
import json
import os
import resource
import socket
import ssl
import threading
import time

import pytest
import trustme
from kurma_testing.contract import nothing_left_open

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, KurmaError
from kurma_core.linux.namespaces import in_network_namespace
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SLEEP = "exec sleep 1000"
WEB = "mkdir -p /w/a; echo -n well > /w/a/b; exec httpd -f -p 8080 -h /w"


def checked(script=SLEEP, **check):
    return {"app": shell(script), "healthCheck": {"retries": 1, **check}}


def result(house, pod):
    """Of a check, which must leave no thread and no descriptor."""
    with nothing_left_open():
        found = house.client.healthcheck(pod.uuid).result
    return found.exit_code, found.output


def passes(house, pod):
    return until(lambda: (found := result(house, pod))[0] == 0 and found, "a check that passes")


def namespace_of(pod):
    return f"/run/netns/kurma-{pod.uuid}"


@contextlib.contextmanager
def serving(pod, serve, port=8080, address="127.0.0.1"):
    """A server in the pod's network namespace. :param serve: called with each connection."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = in_network_namespace(namespace_of(pod), lambda: socket.create_server((address, port), family=family))

    def run():
        while True:
            try:
                connected, _ = server.accept()
            except OSError:
                return
            with connected, contextlib.suppress(OSError):
                serve(connected)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        server.close()


def request_of(connected):
    """The lines of a request."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connected.recv(4096)
        if not piece:
            raise ConnectionResetError
        data += piece
    return data.decode().split("\r\n")


def answering(text):
    def serve(connected):
        request_of(connected)
        connected.sendall(text.encode())

    return serve


def test_an_image_without_shell_and_wget_is_checked(house):
    """Its own web server answers, with its loopback interface alone."""
    with house.running({"main": checked(WEB, http={"port": 8080, "path": "/a/b?c=d"})}, name="web") as pod:
        assert passes(house, pod) == (0, "HTTP 200 from http://127.0.0.1:8080/a/b?c=d\nwell")
        assert house.client.pod(pod.uuid).health == "healthy"
        house.enter(pod.uuid, "rm", "/w/a/b")
        code, text = result(house, pod)
        assert (code, text.splitlines()[0]) == (1, "HTTP 404 from http://127.0.0.1:8080/a/b?c=d")
        assert house.client.pod(pod.uuid).health == "unhealthy"
        done = house.kurma("healthcheck", "run", "web")
        assert (done.returncode, done.stdout.splitlines()[0]) == (1, "HTTP 404 from http://127.0.0.1:8080/a/b?c=d")


def test_a_connection(house):
    with house.running({"main": checked(tcp={"port": 8080})}) as pod:
        assert result(house, pod) == (1, "cannot connect to 127.0.0.1:8080: Connection refused")
        with serving(pod, lambda connected: None):
            assert result(house, pod) == (0, "connected to 127.0.0.1:8080")
    with house.running({"main": checked(tcp={"port": 8080, "host": "::1"})}) as pod:
        assert result(house, pod) == (1, "cannot connect to [::1]:8080: Connection refused")
        with serving(pod, lambda connected: None, address="::1"):
            assert result(house, pod) == (0, "connected to [::1]:8080")


def test_a_port_of_the_host_is_not_the_apps(house):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with house.running({"main": checked(tcp={"port": port})}) as pod:
            assert result(house, pod) == (1, f"cannot connect to 127.0.0.1:{port}: Connection refused")


def test_a_pod_in_the_network_of_the_host(house):
    script = "echo -n here > /tmp/x; exec httpd -f -p 127.0.0.1:18173 -h /tmp"
    app = checked(script, http={"port": 18173, "path": "/x"})
    with house.running({"main": app}, net="host", grants=("os/linux/namespaces=net",)) as pod:
        assert passes(house, pod) == (0, "HTTP 200 from http://127.0.0.1:18173/x\nhere")


def test_what_is_sent(house):
    seen = []

    def serve(connected):
        seen.append(request_of(connected))
        connected.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    headers = [
        {"name": "host", "value": "shop.example"},
        {"name": "Accept", "value": ""},
        {"name": "X-Twice", "value": "a"},
        {"name": "X-Twice", "value": "b c"},
    ]
    check = {"port": 8080, "path": "/x?y", "headers": headers}
    with house.running({"main": checked(http=check)}) as pod, serving(pod, serve):
        assert result(house, pod) == (0, "HTTP 204 from http://127.0.0.1:8080/x?y")
    (first, *lines) = seen[0]
    agent = next(line for line in lines if line.lower().startswith("user-agent: kurma/"))
    lines.remove(agent)
    assert first == "GET /x?y HTTP/1.1"
    expected = ["host: shop.example", "X-Twice: a", "X-Twice: b c", "Connection: close", "", ""]
    assert [line.lower() for line in lines] == [line.lower() for line in expected]


@pytest.mark.parametrize(
    ("answer", "code", "output"),
    [
        (
            "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 2\r\n\r\ngo",
            0,
            "HTTP 302 from URL\ngo",
        ),
        ("HTTP/1.0 200 OK\r\n\r\nold", 0, "HTTP 200 from URL\nold"),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nlate",
            1,
            "HTTP 503 from URL\nlate",
        ),
        ("HTTP/1.1 199 Odd\r\n\r\n", 1, "no answer from URL: it has closed the connection"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 0, "HTTP 200 from URL\nab"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
            1,
            "no answer from URL: peer closed connection without",
        ),
        ("", 1, "no answer from URL: it has closed the connection"),
        ("SSH-2.0-OpenSSH_9\r\n\r\n", 1, "no answer from URL: illegal status line"),
        ("HTTP/1.1 200 OK\r\nX: " + "y" * 400_000, 1, "no answer from URL: "),
        ("HTTP/1.1 100 Continue\r\n\r\n" * 40_000, 1, "no answer from URL: it is longer than 256 KiB"),
        ("HTTP/1.1 200 OK\r\n\r\n" + "€" * 400_000, 0, "HTTP 200 from URL\n€€€"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_answers(house, answer, code, output):
    with house.running({"main": checked(http={"port": 8080})}) as pod, serving(pod, answering(answer)):
        found, text = result(house, pod)
        assert found == code, text
        assert text.replace("http://127.0.0.1:8080/", "URL").startswith(output)
        assert len(text) <= 4096
        assert os.path.getsize(house.path(pod, "health.json")) < 30_000


def drip(connected):
    connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connected.sendall(b".")
        time.sleep(0.02)


def hold(connected):
    while connected.recv(4096):
        pass


@pytest.mark.parametrize("serve", [drip, hold])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_timeout_covers_the_whole_check(house, serve, scheme):
    check = {"port": 8080, "scheme": scheme}
    with house.running({"main": checked(http=check, timeout=0.5)}) as pod, serving(pod, serve):
        begin = time.monotonic()
        code, text = result(house, pod)
        assert code == 1
        assert text == f"no whole answer from {scheme}://127.0.0.1:8080/ within 0.5 s" or (
            (scheme, serve) == ("https", drip) and text.startswith("no answer from https://127.0.0.1:8080/: TLS: ")
        )
        assert time.monotonic() - begin < 20


def test_a_server_that_accepts_nothing(house):
    """Its queue is full: the connection is never made."""
    with house.running({"main": checked(http={"port": 8080}, timeout=0.5)}) as pod, contextlib.ExitStack() as held:
        server = held.enter_context(
            in_network_namespace(namespace_of(pod), lambda: socket.create_server(("127.0.0.1", 8080), backlog=0))
        )
        for _ in range(3):
            waiting = held.enter_context(in_network_namespace(namespace_of(pod), socket.socket))
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        assert result(house, pod) == (1, "cannot connect to 127.0.0.1:8080: no answer within 0.5 s")


def test_tls(house, tmp_path):
    """The certificate is of an unknown authority, and for another name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("other.example").configure_cert(context)

    def serve(connected):
        with context.wrap_socket(connected, server_side=True) as secured:
            answering("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret" if big is None else big)(secured)

    big = None
    with house.running({"main": checked(http={"port": 8080, "scheme": "https"})}) as pod:
        with serving(pod, serve):
            assert result(house, pod) == (0, "HTTP 200 from https://127.0.0.1:8080/\nsecret")
            big = "HTTP/1.1 200 OK\r\n\r\n" + "x" * 100_000
            code, text = result(house, pod)
            assert (code, len(text)) == (0, 4096)
        with serving(pod, lambda connected: connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")):
            code, text = result(house, pod)
            assert (code, text.startswith("no answer from https://127.0.0.1:8080/: ")) == (1, True)


def test_cancellation_ends_a_check(house):
    with house.running({"main": checked(http={"port": 8080}, timeout=500)}) as pod:
        reached, operation, ends = threading.Event(), Cancellation(), []

        def serve(connected):
            request_of(connected)
            reached.set()
            hold(connected)

        def ask():
            try:
                with governing(operation):
                    house.client.healthcheck(pod.uuid)
            except Cancelled as error:
                ends.append(error)

        with serving(pod, serve), nothing_left_open():
            thread = threading.Thread(target=ask)
            thread.start()
            assert reached.wait(60)
            operation.cancel()
            thread.join(60)
            assert len(ends) == 1
        assert house.client.pod(pod.uuid).health == "starting"


def test_a_result_is_not_that_of_a_later_app_of_the_same_name(house):
    """Its check fails after the app was removed, and another one runs."""
    app = {"main": checked(http={"port": 8080}, timeout=500)}
    with house.running({**app, "keep": SLEEP}) as pod:
        reached, gone, done = threading.Event(), threading.Event(), []

        def serve(connected):
            request_of(connected)
            reached.set()
            assert gone.wait(60)
            connected.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

        with serving(pod, serve):
            thread = threading.Thread(target=lambda: done.append(house.client.healthcheck(pod.uuid, "main")))
            thread.start()
            assert reached.wait(60)
            with house.connect() as client:
                client.app_rm(pod.uuid, "main", force=True)
                client.app_add(pod.uuid, house.request(app), start=True)
                gone.set()
                thread.join(60)
                assert [(one.result.exit_code, one.health) for one in done] == [(1, None)]
                (health,) = [one.health for one in client.pod(pod.uuid).apps if one.name == "main"]
                assert (health.status, health.results) == ("starting", ())


def test_the_way_that_is_given_replaces_that_of_the_image(house):
    app = {**checked(tcp={"port": 8080}), "healthCheck": {"tcp": {"port": 8080}}}
    record = house.client.prepare(house.request({"main": app}))
    (found,) = record.manifest["apps"]
    (said,) = [one["value"] for one in found["annotations"] if one["name"] == "kurma.io/health-check"]
    assert json.loads(said) == {"tcp": {"port": 8080, "host": "127.0.0.1"}}
    house.client.rm(record.uuid)
    with pytest.raises(KurmaError, match="expected one of command, http, tcp, found http and tcp"):
        house.client.prepare(house.request({"main": checked(tcp={"port": 1}, http={"port": 1})}))


@pytest.mark.parametrize("check", [{"command": "true"}, {"http": {"port": 8080}}], ids=["command", "request"])
def test_a_check_without_enough_descriptors_leaves_none_open(house, check):
    """Whichever descriptor it does not get; with more of them, the check is done."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with house.running({"main": checked(**check)}) as pod:
        result(house, pod)
        failed = 0
        for number in range(60):
            with nothing_left_open():
                taken = {int(fd) for fd in os.listdir("/proc/self/fd")}
                # The limit is above the highest number that may be used.
                limit = [fd for fd in range(len(taken) + number + 1) if fd not in taken][number]
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
                try:
                    house.client.healthcheck(pod.uuid)
                except (OSError, KurmaError):
                    failed += 1
                else:
                    break
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        else:
            pytest.fail("the check is never done")
        assert failed > 1
