"""CNI configurations: what is one, and what each plugin reads."""

import pytest
from kurma_net_cni.chain import arguments_in_environment, document, parse_chain, types
from kurma_net_cni.leftovers import host_links, pod_chains
from kurma_net_cni.plugin import kurma_network

from kurma_core.errors import NetworkError
from kurma_core.models.network import NetworkRequest, PortMapping
from kurma_core.testing.networks import context

ONE = {"name": "n", "type": "bridge", "ipam": {"type": "host-local"}}


def test_one_plugin_without_version_is_the_oldest():
    chain = parse_chain(ONE)
    assert (chain.name, chain.version, chain.plugins) == ("n", "0.1.0", (ONE,))
    assert not chain.has_check
    assert types(chain) == ("bridge", "host-local")


@pytest.mark.parametrize(("version", "has"), [("0.3.1", False), ("0.4.0", True), ("1.1.0", True)])
def test_check_came_with_0_4_0(version, has):
    assert parse_chain({**ONE, "cniVersion": version}).has_check is has


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cniVersion": "2.0.0"}, "cniVersion '2.0.0' is none of 0.1.0"),
        ({"type": "../../bin/sh"}, "is no plugin's name"),
        ({"type": ".."}, "is no plugin's name"),
        ({"type": ""}, "is no plugin's name"),
        ({"type": 3}, "is no plugin's name"),
        ({"ipam": {"type": "a/b"}}, "is no plugin's name"),
        ({"ipam": "dhcp"}, "ipam is no object"),
        ({"plugins": []}, "either type"),
        ({"capabilities": ["mac"]}, "capabilities is no object"),
        ({"name": "a/b"}, "begins with a letter"),
        ({"name": ".."}, "begins with a letter"),
    ],
)
def test_wrong_configurations_say_why(change, why):
    with pytest.raises(NetworkError, match=why):
        parse_chain({**ONE, **change})


@pytest.mark.parametrize("plugins", [[], {}, "bridge", ["bridge"], [{}]])
def test_wrong_chains(plugins):
    with pytest.raises(NetworkError, match="has a wrong CNI configuration"):
        parse_chain({"name": "n", "plugins": plugins})


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
    one = context("p", config, request=request, ports=ports, capabilities={"bandwidth": {"ingressRate": 1}})
    chain = parse_chain(config)
    previous = {"ips": []}
    documents = [document(chain, plugin, one.attachment, previous) for plugin in chain.plugins]
    assert [value.get("runtimeConfig") for value in documents] == [
        {"mac": "02:00:00:00:00:01"},
        {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"}]},
        {"bandwidth": {"ingressRate": 1}},
        None,
    ]
    assert {(value["name"], value["cniVersion"]) for value in documents} == {("n", "1.0.0")}
    assert all(value["prevResult"] == previous for value in documents)
    assert "prevResult" not in document(chain, chain.plugins[0], one.attachment)
    # What no plugin declares goes the older way.
    assert arguments_in_environment(chain, one.attachment) == "IgnoreUnknown=1;IP=10.0.0.7"


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
