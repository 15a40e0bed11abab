"""A client of a daemon is there in a few milliseconds: what it imports is held here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

from kurma_core import VERSION

PROGRAM = """
import sys
before = set(sys.modules)
from kurma_core.client import Settings, connect
client = connect(Settings(sys.argv[1], sys.argv[2], host=f"unix:{sys.argv[3]}"))
assert client.summaries() == []
client.close()
print(*sorted(set(sys.modules) - before))
"""
#: All of Kurma's that it takes, and of the standard library what costs some.
OURS = {"client", "remote", "remote.http", "remote.transport"}
CORE = {
    "config",
    "config.files",
    "config.schema",
    "errors",
    "json_text",
    "named_files",
    "schema",
    "value",
}
CORE |= {"api", "api.operations", "api.wire", "appc", "appc.types", "formats", "formats.small_json"}
CORE |= {"models", "models.health", "models.summary"}
#: Of the standard library: neither json nor what brings re, enum, collections or typing.
SMALL = {"types", "errno"}


def imported(directory: Path) -> set[str]:
    """Modules that a program imports to connect and to list, beyond those that Python begins with."""
    (directory / "kurma.json").write_text("{}")
    path = str(directory / "kurmad.sock")
    body = json.dumps([]).encode()
    head = f"HTTP/1.1 200 OK\r\nKurma-Version: {VERSION}\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(65536)
                connected.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                connected.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        words = [str(directory / "kurma.json"), str(directory / "state"), path]
        command = [sys.executable, "-I", "-c", PROGRAM, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return set(done.stdout.split())


def test_connecting_and_listing_imports_these_alone(tmp_path: Path) -> None:
    found = imported(tmp_path)
    ours = {name for name in found if name.startswith("kurma_core.")}
    assert ours - {"kurma_core.client"} == {f"kurma_core.client.{name}" for name in OURS} | {
        f"kurma_core.{name}" for name in CORE
    }
    others = {name.partition(".")[0] for name in found if not name.startswith(("kurma_core", "_"))}
    assert others <= SMALL
