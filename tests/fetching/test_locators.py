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
from kurma_core.fetching import Locator, locator_of, parse_locator
from kurma_core.named_files import absolute_locator

#: What the fetchers of this repository declare, and a stranger's.
KINDS = {
    "file": "path",
    "http": "address",
    "https": "address",
    "docker": "address",
    "oci": "path",
    "memo": "name",
    "appc": "name",
}


def parse(text: str, directory: str | None = ".") -> Locator:
    return parse_locator(text, KINDS.get, "file", directory)


@pytest.mark.parametrize(
    ("text", "scheme", "whole", "path"),
    [
        ("/a/b.aci", "file", "file:///a/b.aci", "/a/b.aci"),
        ("/a/../b c%.aci", "file", "file:///b%20c%25.aci", "/b c%.aci"),
        ("file:///a%20b.aci", "file", "file:///a%20b.aci", "/a b.aci"),
        ("https://example.com/a.aci", "https", "https://example.com/a.aci", None),
        ("HTTPS://example.com/a.aci", "https", "https://example.com/a.aci", None),
        ("docker:///redis", "docker", "docker:///redis", None),
        ("docker://127.0.0.1:5000/x:1@sha256:00", "docker", "docker://127.0.0.1:5000/x:1@sha256:00", None),
        ("oci:/a/b:tag", "oci", "oci:/a/b:tag", None),
        ("other-scheme://thing", "other-scheme", "other-scheme://thing", None),
    ],
)
def test_addresses(text: str, scheme: str, whole: str, path: str | None) -> None:
    assert parse(text) == Locator(scheme, whole, path=path)
    assert parse(text, None) == parse(text)


@pytest.mark.parametrize("rest", ["box", "./box", "box:1", "/box", "//box"])
@pytest.mark.parametrize(
    ("scheme", "kind"), [("memo", "name"), ("docker", "address"), ("oci", "path"), ("file", "path")]
)
def test_only_a_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, kind: str, rest: str
) -> None:
    """SCHEME:REST goes to the fetcher as it stands, unless the fetcher declares that REST is a path."""
    monkeypatch.chdir(tmp_path)
    made = kind == "path" and not rest.startswith("/")
    whole = f"{scheme}:{tmp_path}/{rest.removeprefix('./')}" if made else f"{scheme}:{rest}"
    assert (parse(f"{scheme}:{rest}").scheme, parse(f"{scheme}:{rest}").text) == (scheme, whole)
    assert absolute_locator(f"{scheme}:{rest}", KINDS.get) == whole
    assert parse(f"{scheme}:{rest}").name is None
    if made:
        with pytest.raises(UsageError, match="the directory that it starts from is unknown"):
            parse(f"{scheme}:{rest}", None)
    else:
        assert parse(f"{scheme}:{rest}", None).text == whole


@pytest.mark.parametrize("text", ["new:box", "new:./box", "new:/box", "new://box", "NEW:./box"])
def test_a_scheme_that_only_kurmad_has_stays_as_it_is(text: str) -> None:
    assert absolute_locator(text, KINDS.get).lower() == text.lower()
    there = {**KINDS, "new": "name"}
    assert parse_locator(absolute_locator(text, KINDS.get), there.get, "file", None).text == f"new:{text[4:]}"


def test_a_relative_path_for_a_scheme_that_only_kurmad_has() -> None:
    there = {**KINDS, "new": "path"}
    with pytest.raises(UsageError, match="the directory that it starts from is unknown") as caught:
        parse_locator(absolute_locator("new:box", KINDS.get), there.get, "file", None)
    assert "/DIRECTORY/FILE" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["./a.aci", "../a.aci", "a.aci", "."])
def test_a_relative_path_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.aci").touch()
    if text == "a.aci":
        assert parse(text, None).name is not None, "kurmad looks for no file of its own directory"
        return
    with pytest.raises(UsageError, match="a relative path"):
        parse(text, None)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("./a.aci") == Locator("file", f"file://{tmp_path}/a.aci", path=f"{tmp_path}/a.aci")
    assert parse("../a.aci").path == f"{tmp_path.parent}/a.aci"
    assert parse("oci:dir:tag").text == f"oci:{tmp_path}/dir:tag"


def test_the_scheme_of_paths_is_configured() -> None:
    assert parse_locator("/a.aci", KINDS.get, "memo") == Locator("memo", "memo:///a.aci", path="/a.aci")
    assert parse_locator("file:///a.aci", KINDS.get, "memo").path is None


def test_an_existing_archive_needs_no_dot_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("app.aci").name is not None
    (tmp_path / "app.aci").touch()
    (tmp_path / "app").touch()
    assert parse("app.aci").path == f"{tmp_path}/app.aci"
    assert parse("app").name is not None, "a file whose name is not an archive's must not hide an image's name"


def test_a_name_of_bytes_survives(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.aci")
    assert parse(path).text.endswith("/%FF.aci")


@pytest.mark.parametrize(
    ("text", "name", "version", "labels"),
    [
        ("example.com/app", "example.com/app", None, {}),
        ("example.com/app:1.0", "example.com/app", "1.0", {}),
        ("example.com/app:1.0,arch=amd64,os=linux", "example.com/app", "1.0", {"arch": "amd64", "os": "linux"}),
        ("example.com/app,channel=a=b", "example.com/app", None, {"channel": "a=b"}),
        ("example.com/app,version=2", "example.com/app", "2", {}),
        ("unknown:1.0", "unknown", "1.0", {}),
    ],
)
def test_names(text: str, name: str, version: str | None, labels: dict[str, str]) -> None:
    wanted = ImageName(name, version, labels)
    assert parse(text) == Locator("", text, wanted)
    assert locator_of(wanted).name == wanted


@pytest.mark.parametrize(
    "text", ["", "UPPER", "a:", "a,b", "a,b=1,b=2", "a:1,version=2", "a,name=b", "a b", "-a", "/a\0b", "é"]
)
def test_what_is_none_of_them(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@given(st.text(max_size=40))
def test_nothing_else_is_ever_raised(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text)


def test_an_error_is_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        parse("two\nlines")
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
