"""The command keeps the contract of its kind; its arguments are buildah's."""

from __future__ import annotations

import kurma_build.plugin
import pytest
from kurma_build.plugin import full_name, values_of
from kurma_testing.commands import CommandContract

from kurma_core.hookspecs.command import CommandHooks


@pytest.mark.kurma_driver(kurma_build.plugin)
class TestBuild(CommandContract):
    def test_wrong_options_are_usage_errors(self, driver: CommandHooks) -> None:
        """They are buildah's to refuse, by its exit code."""
        assert self.run(driver, "--no-such-option").exit_code == 125


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-t", "a", "."], ["a"]),
        (["-ta", "--tag=b:1", "--tag", "c", "."], ["a", "b:1", "c"]),
        (["--target", "x", "."], []),
        (["--", "-t", "a"], []),
        (["-t"], []),
    ],
)
def test_names(words: list[str], found: list[str]) -> None:
    assert values_of(words, "--tag", "-t") == found


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("app", "localhost/app:latest"),
        ("team/app:1", "localhost/team/app:1"),
        ("example.com/app", "example.com/app:latest"),
        ("localhost:5000/app:1", "localhost:5000/app:1"),
    ],
)
def test_full_names(name: str, full: str) -> None:
    assert full_name(name) == full
