"""What plugins are told of a pod's attachment, and what of their results is the pod's own."""

import pytest
from kurma_cni.chain import parse_chain
from kurma_net_cni.driver import _arguments, _runtime
from kurma_net_cni.plugin import kurma_network
from kurma_net_cni.quirks import host_links, pod_chains
from kurma_testing.networks import context

from kurma_core.models.isolator import TrafficLimit
from kurma_core.models.network import NetworkRequest, PortMapping


def test_a_plugin_gets_the_capabilities_that_it_declares():
    config = {
        "name": "n",
        "cniVersion": "1.0.0",
        "plugins": [{"type": "bridge", "capabilities": {"mac": True, "ips": False}},
                    {"type": "portmap", "capabilities": {"portMappings": True}},
                    {"type": "bandwidth", "capabilities": {"bandwidth": True, "dns": True}},
                    {"type": "firewall"}],
    }  # fmt: skip
    request = NetworkRequest("n", ips=("10.0.0.7",), mac="02:00:00:00:00:01")
    ports = (PortMapping(8080, 80, "udp", "127.0.0.1"),)
    one = context("p", config, request=request, ports=ports, limits=(TrafficLimit("in", 1 << 20),))
    chain = parse_chain(config)
    previous = {"ips": []}
    documents = [chain.document(plugin, _runtime(one), previous) for plugin in chain.plugins]
    assert [value.get("runtimeConfig") for value in documents] == [
        {"mac": "02:00:00:00:00:01"},
        {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"}]},
        {"bandwidth": {"ingressRate": 1 << 23, "ingressBurst": int((1 << 20) / 10) * 8}},
        None,
    ]
    assert {(value["name"], value["cniVersion"]) for value in documents} == {("n", "1.0.0")}
    assert all(value["prevResult"] == previous for value in documents)
    assert "prevResult" not in chain.document(chain.plugins[0], _runtime(one))
    # What no plugin declares goes the older way.
    assert _arguments(chain, one) == "IP=10.0.0.7"


@pytest.mark.parametrize("rate", [1, 1_000_000, (1 << 32) - 1, 1 << 40])
def test_what_may_go_at_once_fits_the_plugin(rate):
    """A packet of the largest kind goes through, and the number is one of 32 bits."""
    one = context("p", {"name": "n"}, limits=(TrafficLimit("out", rate),))
    found = _runtime(one)["bandwidth"]
    assert found["egressRate"] == rate * 8
    assert (1 << 16) * 8 <= found["egressBurst"] < 1 << 32


def test_chains_are_named_as_the_plugins_name_them():
    # As seen in the rules that Debian's bridge and portmap made for network "n" and container "abc".
    assert pod_chains("n", "abc") == ("CNI-5a1527d2fe74c1a342e29c75", "CNI-DN-5a1527d2fe74c1a342e29")


@pytest.mark.parametrize("result", [None, [], {}, {"interfaces": None}, {"interfaces": [3, {"name": "veth1"}]}])
def test_no_links_in_odd_results(result):
    assert host_links(result) == []


def test_only_the_pods_own_cable_is_its_own():
    result = {"interfaces": [{"name": "br0", "mac": "a"}, {"name": "veth1", "mac": "b"},
                             {"name": "veth2", "mac": "c", "sandbox": "/run/netns/x"}]}  # fmt: skip
    assert host_links(result) == [("veth1", "b")]


def test_it_answers_to_the_documents_name():
    assert "apcera.com/kurma/cni-netplugin" in kurma_network().aliases
