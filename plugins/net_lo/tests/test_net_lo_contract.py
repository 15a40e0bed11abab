"""Loopback, against the contract of all networks, in real network namespaces."""

import kurma_net_lo.plugin
import pytest
from kurma_testing.networks import NetworkContract

from kurma_core.errors import NetworkError
from kurma_core.linux.namespaces import in_network_namespace


@pytest.mark.root
@pytest.mark.kurma_driver(kurma_net_lo.plugin)
class TestLoopback(NetworkContract):
    interface = "lo"
    gives_address = False

    @pytest.fixture
    def config(self):
        return {"name": "lo"}

    def test_both_addresses_answer(self, driver, config, make_pod):
        import socket

        one = self.context(make_pod(), config)
        driver.add(one)

        def talk(family, address):
            with socket.create_server((address, 0), family=family) as server:
                client = socket.create_connection(server.getsockname()[:2], timeout=5)
                with client, server.accept()[0] as peer:
                    client.sendall(b"hello")
                    return peer.recv(5)

        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            assert in_network_namespace(one.namespace, lambda f=family, a=address: talk(f, a)) == b"hello"

    def test_check_names_what_is_missing(self, driver, config, make_pod):
        import subprocess

        one = self.context(make_pod(), config)
        with pytest.raises(NetworkError, match="lo is down"):
            driver.check(one)
        driver.add(one)
        driver.check(one)
        run = ["ip", "-n", f"kurma-{one.pod}", "address", "del", "::1/128", "dev", "lo"]
        subprocess.run(run, check=True)
        with pytest.raises(NetworkError, match="lacks ::1/128"):
            driver.check(one)

    @pytest.mark.parametrize(
        ("wrong", "right", "said"),
        [("127.0.0.1/16", "127.0.0.1/8", "netmask 255.255.0.0"), ("::1/64", "::1/128", "lacks ::1/128")],
    )
    def test_check_looks_at_the_length_of_the_prefix(self, driver, config, make_pod, wrong, right, said):
        import subprocess

        one = self.context(make_pod(), config)
        driver.add(one)
        for verb, address in (("del", right), ("add", wrong)):
            run = ["ip", "-n", f"kurma-{one.pod}", "address", verb, address, "dev", "lo"]
            subprocess.run(run, check=True)
        with pytest.raises(NetworkError, match=said):
            driver.check(one)

    def test_the_error_names_the_namespace(self, driver, config):
        with pytest.raises(NetworkError, match="No such file or directory: /run/netns/kurma-nobody"):
            driver.add(self.context("nobody", config))


def test_it_answers_to_the_documents_name():
    assert "apcera.com/kurma/lo-netplugin" in kurma_net_lo.plugin.kurma_network().aliases
