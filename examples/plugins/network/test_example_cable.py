"""The example network, against the contract of all networks, in real network namespaces."""

import os
import socket

import kurma_example_cable
import pytest
from kurma_testing.networks import NetworkContract

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace


@pytest.mark.kurma_root
@pytest.mark.kurma_driver(kurma_example_cable)
class TestCable(NetworkContract):
    @pytest.fixture
    def config(self):
        return {"name": "mine", "subnet": "10.91.0.0/29"}

    @pytest.fixture(autouse=True)
    def _state(self, tmp_path):
        self.state = tmp_path / "plugin/state"

    def assert_nothing_left(self, pod, config):
        assert not [
            name for name in os.listdir(self.state / "mine") if pod in os.readlink(self.state / "mine" / name)
        ]
        assert not [name for _, name in socket.if_nameindex() if name.startswith("cable-")]

    def test_the_host_is_reached(self, driver, config, make_pod):
        one = self.context(make_pod(), config)
        (address,) = driver.add(one).addresses
        with socket.create_server((address.gateway, 0)) as server:
            client = in_network_namespace(
                one.namespace, lambda: socket.create_connection(server.getsockname(), timeout=5)
            )
            with client, server.accept()[0] as peer:
                assert f"{peer.getpeername()[0]}/31" == address.address
        driver.delete(one)

    def test_addresses_end(self, driver, config, make_pod):
        pods = [self.context(make_pod(), config) for _ in range(5)]
        for one in pods[:4]:
            driver.add(one)
        with pytest.raises(NetworkError, match="has no addresses left"):
            driver.add(pods[4])
        driver.delete(pods[0])
        driver.add(pods[4])
        for one in pods:
            driver.delete(one)

    def test_a_wrong_subnet_says_so(self, driver):
        with pytest.raises(NetworkError, match="network mine: wrong subnet"):
            driver.setup({"name": "mine", "subnet": "10.91.0.1/24"})
