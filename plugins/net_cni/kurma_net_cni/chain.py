"""A network's CNI configuration: one plugin, or a chain of them (CNI specification, section 1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kurma_core.appc.cni_result import VERSIONS
from kurma_core.errors import NetworkError
from kurma_core.models.network import Attachment
from kurma_core.value import frozen

Json = Any
#: What a configuration without ``cniVersion`` means, as CNI says.
NO_VERSION = "0.1.0"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_MAX = 128
#: What keys of the protocol begin with.
_PROTOCOL = "cni.dev/"


@frozen
class Chain:
    """A network, ready to be executed.

    :param version: the one that is spoken; of several, the highest that Kurma knows until plugins are asked.
    :param plugins: their configurations as they stand, in order of ADD.
    :param disable_check: CHECK is not wanted. :param disable_gc: GC is not.
    :param versions: all that the configuration allows and Kurma knows, the highest first.
    """

    name: str
    version: str
    plugins: tuple[Mapping[str, Json], ...]
    disable_check: bool = False
    disable_gc: bool = False
    versions: tuple[str, ...] = ()

    @property
    def has_check(self) -> bool:
        """CHECK, and a DEL that is told the result of ADD, came with 0.4.0."""
        return _number(self.version) >= (0, 4, 0)

    @property
    def has_gc(self) -> bool:
        """GC and STATUS came with 1.1.0."""
        return _number(self.version) >= (1, 1, 0)

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
    versions = _versions(name, config)
    if ("plugins" in config) == ("type" in config):
        raise _wrong(name, "either type (one plugin) or plugins (a chain) is wanted")
    _flag(name, config, "loadOnlyInlinedPlugins")
    plugins = config.get("plugins", [config])
    if not isinstance(plugins, list | tuple) or not plugins:
        raise _wrong(name, "plugins is no list of objects with a type")
    for plugin in plugins:
        _check_plugin(name, plugin)
    return Chain(
        name,
        versions[0],
        tuple(plugins),
        _flag(name, config, "disableCheck"),
        _flag(name, config, "disableGC"),
        versions,
    )


def document(
    chain: Chain, plugin: Mapping[str, Json], attachment: Attachment, previous: Json = None
) -> dict[str, Json]:
    """What one plugin of the chain reads on its standard input.

    :param previous: the result of the plugins before it (ADD), or of the whole chain (DEL, CHECK).
    """
    value = plain_document(chain, plugin)
    declared = _capabilities(plugin)
    runtime = {key: item for key, item in _arguments(attachment).items() if declared.get(key) is True}
    if runtime:
        value["runtimeConfig"] = runtime
    if previous is not None:
        value["prevResult"] = previous
    return value


def plain_document(chain: Chain, plugin: Mapping[str, Json]) -> dict[str, Json]:
    """What every verb's document begins with. What a plugin declares, and the protocol's own keys, are not handed
    on (CNI specification, section 3, "Deriving request configuration").
    """
    kept = {
        key: value
        for key, value in plugin.items()
        if key not in ("capabilities", "prevResult") and not str(key).startswith(_PROTOCOL)
    }
    return {**kept, "name": chain.name, "cniVersion": chain.version}


def garbage_document(
    chain: Chain, plugin: Mapping[str, Json], valid: Iterable[tuple[str, str]]
) -> dict[str, Json]:
    """What a plugin reads at GC.

    :param valid: pod and interface of every attachment that is to stay.
    """
    attachments = [{"containerID": pod, "ifname": interface} for pod, interface in valid]
    # The specification has it by the first name where it tells of GC, and by the second where it tells how
    # documents are made; plugins know the one or the other.
    return {
        **plain_document(chain, plugin),
        f"{_PROTOCOL}valid-attachments": attachments,
        f"{_PROTOCOL}attachments": attachments,
    }


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


def _versions(name: str, config: Mapping[str, Json]) -> tuple[str, ...]:
    """``cniVersion`` and ``cniVersions`` (1.1.0): what Kurma knows of these, the highest first."""
    listed = config.get("cniVersions") or []
    if not isinstance(listed, list | tuple):
        raise _wrong(name, "cniVersions is no list")
    own = config.get("cniVersion") or (None if listed else NO_VERSION)
    given = [*([] if own is None else [own]), *listed]
    known = [version for version in reversed(VERSIONS) if version in given]
    if not known:
        said = ", ".join([repr(version) for version in given])
        raise _wrong(name, f"cniVersion {said} is none of {', '.join(VERSIONS)}")
    return tuple(known)


def _flag(name: str, config: Mapping[str, Json], key: str) -> bool:
    """A switch, which older configurations write as a string."""
    value = config.get(key, False)
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise _wrong(name, f"{key} is neither true nor false")
    return value


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
