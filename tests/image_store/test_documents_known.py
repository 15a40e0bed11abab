"""Documents of the store are read once, as long as nobody changes them."""

from __future__ import annotations

import builtins
import json
import os
import time

import pytest

from kurma_core.errors import ImageNotFoundError, StoreError
from kurma_core.image_store import records


@pytest.fixture
def path(tmp_path):
    found = str(tmp_path / "image.json")
    write(found, "one")
    return found


def write(path, name, size=0):
    with open(path, "w") as file:
        json.dump({"version": 1, "name": name, "rest": "x" * size}, file)


def settle(monkeypatch):
    """What has changed until now was long ago."""
    now = time.time_ns() + 2 * records._SETTLED
    monkeypatch.setattr(records.time, "time_ns", lambda: now)


def reads(monkeypatch, path):
    """How often it is opened, from here on."""
    count = []
    real = builtins.open

    def counted(name, *args, **options):
        if name == path:
            count.append(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "open", counted)
    return count


def test_one_that_is_the_same_is_not_read_again(path, monkeypatch):
    settle(monkeypatch)
    count = reads(monkeypatch, path)
    assert [records._document(path, "it")["name"] for _ in range(3)] == ["one"] * 3
    assert len(count) == 1


def test_one_that_was_changed_or_replaced_is(path, monkeypatch):
    settle(monkeypatch)
    assert records._document(path, "it")["name"] == "one"
    write(path, "two")
    assert records._document(path, "it")["name"] == "two"
    write(path + ".new", "six")
    os.rename(path + ".new", path)
    assert records._document(path, "it")["name"] == "six"
    with open(path, "w") as file:
        file.write("{")
    with pytest.raises(StoreError, match="damaged"):
        records._document(path, "it")
    os.unlink(path)
    with pytest.raises(ImageNotFoundError):
        records._document(path, "it")


@pytest.mark.parametrize("why", ["it has just changed", "it is long"])
def test_some_are_read_each_time(path, monkeypatch, why):
    if why == "it is long":
        settle(monkeypatch)
        write(path, "one", records._SHORT)
    count = reads(monkeypatch, path)
    for _ in range(3):
        records._document(path, "it")
    assert len(count) == 3
