"""The host half: the image that the plugin builds."""

import os
import shutil
import subprocess
import sys

import kurma_stager_default
import pytest
from kurma_stager_default import image, plugin
from kurma_testing.stagers import StagerImageSourceContract

import kurma_core
from kurma_core.errors import StagerError
from kurma_core.hookspecs.driver import DriverContext


def make_driver(tmp_path):
    return plugin.kurma_stager().create(DriverContext(config={}, state_dir=str(tmp_path / "state")))


@pytest.mark.kurma_driver(plugin)
class TestContract(StagerImageSourceContract):
    pass


def test_the_programs_of_the_image(tmp_path):
    rootfs = tmp_path / "rootfs"
    rootfs.mkdir()
    make_driver(tmp_path).build(str(rootfs))
    changes = ["app-add", "app-reopen-log", "app-rm", "app-start", "app-stop", "app-update"]
    assert sorted(os.listdir(rootfs / "opt/stager")) == [
        *changes,
        *("attach", "bin", "lib", "logs", "run", "start", "status"),
    ]


def test_nothing_heavy_is_loaded_inside(tmp_path):
    """Private memory and start-up time of every pod."""
    script = "import sys; import kurma_stager_default.inside.main; print(*sys.modules)"
    packages = [os.path.dirname(module.__path__[0]) for module in (kurma_core, kurma_stager_default)]
    done = subprocess.run(
        [image.interpreter(), "-SB", "-c", script],
        env={"PYTHONPATH": ":".join(packages)},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {
        "re",
        "json",
        "enum",
        "typing",
        "dataclasses",
        "subprocess",
        "signal",
        "contextlib",
        "ctypes",
        "pathlib",
    }
    assert heavy & set(done.stdout.split()) == set()


def test_the_interpreter_is_the_real_one():
    """No virtual environment's link, no shim."""
    program = image.interpreter()
    assert os.path.realpath(program) == program
    with open(program, "rb") as file:
        assert file.read(4) == b"\x7fELF"


def test_a_program_that_no_image_can_be_made_of_is_named(tmp_path, monkeypatch):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + "#" * 100)
    monkeypatch.setattr(sys, "_base_executable", str(script))
    with pytest.raises(StagerError, match=rf"{script}: no 64-bit little-endian ELF program"):
        image.build(str(tmp_path / "rootfs"))


def test_the_fingerprint_follows_the_sources(monkeypatch, tmp_path):
    """H1: the image is made again when the plugin changes, also under a process that has asked before."""
    copies = {}
    for package, directory in image._directories("inside").items():
        copies[package] = str(tmp_path / package)
        shutil.copytree(directory, copies[package])
    monkeypatch.setattr(image, "_known", None)
    monkeypatch.setattr(image, "_directories", lambda *parts: copies)
    first = image.fingerprint()
    (tmp_path / "kurma_stager_default.inside" / "other").mkdir()  # as Python makes one
    assert image.fingerprint() == first
    with open(tmp_path / "kurma_core.linux" / "mounts.py", "a") as file:
        file.write("#")
    changed = image.fingerprint()
    assert changed != first
    (tmp_path / "kurma_core.linux" / "more.py").write_text("")
    more = image.fingerprint()
    assert more not in (first, changed)
    os.rename(tmp_path / "kurma_core.linux" / "more.py", tmp_path / "kurma_core.linux" / "renamed.py")
    assert image.fingerprint() not in (first, changed, more)
