"""What is a request, and what status everything else deserves (M2, M4)."""

import pytest

from kurma_core.metadata.http import BODY_LIMIT, HEAD_LIMIT, HEADER_LIMIT, HttpError, RequestReader


def requests(*pieces):
    """What comes of these bytes; the last is the error's status, if there is one."""
    reader, found = RequestReader(), []
    for piece in pieces:
        reader.feed(piece)
        try:
            while (request := reader.next()) is not None:
                found.append(request)
        except HttpError as error:
            return [*found, error.status]
    return found


def status(text):
    found = requests(text)
    return found[-1] if found else None


HOST = b"Host: a\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc"


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
def test_however_it_is_cut(size):
    text = GET + POST + b"\r\n" + GET
    found = requests(*[text[at : at + size] for at in range(0, len(text), size)])
    assert [(each.method, each.path, each.body) for each in found] == [
        (b"GET", b"/a", b""),
        (b"POST", b"/a", b"abc"),
        (b"GET", b"/a", b""),
    ]


@pytest.mark.parametrize(
    ("text", "keep_alive"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", False),
    ],
)
def test_who_may_go_on(text, keep_alive):
    (request,) = requests(text)
    assert request.keep_alive == keep_alive


def test_the_path_is_what_counts():
    (request,) = requests(b"GET http://169.254.169.255:80/a/b?c=d HTTP/1.1\r\n" + HOST + b"\r\n")
    assert request.path == b"/a/b"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"GET /a\r\n\r\n", 400),
        (b"GET  /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1 \r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\x80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"G(T / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\nC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
        (b"\0" * HEAD_LIMIT, 431),
        (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", 411),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: \xc2\xb2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % (BODY_LIMIT + 1), 413),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Expect: tea\r\n\r\n", 417),
        (b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET / ICY/11111\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * HEADER_LIMIT + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"b" * HEAD_LIMIT + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * HEAD_LIMIT + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    ],
)
def test_what_is_refused(text, wanted):
    assert status(text) == wanted


def test_the_limits_are_those_of_the_guide():
    """docs/reference/metadata.md"""
    assert (HEAD_LIMIT, BODY_LIMIT, HEADER_LIMIT) == (8 << 10, 64 << 10, 64)


def test_the_longest_body_is_taken():
    (request,) = requests(b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % BODY_LIMIT, b"x" * BODY_LIMIT)
    assert len(request.body) == BODY_LIMIT
