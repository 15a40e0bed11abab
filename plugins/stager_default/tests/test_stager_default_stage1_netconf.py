"""Which networks a pod under the exported stager joins: rkt's rules, and configurations that are wrong."""

import json

import pytest
from kurma_stager_default.stage1 import networks
from kurma_stager_default.stage1.joining import addresses
from kurma_stager_default.stage1.networks import forwarding, publish
from kurma_stager_default.stage1.place import Stage1Error

BRIDGE = {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"}}


@pytest.fixture
def local(tmp_path):
    (tmp_path / "net.d").mkdir()

    def write(**files):
        for name, value in files.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (tmp_path / "net.d" / name.replace("_", ".")).write_text(text)
        return str(tmp_path)

    return write


def names(wanted, local_config):
    return [(each.interface, each.name) for each in networks.choose(dict.fromkeys(wanted, ""), local_config)]


def test_the_two_that_are_built_in(tmp_path):
    (default,) = networks.choose({"default": "IP=172.16.28.9"}, str(tmp_path / "none"))
    assert (default.chain.plugins[0]["type"], default.masquerades, default.chain.version) == ("ptp", True, "0.1.0")
    assert default.chain.plugins[0]["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}]
    assert (default.arguments, default.chain.types) == ("IP=172.16.28.9", ("ptp", "host-local"))
    (restricted,) = networks.choose({"default-restricted": ""}, str(tmp_path / "none"))
    assert not restricted.masquerades
    assert "routes" not in restricted.chain.plugins[0]["ipam"]


def test_files_come_first_and_in_their_order(local):
    where = local(
        z_conf={**BRIDGE, "name": "first"},
        a_conf={**BRIDGE, "name": "second"},
        b_conflist={"name": "third", "cniVersion": "1.0.0", "plugins": [BRIDGE]},
        c_conf={**BRIDGE, "name": "second", "type": "other"},
        d_json={**BRIDGE, "name": "fourth"},
    )
    two = [("eth0", "second"), ("eth1", "first"), ("eth2", "default-restricted")]
    assert names(["first", "second"], where) == two
    assert names(["third", "default"], where) == [("eth0", "third"), ("eth1", "default")]
    everything = [("eth0", "second"), ("eth1", "third"), ("eth2", "first"), ("eth3", "default")]
    assert names(["all"], where) == everything
    assert networks.choose({"all": "", "first": "IP=10.1.2.3"}, where)[2].arguments == "IP=10.1.2.3"
    assert networks.choose({"second": ""}, where)[0].chain.types == ("bridge", "host-local")


def test_both_can_be_overridden(local):
    where = local(
        a_conf={**BRIDGE, "name": "default", "ipMasq": True},
        b_conf={**BRIDGE, "name": "default-restricted"},
        c_conf={**BRIDGE, "name": "back"},
    )
    (default,) = networks.choose({"default": ""}, where)
    assert default.chain.types[0] == "bridge"
    back = networks.choose({"back": ""}, where)
    assert [each.name for each in back] == ["default-restricted", "back"]
    assert [each.chain.types[0] for each in back] == ["bridge", "bridge"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "Expecting"),
        ("[]", "no configuration of a network"),
        ('{"name": "back"}', "either type (one plugin) or plugins (a chain) is wanted"),
        ('{"name": "back", "type": "../../bin/sh"}', "type '../../bin/sh' is not a plugin's name"),
        ('{"name": "back", "type": "bridge", "ipam": {"type": ".."}}', "type '..' is not a plugin's name"),
        ('{"name": "../back", "type": "bridge"}', "network '../back': a CNI network's name has letters"),
        ('{"name": "back", "plugins": []}', "plugins is not a list of objects with a type"),
        ('{"name": "back", "plugins": ["bridge"]}', "plugins is not a list of objects with a type"),
        ('{"name": "back", "type": "bridge", "cniVersion": "one"}', "cniVersion 'one' is none of 0.1.0"),
        ('{"name": "back", "type": "bridge", "cniVersion": 1}', "cniVersion 1 is none of 0.1.0"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_file_that_is_wrong(local, content, said):
    """The network that it was to be may be the one that is asked for."""
    with pytest.raises(Stage1Error) as error:
        networks.choose({"default": ""}, local(a_conf=content))
    assert said in str(error.value)
    assert "a.conf" in str(error.value)


def test_one_that_is_nowhere(local):
    with pytest.raises(Stage1Error, match=r"no network one, two: .* in are back, default, default-restricted"):
        networks.choose({"one": "", "back": "", "two": ""}, local(a_conf={**BRIDGE, "name": "back"}))


def test_what_plugins_are_told(local):
    plugin = {**BRIDGE, "capabilities": {"portMappings": True, "mac": True}, "prevResult": {}}
    config = {"name": "default", "cniVersions": ["0.3.1", "1.0.0"], "plugins": [plugin]}
    (network,) = networks.choose({"default": ""}, local(a_conflist=config))
    ports = [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]
    publish([network], ports)
    assert network.chain.types == ("bridge", "host-local")
    assert network.chain.document(network.chain.plugins[0], network.runtime, {"ips": []}) == {
        **BRIDGE,
        "name": "default",
        "cniVersion": "1.0.0",
        "runtimeConfig": {"portMappings": ports},
        "prevResult": {"ips": []},
    }
    again = networks.Network.from_json(json.loads(json.dumps(network.to_json())))
    assert again.chain.document(again.chain.plugins[0], again.runtime)["runtimeConfig"] == {"portMappings": ports}


def test_which_network_ports_are_led_by(local):
    where = local(a_conf={**BRIDGE, "name": "one"}, b_conf={**BRIDGE, "name": "two", "ipMasq": True})
    found = networks.choose({"one": "", "two": ""}, where)
    publish(found, [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}])
    assert [each.chain.types for each in found] == [
        ("bridge", "host-local"),
        ("bridge", "host-local", "portmap"),
        ("ptp", "host-local"),
    ]
    assert forwarding(networks.choose({"one": ""}, where)).name == "default-restricted"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, []),
        ({"ip4": {"ip": "10.1.0.2/16", "gateway": "10.1.0.1"}, "dns": {}}, [("10.1.0.2/16", "10.1.0.1")]),
        (
            {"ips": [{"address": "fd00::2/64"}, {"address": "10.1.0.2/16", "gateway": "10.1.0.1"}]},
            [("10.1.0.2/16", "10.1.0.1"), ("fd00::2/64", "")],
        ),
    ],
)
def test_addresses_of_every_version(result, expected):
    assert addresses(result) == expected
