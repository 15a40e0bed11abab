import subprocess
import sys
from pathlib import Path

import kurma_core

HEAVY = {
    "re",
    "typing",
    "dataclasses",
    "enum",
    "contextlib",
    "subprocess",
    "pathlib",
    "logging",
    "ctypes",
    "json",
    "signal",
}


def test_system_calls_and_the_spawners_program_are_light():
    """They start with every pod, and the former ship inside the stager's image."""
    script = f"""
import sys
sys.path.append({str(Path(kurma_core.__file__).parent.parent)!r})
from kurma_core.formats import small_json, timestamps
from kurma_core.linux import (
    beneath, bpf, capabilities, cgroups, clone, exec_errors, execute, files, libc, mounts, namespaces,
    netlink, process,
)
from kurma_core.trees import mount_targets, overlay, user_database
from kurma_core.spawner import server
print(*sys.modules)
"""
    command = [sys._base_executable, "-I", "-S", "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert HEAVY & set(loaded) == set()
