"""Finds networks that are configured for CNI itself, outside Kurma: ``/etc/cni/net.d``.

:func:`discover` finds all of a directory's networks by name. :func:`first_network` chooses one, as the runtimes of
Kubernetes choose the network of a node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kurma_cni.chain import parse_chain
from kurma_cni.errors import CniError

from kurma_core.errors import NetworkError
from kurma_core.json_text import loads

Json = Any
_SUFFIXES = (".conf", ".conflist", ".json")
#: Suffix of a file with one plugin of a chain.
_PLUGIN = ".conf"
#: Suffix of a file with a whole chain, for :func:`first_network`.
_LIST = ".conflist"
_FILE_MAX = 1 << 20
#: Key of an entry of ``kurma.yml``: the directory whose first network is the entry's.
CONF_DIR = "conf_dir"
#: Key of a configuration that :func:`first_network` has chosen: the file that holds it. Plugins do not get it.
CONF_FILE = "kurma.io/file"

#: Keys of a single plugin's configuration that are the network's.
_OF_THE_NETWORK = ("name", "cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins")


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


def has_files(directory: str) -> bool:
    """Whether a directory has a file whose name is that of a CNI configuration."""
    return bool(_files([directory], _SUFFIXES))


def first_network(directory: str, note: Callable[[str], None]) -> dict[str, Json]:
    """The network of the first valid file of a directory, in order of names, as a chain.

    It reads the directory at each call: files may change and come at any time.

    :param note: gets a line for each file before it that is not valid.
    :raises NetworkError: no file is valid, or the directory cannot be read; names each file with its fault.
    """
    faults: list[str] = []
    try:
        for path in _files([directory], _SUFFIXES):
            try:
                return {**_chain_of(path), CONF_FILE: path}
            except (OSError, ValueError, CniError) as error:
                why = (error.strerror or error) if isinstance(error, OSError) else error
                faults.append(f"{path} is not a usable CNI configuration: {why}")
    except OSError as error:
        raise NetworkError(
            f"cannot read {directory}: {error.strerror}", path=directory, errno=error.errno
        ) from error
    finally:
        for fault in faults:
            note(fault)
    raise NetworkError(
        f"no usable CNI configuration in {directory}: "
        f"{'; '.join(faults) or 'it has no file *.conflist, *.conf or *.json'}",
        hint="a network plugin of Kubernetes writes its configuration there when it is installed",
        path=directory,
    )


def _chain_of(path: str) -> dict[str, Json]:
    """Reads a file as Kubernetes' runtimes do: ``*.conflist`` holds a chain, other files a single plugin.

    :raises ValueError: it holds the other form, or none. :raises CniError: the configuration is wrong.
    """
    config = _object(path)
    if path.endswith(_LIST):
        if "type" in config:
            raise ValueError("it has the type of a single plugin; a file *.conflist has a list of plugins")
        config = _aggregated(config, os.path.dirname(path))
        if not config.get("plugins"):
            raise ValueError("its list of plugins is missing or empty")
    else:
        if "plugins" in config:
            raise ValueError("it has a list of plugins; the name of such a file ends in .conflist")
        if "type" not in config:
            raise ValueError("the type of its plugin is missing")
        own = {key: config[key] for key in _OF_THE_NETWORK if key in config}
        config = {**own, "plugins": [config]}
    parse_chain(config)
    return config


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
