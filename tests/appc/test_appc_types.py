"""Scalar types: T1–T6."""

from __future__ import annotations

import datetime
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.appc import types
from kurma_core.errors import ManifestError
from kurma_core.schema import child, describe

DIGEST = "0123456789abcdef" * 8


def refused(check, value, expected: str, found: str, path: str = "$.here") -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        check(value, path)
    data = caught.value.data
    assert data["path"] == path
    assert expected in data["expected"]
    assert data["found"] == found
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["a", "0", "example.com/reduce-worker", "a--b", "a-._~/b", "os/linux/x-y", "a_b"])
def test_identifier_accepts(name):
    """T1"""
    assert types.ac_identifier(name, "$.name") == name


@pytest.mark.parametrize("name", ["", "A", "a ", "-a", "a-", "/a", "a/", "a:b", "é", "a\n", "²"])
def test_identifier_refuses(name):
    """T1"""
    refused(types.ac_identifier, name, "an identifier", describe(name))


def test_name():
    """T2"""
    for name in ("a", "7", "work", "a-b", "a--b"):
        assert types.ac_name(name, "$") == name
    for name in ("", "-a", "a-", "a.b", "a/b", "a_b", "A", "a b"):
        refused(types.ac_name, name, "a name", f'"{name}"')
    refused(types.ac_name, 7, "a string", "7")
    refused(types.ac_name, None, "a string", "null")
    refused(types.ac_name, ["a"], "a string", "a list")
    refused(types.ac_name, {}, "a string", "an object")
    refused(types.ac_name, True, "a string", "true")


def test_found_is_one_short_printable_line():
    """An error must not carry a stranger's terminal escapes, nor megabytes."""
    error = refused(types.ac_name, "\x1b[31m\n" + "x" * 10, "a name", '"\\x1b[31m\\nxxxxxxxxxx"')
    assert "\x1b" not in str(error)
    assert len(describe("x" * 10_000)) <= 80


@pytest.mark.parametrize(
    ("text", "identifier", "name"),
    [
        ("127.0.0.1:5000/x", "127.0.0.1_5000/x", "127-0-0-1-5000-x"),
        ("Hello, World!", "hello_world", "hello-world"),
        ("--a b--", "a_b", "a-b"),
        ("a", "a", "a"),
    ],
)
def test_sanitize(text, identifier, name):
    """T3"""
    assert types.sanitize_identifier(text) == identifier
    assert types.sanitize_name(text) == name


@pytest.mark.parametrize("sanitize", [types.sanitize_identifier, types.sanitize_name])
def test_sanitize_refuses_what_leaves_nothing(sanitize):
    """T3"""
    for text in ("", "!!!", "-._~/", "é"):
        refused(lambda value, _: sanitize(value), text, "can be made of", f'"{text}"', path="$")


@given(st.text())
def test_sanitize_gives_valid_names_and_leaves_those_alone(text):
    """T3"""
    for sanitize, check in (
        (types.sanitize_identifier, types.ac_identifier),
        (types.sanitize_name, types.ac_name),
    ):
        try:
            result = sanitize(text)
        except ManifestError:
            assert not set(text.lower()) & set("abcdefghijklmnopqrstuvwxyz0123456789")
            continue
        assert check(result, "$") == result
        assert sanitize(result) == result


def test_image_id():
    """T4"""
    whole = f"sha512-{DIGEST}"
    assert types.image_id(whole, "$") == whole
    assert types.image_id(whole.upper(), "$") == whole
    assert types.is_image_id(whole)
    assert not types.is_image_id(whole[:-1])
    for wrong in (whole[:-1], whole + "0", DIGEST, f"sha256-{DIGEST}", f"sha512-{'g' * 128}", ""):
        refused(types.image_id, wrong, "an image ID", describe(wrong))


def test_image_id_prefix():
    """T4"""
    for good in ("sha512-a", f"sha512-{DIGEST}", "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac"):
        assert types.is_image_id_prefix(good)
    for wrong in ("sha512-", "sha512", "a", "md5-aa", "sha512-xyz", f"sha512-{DIGEST}0", f"sha256-{DIGEST}", ""):
        assert not types.is_image_id_prefix(wrong)


