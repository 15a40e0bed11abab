"""The units in ``packaging/systemd`` are what systemd understands, and what kurmad needs of it."""

import configparser
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.client.remote.http import Connection
from tests.kit.waiting import until

pytestmark = pytest.mark.root
UNITS = Path(__file__).parents[3] / "packaging" / "systemd"
NAMES = ("kurmad.service", "kurmad.socket", "kurma-gc.service", "kurma-gc.timer")


def unit(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNITS / name)
    return parser


def test_systemd_understands_the_units(tmp_path):
    for name in NAMES:
        text = (UNITS / name).read_text()
        for program in ("kurmad", "kurma"):
            text = text.replace(f"=/usr/bin/{program}\n", f"={shutil.which(program)}\n")
            text = text.replace(f"=/usr/bin/{program} ", f"={shutil.which(program)} ")
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in NAMES)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    ours = [line for line in done.stderr.splitlines() if "kurma" in line]
    assert (ours, done.returncode) == ([], 0)
    (tmp_path / "kurmad.socket").write_text("[Socket]\nListenStream=nowhere\n")  # it would say so
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "kurmad.socket"], capture_output=True, text=True
    )
    assert "kurmad.socket" in done.stderr


def test_a_group_and_directories(tmp_path):
    shutil.copytree(
        "/etc",
        tmp_path / "etc",
        symlinks=True,
        ignore=lambda d, names: {
            n for n in names if d != "/etc" or n not in ("group", "passwd", "shadow", "gshadow", "login.defs")
        },
    )
    command = ["systemd-sysusers", f"--root={tmp_path}", UNITS / "kurma.sysusers"]
    subprocess.run(command, check=True, capture_output=True)
    assert "\nkurma:x:" in (tmp_path / "etc" / "group").read_text()
    command = ["systemd-tmpfiles", "--create", f"--root={tmp_path}", UNITS / "kurma.tmpfiles"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "run" / "kurma").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "var" / "lib" / "kurma").stat().st_mode & 0o7777 == 0o700


def test_the_socket_is_where_commands_look():
    socket = unit("kurmad.socket")["Socket"]
    from kurma_core.client import socket_path
    from kurma_core.config import load

    assert socket["ListenStream"] == socket_path(None, load("/dev/null", None))
    assert (socket["SocketGroup"], socket["SocketMode"]) == ("kurma", "0660")


def test_activated_by_systemd_itself(make_house):
    """systemd's own program for it makes the socket, and starts kurmad for who connects."""
    house = make_house()
    path = f"{house.state}/run/kurmad.sock"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    command = ["systemd-socket-activate", "-l", path, "--", sys.executable, "-m", "kurma_core.cli.main"]
    words = ["--dir", house.state, "--config", house.config_file, "daemon", "run"]
    process = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: os.path.exists(path), "the socket")
        until(lambda: Connection.find(path), "the daemon").close()
        before = time.monotonic()
        with house.connect() as client:
            assert client.remote
            assert client.version()
        assert time.monotonic() - before < 10
        assert Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[2] == "kurma_core.cli.main"
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert os.path.exists(path)
    os.unlink(path)
