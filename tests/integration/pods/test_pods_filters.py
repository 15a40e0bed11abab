"""An isolator plugin that compiles a filter of system calls, from the command line to the app."""

import os
import subprocess
import sys

import pytest

from tests.kit.installed import unpack

pytestmark = pytest.mark.root

PLUGIN = """
import errno, os
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.isolator import Compiled
from kurma_stager_default.inside.app.sandbox import instruction
from kurma_core.models.isolator import IsolatorPlan

NUMBERS = {"mkdir": {"x86_64": 83, "aarch64": 34}, "mkdirat": {"x86_64": 258, "aarch64": 34}}


class Refuse:
    def __init__(self, context):
        pass

    @hookimpl
    def compile(self, value):
        parts = [instruction(0x20, 0)]
        for call in value:
            parts += [instruction(0x15, NUMBERS[call][os.uname().machine], 0, 1)]
            parts += [instruction(0x06, 0x00050000 | errno.EXDEV)]
        return Compiled(IsolatorPlan(seccomp=b"".join([*parts, instruction(0x06, 0x7FFF0000)])))


@hookimpl
def kurma_isolator():
    return Driver(Refuse, isolators=("example.com/refuse",))
"""


@pytest.fixture
def plugins(tmp_path):
    directory = tmp_path / "plugins"
    entry = "[kurma.isolators]\nrefuse = kurma_test_refuse"
    unpack(directory, "kurma-test-refuse", entry, {"kurma_test_refuse": PLUGIN}, version="1")
    return str(directory)


def test_a_plugins_filter_holds(house, plugins):
    start = "from kurma_core.cli.main import main; raise SystemExit(main())"
    command = [sys.executable, "-c", start, "--dir", house.state, "--config", house.config_file]
    command += ["run", "--net", "none", "--strict-isolators"]
    command += ["--isolator", 'example.com/refuse=["mkdir", "mkdirat"]', "--exec", "/bin/sh", house.image]
    command += ["--", "-c", "mkdir /tmp/x; echo $?"]
    given = {**os.environ, "PYTHONPATH": plugins}
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "can't create directory '/tmp/x': Invalid cross-device link" in done.stderr


def test_what_holds_is_shown(house):
    """H2: in the record of a pod, and so in ``kurma show``."""
    with house.running("sleep 1000") as pod:
        notes = house.client.pod(pod.uuid).notes
    subjects = [note.split(":")[0] for note in notes]
    assert {"landlock", "devices", "keys"} <= set(subjects)
    command = [sys.executable, "-c", "from kurma_core.cli.main import main; raise SystemExit(main())"]
    command += ["--dir", house.state, "--config", house.config_file, "show", pod.uuid]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    for note in notes:
        assert f"note: {note}" in shown