def test_versions():
    """T5"""
    for version in ("0.8.11", "0.1.0", "0.7.1+git", "0.8.10-rc.1+build.05", "0.0.0"):
        assert types.ac_version(version, "$.acVersion") == version
    assert types.semver("12.0.3", "$") == "12.0.3"
    for wrong in (
        "",
        "1",
        "0.8",
        "0.8.",
        "0.08.1",
        "v0.8.1",
        "0.8.1-",
        "0.8.1-01",
        "0.8.1+",
        "0.8.1-a..b",
        "0.8.1 ",
    ):
        refused(types.semver, wrong, "a semantic version", f'"{wrong}"')
    refused(types.ac_version, "1.0.0", "a 0.x version", '"1.0.0"', path="$.acVersion")


@pytest.mark.parametrize(
    "time",
    [
        "2014-10-27T19:32:27.67021798Z",
        "2016-02-29T00:00:00+05:30",
        "2000-02-29T23:59:60Z",
        "1999-12-31T23:59:59-00:00",
    ],
)
def test_timestamp_accepts(time):
    """T6"""
    assert types.timestamp(time, "$") == time


@pytest.mark.parametrize(
    "time",
    [
        "",
        "2014-10-27 19:32:27Z",
        "2014-10-27",
        "2014-10-27T19:32:27",
        "2014-10-27T19:32Z",
        "2015-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2014-13-01T00:00:00Z",
        "2014-04-31T00:00:00Z",
        "2014-00-01T00:00:00Z",
        "2014-10-27T24:00:00Z",
        "2014-10-27T19:32:27.Z",
        "2014-10-27T19:32:27+24:00",
        "2014-10-27T19:32:27+0100",
        "2014-10-27T19:32:27ZZ",
        "٢014-10-27T19:32:27Z",
    ],
)
def test_timestamp_refuses(time):
    """T6"""
    refused(types.timestamp, time, "an RFC 3339 time", f'"{time}"')


@given(st.datetimes(timezones=st.timezones() | st.just(datetime.UTC)))
def test_timestamp_agrees_with_datetime(moment):
    """T6"""
    offset = moment.utcoffset()
    if offset is None or offset % datetime.timedelta(minutes=1):
        return  # RFC 3339 has no offsets of seconds, as zones had before 1900
    assert types.timestamp(moment.isoformat(), "$") == moment.isoformat()


def test_url():
    """T6"""
    for url in (
        "https://example.com",
        "http://u@example.com:80/docs?q#f",
        "HTTPS://example.com/é",
        "http://[::1]/",
    ):
        assert types.http_url(url, "$") == url
    for wrong in (
        "",
        "example.com",
        "ftp://example.com",
        "https://",
        "https:///x",
        "https://a b",
        "https://u@/",
        "x",
    ):
        refused(types.http_url, wrong, "an http or https URL", f'"{wrong}"')
    refused(types.http_url, "https://a/\n", "an http or https URL", '"https://a/\\n"')


@given(st.uuids())
def test_uuid(value: uuid.UUID):
    """T6"""
    assert types.pod_uuid(str(value)) == str(value)
    assert types.pod_uuid(str(value).upper()) == str(value)


def test_uuid_refuses():
    """T6"""
    for wrong in (
        "",
        "6733c088a5074694aabfedbe4fc5266f",
        "{6733c088-a507-4694-aabf-edbe4fc5266f}",
        "6733c088-a507-4694-aabf-edbe4fc5266",
        "6733c088-a507-4694-aabf-edbe4fc5266g",
    ):
        refused(types.pod_uuid, wrong, "a UUID", f'"{wrong}"')
    assert refused(lambda v, _: types.pod_uuid(v), "x", "a UUID", '"x"', path="$.uuid")


def test_paths_and_words():
    assert types.absolute_path("/a/../b", "$") == "/a/../b"
    refused(types.absolute_path, "a", "an absolute path", '"a"')
    refused(types.inner_path, "/a/../b", "without ..", '"/a/../b"')
    assert types.inner_path("/a/..b", "$") == "/a/..b"
    refused(types.word, "a\0b", "without NUL", '"a\\x00b"')
    refused(types.nonempty, "", "not empty", '""')


def test_child():
    assert child("$", "app") == "$.app"
    assert child("$.a", "kurma.io/seed") == '$.a["kurma.io/seed"]'
    assert child("$", "") == '$[""]'


def test_content_ids_are_whole_or_an_early_documents():
    whole, early = "sha512-" + "Ab" * 64, "sha256-" + "Cd" * 32
    assert types.content_id(whole, "$") == whole.lower()
    for digits in (64, 40, 6):
        assert types.content_id(early[: 7 + digits], "$") == early[: 7 + digits].lower()
    for wrong in (early[:12], whole[:-1], early + "0", "sha256-xyzxyz", "md5-123456", "123456"):
        refused(types.content_id, wrong, "an image ID", describe(wrong))
