"""An isolator plugin costs only the pods that use it; no command waits for a slow observer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.installed import unpack
from tests.kit.waiting import until

pytestmark = pytest.mark.root

PLUGIN = """
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan

print("noise at import")
open({marker!r}, "w").close()


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


OBSERVER = """
import time
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

def write(text):
    with open({marker!r}, "a") as file:
        file.write(text)


class Slow:
    def __init__(self, context):
        pass

    @hookimpl
    def pod_event(self, event):
        write(f"{{event.kind}} begins\\n")
        time.sleep(3)
        write(f"{{event.kind}} ends\\n")


@hookimpl
def kurma_observer():
    return Driver(Slow)
"""


@pytest.fixture
def run(house, tmp_path: Path, marker: Path):
    """``run(*OPTIONS)``: standard output and standard error of ``kurma run``, with the plugin installed."""
    return installed(house, tmp_path, "kurma.isolators", PLUGIN.format(marker=str(marker)))


def installed(house, tmp_path: Path, group: str, source: str):
    site = tmp_path / "site"
    unpack(site, "kurma-test-slow", f"[{group}]\nslow = kurma_test_slow", {"kurma_test_slow": source}, version="1")
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


def test_a_run_does_not_wait_for_an_observer_that_is_slow(house, tmp_path: Path, marker: Path) -> None:
    """18.1: it has a second for the events that are left, and the observer sleeps three for each."""
    run = installed(house, tmp_path, "kurma.observers", OBSERVER.format(marker=str(marker)))
    out, err = run()
    assert out == "done\n"
    seen = marker.read_text().splitlines()
    assert seen[0].endswith(" begins")
    missed = re.search(r"observer 'slow' missed (\d+) events? of pods", err)
    assert missed is not None, err
    ended = [line for line in seen if line.endswith(" ends")]
    assert len(ended) < len(seen), "the last one was not waited for"
