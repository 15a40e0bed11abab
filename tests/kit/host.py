"""The test host's file systems and network links."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_file_system(path: Path, limits: str) -> Iterator[Path]:
    """Mounts a tmpfs for root alone at that path, which is made if it is missing.

    :param limits: mount options (``size=96m``), which may name another mode.
    """
    path.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{limits}", "small", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def links() -> set[str]:
    """Names of the network interfaces of this network namespace."""
    with open("/proc/self/net/dev") as file:
        return {line.split(":")[0].strip() for line in file if ":" in line}
