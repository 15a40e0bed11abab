"""CNI configurations: which are right, and what plugins read."""

import pytest
from kurma_cni.chain import parse_chain
from kurma_cni.errors import CniError

ONE = {"name": "n", "type": "bridge", "ipam": {"type": "host-local"}}


def test_one_plugin_without_version_is_the_oldest():
    chain = parse_chain(ONE)
    assert (chain.name, chain.version, chain.plugins) == ("n", "0.1.0", (ONE,))
    assert not chain.has_check
    assert chain.types == ("bridge", "host-local")


@pytest.mark.parametrize(("version", "has"), [("0.3.1", False), ("0.4.0", True), ("1.1.0", True)])
def test_check_came_with_0_4_0(version, has):
    assert parse_chain({**ONE, "cniVersion": version}).has_check is has


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cniVersion": "2.0.0"}, "cniVersion '2.0.0' is none of 0.1.0"),
        ({"type": "../../bin/sh"}, "is not a plugin's name"),
        ({"type": ".."}, "is not a plugin's name"),
        ({"type": ""}, "is not a plugin's name"),
        ({"type": 3}, "is not a plugin's name"),
        ({"ipam": {"type": "a/b"}}, "is not a plugin's name"),
        ({"ipam": "dhcp"}, "ipam is not an object"),
        ({"plugins": []}, "either type"),
        ({"capabilities": ["mac"]}, "capabilities is not an object"),
        ({"name": "a/b"}, "begins with a letter"),
        ({"name": ".."}, "begins with a letter"),
    ],
)
def test_wrong_configurations_say_why(change, why):
    with pytest.raises(CniError, match=why):
        parse_chain({**ONE, **change})


@pytest.mark.parametrize("plugins", [[], {}, "bridge", ["bridge"], [{}]])
def test_wrong_chains(plugins):
    with pytest.raises(CniError, match="has a wrong CNI configuration"):
        parse_chain({"name": "n", "plugins": plugins})


def test_documents_have_what_the_plugin_declares_and_no_more():
    plugin = {"type": "bridge", "capabilities": {"mac": True, "ips": False}, "cni.dev/x": 1, "prevResult": {}}
    chain = parse_chain({"name": "n", "cniVersions": ["0.3.1", "1.0.0"], "plugins": [plugin]})
    assert chain.document(plugin, {"mac": "02:00:00:00:00:01", "ips": ["10.0.0.1"]}, {"ips": []}) == {
        "type": "bridge",
        "name": "n",
        "cniVersion": "1.0.0",
        "runtimeConfig": {"mac": "02:00:00:00:00:01"},
        "prevResult": {"ips": []},
    }
    assert chain.document(plugin) == {"type": "bridge", "name": "n", "cniVersion": "1.0.0"}
