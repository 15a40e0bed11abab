"""Makes the examples importable where they are not installed, as ``pip install -e`` would."""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def pytest_configure(config):
    sys.path[:0] = [str(path) for path in sorted(HERE.iterdir()) if (path / "pyproject.toml").exists()]
