"""Each fuzz target, for some seconds from its seeds; and what was found once stays mended."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.fuzz import run, targets

pytestmark = pytest.mark.root


@pytest.mark.parametrize("name", targets.TARGETS)
def test_seeds_hold(name: str) -> None:
    target, seeds = targets.TARGETS[name]
    for seed in seeds():
        target(seed)


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no atheris for this machine")
@pytest.mark.parametrize("name", targets.TARGETS)
def test_nothing_is_found(name: str, tmp_path: Path) -> None:
    """A seed of its own each time; what is found is told with it."""
    held, line = run.fuzz(name, 2, tmp_path)
    assert held, line


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no atheris for this machine")
def test_what_is_found_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fuzzer is of no use if it does not stop at the first input that a parser cannot take."""
    held, line = run.fuzz("broken", 20, tmp_path)
    assert not held
    assert "FOUND" in line
    assert "ZeroDivisionError" in line
    assert list((tmp_path / "found").iterdir())
    assert run.main(["nonsense"]) == 2
    assert "no target nonsense" in capsys.readouterr().err


#: By target: what was found, as it was.
FOUND = {
    "an address in brackets": (
        "discovery",
        b'<meta name="ac-discovery" content="example.com/app https://[x/{name}.{ext}">',
    ),
    "a port that is none": (
        "discovery",
        b'<meta name="ac-discovery" content="example.com/app https://x:y/{name}.{ext}">',
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_stays_mended(what: str) -> None:
    name, content = FOUND[what]
    targets.TARGETS[name][0](content)
