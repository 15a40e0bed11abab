"""The network ``default`` as CNI's plugins served it, for pods that are joined to it still."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

Json = Any
#: Of its record.
VERSION = 1
DRIVER = "cni"
#: Understood by every CNI plugin in use, old and new, and the first with CHECK and a useful DEL.
CNI_VERSION = "0.4.0"


def config(name: str, record: Mapping[str, Json], directory: str, *, ports: bool = True) -> dict[str, Json]:
    """:param record: ``bridge`` and ``subnet``. :param directory: where addresses are kept.
    :param ports: False leaves out the plugin that publishes ports: a pod without any is spared its time.
    """
    bridge = {
        "type": "bridge",
        "bridge": record["bridge"],
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "capabilities": {"ips": True, "mac": True},
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": record["subnet"]}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": os.path.join(directory, "addresses"),
        },
    }
    publish = {"type": "portmap", "capabilities": {"portMappings": True}}
    # Accepts the pod's traffic where the host's policy (a firewall, docker) is to drop what it forwards.
    accept = {"type": "firewall"}
    head: dict[str, Json] = {"cniVersion": CNI_VERSION, "name": name}
    if ports:
        # portmap 1.1's CHECK looks for the IPv4 rules among the IPv6 ones, and fails.
        return {**head, "disableCheck": True, "plugins": [bridge, publish, accept]}
    return {**head, "plugins": [bridge, accept]}
