"""The dashboard refuses clients without a token, foreign pages, changes by a viewer, and hostile requests."""

import base64
import os
import select
import socket
import stat

import pytest
from kurma_dashboard.routes import read_page

from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

DATA = tuple(
    f"/api/{name}" for name in ("session", "pods", "images", "networks", "volumes", "secrets", "events", "live")
)
NO_POD = "00000000-0000-4000-8000-000000000000"


# -- tokens and the cookie --


def test_without_a_token_there_is_only_the_door(board):
    answer = board.get("/", role=None)
    assert answer.status == 401
    assert b'name="token"' in answer.body
    for path in (*DATA, f"/api/pods/{NO_POD}/logs"):
        answer = board.get(path, role=None)
        assert (answer.status, answer.message) == (401, "the token is missing or wrong")
    assert board.post(f"/api/pods/{NO_POD}/stop", role=None).status == 401


@pytest.mark.parametrize("token", ["", "x" * 43, "%00", "é"])
def test_a_wrong_token(board, token):
    from urllib.parse import quote

    answer = board.get(f"/login?token={quote(token)}", role=None)
    assert answer.status == 401
    assert "Set-Cookie" not in answer.headers


def test_the_first_visit(board):
    """The token goes out of the address, into a cookie that scripts cannot read."""
    answer = board.get(f"/login?token={board.token('admin')}", role=None)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert board.token("admin") not in cookie
    assert b"/app.js" in board.get("/").body


def test_a_form_with_the_token(board):
    headers = {"Host": board.place, "Content-Type": "application/x-www-form-urlencoded"}
    body = f"token={board.token('viewer')}"
    for origin, status in ((f"http://{board.place}", 303), ("http://evil.example", 403)):
        connection = board.connect()
        connection.request("POST", "/login", body, {**headers, "Origin": origin})
        assert connection.getresponse().status == status
        connection.close()


def test_signing_out(board):
    answer = board.post("/logout")
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert board.get("/logout").status == 405


def test_tokens_are_roots_alone(board):
    assert stat.S_IMODE(os.stat(board.directory).st_mode) == 0o700
    for role in ("admin", "viewer"):
        assert stat.S_IMODE(os.stat(f"{board.directory}/{role}.token").st_mode) == 0o600
        assert len(board.token(role)) >= 43
        assert board.token(role) not in board.daemon.log.read_text()
    assert board.token("admin") != board.token("viewer")


def test_a_token_that_others_can_read_is_refused(make_board):
    board = make_board()
    assert board.daemon.end() == 0
    path = f"{board.directory}/admin.token"
    os.chmod(path, 0o644)
    try:
        board.daemon.__init__(board.house)
        board.daemon.wait_said("other users may know this token")
        done = board.house.kurma("dashboard")
        assert done.returncode == 125
        assert "the dashboard does not run" in done.stderr
    finally:
        os.chmod(path, 0o600)


# -- foreign pages --


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "", "127.0.0.1.nip.io"]
)
def test_a_foreign_name_for_this_host(board, host):
    """DNS rebinding: the browser sends what it takes for the page's own cookie and Origin."""
    for path in ("/", "/api/pods", f"/login?token={board.token('admin')}"):
        assert board.get(path, headers={"Host": host}).status in (400, 403)
    answer = board.post(f"/api/pods/{NO_POD}/stop", origin=f"http://{host}", headers={"Host": host})
    assert answer.status in (400, 403)


@pytest.mark.parametrize("host", ["localhost:8910", "127.0.0.1:1", "LOCALHOST", "[::1]:8910", "127.8.9.1"])
def test_names_of_this_host(board, host):
    """A tunnel may have another port at its other end."""
    assert board.get("/", role=None, headers={"Host": host}).status == 401


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1", "http://localhost"]
)
def test_a_foreign_page_changes_nothing(board, origin):
    uuid = board.run()
    answer = board.post(f"/api/pods/{uuid}/stop", origin=origin)
    assert answer.status == 403
    assert board.pod(uuid)["state"] == "running"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_port_reads_nothing(board, site):
    assert board.get("/api/pods", headers={"Sec-Fetch-Site": site}).status == 403
    assert board.get("/api/pods", headers={"Origin": "http://127.0.0.1:1"}).status == 403
    assert board.get("/api/pods", headers={"Sec-Fetch-Site": "same-origin"}).status == 200


def test_headers_of_every_answer(board):
    for path in ("/", "/style.css", "/api/pods", "/nothing"):
        headers = board.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "*" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers


def test_the_page_keeps_to_its_policy():
    """No script or style in the markup, nothing of other hosts, no markup from text."""
    for name, (content, _) in read_page().items():
        text = content.decode()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "javascript:"):
            assert word not in text, name
        if name.endswith(".html"):
            assert " style=" not in text
            assert "<style" not in text
            assert " onclick" not in text
            assert "<script>" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in text, name


