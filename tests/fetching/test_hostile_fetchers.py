"""A fetcher may raise anything and return anything: it is told as the plugin's failure, on one line."""

import errno
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from kurma_testing import bound

from kurma_core.errors import FetchError, FetchNotFoundError, KurmaError, PluginError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest, RemoteArchive

REQUEST = FetchRequest("linux", "amd64", frozenset())


def _raises(error: Exception) -> Callable[[str, object], object]:
    def resolve(locator: str, request: object) -> object:
        raise error

    return resolve


def _fetching(resolve: Callable[[str, object], object], path: Path) -> Fetching:
    class Hostile:
        @hookimpl
        def resolve(self, locator: str, request: object) -> object:
            return resolve(locator, request)

    return Fetching(lambda scheme: bound(FetcherHooks, Hostile()), str(path), kind={"x": "address"}.get)


@pytest.mark.parametrize("returned", [None, "an image", {"url": "x"}, object], ids=repr)
def test_whatever_it_returns(returned: object, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"^x://image: .* answered resolve with .*, not RemoteArchive \|"):
        _fetching(lambda locator, request: returned, tmp_path).resolve("x://image", REQUEST)


@pytest.mark.parametrize("transport", ["ftp", "", "HTTPS", None], ids=repr)
def test_an_unknown_transport(transport: str, tmp_path: Path) -> None:
    """It decides the trust policy."""
    image = RemoteArchive("x://image", "x://image", transport, blob=None)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"an image with the transport .*, not file, http, https"):
        _fetching(lambda locator, request: image, tmp_path).resolve("x://image", REQUEST)


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


class Blob:
    size, digest, key = None, None, "key"

    def __init__(self, then: object, *, opens: bool = True) -> None:
        self._then = then
        self._opens = opens

    def open(self, offset: int = 0) -> Stream:
        if not self._opens:
            assert isinstance(self._then, BaseException)
            raise self._then
        return Stream(self._then)


@pytest.mark.parametrize(
    ("then", "kind", "text"),
    [
        (ValueError("many\nlines"), PluginError, "failed on layer 1: ValueError: many lines"),
        (KeyError("x"), PluginError, "failed on layer 1: KeyError"),
        (OSError(errno.EIO, "Input/output error"), FetchError, "^layer 1: cannot be read: Input/output error$"),
        (OSError(), FetchError, "^layer 1: cannot be read: OSError$"),
        (FetchNotFoundError("gone"), FetchNotFoundError, "^gone$"),
        (None, PluginError, "read None, which is no bytes"),
        ("text", PluginError, "read 'text', which is no bytes"),
    ],
    ids=repr,
)
def test_whatever_its_stream_does(tmp_path: Path, then: object, kind: type[KurmaError], text: str) -> None:
    fetching = _fetching(lambda locator, request: None, tmp_path / "partial")
    for opens in (True, False) if isinstance(then, Exception) else (True,):
        with (
            pytest.raises(KurmaError, match=text) as caught,
            fetching.download(Blob(then, opens=opens), "layer 1") as download,  # type: ignore[arg-type]
        ):
            download.finish()
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
