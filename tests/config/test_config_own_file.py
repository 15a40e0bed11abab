"""A file of ``kurma.d`` that commands write: a failed command leaves the old one (19.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kurma_core.config.files import OwnFile
from kurma_core.errors import ConfigError, HostError, Interrupted


def own_file(directory: Path) -> OwnFile:
    return OwnFile(str(directory), "50-x.yml", "written by a test", "cannot create network shop")


def fail(directory: Path, failure: BaseException, meanwhile: Callable[[], object]) -> None:
    """A command that writes the file and fails then."""
    with own_file(directory) as file:
        file.write({"a": 2})
        meanwhile()
        raise failure


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("failure", [HostError("it failed"), KeyboardInterrupt()])
def test_a_failure_puts_the_old_file_back(tmp_path: Path, before: bool, failure: BaseException) -> None:
    if before:
        with own_file(tmp_path) as file:
            file.write({"a": 1})
    path = tmp_path / "kurma.d/50-x.yml"
    old = path.read_text() if before else None
    written: list[str] = []
    with pytest.raises(type(failure)):
        fail(tmp_path, failure, lambda: written.append(path.read_text()))
    assert "a: 2" in written[0]
    assert (path.read_text() if path.exists() else None) == old


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (HostError("cannot create network shop: kurmad refuses it"), "kurmad refuses it"),
        (KeyboardInterrupt(), "interrupted"),
        (Interrupted(15), "interrupted by SIGTERM"),
    ],
)
def test_an_old_file_that_cannot_be_put_back(tmp_path: Path, failure: BaseException, said: str) -> None:
    """The error names both failures and the file."""
    with own_file(tmp_path) as file:
        file.write({"a": 1})
    with pytest.raises(ConfigError) as caught:
        fail(tmp_path, failure, lambda: (tmp_path / "kurma.d").rename(tmp_path / "elsewhere"))
    assert f"{said}; cannot put the old {file.path} back: No such file" in caught.value.message
    assert caught.value.hint == "check the file: kurma config check"
    assert caught.value.__cause__ is failure


def test_a_new_file_that_is_gone_already(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="it failed"):
        fail(tmp_path, HostError("it failed"), (tmp_path / "kurma.d/50-x.yml").unlink)
