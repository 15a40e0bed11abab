"""The network plugins of these tests."""

import sys
from pathlib import Path

import pytest

_LEAKY = Path(__file__).parent / "leaky"


@pytest.fixture
def leaky_plugin(monkeypatch):
    """The network plugins in ``leaky/`` are installed, here and in processes that the test starts."""
    monkeypatch.syspath_prepend(str(_LEAKY))
    monkeypatch.setenv("PYTHONPATH", str(_LEAKY))
    yield
    for name in ("kurma_leaky", "kurma_forgetful"):
        sys.modules.pop(name, None)
