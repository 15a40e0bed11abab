"""A fetcher may raise anything and return anything: it is told as the plugin's failure, on one line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.errors import FetchNotFoundError, PluginError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs import FetchRequest

REQUEST = FetchRequest("linux", "amd64", frozenset())


def _raises(error: Exception) -> Callable[[str, object], object]:
    def resolve(locator: str, request: object) -> object:
        raise error

    return resolve


def _fetching(resolve: Callable[[str, object], object], path: Path) -> Fetching:
    class Hostile:
        def resolve(self, locator: str, request: object) -> object:
            return resolve(locator, request)

    return Fetching(lambda scheme: Hostile(), str(path), schemes=lambda: ("x",))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("returned", [None, "an image", {"url": "x"}, object], ids=repr)
def test_whatever_it_returns(returned: object, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="which is no image"):
        _fetching(lambda locator, request: returned, tmp_path).resolve("x://image", REQUEST)


@pytest.mark.parametrize("error", [ValueError("many\nlines"), KeyError("x"), RecursionError()], ids=repr)
def test_whatever_it_raises(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=f"x://image: {type(error).__name__}") as caught:
        _fetching(_raises(error), tmp_path).resolve("x://image", REQUEST)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_errors_of_its_kind_pass(tmp_path: Path) -> None:
    with pytest.raises(FetchNotFoundError):
        _fetching(_raises(FetchNotFoundError("x://image: not found")), tmp_path).resolve("x://image", REQUEST)
