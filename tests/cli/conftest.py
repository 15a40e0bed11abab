"""What the tests of the command line share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KURMA_DIR", "KURMA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    """The module ``cli_fakes.py`` beside this file; test directories are no packages."""
    spec = importlib.util.spec_from_file_location("cli_fakes", Path(__file__).with_name("cli_fakes.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_fakes"] = module
    spec.loader.exec_module(module)
    return module
