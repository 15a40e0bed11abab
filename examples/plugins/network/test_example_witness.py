"""The example network, against the contract of all networks, in real network namespaces."""

import os

import kurma_example_witness
import pytest

from kurma_core.testing import load_driver
from kurma_core.testing.networks import NetworkContract


@pytest.mark.root
class TestWitness(NetworkContract):
    interface = "lo"
    gives_address = False

    @pytest.fixture
    def make_driver(self, tmp_path):
        return lambda: load_driver(kurma_example_witness, tmp_path)

    @pytest.fixture
    def config(self):
        return {"name": "seen"}

    @pytest.fixture(autouse=True)
    def _state(self, tmp_path):
        self.state = tmp_path / "state"

    def assert_nothing_left(self, pod, config):
        assert not os.path.exists(self.state / f"seen-{pod}")

    def test_it_keeps_a_record(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        driver.add(one)
        assert one.namespace in (self.state / f"seen-{one.pod}").read_text()
        driver.delete(one)
