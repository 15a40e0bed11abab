"""A fetcher may raise anything and return anything: it is told as the plugin's failure, on one line."""

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from kurma_testing import bound

from kurma_core.errors import FetchError, FetchNotFoundError, KurmaError, PluginError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest, RemoteArchive, RemoteBlobHooks

REQUEST = FetchRequest("linux", "amd64", frozenset())


def _raises(error: Exception) -> Callable[[str, object], object]:
    def resolve(locator: str, request: object) -> object:
        raise error

    return resolve


def _fetching(resolve: Callable[[str, object], object], path: Path, names: str = "") -> Fetching:
    class Hostile:
        @hookimpl
        def resolve(self, locator: str, request: object) -> object:
            return resolve(locator, request)

    kind = {"x": "address"}.get
    return Fetching(lambda scheme: bound(FetcherHooks, Hostile()), str(path), kind=kind, names=names)


@pytest.mark.parametrize("returned", [None, "an image", {"url": "x"}, object], ids=repr)
def test_whatever_it_returns(returned: object, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"^x://image: .* answered resolve with .*, not RemoteArchive \|"):
        _fetching(lambda locator, request: returned, tmp_path).resolve("x://image", REQUEST)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("nosch:a", "ask; no fetcher of the scheme nosch is installed"),
        ("example.com/a:1", "ask"),
        ("localhost", "ask"),
        ("x:a", "ask"),
    ],
)
def test_a_scheme_that_no_fetcher_serves_is_named(text: str, hint: str, tmp_path: Path) -> None:
    """18.3: it may be a name with a version, too."""
    fetching = _fetching(_raises(FetchNotFoundError("not found", hint="ask")), tmp_path, names="x")
    with pytest.raises(FetchNotFoundError) as caught:
        fetching.resolve(text, REQUEST)
    assert caught.value.hint == hint


@pytest.mark.parametrize("transport", ["ftp", "", "HTTPS"], ids=repr)
def test_an_unknown_transport(transport: str, tmp_path: Path) -> None:
    """It decides the trust policy."""
    image = RemoteArchive("x://image", "x://image", transport, Blob(None))
    with pytest.raises(PluginError, match=r"an image with the transport .*, not file, http, https"):
        _fetching(lambda locator, request: image, tmp_path).resolve("x://image", REQUEST)


def _open(self: object, offset: int) -> BinaryIO:
    return io.BytesIO()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"open": hookimpl(_open), "key": None, "size": None}, r"\(Wrong\): lacks digest$"),
        ({"key": None, "size": None, "digest": None}, r"\(Wrong\): lacks open$"),
        (
            {"open": lambda self: None, "key": None, "size": None, "digest": None},
            "its method open has the name of a hook",
        ),
        (
            {"opem": hookimpl(_open), "key": None, "size": None, "digest": None},
            "opem is not a hook of RemoteBlobHooks; the nearest is open",
        ),
        ({"open": hookimpl(_open), "key": 5, "size": None, "digest": None}, r"Wrong\.key is 5, not str \| None"),
        ({"open": hookimpl(_open), "key": None, "size": True, "digest": None}, r"Wrong\.size is True, not int"),
    ],
)
def test_a_wrong_blob(members: dict[str, object], said: str, tmp_path: Path) -> None:
    """It is refused when the image is found, before anything is read."""
    image = RemoteArchive("x://image", "x://image", "file", type("Wrong", (), members)())
    with pytest.raises(PluginError, match=f"^x://image: .* failed in resolve: TypeError: its .*{said}"):
        _fetching(lambda locator, request: image, tmp_path).resolve("x://image", REQUEST)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"signature", "^x://image: .* answered signature with b'signature', not DetachedSignature"),
        (KeyError("x"), "^x://image: .* failed in signature: KeyError"),
        (
            OSError(errno.EIO, "Input/output error"),
            "^cannot read the signature of x://image: .*Input/output error",
        ),
    ],
    ids=repr,
)
def test_a_wrong_signature(answer: object, said: str, tmp_path: Path) -> None:
    class Signed(Blob):
        @hookimpl
        def signature(self) -> object:  # type: ignore[override]
            if isinstance(answer, Exception):
                raise answer
            return answer

    image = RemoteArchive("x://image", "x://image", "file", Signed(None))
    fetching = _fetching(lambda locator, request: image, tmp_path)
    remote = fetching.resolve("x://image", REQUEST)
    assert isinstance(remote, RemoteArchive)
    with pytest.raises(KurmaError, match=said):
        fetching.signature(remote)


def test_a_blob_without_a_signature_has_none(tmp_path: Path) -> None:
    image = RemoteArchive("x://image", "x://image", "https", Blob(None))
    fetching = _fetching(lambda locator, request: image, tmp_path)
    assert fetching.signature(cast("RemoteArchive", fetching.resolve("x://image", REQUEST))) is None


@pytest.mark.parametrize("error", [ValueError("many\nlines"), KeyError("x"), RecursionError()], ids=repr)
def test_whatever_it_raises(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=f"^x://image: .* failed in resolve: {type(error).__name__}") as caught:
        _fetching(_raises(error), tmp_path).resolve("x://image", REQUEST)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_errors_of_its_kind_pass(tmp_path: Path) -> None:
    with pytest.raises(FetchNotFoundError):
        _fetching(_raises(FetchNotFoundError("x://image: not found")), tmp_path).resolve("x://image", REQUEST)


class Stream(io.RawIOBase):
    """Gives some bytes, and then fails."""

    def __init__(self, then: object) -> None:
        self._pieces = [b"some", then]

    def read(self, size: int = -1) -> bytes:
        then = self._pieces.pop(0)
        if isinstance(then, BaseException):
            raise then
        return then  # type: ignore[return-value]


class Blob(RemoteBlobHooks):
    size, digest, key = None, None, "key"

    def __init__(self, then: object, *, opens: bool = True) -> None:
        self._then = then
        self._opens = opens

    @hookimpl
    def open(self, offset: int) -> BinaryIO:
        if not self._opens:
            assert isinstance(self._then, BaseException)
            raise self._then
        return cast("BinaryIO", Stream(self._then))


@pytest.mark.parametrize(
    ("then", "kind", "text"),
    [
        (ValueError("many\nlines"), PluginError, "^layer 1: .* failed in (open|read): ValueError: many lines"),
        (KeyError("x"), PluginError, "^layer 1: .* failed in (open|read): KeyError"),
        (OSError(errno.EIO, "Input/output error"), FetchError, "^layer 1: cannot be read: Input/output error$"),
        (OSError(), FetchError, "^layer 1: cannot be read: OSError$"),
        (FetchNotFoundError("gone"), FetchNotFoundError, "^gone$"),
        (None, PluginError, "^layer 1: .* answered read with None, not bytes"),
        ("text", PluginError, "^layer 1: .* answered read with 'text', not bytes"),
    ],
    ids=repr,
)
def test_whatever_its_stream_does(tmp_path: Path, then: object, kind: type[KurmaError], text: str) -> None:
    fetching = _fetching(lambda locator, request: None, tmp_path / "partial")
    for opens in (True, False) if isinstance(then, Exception) else (True,):
        with (
            pytest.raises(KurmaError, match=text) as caught,
            fetching.download(bound(RemoteBlobHooks, Blob(then, opens=opens)), "layer 1") as download,
        ):
            download.finish()
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
