"""The example command, against the contract of all commands."""

import json
import time
from types import SimpleNamespace

import kurma_example_uptime
import pytest
from kurma_testing.commands import CommandContract

from kurma_core.formats.timestamps import timestamp


def pods():
    """Some pods, as far as the command looks at them."""
    now = time.time()
    return [
        SimpleNamespace(name="young", state="running", started_at=timestamp(now - 60)),
        SimpleNamespace(name="old", state="running", started_at=timestamp(now - 7200)),
        SimpleNamespace(name="over", state="stopped", started_at=timestamp(now - 9)),
    ]


@pytest.mark.kurma_driver(kurma_example_uptime)
class TestUptime(CommandContract):
    def test_the_longest_first(self, driver):
        lines = self.run(driver, answers={"pods": pods()}).output.splitlines()
        assert [line.split()[-1] for line in lines] == ["old", "young"]
        assert lines[0].startswith("             2:00:0")

    def test_as_json(self, driver):
        done = self.run(driver, "--json", "--least", "100", answers={"pods": pods()})
        assert list(json.loads(done.output)) == ["old"]
