"""``kurma stats`` and ``kurma top``: what they ask for, what they make of it, and how they end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import struct
import termios
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kurma_core.api.host import IsolatorInfo
from kurma_core.api.pods import Process, ResourceUsage, Usage
from kurma_core.cli.commands.stats import Screen
from kurma_core.cli.main import main
from kurma_core.errors import KurmaError, PodNotFoundError, PodStateError
from tests.cli import json_fields

NOTHING = ResourceUsage(None, None, None, None, None, None, None, None)


def counted(cpu: float = 0.0) -> ResourceUsage:
    return ResourceUsage(12_000_000, 2_000_000, 64_000_000, cpu, 3, 2048, 4096, 0)


def used(name: str, clock: float = 0.0, cpu: float = 0.0, **apps: ResourceUsage) -> Usage:
    return Usage(f"{name}1234567-aaaa", name, clock, counted(cpu), 1000, None, apps)


def run(fakes: ModuleType, words: str, *answers: Any) -> tuple[int, list[tuple[Any, ...]]]:
    """:param answers: of each look; the last one ends it where nothing else does."""
    asked: list[tuple[Any, ...]] = []
    left = list(answers)

    class Client(fakes.FakeClient):  # type: ignore[name-defined,misc]
        def usage(self, pods: Any = ()) -> Any:
            asked.append(tuple(pods))
            answer = left.pop(0)
            if isinstance(answer, BaseException):
                raise answer
            return answer

    return main([*words.split(), "--interval", "0.1"], connect=Client().connect), asked


def test_what_is_printed_once(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Over one interval, by the clock that came with the figures. What nobody knows is a dash."""
    before = [used("a", 10.0, 1.0, web=counted(0.5)), used("b", 10.0)]
    unknown = Usage("c1234567-aaaa", "c", 12.0, NOTHING, None, None, {})
    code, asked = run(
        fakes,
        "stats --no-stream --apps",
        before,
        [used("a", 12.0, 4.0, web=counted(0.75)), used("b", 12.0), unknown],
    )
    assert (code, asked) == (0, [(), ()])
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == [
        *("UUID", "NAME", "APP", "CPU", "MEMORY", "LIMIT", "PIDS", "READ", "WRITTEN", "RECEIVED", "SENT")
    ]
    rest = ["10.0 MB", "64.0 MB", "3", "4.1 kB", "0 B"]
    assert cells[1] == ["a1234567", "a", "-", "150.0%", *rest, "1.0 kB", "-"]
    assert cells[2] == ["a1234567", "a", "web", "12.5%", *rest, "-", "-"]
    assert cells[3] == ["b1234567", "b", "-", "0.0%", *rest, "1.0 kB", "-"]
    assert cells[4] == ["c1234567", "c", *["-"] * 9]


def test_rows_come_until_the_last_pod_has_ended(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """One that ends meanwhile, or is removed, takes nothing from the others; a stranger is not shown for it."""
    a, b, c = (used(name) for name in "abc")
    ended, gone = PodStateError("pod a uses nothing"), PodNotFoundError("no pod b")
    code, asked = run(fakes, "stats a b", [a, b], ended, [b, c], [b], gone, [c])
    both = (a.uuid, b.uuid)
    assert (code, asked) == (0, [("a", "b"), both, (), both, both, ()])
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["UUID", "b1234567", "b1234567"]


def test_what_is_wrong_at_the_beginning_is_told(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fakes, "stats a", PodStateError("pod a has no resource usage: it is stopped"))[0] == 125
    assert "kurma: pod a has no resource usage: it is stopped" in capsys.readouterr().err
    assert run(fakes, "stats", [], KurmaError("the daemon is gone"))[0] == 125
    assert "the daemon is gone" in capsys.readouterr().err
    assert main(["stats", "--interval", "0"], connect=fakes.FakeClient().connect) == 2
    assert "--interval: '0' is less than 0.1 s" in capsys.readouterr().err
    assert run(fakes, "stats", [], KeyboardInterrupt()) == (130, [(), ()])


@pytest.mark.parametrize("words", ["stats", "top"])
def test_json_in_lines(fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str) -> None:
    first = [used("a", 1.0, 1.0, web=counted(1.0))]
    again = [used("a", 2.0, 1.5, web=counted(1.5))]
    # Started again, it counts from nought: what it used in between is not known.
    anew = [used("a", 3.0, 0.1, web=counted(0.1))]
    assert run(fakes, f"{words} --format json", first, again, anew, KeyboardInterrupt())[0] == 130
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["cpuPercent"], one["apps"]["web"]["cpuPercent"]) for (one,) in values] == [(50, 50), (None, None)]
    for value in values:
        json_fields.check("stats", value)
    assert Usage.from_json(values[0][0]) == again[0]


