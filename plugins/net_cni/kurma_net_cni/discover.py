"""Networks that are configured for CNI itself, outside Kurma: ``/etc/cni/net.d`` (W7)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kurma_core.errors import NetworkError
from kurma_net_cni.chain import parse_chain

Json = Any
_SUFFIXES = (".conf", ".conflist", ".json")


def discover(directories: Sequence[str], note: Callable[[str], None]) -> dict[str, Mapping[str, Json]]:
    """Configurations by network's name. Of two files with one name the first, in order of directories and then of
    file names, counts. A wrong file is noted and hides only itself.
    """
    found: dict[str, Mapping[str, Json]] = {}
    for path in _files(directories):
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            if not isinstance(config, dict):
                raise ValueError("it holds no object")
            chain = parse_chain(config)
        except (OSError, ValueError, NetworkError) as error:
            note(f"{path} is no CNI network: {error}")
            continue
        found.setdefault(chain.name, config)
    return found


def _files(directories: Sequence[str]) -> list[str]:
    files = []
    for directory in directories:
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        files += [os.path.join(directory, name) for name in sorted(names) if name.endswith(_SUFFIXES)]
    return files
