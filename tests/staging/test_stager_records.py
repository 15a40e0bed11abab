"""What stagers say is untrusted (G5)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kurma_core.errors import StagerError
from kurma_core.models.pod import AppExecution, AppStatus
from kurma_core.staging.stager_status import exit_code, parse_apps, parse_status_output, read_status_file


def test_the_documents_own_examples() -> None:
    assert parse_status_output(b'{"nats": {"pid": 1234, "exited": false}}') == {
        "nats": AppStatus("nats", pid=1234)
    }
    exited = parse_status_output(b'{"nats": {"exited": true, "exitCode": 1, "exitReason": "killed"}}')["nats"]
    assert (exited.exited, exited.exit_code, exited.reason, exited.pid) == (True, 1, "killed", None)
    assert parse_status_output(b'{"nats": {"running": false, "exitCode": 3}}')["nats"].exited


def test_whose_files_are() -> None:
    """H10: words that are none of Kurma's, and files that it does not write, are passed over."""
    told = {"hosts": "image+name", "hostname": ["kurma"], "resolv.conf": "\x1b", "passwd": "kurma"}
    assert parse_apps({"a": {"files": told}}, "it")["a"].files == {"hosts": "image+name"}
    assert parse_apps({"a": {"files": "kurma"}}, "it")["a"].files == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": 1}',
        b'{"a": {"pid": "1"}}',
        b'{"a": {"pid": -1}}',
        b'{"a": {"pid": true}}',
        b'{"a": {"exited": true, "exitCode": 256}}',
        b'{"a": {"exited": true, "exitCode": 1.5}}',
        b'{"a": {"log": "../../etc/shadow"}}',
        b'{"a": {"log": "a\\u0000.log"}}',
        b'{"a": {"log": "\\ud800"}}',
        b'{"a": {"log": "%s"}}' % (b"x" * 241),
        b'{"\\ud800": {"exited": true}}',
        b'{"\\u001b[2J": {"exited": true}}',
        b"x" * ((1 << 20) + 1),
    ],
)
def test_nonsense_is_refused(text: bytes) -> None:
    with pytest.raises(StagerError, match="the stager is wrong"):
        parse_status_output(text)


def test_an_unknown_reason_is_dropped() -> None:
    assert parse_status_output(b'{"a": {"exited": true, "exitReason": "\\u001b[2J"}}')["a"].reason is None


def test_a_link_in_place_of_the_status_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    secret = tmp_path / "secret"
    secret.write_text('{"apps": {}}')
    os.symlink(secret, tmp_path / "pod" / "status.json")
    with pytest.raises(StagerError, match=r"its status\.json cannot be read: Too many levels"):
        read_status_file(str(tmp_path))
    os.unlink(tmp_path / "pod" / "status.json")
    assert read_status_file(str(tmp_path)) is None
    os.mkfifo(tmp_path / "pod" / "status.json")
    with pytest.raises(StagerError, match=r"its status\.json cannot be read: not a regular file"):
        read_status_file(str(tmp_path))


def write_status(directory: Path, value: object) -> None:
    (directory / "pod").mkdir(exist_ok=True)
    (directory / "pod" / "status.json").write_text(json.dumps(value))


@pytest.mark.parametrize("version", [2, 0, True, "1", None, [], "9" * 5000])
def test_a_status_file_of_another_version_is_not_understood(tmp_path: Path, version: object) -> None:
    write_status(tmp_path, {"version": version, "apps": {}})
    with pytest.raises(StagerError, match=r"its status\.json has version .{1,40}, not 1$"):
        read_status_file(str(tmp_path))


def test_what_a_stager_says_can_be_written_out_and_has_a_bound(tmp_path: Path) -> None:
    """JSON can name halves of surrogate pairs, which nothing can print."""
    app = {"message": "\ud800 it", "startedAt": "\udfff", "earlier": [{"message": "\ud800"}]}
    write_status(tmp_path, {"version": 1, "apps": {"a": app}, "notes": ["\ud800" + "x" * 5000, 5] + ["n"] * 500})
    found = read_status_file(str(tmp_path))
    assert found is not None
    apps, notes = found
    assert (apps["a"].message, apps["a"].started_at, apps["a"].earlier[0].message) == ("? it", "?", "?")
    assert (len(notes), notes[0][:2], len(notes[0])) == (100, "?x", 4096)


def test_a_directory_in_place_of_the_status_file_is_the_stagers_fault(tmp_path: Path) -> None:
    (tmp_path / "pod" / "status.json").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StagerError, match=r"its status\.json cannot be read: not a regular file"):
        read_status_file(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


def test_the_pods_exit_code_is_the_first_that_is_not_zero() -> None:
    apps = {
        "a": AppStatus("a", exited=True, exit_code=0),
        "b": AppStatus("b", exited=True, exit_code=42),
        "c": AppStatus("c", exited=True, exit_code=7),
    }
    assert exit_code(apps, ["a", "b", "c"]) == 42
    assert exit_code(apps, ["c", "b"]) == 7
    assert exit_code(apps, ["a", "missing"]) == 0


def test_executions_before_this_one():
    """Each with the number of the signal that ended it; one that does not say its number has that of its place."""
    apps = parse_apps(
        {
            "a": {
                "earlier": [
                    {"exitCode": 137, "exitReason": "killed", "signal": 9},
                    {"instance": 5, "exitCode": 137},
                ]
            }
        },
        "x",
    )
    assert [(one.instance, one.exit_code, one.signal) for one in apps["a"].earlier] == [
        (0, 137, 9),
        (5, 137, None),
    ]
    with pytest.raises(StagerError, match=r"earlier\[0\].signal: expected an integer from 1 to 64, found 65"):
        parse_apps({"a": {"earlier": [{"signal": 65}]}}, "x")
    record = apps["a"].earlier[0].to_json()
    assert AppExecution.from_json(record) == apps["a"].earlier[0]


def test_the_status_of_an_unchanged_file_is_the_callers_own(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    file = tmp_path / "pod" / "status.json"
    file.write_text('{"version": 1, "apps": {"web": {"pid": 1, "exited": false}}, "notes": ["a"]}')
    assert _apps(tmp_path, clear=True) == ["web"]
    assert _apps(tmp_path) == ["web"]
    file.write_text('{"version": 1, "apps": {"job": {"pid": 1, "exited": false}}, "notes": ["a"]}')
    assert _apps(tmp_path) == ["job"]
    file.write_text("{")
    with pytest.raises(StagerError):
        read_status_file(str(tmp_path))


def _apps(directory: Path, *, clear: bool = False) -> list[str]:
    found = read_status_file(str(directory))
    assert found is not None
    names = list(found[0])
    if clear:
        found[0].clear()
    return names
