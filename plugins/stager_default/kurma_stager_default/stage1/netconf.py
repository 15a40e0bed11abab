"""The networks that a pod is to join: what ``--net`` names, as rkt's networking documentation has it.

Configured below ``--local-config`` in ``net.d``, a file each, in the order of the files' names; two are built in.
"""

from __future__ import annotations

import json
import os

from kurma_stager_default.stage1.arguments import ALL, DEFAULT, RESTRICTED
from kurma_stager_default.stage1.place import Stage1Error, why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

DIRECTORY = "net.d"
#: A list of plugins is what rkt has never had, and Kurma, as stage0, may hand on.
_SUFFIXES = (".conf", ".conflist")
#: What a configuration without ``cniVersion`` means, as CNI says.
_NO_VERSION = "0.1.0"
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_FILE_MAX = 1 << 20
#: As rkt's own stage1 has them: a cable to the host; the first with a way beyond it.
_BUILT_IN: tuple[Json, ...] = (
    {
        "cniVersion": _NO_VERSION,
        "name": DEFAULT,
        "type": "ptp",
        "ipMasq": True,
        "ipam": {"type": "host-local", "subnet": "172.16.28.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
    },
    {
        "cniVersion": _NO_VERSION,
        "name": RESTRICTED,
        "type": "ptp",
        "ipMasq": False,
        "ipam": {"type": "host-local", "subnet": "172.31.0.0/16"},
    },
)


class Network:
    """:attr:`plugins` are their configurations, in order of ADD; :attr:`runtime` what those are told of the
    capabilities that they declare. :attr:`source` is a file, or empty: built in.

    :raises Stage1Error: it is no configuration of CNI's.
    """

    def __init__(self, config: Json, source: str) -> None:
        self.source = source
        self.where = source or "built in"
        self.name = _plain(config.get("name"), "name", self.where)
        self.plugins: list[Json] = list(config["plugins"]) if "plugins" in config else [config]
        if not self.plugins:
            raise Stage1Error(f"{self.where}: network {self.name} has no plugins")
        versions = [config["cniVersion"]] if config.get("cniVersion") else config.get("cniVersions")
        try:
            self.version: str = max(versions, key=number) if versions else _NO_VERSION
        except ValueError:
            raise Stage1Error(f"{self.where}: network {self.name}: not versions of CNI: {versions}") from None
        self.programs = [_plain(each.get("type"), "type", self.where) for each in self.plugins]
        for each in self.plugins:
            if (each.get("ipam") or {}).get("type"):
                self.programs.append(_plain(each["ipam"]["type"], "type", self.where))
        self.arguments = self.interface = ""
        self.runtime: Json = {}

    @property
    def masquerades(self) -> bool:
        return any(each.get("ipMasq") is True for each in self.plugins)

    @property
    def publishes(self) -> bool:
        return any(_capabilities(each).get("portMappings") is True for each in self.plugins)

    def to_json(self) -> Json:
        config = {"name": self.name, "cniVersion": self.version, "plugins": self.plugins}
        return {"config": config, "source": self.source, "interface": self.interface, "arguments": self.arguments,
                "runtime": self.runtime}  # fmt: skip

    @classmethod
    def from_json(cls, value: Json) -> Network:
        found = cls(value["config"], value["source"])
        found.interface, found.arguments = value["interface"], value["arguments"]
        found.runtime = value["runtime"]
        return found

    def document(self, plugin: Json, previous: Json | None) -> Json:
        """What one of its plugins reads (CNI specification, section 3, "Deriving request configuration")."""
        kept = {key: value for key, value in plugin.items() if key not in ("capabilities", "prevResult")}
        kept |= {"name": self.name, "cniVersion": self.version}
        declared = _capabilities(plugin)
        runtime = {key: value for key, value in self.runtime.items() if declared.get(key) is True}
        if runtime:
            kept["runtimeConfig"] = runtime
        if previous is not None:
            kept["prevResult"] = previous
        return kept


def chosen(wanted: dict[str, str], local_config: str) -> list[Network]:
    """Those that are wanted, in the order in which they are joined; their interfaces are eth0 and so on.

    :param wanted: see :class:`.arguments.RunArguments`; not empty.
    :raises Stage1Error: one is nowhere configured, or a file is wrong.
    """
    directory = f"{local_config}/{DIRECTORY}"
    known: dict[str, Network] = {}
    for network in (*_read(directory), *(Network(each, "") for each in _BUILT_IN)):
        known.setdefault(network.name, network)
    # Without the first, by the second a pod still reaches the host, and its metadata service.
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


def number(version: Any) -> tuple[int, ...]:
    """Of a version of CNI, to compare it. :raises ValueError: it is none."""
    if not isinstance(version, str):
        raise ValueError(version)
    return tuple(int(part) for part in version.split("."))


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
            found.append(Network(config, path))
        except (OSError, ValueError, RecursionError) as error:
            raise Stage1Error(f"{path}: {why(error)}") from None
        except (AttributeError, TypeError):
            raise Stage1Error(f"{path}: no configuration of a network") from None
    return found


def _plain(value: Any, what: str, where: str) -> str:
    """It is made part of paths."""
    if not isinstance(value, str) or not value or not _NAME.issuperset(value) or value[0] == ".":
        raise Stage1Error(f"{where}: not a network's {what}: {value!r}")
    return value


def _capabilities(plugin: Json) -> Json:
    return plugin.get("capabilities") or {}
