"""A stranger's plugin, from wheel to use: wheels of the core and of the examples, in a clean environment."""

import json
import os
import shutil
import subprocess

import pytest

from tests.kit.installed import EXAMPLES, build, build_examples, examples, install, uninstall

pytestmark = pytest.mark.full

EXAMPLE = EXAMPLES / "isolator"
DISTRIBUTION, MODULE = "kurma-example-nofile", "kurma_example_nofile"

LISTING = """
import json, sys
from kurma_core.config import load
from kurma_core.plugins.registry import PluginRegistry
registry = PluginRegistry(load(sys.argv[1]))
print(json.dumps([info.to_json() for info in registry.listing()]))
"""

USE = """
import sys
from kurma_core.config import load
from kurma_core.errors import KurmaError
from kurma_core.hookspecs.isolator import IsolatorHost
from kurma_core.plugins.registry import PluginRegistry
try:
    registry = PluginRegistry(load(sys.argv[1]))
    registry.check_required()
    driver = registry.driver("kurma.isolators", "nofile")
    print(driver.compile("example.com/nofile", {"limit": 100}, "app", IsolatorHost({}, 1)).plan.rlimits["nofile"])
except KurmaError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="session")
def wheels(wheels):
    """The directory of wheels, with those of all examples."""
    build_examples(wheels)
    return wheels


@pytest.fixture
def example(clean, wheels):
    """The clean environment with the example in it."""
    install(clean, wheels, DISTRIBUTION)
    yield clean
    uninstall(clean, DISTRIBUTION)


@pytest.fixture
def run(clean, tmp_path):
    """``run(program, "kurma.yml's text")``: what the program prints in the clean environment."""

    def run(program, text=""):
        config = tmp_path / "kurma.yml"
        config.write_text(text)
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONWARNINGS": "error"}
        command = [clean / "venv/bin/python", "-c", program, config]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def listed(run, text="", name="nofile"):
    """The rows of that plugin in a listing of the clean environment."""
    return [info for info in json.loads(run(LISTING, text)) if info["name"] == name]


def variant(tmp_path, wheels_name, **changes):
    """A wheel of a changed copy of the example; ``changes`` replace text in its two files."""
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for name, replacements in (
        ("pyproject.toml", changes["project"]),
        (f"{MODULE}.py", changes.get("module", {})),
    ):
        text = (source / name).read_text()
        for old, new in replacements.items():
            assert old in text
            text = text.replace(old, new)
        (source / name).write_text(text)
    if MODULE in changes["project"]:
        (source / f"{MODULE}.py").rename(source / f"{changes['project'][MODULE]}.py")
    wheels = tmp_path / wheels_name
    build(wheels, source)
    return wheels


def test_the_core_alone_comes_from_its_wheel(clean, run):
    where = run("import kurma_core, sys; print(kurma_core.__file__)")
    assert where.startswith(str(clean))
    assert json.loads(run(LISTING)) == []


def test_listed_and_used(example, run):
    assert listed(run) == [
        {
            "kind": "isolators",
            "name": "nofile",
            "distribution": DISTRIBUTION,
            "version": "0.1.0",
            "status": "ok",
            "reason": "",
            "enable": "",
            "loaded": "0.1.0",
            "process": "this command",
        }
    ]
    assert run(USE) == "(100, 100)"
    assert run(USE, "plugins: {isolators: {nofile: {config: {most: 50}}}}") == "(50, 50)"


@pytest.mark.parametrize("one", examples(), ids=str)
def test_every_example_comes_and_goes(clean, wheels, run, tmp_path, one):
    """18: from its wheel, beside the core alone; it is listed as it declares itself, and then no more."""
    (tmp_path / "memo").mkdir()
    memo = f"fetchers: {{memo: {{config: {{directory: {tmp_path}/memo}}}}}}"
    # A service works only where the configuration enables it.
    text = f"plugins: {{{memo}, services: {{webhook: {{config: {{url: http://127.0.0.1:1/}}}}}}}}"
    install(clean, wheels, one.distribution)
    try:
        (info,) = listed(run, text, one.name)
        assert (info["kind"], info["distribution"]) == (one.kind, one.distribution)
        assert (info["status"], info["reason"]) == ("ok", "")
    finally:
        uninstall(clean, one.distribution)
    assert "ok" not in [info["status"] for info in listed(run, text, one.name)]


def test_disabled(example, run, tmp_path):
    text = "plugins: {isolators: {nofile: {enabled: false}}}"
    (info,) = listed(run, text)
    assert (info["status"], info["reason"]) == ("disabled", f"disabled in {tmp_path}/kurma.yml")
    message = f"PluginNotFoundError: isolator plugin 'nofile' is disabled in {tmp_path}/kurma.yml"
    assert run(USE, text) == message


def test_required_and_missing(clean, run, tmp_path):
    text = "plugins: {isolators: {nofile: {required: true}}}"
    (info,) = listed(run, text)
    assert (info["distribution"], info["status"]) == (None, "failed")
    assert info["reason"] == f"not installed, and {tmp_path}/kurma.yml requires it"
    assert run(USE, text) == (
        f"PluginNotFoundError: no isolator plugin 'nofile' is installed, and {tmp_path}/kurma.yml requires it"
    )


def test_broken(example, run, tmp_path):
    newer = variant(
        tmp_path,
        "newer",
        project={'version = "0.1.0"': 'version = "0.2.0"'},
        module={"from typing import Any": "import nothing_of_this_name\nfrom typing import Any"},
    )
    install(example, newer, "--no-deps", "--upgrade", DISTRIBUTION)
    message = (
        f"isolator plugin 'nofile' of {DISTRIBUTION} 0.2.0 is broken: "
        "ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )
    (info,) = listed(run)
    assert (info["version"], info["status"], info["reason"]) == ("0.2.0", "failed", message)
    assert run(USE) == f"PluginError: {message}"


def test_colliding(example, run, tmp_path):
    other = variant(
        tmp_path,
        "other",
        project={DISTRIBUTION: "kurma-example-rival", MODULE: "kurma_example_rival"},
    )
    install(example, other, "--no-deps", "kurma-example-rival")
    try:
        infos = listed(run)
        assert [info["status"] for info in infos] == ["failed", "failed"]
        message = infos[0]["reason"]
        assert sorted(message.split(" claimed by ")[1].split(" and ")) == [
            "kurma-example-nofile 0.1.0",
            "kurma-example-rival 0.1.0",
        ]
        assert run(USE) == f"PluginCollisionError: {message}"
    finally:
        uninstall(example, "kurma-example-rival")
