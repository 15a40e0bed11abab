"""Start-up latency is the product: what a command does not need is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"rich", "stevedore", "pyroute2", "yaml", "gnupg", "urllib3", "click", "typer"}
#: What only those need that start or end pods, or ask stagers.
NOT_FOR_LISTS = {
    *("dataclasses", "inspect", "uuid", "pluggy", "socket", "subprocess", "threading", "random", "ctypes"),
    *("typing", "re", "enum", "json", "importlib"),
    *("kurma_core.hookspecs", "kurma_core.plugins.registry", "kurma_core.journal", "kurma_core.staging"),
    *(f"kurma_core.pods.{name}" for name in ("finder", "manager", "record.pod_record", "run.launch", "services")),
}
PROGRAM = """
import sys
from kurma_core.cli.main import main
code = main(sys.argv[1:])
print("MODULES", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


def modules(tmp_path: Path, *words: str) -> set[str]:
    """Names of the modules that the command line imports."""
    for name in ("state", "kurma.d"):
        (tmp_path / name).mkdir(exist_ok=True)
    environment = {**os.environ, "KURMA_DIR": str(tmp_path / "state"), "KURMA_CONFIG": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, env=environment, check=True
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("MODULES "))
    return set(line.split()[1:])


@pytest.mark.root
def test_list_imports_nothing_heavy(tmp_path: Path) -> None:
    assert not (HEAVY | NOT_FOR_LISTS) & modules(tmp_path, "list")


@pytest.mark.root
def test_list_at_a_terminal_imports_nothing_of_bars(tmp_path: Path) -> None:
    """Nothing that a listing without a terminal does not import."""
    for name in ("state", "kurma.d"):
        (tmp_path / name).mkdir()
    leader, follower = os.openpty()
    try:
        program = PROGRAM.replace("file=sys.stderr", "file=sys.__stdout__")
        done = subprocess.run(
            [sys.executable, "-c", program, "--dir", str(tmp_path / "state"), "list"],
            stdout=subprocess.PIPE,
            stderr=follower,
            text=True,
            env={**os.environ, "KURMA_CONFIG": str(tmp_path)},
            check=True,
        )
    finally:
        os.close(leader)
        os.close(follower)
    found = set(done.stdout.partition("MODULES ")[2].split())
    assert "kurma_core.cli.session" in found
    assert not {"kurma_core.cancellation", "kurma_core.cli.progress"} & found


@pytest.mark.root
def test_image_list_imports_nothing_heavy(tmp_path: Path) -> None:
    assert not HEAVY & modules(tmp_path, "image", "list")


def test_version_imports_no_client(tmp_path: Path) -> None:
    found = modules(tmp_path, "version")
    assert not HEAVY & found
    assert not {"kurma_core.client", "kurma_core.models", "dataclasses", "typing", "re", "enum"} & found


@pytest.mark.root
def test_a_pod_is_asked_for_without_what_runs_it(tmp_path: Path) -> None:
    """Until the client is there, which may be a daemon's: what reads a command line runs no pod."""
    program = """
import sys
from kurma_core.cli.main import main
def connect(settings):
    print(*sys.modules, file=sys.__stdout__)
    sys.exit(0)
main(["run", "--rm", "--net", "none", "-p", "80:80", "example.com/image", "--exec", "/bin/true"], connect=connect)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "kurma_core.api.network_options" in found
    heavy = {
        "pluggy",
        "inspect",
        "dataclasses",
        "json",
        "socket",
        "kurma_core.plugins.registry",
        "kurma_core.hookspecs",
    }
    assert not (HEAVY | heavy | {"kurma_core.networking.manager", "kurma_core.pods.manager"}) & found


def test_config_show_without_files_imports_nothing_heavy(tmp_path: Path) -> None:
    assert not HEAVY & modules(tmp_path, "config", "show")


def test_help_imports_typer_and_no_command(tmp_path: Path) -> None:
    """Nor commands of plugins, once the index knows their lines of help."""
    assert "kurma_dashboard.command" in modules(tmp_path, "--help")
    found = modules(tmp_path, "--help")
    assert "typer" in found
    assert not (HEAVY - {"click", "typer"}) & found
    assert not {"kurma_core.client", "kurma_core.cli.commands.run", "kurma_core.cli.commands.image"} & found
    assert "kurma_dashboard.command" not in found


def test_help_of_a_command_imports_only_that(tmp_path: Path) -> None:
    found = modules(tmp_path, "logs", "--help")
    assert "kurma_core.cli.commands.logs" in found
    assert (
        not {"kurma_core.client", "kurma_core.cli.commands.run", "kurma_core.cli.commands.image", "rich"} & found
    )
