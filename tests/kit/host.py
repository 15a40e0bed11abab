"""The test host's file systems and network links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_file_system(directory: Path, limits: str) -> Iterator[str]:
    """Mounts a tmpfs for root alone below a directory.

    :param limits: mount options (``size=96m``).
    """
    path = directory / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"{limits},mode=0700", "small", path], check=True)
    yield str(path)
    subprocess.run(["umount", path], check=True)


def links() -> set[str]:
    """Names of the network interfaces of this network namespace."""
    with open("/proc/self/net/dev") as file:
        return {line.split(":")[0].strip() for line in file if ":" in line}
