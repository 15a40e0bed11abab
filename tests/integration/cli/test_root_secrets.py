"""``kurma secret``, in process and by way of a kurmad: no command, record or log has a value."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli import json_fields

pytestmark = pytest.mark.root

VALUE = "hunter2-of-the-commands"


@pytest.fixture
def store(kurma: Any) -> Iterator[Path]:
    """The directory of the secrets; empty before and after."""
    yield kurma.state / "secrets"
    for line in kurma.out("secret", "list", "--no-legend").splitlines():
        kurma.out("secret", "rm", line.split()[0])
    assert os.listdir(kurma.state / "secrets") == []


def files_with(value: str, place: Path) -> set[str]:
    """Files below the place that contain the value: records of the state directory, and a kurmad's log."""
    paths = [Path(directory, name) for directory, _, names in os.walk(place) for name in names]
    return {
        str(path)
        for path in paths
        if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes()
    }


def test_from_create_to_rm(kurma: Any, store: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text(VALUE)
    assert kurma.out("secret", "create", "db-password", str(tmp_path / "password")) == "db-password\n"
    assert kurma("secret", "create", "api.key", "-", input=VALUE + "\n").stdout == "api.key\n"
    assert (store / "db-password").read_text() == VALUE
    assert (store / "api.key").read_text() == VALUE + "\n"
    assert [line.split()[0] for line in kurma.out("secret", "ls", "--no-legend").splitlines()] == [
        "api.key",
        "db-password",
    ]
    listed = kurma.json("secret", "list")
    json_fields.check("secret list", listed)
    assert kurma.json("secret", "show", "api.key") == listed[0]
    assert kurma.json("secret", "inspect", "db-password", "api.key") == listed[::-1]
    assert files_with(VALUE, kurma.directory) == {str(store / "api.key"), str(store / "db-password")}
    exists = kurma("secret", "create", "api.key", "-", input="other")
    assert exists.returncode == 125
    assert exists.stderr == (
        "kurma: cannot create secret api.key: it exists\n  hint: --replace replaces its value\n"
    )
    assert kurma("secret", "create", "--replace", "api.key", "-", input="other").returncode == 0
    assert (store / "api.key").read_text() == "other"
    changed = kurma.json("secret", "show", "api.key")
    assert changed["changedAt"] > listed[0]["changedAt"]
    gone = kurma("secret", "rm", "api.key", "nothing", "db-password")
    assert gone.returncode == 125
    assert gone.stderr.startswith("kurma: no secret nothing\n")
    assert kurma.json("secret", "list") == []


def test_values_that_are_refused(kurma: Any, store: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (512 * 1024 + 1))
    for words, said, code in (
        (("x", str(tmp_path / "large")), f"{tmp_path}/large: cannot be read: it is larger than 524288 bytes", 125),
        (("x", "/dev/null"), "", 2),
        (("x", str(tmp_path)), f"{tmp_path}: cannot be read: it is a directory", 125),
        (("../x", "/dev/null"), "'../x' is not a name of a secret", 2),
    ):
        done = kurma("secret", "create", *words)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert said in done.stderr
    assert not store.exists() or os.listdir(store) == []


def test_names_are_completed(kurma: Any, store: Path) -> None:
    for name in ("one", "other", "third"):
        assert kurma("secret", "create", name, "-", input=VALUE).returncode == 0
    for words, names in ((("rm", "o"), ["one", "other"]), (("show", "one", ""), []), (("rm", "one", ""), None)):
        _, *lines = kurma.out("__complete", "secret", *words).splitlines()
        assert [line.partition("\t")[0] for line in lines] == (["other", "third"] if names is None else names)
