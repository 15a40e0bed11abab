"""The example observer, against the contract of all observers."""

import json

import kurma_example_jsonlog
import pytest
from kurma_testing.observers import ObserverContract, event

pytestmark = pytest.mark.kurma_driver(kurma_example_jsonlog)


class TestJsonlog(ObserverContract):
    @pytest.fixture
    def log(self, tmp_path):
        return tmp_path / "logs/pods"

    @pytest.fixture
    def options(self, log):
        return {"path": str(log)}

    def test_a_line_for_each(self, driver, log):
        driver.pod_event(event("running"))
        driver.pod_event(event("stopped", exitCode=3))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["event"] for line in lines] == ["running", "stopped"]
        assert lines[1]["exitCode"] == 3


def test_without_a_path_it_is_in_its_own_directory(driver, tmp_path):
    driver.pod_event(event())
    assert (tmp_path / "plugin/state/events").read_text().endswith("\n")