# -- roles --


def test_a_viewer_only_looks(board):
    uuid = board.run()
    session = board.get("/api/session", role="viewer").json
    assert (session["role"], session["changes"], session["logs"]) == ("viewer", False, False)
    assert board.get("/api/pods", role="viewer").status == 200
    for action in ("start", "stop", "restart"):
        for path in (f"/api/pods/{uuid}/{action}", f"/api/pods/{uuid}/apps/main/{action}"):
            answer = board.post(path, role="viewer")
            assert (answer.status, answer.message) == (403, "this token shows pods, and does not change them")
    assert "logs may hold secrets" in board.get(f"/api/pods/{uuid}/logs", role="viewer").message
    assert board.pod(uuid)["state"] == "running"


def test_a_read_only_dashboard(make_board):
    board = make_board(read_only=True)
    uuid = board.run()
    assert board.get("/api/session").json["changes"] is False
    assert board.get("/api/session").json["logs"] is True
    answer = board.post(f"/api/pods/{uuid}/stop")
    assert (answer.status, answer.message) == (403, "the dashboard is read-only")
    assert board.pod(uuid)["state"] == "running"


def test_no_secret_of_a_pod_reaches_the_page(board):
    secret = "hunter2-is-a-secret"
    app = shell(f"sleep 1000 # {secret}", environment=[{"name": "PASSWORD", "value": secret}])
    secrets = [{"name": "password"}]
    encoded = base64.b64encode(secret.encode()).decode()
    board.client.secret_create("password", encoded)
    board.client.volume_create("data", labels={"key": secret})
    annotations = [{"name": "example.com/key", "value": secret}]
    board.run({"main": {"app": app, "secrets": secrets}}, annotations=annotations)
    lists = ("pods", "images", "networks", "volumes", "secrets", "events", "session")
    for path in (f"/api/{name}" for name in lists):
        for role in ("admin", "viewer"):
            answer = board.get(path, role=role)
            assert answer.status == 200
            assert secret.encode() not in answer.body
            assert encoded.encode() not in answer.body


# -- hostile clients --


@pytest.mark.parametrize(
    "path",
    [
        *("/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/page/app.js", "/app.js/"),
        *(
            "//etc/passwd",
            "/access.py",
            "/%00",
            "/app.js%00.html",
            "/admin.token",
            "/login.html/..",
            "/api",
            "/api/",
        ),
        *("/api/pods/../../x", f"/api/pods/{NO_POD}/logs/x", "/api/pods/x/logs", "/api/pods/%2e%2e/logs"),
    ],
)
def test_paths_that_are_not_there(board, path):
    answer = board.get(path)
    assert answer.status == 404
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\n\r\n", b"400"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n\r\n", b"401"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n" + b"x" * 99_999, b"413"),
        (
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"400",
        ),
        (b"GET /?" + b"a=b&" * 100 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n", b"400"),
    ],
)
def test_malformed_requests(board, request_bytes, status):
    answer = board.raw(request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert board.get("/api/session").status == 200


def test_no_header_comes_from_a_request(board):
    """Neither a path, a parameter nor the port of a Host can begin a new header of the answer."""
    for path in ("/login?token=%0d%0aSet-Cookie:%20a=b", "/%0d%0aX-Evil:%201", "/api/pods?%0d%0aX-Evil:%201"):
        answer = board.get(path)
        assert "X-Evil" not in answer.headers
        assert "a=b" not in (answer.headers["Set-Cookie"] or "")
    answer = board.get(f"/login?token={board.token('admin')}", headers={"Host": "localhost:1;a=b"})
    assert answer.headers["Set-Cookie"].startswith("kurma-80=")


@pytest.mark.parametrize("body", [[], "x", 7, None])
def test_bodies_that_are_no_objects(board, body):
    uuid = board.run()
    answer = board.post(f"/api/pods/{uuid}/apps/none/stop", [body] if body is None else body)
    assert (answer.status, answer.message) == (400, "the body must be a JSON object")


def test_clients_that_say_nothing_leave_room_for_others(board):
    """There is a limit of connections; beyond it they are closed at once, and below it all works again."""
    held = [socket.create_connection(("127.0.0.1", board.port), 30) for _ in range(70)]
    # Nothing is sent to them: those that can be read are closed.
    until(lambda: len(select.select(held, [], [], 0.1)[0]) >= 6, "connections beyond the limit are closed")
    for one in held:
        one.close()
    until(lambda: _works(board), "an answer after they have gone")


def _works(board):
    try:
        return board.get("/api/session").status == 200
    except OSError:
        return False
