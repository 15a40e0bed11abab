"""Reads a network's CNI configuration, one plugin or a chain of them, and makes the documents that plugins read.

Implements CNI specification, sections 1 and 3.
"""

from __future__ import annotations

from kurma_cni.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Json = Any

#: Versions of CNI that are understood, the lowest first.
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
#: The version of a configuration without ``cniVersion``, as CNI defines it.
NO_VERSION = "0.1.0"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_NAME_MAX = 128
#: Prefix of the protocol's keys.
_PROTOCOL = "cni.dev/"


class Chain:
    """A network's plugins, ready to be executed.

    :ivar name: the network's.
    :ivar plugins: their configurations as written, in order of ADD.
    :ivar versions: all that the configuration allows and this package knows, the highest first.
    :ivar version: the one that plugins are spoken to in; the highest until another is chosen.
    :ivar disable_check: CHECK is not wanted. :ivar disable_gc: GC is not wanted.
    """

    def __init__(
        self,
        name: str,
        plugins: Iterable[Mapping[str, Json]],
        versions: tuple[str, ...],
        *,
        disable_check: bool = False,
        disable_gc: bool = False,
    ) -> None:
        self.name = name
        self.plugins = tuple(plugins)
        self.versions = versions
        self.version = versions[0]
        self.disable_check = disable_check
        self.disable_gc = disable_gc

    @property
    def has_check(self) -> bool:
        """CHECK, and a DEL that is told the result of ADD, came with 0.4.0."""
        return _number(self.version) >= (0, 4, 0)

    @property
    def has_gc(self) -> bool:
        """GC and STATUS came with 1.1.0."""
        return _number(self.version) >= (1, 1, 0)

    @property
    def types(self) -> tuple[str, ...]:
        """The names of all programs that the chain needs, those that give addresses included."""
        found: list[str] = []
        for plugin in self.plugins:
            found.append(plugin["type"])
            ipam = plugin.get("ipam") or {}
            if ipam.get("type"):
                found.append(ipam["type"])
        return tuple(found)

    def declares(self, capability: str) -> bool:
        """Whether any plugin takes that capability argument."""
        return any(_capabilities(plugin).get(capability) is True for plugin in self.plugins)

    def document(
        self, plugin: Mapping[str, Json], runtime: Mapping[str, Json] | None = None, previous: Json = None
    ) -> dict[str, Json]:
        """The document that one plugin of the chain reads on its standard input.

        The plugin's declared capabilities and the protocol's own keys are left out (CNI specification, section 3,
        "Deriving request configuration").

        :param runtime: capability arguments by name; the plugin gets those that it declares.
        :param previous: the result of the plugins before it (ADD), or of the whole chain (DEL, CHECK).
        """
        value = {
            key: item
            for key, item in plugin.items()
            if key not in ("capabilities", "prevResult") and not str(key).startswith(_PROTOCOL)
        }
        value |= {"name": self.name, "cniVersion": self.version}
        declared = _capabilities(plugin)
        told = {key: item for key, item in (runtime or {}).items() if declared.get(key) is True}
        if told:
            value["runtimeConfig"] = told
        if previous is not None:
            value["prevResult"] = previous
        return value

    def garbage_document(self, plugin: Mapping[str, Json], valid: Iterable[tuple[str, str]]) -> dict[str, Json]:
        """The document that a plugin reads at GC.

        :param valid: pod and interface of every attachment that is to stay.
        """
        attachments = [{"containerID": pod, "ifname": interface} for pod, interface in valid]
        # The specification uses the first name where it describes GC, and the second where it describes documents;
        # plugins know the one or the other.
        return {
            **self.document(plugin),
            f"{_PROTOCOL}valid-attachments": attachments,
            f"{_PROTOCOL}attachments": attachments,
        }


def parse_chain(config: Mapping[str, Json]) -> Chain:
    """The chain that a network's configuration describes.

    :param config: a CNI network configuration (``type``) or list (``plugins``); ``name`` is the network's.
    :raises CniError: the configuration is wrong; says what is.
    """
    name = config.get("name")
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= _NAME_MAX
        or not _NAME.issuperset(name)
        or name[0] in "_.-"
    ):
        raise CniError(
            f"network {name!r}: a CNI network's name has letters, digits and _ . - only, and begins with a letter "
            "or digit"
        )
    versions = _versions(name, config)
    if ("plugins" in config) == ("type" in config):
        raise _wrong(name, "either type (one plugin) or plugins (a chain) is wanted")
    _flag(name, config, "loadOnlyInlinedPlugins")
    plugins = config.get("plugins", [config])
    if not isinstance(plugins, list | tuple) or not plugins:
        raise _wrong(name, "plugins is not a list of objects with a type")
    for plugin in plugins:
        _check_plugin(name, plugin)
    return Chain(
        name,
        plugins,
        versions,
        disable_check=_flag(name, config, "disableCheck"),
        disable_gc=_flag(name, config, "disableGC"),
    )


def _versions(name: str, config: Mapping[str, Json]) -> tuple[str, ...]:
    """Of ``cniVersion`` and ``cniVersions`` (1.1.0) those in :data:`VERSIONS`, the highest first."""
    listed = config.get("cniVersions") or []
    if not isinstance(listed, list | tuple):
        raise _wrong(name, "cniVersions is not a list")
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
    if not _is_object(plugin):
        raise _wrong(network, "plugins is not a list of objects with a type")
    kinds = [plugin.get("type")]
    ipam = plugin.get("ipam")
    if ipam is not None and not _is_object(ipam):
        raise _wrong(network, "ipam is not an object")
    if ipam and "type" in ipam:
        kinds.append(ipam["type"])
    for kind in kinds:
        # It names a program to run as root: it must not lead out of the directories of plugins.
        if not isinstance(kind, str) or not kind or not _NAME.issuperset(kind) or kind in (".", ".."):
            raise _wrong(network, f"type {kind!r} is not a plugin's name")
    if not _is_object(plugin.get("capabilities") or {}):
        raise _wrong(network, "capabilities is not an object")


def _is_object(value: Json) -> bool:
    """A JSON object, as any kind of mapping. The stager's image has no ``collections.abc``."""
    return hasattr(value, "keys")


def _wrong(network: str, why: str) -> CniError:
    return CniError(f'network "{network}" has a wrong CNI configuration: {why}')


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
