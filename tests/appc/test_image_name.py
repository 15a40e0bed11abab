"""Images by name: as they are written, and which image one is (D1, K3)."""

from __future__ import annotations

import pytest

from kurma_core.appc.image_name import ImageName, parse_image_name
from kurma_core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("example.com/a", "example.com/a"),
        ("example.com/a:1", "example.com/a:1"),
        ("example.com/a,version=1", "example.com/a:1"),
        ("example.com/a:1,os=linux,arch=amd64", "example.com/a:1,arch=amd64,os=linux"),
    ],
)
def test_the_same_thing_is_written_the_same_way(text: str, written: str) -> None:
    assert parse_image_name(text).text == written
    assert parse_image_name(written) == parse_image_name(text)


def test_what_cannot_be_written_is_no_locator() -> None:
    for labels in ({"version": "1,x=y"}, {"a": "b\nc"}):
        with pytest.raises(UsageError, match="cannot be asked for by name"):
            _ = ImageName.of("example.com/a", labels).text
    assert "\n" not in ImageName.of("example.com/a", {"a": "b\nc"}).shown


@pytest.mark.parametrize(
    ("asked", "name", "labels", "met"),
    [
        ("example.com/a", "example.com/a", {}, True),
        ("example.com/a", "example.com/a", {"version": "1"}, True),
        ("example.com/a", "example.com/ab", {}, False),
        ("example.com/a:1", "example.com/a", {"version": "1"}, True),
        ("example.com/a:1", "example.com/a", {"version": "2"}, False),
        ("example.com/a:1", "example.com/a", {}, False),
        ("example.com/a:latest", "example.com/a", {"version": "2"}, True),
        ("example.com/a,x=y", "example.com/a", {"x": "y", "z": "w"}, True),
        ("example.com/a,x=y", "example.com/a", {"x": "z"}, False),
        ("example.com/a-1.0", "example.com/a", {"version": "1.0"}, True),
        ("example.com/a-1.0", "example.com/a", {"version": "1.1"}, False),
        ("example.com/a-1.0:2", "example.com/a", {"version": "1.0"}, False),
    ],
)
def test_which_image_it_is(asked: str, name: str, labels: dict[str, str], met: bool) -> None:
    assert parse_image_name(asked).is_met_by(name, labels) is met


@pytest.mark.parametrize(
    ("labels", "image_id", "text"),
    [
        ({"version": "1.0.0"}, "sha256-00", "example.com/x-1.0.0"),
        ({"version": "2.1"}, "sha256-00", "example.com/x-2.1"),
        ({"version": "1.0.0"}, "sha512-00", "example.com/x:1.0.0"),
        ({"version": "1.0.0"}, None, "example.com/x:1.0.0"),
        ({}, "sha256-00", "example.com/x"),
        ({"version": "1.0.0", "os": "linux"}, "sha256-00", "example.com/x:1.0.0,os=linux"),
        ({"version": "one"}, "sha256-00", "example.com/x:one"),
    ],
)
def test_an_early_reference_is_written_as_the_draft_does(
    labels: dict[str, str], image_id: str | None, text: str
) -> None:
    """By its bare name it is looked for the early way (D4, E3)."""
    assert ImageName.of("example.com/x", labels, image_id).text == text
