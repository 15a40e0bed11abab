"""A registry, image layouts, machines, signers and a web server for the tests of this directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kurma_core.config import load
from kurma_core.images.manager import ImageManager
from kurma_core.plugins.registry import PluginRegistry
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.registry import BUSYBOX, OciDir, Registry, layer_tar, running_registry


@pytest.fixture
def oci(tmp_path: Path) -> OciDir:
    path = tmp_path / "layout"
    path.mkdir()
    return OciDir(path)


@pytest.fixture
def busybox_layer() -> bytes:
    return layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), "bin/sh": ("busybox",)})


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with running_registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    """Makes a :class:`Machine`; with the same name, another process's view of the same one."""

    def make(name: str = "state", **values: Any) -> Machine:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(values))
        notes: list[str] = []
        config = load(str(file), str(tmp_path / name))
        return Machine(
            ImageManager(config, PluginRegistry(config, notes.append), notes.append), tmp_path / name, notes
        )

    return make
