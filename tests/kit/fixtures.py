"""Fixtures for every test of this checkout. What they need is imported when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kurma_core.image_store import ImageStore
    from kurma_core.testing.webserver import WebServer
    from tests.kit.keys import Signers


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """An image store that is still to be made."""
    from kurma_core.image_store import ImageStore

    return ImageStore(f"{tmp_path}/images")


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server without pages."""
    from kurma_core.testing.webserver import web_server

    with web_server() as server:
        yield server


@pytest.fixture(scope="session")
def signers() -> Iterator[Signers]:
    """Keys of alice, bob and mallory, made once per run. A test that needs others makes a ``gnupg_home``."""
    from tests.kit.keys import gnupg_home

    with gnupg_home() as made:
        for name in ("alice", "bob", "mallory"):
            made.make(name)
        yield made
