"""The host half: the image that the plugin builds."""

import os
import subprocess

import kurma_stager_default
import pytest
from kurma_stager_default import elf, image, plugin

import kurma_core
from kurma_core.errors import StagerError
from kurma_core.hookspecs import DriverContext
from kurma_core.testing.stagers import StagerImageSourceContract


def make_driver(tmp_path):
    return plugin.kurma_stager().create(DriverContext(config={}, state_dir=str(tmp_path / "state")))


class TestContract(StagerImageSourceContract):
    @pytest.fixture
    def driver(self, tmp_path):
        return make_driver(tmp_path)


def test_the_programs_of_the_image(tmp_path):
    rootfs = tmp_path / "rootfs"
    rootfs.mkdir()
    make_driver(tmp_path).build(str(rootfs))
    changes = ["app-add", "app-rm", "app-start", "app-stop"]
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


def test_elf_says_what_is_no_program(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + "#" * 100)
    with pytest.raises(StagerError, match="no 64-bit little-endian ELF program"):
        elf.loader_of(str(script))


def test_a_missing_library_is_named(tmp_path):
    """The loader's own list tells it."""
    loader = elf.loader_of(image.interpreter())
    fake = tmp_path / "loader"
    fake.write_text("#!/bin/sh\necho '\tlibnone.so.1 => not found'\n")
    fake.chmod(0o755)
    assert loader is not None
    assert any(name.startswith("libc.so") for name in elf.libraries(loader, [image.interpreter()]))
    with pytest.raises(StagerError, match=r"needs the library libnone\.so\.1"):
        elf.libraries(str(fake), ["/bin/true"])


def test_the_fingerprint_follows_the_sources(monkeypatch, tmp_path):
    """H1: the image is made again when the plugin changes."""
    before = image.fingerprint()
    changed = tmp_path / "changed.py"
    changed.write_text("")
    sources = image._own_modules()
    monkeypatch.setattr(image, "_own_modules", lambda: [*sources[:-1], (sources[-1][0], str(changed))])
    assert image.fingerprint() != before
