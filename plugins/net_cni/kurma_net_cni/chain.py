"""A network's CNI configuration: one plugin, or a chain of them (CNI specification, section 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.appc.cni_result import VERSIONS
from kurma_core.errors import NetworkError
from kurma_core.models import Attachment
from kurma_core.value import frozen

Json = Any
#: What a configuration without ``cniVersion`` means, as CNI says.
NO_VERSION = "0.1.0"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_MAX = 128


@frozen
class Chain:
    """A network, ready to be executed.

    :param plugins: their configurations as they stand, in order of ADD.
    :param disable_check: CHECK is not wanted.
    """

    name: str
    version: str
    plugins: tuple[Mapping[str, Json], ...]
    disable_check: bool = False

    @property
    def has_check(self) -> bool:
        """CHECK, and a DEL that is told the result of ADD, came with 0.4.0."""
        return _number(self.version) >= (0, 4, 0)

    def declares(self, capability: str) -> bool:
        """Whether any plugin takes that capability argument."""
        return any(_capabilities(plugin).get(capability) is True for plugin in self.plugins)


def parse_chain(config: Mapping[str, Json]) -> Chain:
    """The chain that a network's configuration says.

    :param config: a CNI network configuration (``type``) or list (``plugins``); ``name`` is the network's.
    :raises NetworkError: it is none; says what is wrong.
    """
    name = config.get("name")
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= _NAME_MAX
        or not _NAME.issuperset(name)
        or name[0] in "_.-"
    ):
        raise NetworkError(
            f"network {name!r}: a CNI network's name has letters, digits and _ . - only, and begins with a letter "
            "or digit",
            network=name,
        )
    version = config.get("cniVersion", NO_VERSION)
    if version not in VERSIONS:
        raise _wrong(name, f"cniVersion {version!r} is none of {', '.join(VERSIONS)}")
    if ("plugins" in config) == ("type" in config):
        raise _wrong(name, "either type (one plugin) or plugins (a chain) is wanted")
    plugins = config.get("plugins", [config])
    if not isinstance(plugins, list | tuple) or not plugins:
        raise _wrong(name, "plugins is no list of objects with a type")
    for plugin in plugins:
        _check_plugin(name, plugin)
    return Chain(name, version, tuple(plugins), config.get("disableCheck") is True)


def document(
    chain: Chain, plugin: Mapping[str, Json], attachment: Attachment, previous: Json = None
) -> dict[str, Json]:
    """What one plugin of the chain reads on its standard input.

    :param previous: the result of the plugins before it (ADD), or of the whole chain (DEL, CHECK).
    """
    value = {**plugin, "name": chain.name, "cniVersion": chain.version}
    declared = _capabilities(plugin)
    runtime = {key: item for key, item in _arguments(attachment).items() if declared.get(key) is True}
    if runtime:
        value["runtimeConfig"] = runtime
    if previous is not None:
        value["prevResult"] = previous
    return value


def arguments_in_environment(chain: Chain, attachment: Attachment) -> str:
    """``CNI_ARGS``: the older way to say which address and MAC are wanted, for chains without the capability."""
    words = ["IgnoreUnknown=1"]
    request = attachment.request
    if request.ips and not chain.declares("ips"):
        words.append("IP=" + ",".join(request.ips))
    if request.mac and not chain.declares("mac"):
        words.append(f"MAC={request.mac}")
    return ";".join(words)


def types(chain: Chain) -> tuple[str, ...]:
    """The names of all programs that the chain needs, those that give addresses included."""
    found: list[str] = []
    for plugin in chain.plugins:
        found.append(plugin["type"])
        ipam = plugin.get("ipam")
        if isinstance(ipam, Mapping) and ipam.get("type"):
            found.append(ipam["type"])
    return tuple(found)


def _arguments(attachment: Attachment) -> dict[str, Json]:
    """Capability arguments by name (CNI conventions)."""
    arguments = dict(attachment.capabilities)
    if attachment.ports:
        arguments["portMappings"] = [
            {
                "hostPort": port.host_port,
                "containerPort": port.pod_port,
                "protocol": port.protocol,
                "hostIP": port.host_ip,
            }
            for port in attachment.ports
        ]
    if attachment.request.ips:
        arguments["ips"] = list(attachment.request.ips)
    if attachment.request.mac:
        arguments["mac"] = attachment.request.mac
    return arguments


def _capabilities(plugin: Mapping[str, Json]) -> Mapping[str, Json]:
    found: Mapping[str, Json] = plugin.get("capabilities") or {}
    return found


def _check_plugin(network: str, plugin: Json) -> None:
    if not isinstance(plugin, Mapping):
        raise _wrong(network, "plugins is no list of objects with a type")
    kinds = [plugin.get("type")]
    ipam = plugin.get("ipam")
    if ipam is not None and not isinstance(ipam, Mapping):
        raise _wrong(network, "ipam is no object")
    if ipam and "type" in ipam:
        kinds.append(ipam["type"])
    for kind in kinds:
        # It becomes the name of a program to run as root: no way out of the directories of programs.
        if not isinstance(kind, str) or not kind or not _NAME.issuperset(kind) or kind in (".", ".."):
            raise _wrong(network, f"type {kind!r} is no plugin's name")
    if not isinstance(plugin.get("capabilities") or {}, Mapping):
        raise _wrong(network, "capabilities is no object")


def _wrong(network: str, why: str) -> NetworkError:
    return NetworkError(f'network "{network}" has a wrong CNI configuration: {why}', network=network)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
