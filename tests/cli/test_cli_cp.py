"""``kurma cp``: which words mean what."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest

from kurma_core.cli.main import main


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def asked(fakes: ModuleType, *words: str, code: int = 0) -> Any:
    client = fakes.FakeClient()
    assert main(["cp", *words], connect=client.connect) == code
    return client.calls


def test_either_side_may_be_the_pods(fakes: ModuleType) -> None:
    plain = {"whole": False, "follow": False}
    assert asked(fakes, "web:/etc/x", "x") == [("copy_out", ("web", None, "/etc/x", "x"), plain)]
    assert asked(fakes, "web/db:/a:b", "./x:y") == [("copy_out", ("web", "db", "/a:b", "./x:y"), plain)]
    assert asked(fakes, "web:/a:b", "/x:y") == [("copy_out", ("web", None, "/a:b", "/x:y"), plain)]
    assert asked(fakes, "-a", "-L", ".", "web:srv") == [
        ("copy_in", ("web", None, ".", "srv"), {"whole": True, "follow": True})
    ]
    assert asked(fakes, "-", "web:/srv") == [("copy_in", ("web", None, sys.stdin.buffer, "/srv"), plain)]
    assert asked(fakes, "web:/srv/.", "-") == [("copy_out", ("web", None, "/srv/.", sys.stdout.buffer), plain)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("web:/a", "web:/b"), "each of the two is a path in a pod"),
        (("a", "b"), "neither of the two is a path in a pod"),
        (("./web:/a", "-"), "neither of the two is a path in a pod"),
        ((":/x", "b"), "malformed ':/x'"),
        (("web:", "b"), "malformed 'web:'"),
        (("web::/x", "b"), "malformed 'web::/x'"),
    ],
)
def test_what_makes_no_sense(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: tuple[str, str], why: str
) -> None:
    assert asked(fakes, *words, code=2) == []
    told = capsys.readouterr().err
    assert f"kurma: cp: {why}" in told
    assert "hint: write POD:/PATH or POD/APP:/PATH" in told


def test_no_archive_on_a_terminal(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert asked(fakes, "web:/a", "-", code=2) == []
    assert "cannot write an archive to a terminal" in capsys.readouterr().err
