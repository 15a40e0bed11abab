"""One platform chosen among several (R1)."""

from __future__ import annotations

import pytest
from kurma_fetch_docker.documents import Descriptor, pick

from kurma_core.errors import FetchNotFoundError
from kurma_core.hookspecs import FetchRequest


def entries(*platforms: str | None) -> list[Descriptor]:
    """One for each ``os/architecture[/variant]``; its digest tells its place."""
    found = []
    for number, text in enumerate(platforms):
        platform = (
            None if text is None else dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))
        )
        found.append(Descriptor("", f"sha256:{number:064x}", 1, platform))
    return found


@pytest.mark.parametrize(
    ("arch", "platforms", "place"),
    [
        ("amd64", ("linux/arm64/v8", "linux/amd64"), 1),
        ("amd64", ("windows/amd64", "linux/amd64"), 1),
        ("amd64", ("linux/amd64/v3", "linux/amd64"), 1),
        ("amd64", ("unknown/unknown", "linux/amd64"), 1),
        ("aarch64", ("linux/arm64", "linux/arm64/v8"), 1),
        ("aarch64", ("linux/arm64",), 0),
        ("armv7l", ("linux/arm/v5", "linux/arm/v6", "linux/arm/v7"), 2),
        ("armv7l", ("linux/arm/v5", "linux/arm/v6"), 1),
        ("armv6l", ("linux/arm/v7", "linux/arm/v6"), 1),
        ("i386", ("linux/amd64", "linux/386"), 1),
        ("s390x", ("linux/amd64", "linux/s390x"), 1),
        ("amd64", (None,), 0),
    ],
)
def test_the_one_for_this_platform(arch: str, platforms: tuple[str | None, ...], place: int) -> None:
    chosen = pick(entries(*platforms), "r", FetchRequest("linux", arch))
    assert chosen.digest == f"sha256:{place:064x}"


@pytest.mark.parametrize(
    ("arch", "platforms", "hint"),
    [
        ("amd64", ("linux/arm64/v8", "unknown/unknown"), "it is made for linux/arm64/v8"),
        ("armv6l", ("linux/arm/v7",), "it is made for linux/arm/v7"),
        ("amd64", (None, None), None),
        ("amd64", (), None),
    ],
)
def test_none_for_it(arch: str, platforms: tuple[str | None, ...], hint: str | None) -> None:
    with pytest.raises(FetchNotFoundError, match="not made for linux/") as caught:
        pick(entries(*platforms), "r", FetchRequest("linux", arch))
    assert caught.value.hint == hint
