"""What a program needs besides itself: its loader and its shared libraries."""

from __future__ import annotations

import os
import subprocess

from kurma_core.errors import StagerError

_PT_INTERP = 3


def loader_of(program: str) -> str | None:
    """The ELF loader that the kernel would start for ``program``; None: it is linked statically.

    :raises StagerError: it is no ELF program of this machine's word size and byte order.
    """
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or head[4] != 2 or head[5] != 1:
            raise StagerError(f"{program} is no 64-bit little-endian ELF program", path=program)
        start = int.from_bytes(head[32:40], "little")
        size, count = int.from_bytes(head[54:56], "little"), int.from_bytes(head[56:58], "little")
        file.seek(start)
        table = file.read(size * count)
        for at in range(0, len(table), size):
            if int.from_bytes(table[at : at + 4], "little") == _PT_INTERP:
                file.seek(int.from_bytes(table[at + 8 : at + 16], "little"))
                return os.fsdecode(file.read(int.from_bytes(table[at + 32 : at + 40], "little")).rstrip(b"\0"))
    return None


def libraries(loader: str, objects: list[str]) -> dict[str, str]:
    """Shared libraries that the given programs and modules load, by the name they are asked for.

    The loader itself is asked, so what counts is what this machine's configuration makes of it.

    :raises StagerError: one is missing, or the loader cannot tell.
    """
    found: dict[str, str] = {}
    for path in objects:
        done = subprocess.run(
            [loader, "--list", path], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
        )
        if done.returncode != 0:
            raise StagerError(f"{loader} cannot list the libraries of {path}: {done.stderr.strip()}", path=path)
        for line in done.stdout.splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if not arrow:
                continue  # the kernel's own vdso, or the loader
            target = rest.split(" (")[0].strip()
            if not target.startswith("/"):
                raise StagerError(f"{path} needs the library {name}, which this machine does not have", path=path)
            if name != loader:
                found[name] = target
    return found
