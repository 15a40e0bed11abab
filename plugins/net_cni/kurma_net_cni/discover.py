"""Finds networks that are configured for CNI itself, outside Kurma: ``/etc/cni/net.d``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kurma_cni.chain import parse_chain
from kurma_cni.errors import CniError

from kurma_core.json_text import loads

Json = Any
_SUFFIXES = (".conf", ".conflist", ".json")
#: Suffix of a file with one plugin of a chain.
_PLUGIN = ".conf"
_FILE_MAX = 1 << 20


def discover(directories: Sequence[str], note: Callable[[str], None]) -> dict[str, Mapping[str, Json]]:
    """The configurations by the network's name. Of two files with one name, the first counts, in order of
    directories and then of file names. A malformed file is noted and skipped.
    """
    found: dict[str, Mapping[str, Json]] = {}
    for path in _files(directories, _SUFFIXES):
        try:
            config = _object(path)
            if "type" not in config:
                config = _aggregated(config, os.path.dirname(path))
            chain = parse_chain(config)
        except (OSError, ValueError, CniError) as error:
            note(f"{path} is no CNI network: {error}")
            continue
        found.setdefault(chain.name, config)
    return found


def _aggregated(config: dict[str, Json], directory: str) -> dict[str, Json]:
    """Adds the plugins from the files in a directory of the network's name beside the configuration (CNI 1.1.0).

    A malformed file makes the whole network invalid: its plugin (a firewall, a limit) must not be left out.

    :raises ValueError: a file is.
    """
    if config.get("loadOnlyInlinedPlugins") in (True, "true"):
        return config
    name, plugins = config.get("name"), config.get("plugins", [])
    if not isinstance(name, str) or "/" in name or not isinstance(plugins, list):
        return config  # malformed: the parser reports it
    more = []
    for path in _files([os.path.join(directory, name)], (_PLUGIN,)):
        try:
            more.append(_object(path))
        except (OSError, ValueError) as error:
            raise ValueError(f"its plugin {path} cannot be read: {error}") from error
    return {**config, "plugins": [*plugins, *more]} if more else config


def _object(path: str) -> dict[str, Json]:
    with open(path, encoding="utf-8") as file:
        value = loads(file.read(_FILE_MAX))
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    return value


def _files(directories: Sequence[str], suffixes: tuple[str, ...]) -> list[str]:
    files = []
    for directory in directories:
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        paths = [os.path.join(directory, name) for name in sorted(names) if name.endswith(suffixes)]
        files += [path for path in paths if os.path.isfile(path)]  # a named pipe would block
    return files