def test_top_of_all_is_by_what_they_use(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (
        [used(name, clock, clock * share) for name, share in zip("abc", (0.1, 0.9, 0.5), strict=True)]
        for clock in (1.0, 2.0)
    )
    assert run(fakes, "top --no-stream --no-legend", before, after)[0] == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["b", "c", "a"]


PROCESSES = [
    Process(41, 7, 40, "web", 33, "www", "S", 2, 3723.5, 7447.0, 9_000_000, "sh", ("sh", "-c", "a\x1b[2J b")),
    Process(42, 8, 41, None, None, None, "Z", 1, 0.0, 0.0, 0, "gone", ()),
]


def test_the_processes_of_a_pod(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """What an app calls itself moves no cursor."""
    client = fakes.FakeClient(answers={"processes": PROCESSES})
    assert main(["top", "web/main"], connect=client.connect) == 0
    assert client.calls == [("processes", ("web", "main"), {})]
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["PID", "INSIDE", "APP", "USER", "STATE", "CPU", "MEMORY", "TIME", "COMMAND"]
    assert first.split(None, 9) == [
        "41",
        "7",
        "web",
        "www",
        "S",
        "50.0%",
        "9.0",
        "MB",
        "1:02:03.50",
        r"sh -c a\x1b[2J b",
    ]
    assert second.split() == ["42", "8", "-", "-", "Z", "-", "0", "B", "0:00.00", "[gone]"]
    assert main(["top", "web", "--format", "json"], connect=client.connect) == 0
    value = json.loads(capsys.readouterr().out)
    json_fields.check("top", value)
    assert [Process.from_json(one) for one in value] == PROCESSES


class Terminal(io.TextIOWrapper):
    """Of few lines and columns; what came out on it."""

    def __init__(self, rows: int, columns: int) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        super().__init__(open(slave, "wb", buffering=0), encoding="utf-8", write_through=True)  # noqa: SIM115

    def shows(self, text: str) -> bool:
        """Whether this has come since the last time: a terminal may give it in parts."""
        found = b""
        while len(found.replace(b"\r\n", b"\n")) < len(text.encode()):
            found += os.read(self.master, 65536)
        return found.decode().replace("\r\n", "\n") == text


def test_lines_are_drawn_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there is room for, each as long as there is."""
    monkeypatch.setenv("TERM", "xterm")
    with Terminal(4, 10) as out:
        screen = Screen.of(out)
        assert screen is not None
        screen.show(["a", "0123456789"])
        assert out.shows("a\x1b[K\n01234567\u2026\x1b[K\n\x1b[J")
        screen.show(["a", "b", "c", "d"])
        assert out.shows("\x1b[2Fa\x1b[K\nb\x1b[K\n… and 2 …\x1b[K\n\x1b[J")
        screen.show([])
        assert out.shows("\x1b[3F\x1b[J")
        screen.show(["e"])
        assert out.shows("e\x1b[K\n\x1b[J")
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            screen.leave()
        assert out.shows("\n")
        monkeypatch.setenv("TERM", "dumb")
        assert Screen.of(out) is None
        os.close(out.master)
    assert Screen.of(io.StringIO()) is None


def printed(monkeypatch: pytest.MonkeyPatch, columns: int, words: list[str], connect: Any = None) -> list[str]:
    """What a command prints at a terminal of that width."""
    out, pieces = Terminal(40, columns), list[bytes]()

    def read() -> None:
        with contextlib.suppress(OSError):  # so a terminal ends
            while piece := os.read(out.master, 65536):
                pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    with out, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", out)
        assert main(words, connect=connect) == 0
    reader.join()
    os.close(out.master)
    return b"".join(pieces).decode().splitlines()


NOTE = "cgroup v1 does not hold back what is written by way of the cache; a long note of twenty words at least"


def test_tables_at_80_columns(fakes: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """19.2: no line is longer, no unit is cut off, and no word of a text is left out."""
    (tmp_path / "kurma.d").mkdir()
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path))
    image = "docker://docker.io/library/nginx:1.27"
    pod = fakes.summary(image_names={"a": image, "b": "docker://alpine:3", "c": image, "d": "docker://redis:7"})
    isolator = IsolatorInfo(
        "os/linux/capabilities-retain-set", "linux", ("app", "pod"), outcome="modified", note=NOTE
    )
    usage = Usage("a1234567-aaaa", "web", 1.0, ResourceUsage(*[123_456_789] * 8), 123_456_789, 123_456_789, {})

    class Client(fakes.FakeClient):  # type: ignore[name-defined,misc]
        def usage(self, pods: Any = ()) -> Any:
            return [usage]

    answers = {"summaries": [pod], "isolators": [isolator]}
    found = {
        words: printed(monkeypatch, 80, words.split(), Client(answers=answers).connect)
        for words in ("list", "stats --no-stream --interval 0.1", "isolators list")
    }
    found["config"] = printed(monkeypatch, 80, ["--dir", str(tmp_path / "state"), "config", "show"])
    assert [line for lines in found.values() for line in lines if len(line) > 80] == []
    assert "nginx:1.27,+2  running" in found["list"][1]
    table = found["stats --no-stream --interval 0.1"]
    assert "UUID" not in table[0]
    assert table[1].split()[-2:] == ["123.5", "MB"]
    assert " ".join(line[60:] for line in found["isolators list"][1:]).split() == NOTE.split()
    assert any("overlay" in line for line in found["config"])
    wide = printed(monkeypatch, 80, ["list", "--no-trunc"], Client(answers=answers).connect)
    assert f"{image},docker://alpine:3,docker://redis:7" in wide[1]
    assert len(printed(monkeypatch, 400, ["--dir", str(tmp_path / "state"), "config", "show"])) < len(
        found["config"]
    )
