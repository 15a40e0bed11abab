"""What an ELF program needs besides itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kurma_core.formats import elf

PROGRAM = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def ask(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_elf_finds_loader_and_libraries():
    """All in one directory, the C library's; what the interpreter is linked with is there, and is real."""
    loader = elf.loader_of(PROGRAM)
    assert loader is not None
    found = elf.libraries(loader, [PROGRAM], ask)
    assert len({os.path.dirname(place) for place in found}) == 1
    assert any(os.path.basename(place).startswith("libc.") for place in found)
    assert all(os.path.isfile(path) for path in found.values())
    assert loader not in found


def test_elf_says_what_is_no_program(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n" + "#" * 100)
    with pytest.raises(OSError, match="no 64-bit little-endian ELF program"):
        elf.loader_of(str(script))


def test_elf_names_a_missing_library():
    """The loader's own list tells it."""
    with pytest.raises(OSError, match=r"needs the library libnone\.so\.1.*/bin/x"):
        elf.libraries("/lib/ld.so", ["/bin/x"], lambda command: "\tlibnone.so.1 => not found\n")
