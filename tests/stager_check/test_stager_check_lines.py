"""The report of the contract suite, its probe's words, and what the command prints of it."""

from __future__ import annotations

import json
import os
import socket

import pytest
from kurma_testing.stagers import StagerContract, StagerImageSourceContract

from kurma_core.api.host import CheckLine
from kurma_core.cli.main import main
from kurma_core.errors import StagerError
from kurma_core.stager_check import probe
from kurma_core.stager_check.pods import Probe
from kurma_core.stager_check.report import LINES, NotDone, Report, Untidy, Wrong, equal
from tests.cli.cli_fakes import FakeClient
from tests.docs.pages import find_page


def test_the_suites_for_drivers_say_the_same() -> None:
    """18: each line that a suite of kurma_testing has, too, and the page names them all."""
    found = {
        name
        for suite in (StagerContract, StagerImageSourceContract)
        for test in vars(suite).values()
        for name in getattr(test, "lines", ())
    }
    assert found <= LINES.keys()
    page = find_page("stager_protocol.md").read_text()
    paragraph = page.partition("\nThe test suites for authors of stagers")[2].partition("\n\n")[0]
    assert {name for name in LINES if f"`{name}`" in paragraph} == found


@pytest.fixture
def told() -> list[CheckLine]:
    return []


@pytest.fixture
def report(told: list[CheckLine]) -> Report:
    return Report(told.append)


@pytest.mark.parametrize(
    ("error", "outcome", "detail"),
    [
        (Wrong("seen"), "fail", "seen"),
        (NotDone("refused: no"), "skipped", "refused: no"),
        (StagerError("two\n  lines"), "fail", "two lines"),
        (FileNotFoundError(2, "No such file", "/x"), "fail", "[Errno 2] No such file: '/x'"),
        (KeyError("uid"), "fail", "nonsense: KeyError: 'uid'"),
        (None, "ok", None),
    ],
)
def test_a_line(
    report: Report, told: list[CheckLine], error: Exception | None, outcome: str, detail: str | None
) -> None:
    with report.line("app.user"):
        if error is not None:
            raise error
    assert told == [CheckLine("app.user", LINES["app.user"], outcome, detail)]
    assert report.failed == (outcome == "fail")


def test_what_goes_wrong_beside_the_lines_is_told_by_the_first_that_is_left(report: Report) -> None:
    report.say("attach.output", "ok")
    with report.rest("attach"):
        raise Wrong("the app is gone")
    report.skip("", "not reached")
    assert report.lines["attach.input"].outcome == "fail"
    assert report.lines["attach.input"].detail == "the app is gone"
    assert report.lines["attach.end"].outcome == "skipped"
    assert [line.name for line in report.ordered()] == list(LINES)


def test_a_pod_that_stays_ends_the_check(report: Report) -> None:
    for context in (report.line("app.user"), report.rest()):
        with pytest.raises(Untidy), context:
            raise Untidy("the cgroup is not empty")
    assert not report.lines


def test_equal_says_both() -> None:
    equal("uid", 1, 1)
    with pytest.raises(Wrong, match="uid: 1, and not 2"):
        equal("uid", 1, 2)
    with pytest.raises(Wrong) as caught:
        equal("text", "x" * 1000 + "\x1b[31m", "")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "said",
    [b"garbage\n", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n", b'{"name"', b"", b"x" * 3_000_000],
    ids=["no JSON", "no object", "no UTF-8", "deep", "half a line", "nothing", "megabytes"],
)
def test_an_app_that_talks_nonsense(report: Report, said: bytes) -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            theirs.sendall(said)
        finally:
            os._exit(0)
    theirs.close()
    try:
        with report.line("app.user"):
            Probe(ours, 5.0)
    finally:
        ours.close()
        os.waitpid(child, 0)
    assert report.lines["app.user"].outcome == "fail"
    assert len(report.lines["app.user"].detail) < 500


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -5, "", 'a "quoted" \\ line\n\t\x00', "ü𐍈\udcff", [], [1, ["x"]], {"a": {"b": [None, False]}}],
)
def test_the_probe_writes_json(value: object) -> None:
    text = probe.dumps(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert "\n" not in text


LINES_SEEN = (
    CheckLine("app.user", LINES["app.user"], "ok"),
    CheckLine("layers.order", LINES["layers.order"], "fail", "base, \x1b[31mand not top"),
    CheckLine("attach.end", LINES["attach.end"], "skipped", "no attach call-in"),
)


@pytest.mark.parametrize(("lines", "code"), [(LINES_SEEN, 1), (LINES_SEEN[::2], 0)])
def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: tuple[CheckLine, ...], code: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    client = FakeClient({"stager_check": lines})
    assert main(["stager", "check", "mine", "--format", "json"], connect=client.connect) == code
    assert json.loads(capsys.readouterr().out) == [line.to_json() for line in lines]
    assert client.calls[-1][1][0] == "mine"


def test_the_command_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    class Telling(FakeClient):
        def stager_check(self, reference, tell):
            for line in LINES_SEEN:
                tell(line)
            return LINES_SEEN

    assert main(["stager", "check", "mine"], connect=Telling().connect) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok    app.user                  numeric user and group",
        (
            "FAIL  layers.order              layers are stacked with the first one of appImageOrder on top: "
            "base, \\x1b[31mand not top"
        ),
        "--    attach.end                attach ends with the app: no attach call-in",
        "1 hold, 1 do not, 1 were skipped",
    ]
