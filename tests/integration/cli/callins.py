"""Call-ins, found from outside: by the process that has started them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def call_ins(client: int) -> Iterator[int]:
    """PIDs of the call-ins that this process has started, or a kurmad of the same state directory."""
    place = _variable(client, b"KURMA_DIR")
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if not {b"/opt/stager/run", b"/opt/stager/attach"} & set(file.read().split(b"\0")):
                continue
            with open(f"/proc/{name}/stat", "rb") as status:
                parent = int(status.read().rpartition(b")")[2].split()[1])
            if parent == client or _is_kurmad(parent, place):
                yield int(name)


def _is_kurmad(pid: int, place: bytes) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return (b"daemon" in words or b"kurmad" in words) and _variable(pid, b"KURMA_DIR") == place


def _variable(pid: int, name: bytes) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as file:
        found = [word for word in file.read().split(b"\0") if word.startswith(name + b"=")]
    return found[0] if found else b""  # in the middle of its exec
