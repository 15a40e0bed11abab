"""Finds the loader and the shared libraries of an ELF program, to make images of this machine's programs."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PT_INTERP = 3


def loader_of(program: str) -> str | None:
    """The ELF loader that the kernel would start for ``program``; None: it is linked statically.

    :raises OSError: it cannot be read, or is not an ELF program of this word size and byte order.
    """
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or head[4] != 2 or head[5] != 1:
            raise OSError(errno.ENOEXEC, "no 64-bit little-endian ELF program", program)
        start = int.from_bytes(head[32:40], "little")
        size, count = int.from_bytes(head[54:56], "little"), int.from_bytes(head[56:58], "little")
        file.seek(start)
        table = file.read(size * count)
        for at in range(0, len(table), size):
            if int.from_bytes(table[at : at + 4], "little") == _PT_INTERP:
                file.seek(int.from_bytes(table[at + 8 : at + 16], "little"))
                return os.fsdecode(file.read(int.from_bytes(table[at + 32 : at + 40], "little")).rstrip(b"\0"))
    return None


def libraries(loader: str, objects: list[str], ask: Callable[[list[str]], str]) -> dict[str, str]:
    """The shared libraries of the given programs and modules: path on this machine, by path in the image. The
    latter is beside the C library, where the loader searches without any configuration.

    The loader itself resolves the libraries, by this machine's configuration.

    :param ask: runs a command to its end, and returns its output.
    :raises OSError: a library is missing on this machine.
    """
    found: dict[str, str] = {}
    for path in objects:
        for line in ask([loader, "--list", path]).splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if not arrow or name == loader:
                continue  # the kernel's own vdso, or the loader
            target = rest.split(" (")[0].strip()
            if not target.startswith("/"):
                raise OSError(errno.ENOENT, f"needs the library {name}, which this machine does not have", path)
            found[name] = target
    home = next((os.path.dirname(path) for name, path in found.items() if name.startswith("libc.")), "/lib")
    return {f"{home}/{os.path.basename(name)}": path for name, path in found.items()}
