"""Chooses the networks that a pod joins, from the value of ``--net``, as rkt's networking documentation defines
it.

Networks are configured in files of the directory ``net.d`` below ``--local-config``, and ordered by file name; two
are built in.
"""

from __future__ import annotations

import json
import os

from kurma_cni.chain import NO_VERSION, Chain, parse_chain
from kurma_cni.errors import CniError

from kurma_stager_default.stage1.arguments import ALL, DEFAULT, RESTRICTED
from kurma_stager_default.stage1.place import Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

DIRECTORY = "net.d"
#: rkt supports single plugins only; Kurma, as stage0, may pass chains.
_SUFFIXES = (".conf", ".conflist")
_FILE_MAX = 1 << 20
#: The built-in networks of rkt's own stage1: a veth pair to the host; the first has a default route.
_BUILT_IN: tuple[Json, ...] = (
    {
        "cniVersion": NO_VERSION,
        "name": DEFAULT,
        "type": "ptp",
        "ipMasq": True,
        "ipam": {"type": "host-local", "subnet": "172.16.28.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    },
    {
        "cniVersion": NO_VERSION,
        "name": RESTRICTED,
        "type": "ptp",
        "ipMasq": False,
        "ipam": {"type": "host-local", "subnet": "172.31.0.0/16"},
    },
)


class Network:
    """A configured network and how this pod joins it.

    :ivar chain: its plugins. :ivar source: its configuration file; empty: built in.
    :ivar interface, arguments, runtime: as :class:`kurma_cni.attachment.Attachment` has them.
    """

    def __init__(self, config: Json, source: str) -> None:
        """:raises CniError: the configuration is wrong."""
        self.chain = parse_chain(config)
        self.source = source
        self.arguments = self.interface = ""
        self.runtime: Json = {}

    @property
    def name(self) -> str:
        return self.chain.name

    @property
    def masquerades(self) -> bool:
        return any(each.get("ipMasq") is True for each in self.chain.plugins)

    def add_portmap(self) -> None:
        """Adds the plugin that forwards ports of the host to the pod."""
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}
        self.chain = Chain(self.name, (*self.chain.plugins, portmap), self.chain.versions)

    def to_json(self) -> Json:
        config = {"name": self.name, "cniVersion": self.chain.version, "plugins": list(self.chain.plugins)}
        return {"config": config, "source": self.source, "interface": self.interface, "arguments": self.arguments,
                "runtime": self.runtime}  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> Network:
        found = cls(value["config"], value["source"])
        found.interface, found.arguments = value["interface"], value["arguments"]
        found.runtime = value["runtime"]
        return found


def choose(wanted: dict[str, str], local_config: str) -> list[Network]:
    """The wanted networks in the order in which they are joined; their interfaces are eth0 and so on.

    :param wanted: see :class:`.arguments.RunArguments`; not empty.
    :raises Stage1Error: a network is not configured, or a file is malformed.
    """
    directory = f"{local_config}/{DIRECTORY}"
    known: dict[str, Network] = {}
    for network in (*_read(directory), *(Network(each, "") for each in _BUILT_IN)):
        known.setdefault(network.name, network)
    # A pod that does not join the first joins the second, to reach the host and its metadata service.
    needed = DEFAULT if DEFAULT in wanted or ALL in wanted else RESTRICTED
    every = ALL in wanted
    found = [
        network
        for name, network in known.items()
        if name in wanted or name == needed or (every and network.source)
    ]
    missing = [name for name in wanted if name not in known and name != ALL]
    if missing:
        raise Stage1Error(
            f"--net: there is no network {', '.join(missing)}: configured in {directory} and built in are "
            f"{', '.join(sorted(known))}"
        )
    for place, network in enumerate(found):
        network.interface = f"eth{place}"
        network.arguments = wanted.get(network.name, "")
    return found


def forwarding(networks: list[Network]) -> Network:
    """The network to which ports are forwarded, and by which the pod reaches the host: the first that masquerades,
    else the last (rkt's networking documentation, "Network used for forwarded ports").
    """
    return next((each for each in networks if each.masquerades), networks[-1])


def publish(networks: list[Network], ports: list[Json]) -> None:
    """Forwards ports of the host to the pod, by a network that declares the capability, or by an added plugin.

    :param ports: in the form of CNI's capability ``portMappings``.
    """
    if not ports:
        return
    network = next((each for each in networks if each.chain.declares("portMappings")), None)
    if network is None:
        network = forwarding(networks)
        network.add_portmap()
    network.runtime["portMappings"] = ports


def _read(directory: str) -> list[Network]:
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Stage1Error(f"{directory}: {why(error)}") from None
    found = []
    for path in (f"{directory}/{name}" for name in names if name.endswith(_SUFFIXES)):
        if not os.path.isfile(path):
            continue
        try:
            with open(path, encoding="utf-8") as file:
                config = json.loads(file.read(_FILE_MAX))
            if not isinstance(config, dict):
                raise Stage1Error(f"{path}: no configuration of a network")
            found.append(Network(config, path))
        except (OSError, ValueError, RecursionError, CniError) as error:
            raise Stage1Error(f"{path}: {why(error)}") from None
    return found
