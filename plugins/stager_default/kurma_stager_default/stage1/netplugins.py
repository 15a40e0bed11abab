"""CNI plugins, executed on the host's root (CNI specification, sections 2, 4 and 5)."""

from __future__ import annotations

import json
import os
from ipaddress import ip_interface

from kurma_core.linux.programs import ProgramTimeout, ProgramWild, one_line, run, search_path
from kurma_stager_default.stage1.netconf import DIRECTORY, Network
from kurma_stager_default.stage1.place import Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_stager_default.stage1.place import Place

    Json = dict[str, Any]

#: Where rkt has looked for what an admin brings, and for what a stage1 image does, below its root.
_OF_RKT = "/usr/lib/rkt/plugins/net"
#: Where distributions and others have them.
_USUAL = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
#: What each verb is for, in the words of an error.
_VERBS = {"ADD": "cannot be joined", "DEL": "cannot be left"}
#: Seconds that a plugin may take.
_TIMEOUT = 60.0


class PluginError(Stage1Error):
    """:param reason: why, in the plugin's own words; empty: it has said nothing of that kind."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class Plugins:
    """:param container: the pod, as plugins know it. :param local_config: see :class:`.arguments.RunArguments`."""

    def __init__(self, place: Place, local_config: str, container: str) -> None:
        self.directories = (
            f"{local_config}/{DIRECTORY}",
            _OF_RKT,
            f"{place.rootfs}{_OF_RKT}",
            *_USUAL,
        )
        self.container = container

    def find(self, kind: str, network: Network) -> str:
        """:raises PluginError: there is none of that type."""
        for directory in self.directories:
            path = f"{directory}/{kind}"
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        raise PluginError(
            f"network {network.name} needs the CNI plugin {kind}, which is in none of "
            f"{', '.join(self.directories)}: install it there (Debian: containernetworking-plugins), or leave the "
            "network out (--net=host, --net=none)"
        )

    def execute(self, verb: str, network: Network, number: int, namespace: str, previous: Json | None) -> Json:
        """Runs one plugin of a network. :returns: its result, for ADD.

        :param number: which of :attr:`Network.plugins`. :param namespace: a path; empty: it is gone.
        :raises PluginError: it is not there, fails, takes too long, or makes no sense.
        """
        plugin = network.plugins[number]
        kind = plugin["type"]
        path = self.find(kind, network)
        about = f"network {network.name} {_VERBS[verb]}: CNI plugin {kind}"
        environment = {
            "PATH": search_path(),
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": self.container,
            "CNI_NETNS": namespace,
            "CNI_IFNAME": network.interface,
            # Not each of a network's plugins knows all of them.
            "CNI_ARGS": f"IgnoreUnknown=1;{network.arguments}".rstrip(";"),
            "CNI_PATH": ":".join(self.directories),
        }
        stdin = json.dumps(network.document(plugin, previous)).encode()
        try:
            done = run([path], stdin=stdin, environment=environment, timeout=_TIMEOUT)
        except ProgramWild:
            raise PluginError(f"{about}: it printed without end, and was killed") from None
        except ProgramTimeout:
            raise PluginError(f"{about}: it took longer than {_TIMEOUT:g} seconds, and was killed") from None
        except OSError as error:
            raise PluginError(f"{about}: {path}: {why(error)}") from None
        if done.status != 0:
            own = _own_words(done.stdout)
            raise PluginError(f"{about}: {own or _other_words(done.stderr, done.stdout, done.status)}", own)
        if verb != "ADD":
            return {}
        result = _object(done.stdout)
        if result is None:
            raise PluginError(f"{about}: it gave no result, but {one_line(done.stdout)[:80] or 'nothing'}")
        try:
            for address, _ in addresses(result):
                ip_interface(address)
        except (TypeError, ValueError) as error:
            raise PluginError(f"{about}: its result makes no sense: {one_line(str(error))}") from None
        result.setdefault("cniVersion", network.version)
        return result


def addresses(result: Json | None) -> list[tuple[str, str]]:
    """Address with its prefix' length, and gateway, which may be empty; IPv4's first. Of any version's result."""
    found = [each for each in (result or {}).get("ips") or [] if isinstance(each, dict)]
    pairs = [(str(each.get("address") or ""), str(each.get("gateway") or "")) for each in found]
    for key in ("ip4", "ip6"):
        each = (result or {}).get(key)
        if isinstance(each, dict):
            pairs.append((str(each.get("ip") or ""), str(each.get("gateway") or "")))
    return sorted([pair for pair in pairs if pair[0]], key=lambda pair: ":" in pair[0])


def _object(text: bytes) -> Json | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _own_words(stdout: bytes) -> str:
    """A plugin's error, as CNI has these."""
    error = _object(stdout)
    if error is None or not error.get("msg"):
        return ""
    return one_line(": ".join([str(error[key]) for key in ("msg", "details") if error.get(key)]))


def _other_words(stderr: bytes, stdout: bytes, status: int) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return one_line(stderr + b" " + stdout) or f"it ended with {how}, and said nothing"
