"""An isolator plugin costs only the pods that use it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import until

pytestmark = pytest.mark.root

PLUGIN = """
import time
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan

print("noise at import")
with open({marker!r}, "w"):
    time.sleep(2)


class Slow:
    def __init__(self, context):
        print("noise at creation")

    @hookimpl
    def compile(self, value):
        print("noise in a call")
        return Compiled(IsolatorPlan(oom_score_adj=value))


@hookimpl
def kurma_isolator():
    return Driver(Slow, isolators=("example.com/slow",))
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "imported"


@pytest.fixture
def run(house, tmp_path: Path, marker: Path):
    """``run(*OPTIONS)``: standard output and standard error of ``kurma run``, with the plugin installed."""
    site = tmp_path / "site"
    info = site / "kurma_test_slow-1.dist-info"
    info.mkdir(parents=True)
    (site / "kurma_test_slow.py").write_text(PLUGIN.format(marker=str(marker)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kurma-test-slow\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[kurma.isolators]\nslow = kurma_test_slow\n")
    start = "from kurma_core.cli.main import main; raise SystemExit(main())"

    def run(*options: str) -> tuple[str, str]:
        command = [sys.executable, "-c", start, "--dir", house.state, "--config", house.config_file, "run"]
        command += ["--rm", "--net", "none", *options, "--exec", "/bin/echo", house.image, "--", "done"]
        environment = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
        return done.stdout, done.stderr

    return run


def test_a_plugin_that_is_not_used_is_not_imported(house, run, marker: Path) -> None:
    def run_without() -> bool:
        """Runs a pod without the plugin's isolator; whether the plugin was imported."""
        marker.unlink(missing_ok=True)
        assert run()[0] == "done\n"
        return marker.exists()

    assert run_without()  # it is not in the index yet
    until(lambda: not run_without(), "a run from the index")
    declarations = json.loads(Path(house.state, "plugins.json").read_text())["declarations"]
    assert ["example.com/slow"] in [each["declared"]["isolators"] for each in declarations.values()]

    out, err = run("--isolator", "example.com/slow=5")
    assert marker.exists()
    assert out == "done\n"
    for noise in ("noise at import", "noise at creation", "noise in a call"):
        assert noise in err
