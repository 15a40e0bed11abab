"""The example observer, against the contract of all observers."""

import json

import kurma_example_jsonlog
import pytest

from kurma_core.testing import load_driver
from kurma_core.testing.observers import ObserverContract, event


class TestJsonlog(ObserverContract):
    @pytest.fixture
    def log(self, tmp_path):
        return tmp_path / "logs/pods"

    @pytest.fixture
    def observer(self, log, tmp_path):
        return load_driver(kurma_example_jsonlog, tmp_path, {"path": str(log)})

    def test_a_line_for_each(self, observer, log):
        observer.pod_event(event("running"))
        observer.pod_event(event("stopped", exitCode=3))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["event"] for line in lines] == ["running", "stopped"]
        assert lines[1]["exitCode"] == 3


def test_without_a_path_it_is_in_its_own_directory(tmp_path):
    load_driver(kurma_example_jsonlog, tmp_path).pod_event(event())
    assert (tmp_path / "state/events").read_text().endswith("\n")
