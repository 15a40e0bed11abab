"""Pods that are nothing but their network, on bridges of every kind; and what a host has of them."""

from __future__ import annotations

import json
import subprocess
import uuid
from ipaddress import ip_interface

from kurma_testing.networks import pod_namespace

from kurma_core import config as configuration
from kurma_core.api.network_options import parse_net, parse_ports
from kurma_core.networking.manager import Networking
from kurma_core.networking.network_records import pin_path
from kurma_core.plugins.registry import PluginRegistry
from tests.integration.networking.world import Place

GROUP = "kurma.networks"


def networking_of(directory, value=None, name="state"):
    """Networking over the installed plugins, as a process of Kurma's has it; ``name`` is the state directory's."""
    file = directory / f"{name}.json"
    file.write_text(json.dumps(value or {}))
    config = configuration.load(str(file), str(directory / name))
    registry = PluginRegistry(config)
    return Networking(
        config,
        lambda name: registry.driver(GROUP, name),
        lambda alias: registry.resolve_alias(GROUP, alias),
        lambda text: None,
        lambda: registry.names(GROUP),
    )


class NetPod(Place):
    """A pod as its network sees it. Its addresses are those of the network that it has joined last."""

    def __init__(self, networking, stack):
        self.uuid = str(uuid.uuid4())
        super().__init__(stack.enter_context(pod_namespace(self.uuid)))
        assert self.namespace == pin_path("net", self.uuid)
        self.networking = networking
        self.attachments = ()

    @property
    def where(self):
        return {"pod": self.uuid, "pod_name": f"pod-{self.uuid[:8]}", "namespace": self.namespace}

    def plan(self, *nets, ports=()):
        requests = [parse_net(net) for net in nets] if nets else None
        mappings = [mapping for text in ports for mapping in parse_ports(text)]
        self.attachments = self.networking.plan(requests, mappings, self.uuid)
        return self

    def join(self, *nets, ports=()):
        self.plan(*nets, ports=ports)
        self.attachments = self.networking.add_all(self.attachments, **self.where)
        result = self.attachments[-1].result
        self.addresses = tuple(str(ip_interface(one.address).ip) for one in (result.addresses if result else ()))
        return self

    def leave(self):
        self.networking.delete_all(self.attachments, **self.where)

    @property
    def gateways(self):
        """The network's own addresses on the host: of IPv4, of IPv6."""
        return tuple(one.gateway for one in self.attachments[-1].result.addresses)


def bridged(kind, name, number, directory):
    """An entry of ``container_networks`` for a bridge of both families, that lets nobody in from elsewhere.

    :param kind: ``cni`` or ``bridge``: the plugin. :param number: 0 to 9: which bridge and which subnets.
    """
    subnets = [f"10.20{number}.0.0/24", f"fd00:20{number}::/64"]
    if kind == "bridge":
        return {"name": name, "plugin": "bridge", "bridge": f"ktest{number}", "subnets": subnets}
    bridge = {
        "type": "bridge",
        "bridge": f"ktest{number}",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "capabilities": {"ips": True, "mac": True},
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": subnet}] for subnet in subnets],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            "dataDir": str(directory / "addresses"),
        },
    }
    publish = {"type": "portmap", "capabilities": {"portMappings": True}}
    # Without the policy, it would let everybody in.
    only = {"type": "firewall", "ingressPolicy": "same-bridge"}
    plugins = [bridge, publish, only]
    return {"name": name, "plugin": "cni", "cniVersion": "0.4.0", "disableCheck": True, "plugins": plugins}


#: What CNI's plugins share among all networks of theirs, and keep.
_CNIS_OWN = ("CNI-HOSTPORT-", "CNI-FORWARD", "CNI-ADMIN")


def on_host():
    """Links and rules of this host, whoever has made them. What everybody shares does not count: the tables of
    iptables, and what CNI's plugins keep."""
    found = {f"link {line.split()[1].partition('@')[0]}" for line in _output("ip", "-o", "link").splitlines()}
    for entry in json.loads(_output("nft", "-j", "list", "ruleset"))["nftables"]:
        for what, value in entry.items():
            everybodys = value.get("table", value.get("name")) in ("filter", "nat", "mangle", "raw", "security")
            words = _words(value)
            if what == "metainfo" or (everybodys and (what != "rule" or any(own in words for own in _CNIS_OWN))):
                continue
            found.add(f"{what} {value.get('family')} {value.get('table', '')} {words}")
    return found


def _words(value):
    telling = {key: value[key] for key in ("name", "chain", "expr", "elem") if key in value}
    if "expr" in telling:
        telling["expr"] = [one for one in telling["expr"] if "counter" not in one]
    return json.dumps(telling, sort_keys=True)


def _output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
