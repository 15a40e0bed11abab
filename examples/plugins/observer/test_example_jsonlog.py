"""The example observer, against the contract of all observers."""

import importlib.util
import json
from pathlib import Path

import pytest

from kurma_core.errors import PluginSkipped
from kurma_core.testing import load_driver
from kurma_core.testing.observers import ObserverContract, event


def imported():
    """The module, imported anew: what it needs it looks for while it is imported."""
    path = Path(__file__).parent / "kurma_example_jsonlog.py"
    spec = importlib.util.spec_from_file_location("kurma_example_jsonlog", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestJsonlog(ObserverContract):
    @pytest.fixture
    def log(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KURMA_JSONLOG", str(tmp_path / "log"))
        return tmp_path / "log"

    @pytest.fixture
    def observer(self, log, tmp_path):
        return load_driver(imported(), tmp_path)

    def test_a_line_for_each(self, observer, log):
        observer(event=event("running"))
        observer(event=event("stopped", exitCode=3))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["event"] for line in lines] == ["running", "stopped"]
        assert lines[1]["exitCode"] == 3


def test_a_host_that_says_no_path(monkeypatch):
    monkeypatch.delenv("KURMA_JSONLOG", raising=False)
    with pytest.raises(PluginSkipped, match="KURMA_JSONLOG"):
        imported()
