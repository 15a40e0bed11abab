"""Paths, addresses and names are told apart (D1)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.appc.image import host_platform
from kurma_core.appc.image_name import ImageName
from kurma_core.errors import UsageError
from kurma_core.fetching import NAMED, Locator, parse_locator

SCHEMES = ("file", "http", "https", "docker", "oci", "oci-archive", "docker-archive")


@pytest.mark.parametrize(
    ("text", "scheme", "whole"),
    [
        ("/a/b.aci", "file", "file:///a/b.aci"),
        ("/a/../b c%.aci", "file", "file:///b%20c%25.aci"),
        ("file:///a.aci", "file", "file:///a.aci"),
        ("https://example.com/a.aci", "https", "https://example.com/a.aci"),
        ("HTTPS://example.com/a.aci", "https", "https://example.com/a.aci"),
        ("docker:///redis", "docker", "docker:///redis"),
        ("docker://127.0.0.1:5000/x:1@sha256:00", "docker", "docker://127.0.0.1:5000/x:1@sha256:00"),
        ("oci:/a/b:tag", "oci", "oci:/a/b:tag"),
        ("other-scheme://thing", "other-scheme", "other-scheme://thing"),
    ],
)
def test_addresses(text: str, scheme: str, whole: str) -> None:
    assert parse_locator(text, SCHEMES) == Locator(scheme, whole)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_locator("./a.aci").text == f"file://{tmp_path}/a.aci"
    assert parse_locator("../a.aci").text == f"file://{tmp_path.parent}/a.aci"
    assert parse_locator("oci:dir:tag", SCHEMES).text == f"oci:{tmp_path}/dir:tag"


def test_an_existing_archive_needs_no_dot_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_locator("app.aci").scheme == NAMED
    (tmp_path / "app.aci").touch()
    (tmp_path / "app").touch()
    assert parse_locator("app.aci").scheme == "file"
    assert parse_locator("app").scheme == NAMED, "a file whose name is no archive's must not hide an image's name"


def test_a_name_of_bytes_survives(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.aci")
    assert parse_locator(path).text.endswith("/%FF.aci")


@pytest.mark.parametrize(
    ("text", "name", "version", "labels"),
    [
        ("example.com/app", "example.com/app", None, {}),
        ("example.com/app:1.0", "example.com/app", "1.0", {}),
        ("example.com/app:1.0,arch=amd64,os=linux", "example.com/app", "1.0", {"arch": "amd64", "os": "linux"}),
        ("example.com/app,channel=a=b", "example.com/app", None, {"channel": "a=b"}),
        ("example.com/app,version=2", "example.com/app", "2", {}),
        ("oci:1.0", "oci", "1.0", {}),
    ],
)
def test_names(text: str, name: str, version: str | None, labels: dict[str, str]) -> None:
    assert parse_locator(text) == Locator(NAMED, text, ImageName(name, version, labels))


@pytest.mark.parametrize(
    "text", ["", "UPPER", "a:", "a,b", "a,b=1,b=2", "a:1,version=2", "a,name=b", "a b", "-a", "/a\0b", "é"]
)
def test_what_is_none_of_them(text: str) -> None:
    with pytest.raises(UsageError):
        parse_locator(text, SCHEMES)


@given(st.text(max_size=40))
def test_nothing_else_is_ever_raised(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_locator(text, SCHEMES)


def test_an_error_is_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        parse_locator("two\nlines")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "amd64"), ("i686", "i386"), ("aarch64", "aarch64"), ("armv7l", "armv7l"), ("armv8l", "armv7l")],
)
def test_this_machines_platform(monkeypatch: pytest.MonkeyPatch, machine: str, arch: str) -> None:
    """In the specification's words; a 32-bit system on a 64-bit ARM processor calls itself armv8l."""
    found = (*os.uname()[:4], machine)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(found))
    assert host_platform() == ("linux", arch)
