"""A1: where ``kurma`` gets passphrases from, and where it leaves none. Each a process of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.kit.waiting import until

KURMA = (sys.executable, "-m", "kurma_core.cli.main")
SECRET = "open sesame"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "kurma.json").write_text("{}")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("content")
    found = {name: value for name, value in os.environ.items() if name != "KURMA_PASSPHRASE"}
    return {**found, "KURMA_DIR": str(tmp_path / "state"), "KURMA_CONFIG": str(tmp_path / "kurma.json")}


def kurma(environment: dict[str, str], *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KURMA, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, **more},
        timeout=60,
    )


def build(tmp_path: Path, *words: str) -> tuple[str, ...]:
    root = str(tmp_path / "root")
    return ("image", "build", "--from-rootfs", root, "--name", "example.com/x", "-o", f"{tmp_path}/x.aci", *words)


def build_encrypted(environment: dict[str, str], tmp_path: Path, *words: str) -> str:
    """An archive encrypted by plain gpg, which derives its key in a hundredth of the time that Kurma's takes.

    :returns: the ID of the image.
    """
    built = kurma(environment, *build(tmp_path, *words))
    assert built.returncode == 0, built.stderr
    plain, home = f"{tmp_path}/plain.aci", tmp_path / "gpg"
    os.replace(f"{tmp_path}/x.aci", plain)
    home.mkdir(mode=0o700, exist_ok=True)
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--yes", "--no-autostart"]
    command += ["--pinentry-mode", "loopback", "--passphrase", SECRET, "--s2k-count", "65536"]
    subprocess.run([*command, "--output", f"{tmp_path}/x.aci", "--symmetric", plain], check=True)
    return built.stdout.strip()


def on_a_terminal(environment: dict[str, str], words: tuple[str, ...], *typed: str) -> tuple[int, str]:
    """Runs it on a terminal of its own; each answer is typed once it is asked for. Its code, and what is shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*KURMA, *words], environment)
    shown = b""
    answers = list(typed)
    seen = 0
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                piece = os.read(terminal, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        if answers and shown[seen:].rstrip(b" ").endswith(b":"):
            seen = len(shown)
            # getpass turns the echo off, and drops what was typed before.
            until(lambda: not termios.tcgetattr(terminal)[3] & termios.ECHO, "echo off")
            os.write(terminal, answers.pop(0).encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_from_a_file_and_from_the_environment(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text(f"{SECRET}\nmore\n")
    file.chmod(0o600)
    built = kurma(environment, *build(tmp_path, "--encrypt", "--passphrase-file", str(file)))
    assert (built.returncode, built.stderr) == (0, "")
    assert built.stdout.startswith("sha512-")
    archive = f"{tmp_path}/x.aci"
    for words, more in (
        (("--passphrase-file", str(file)), {"KURMA_PASSPHRASE": "the file comes first"}),
        ((), {"KURMA_PASSPHRASE": SECRET}),
    ):
        done = kurma(environment, "image", "validate", *words, archive, **more)
        assert (done.returncode, done.stdout) == (0, f"{archive}: example.com/x: a valid image\n"), done.stderr
    plain = kurma(environment, *build(tmp_path))
    assert plain.stdout == built.stdout, "the ID is that of the archive in it"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "{archive}: the archive is encrypted, and there is no passphrase for it"),
        ({"KURMA_PASSPHRASE": "wrong"}, "{archive}: the archive is encrypted, and the passphrase is wrong"),
    ],
)
def test_without_a_terminal_it_is_one_clear_line(
    more: dict[str, str], message: str, environment: dict[str, str], tmp_path: Path
) -> None:
    build_encrypted(environment, tmp_path)
    done = kurma(environment, "image", "validate", f"{tmp_path}/x.aci", **more)
    first, hint = done.stderr.splitlines()
    assert first == "kurma: " + message.format(archive=f"{tmp_path}/x.aci")
    assert hint == "  hint: give it by --passphrase-file FILE, in KURMA_PASSPHRASE, or at a terminal"
    assert (done.returncode, done.stdout) == (125, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: no such file"), (b"\nsecret\n", "has no passphrase in its first line")],
)
def test_a_file_without_one(
    content: bytes | None, message: str, environment: dict[str, str], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "passphrase").write_bytes(content)
    done = kurma(environment, *build(tmp_path, "--encrypt", "--passphrase-file", f"{tmp_path}/passphrase"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
    assert not os.path.exists(f"{tmp_path}/x.aci")


def test_nothing_to_encrypt_with(environment: dict[str, str], tmp_path: Path) -> None:
    done = kurma(environment, *build(tmp_path, "--encrypt"))
    assert done.returncode == 2
    assert done.stderr.startswith("kurma: cannot encrypt: there is no passphrase\n  hint: ")
    assert sorted(os.listdir(tmp_path)) == ["kurma.json", "root"]


def test_at_a_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    """Typed twice for a new one; once for one that is there, and again where it was mistyped; never shown."""
    code, shown = on_a_terminal(
        environment, build(tmp_path, "--encrypt"), SECRET, "something else", SECRET, SECRET
    )
    assert code == 0, shown
    assert "the two differ; try again" in shown
    archive = f"{tmp_path}/x.aci"
    code, shown = on_a_terminal(environment, ("image", "validate", archive), "wrong", SECRET)
    assert code == 0, shown
    assert shown.count(f"passphrase of {archive}: ") == 2
    assert "wrong passphrase; try again" in shown
    assert "a valid image" in shown
    assert SECRET not in shown


def test_asked_once_though_the_archive_is_read_twice(environment: dict[str, str], tmp_path: Path) -> None:
    """An early signature is over the tar: the archive is looked at, and then read again."""
    (tmp_path / "kurma.json").write_text(json.dumps({"trustedkeys": [f"{tmp_path}/keys"]}))
    archive = f"{tmp_path}/x.aci"
    image_id = build_encrypted(environment, tmp_path)
    code, shown = on_a_terminal(environment, ("image", "sign", "--early", archive), SECRET)
    assert (code, shown.count("passphrase of ")) == (0, 1), shown
    fingerprint = shown.split()[-1]
    place = tmp_path / "keys" / "root.d"
    place.mkdir(parents=True, mode=0o700)
    (place / fingerprint).write_bytes((tmp_path / "state" / "keys" / "public.asc").read_bytes())
    code, shown = on_a_terminal(environment, ("image", "verify", archive), "mistyped", SECRET)
    assert (code, shown.count("passphrase of ")) == (0, 2), shown
    assert image_id in shown
    code, shown = on_a_terminal(environment, ("image", "convert", archive), SECRET)
    assert (code, shown.count("passphrase of ")) == (0, 1), shown
    assert '"example.com/x"' in shown


@pytest.mark.parametrize("early", [False, True])
def test_signatures_of_encrypted_files(early: bool, environment: dict[str, str], tmp_path: Path) -> None:
    """Over the bytes as shipped, or, an early one, over the tar in them; the name in the manifest counts."""
    (tmp_path / "kurma.json").write_text(json.dumps({"trustedkeys": [f"{tmp_path}/keys"]}))
    file = tmp_path / "passphrase"
    file.write_text(SECRET)
    archive, given = f"{tmp_path}/x.aci", ("--passphrase-file", str(file))
    image_id = build_encrypted(environment, tmp_path, "--compress", "gzip")
    words = ("image", "sign", "--format", "json", *(["--early"] if early else []), archive)
    refused = kurma(environment, *words)
    assert refused.returncode == 125
    assert refused.stderr.startswith(f"kurma: {archive}: the archive is encrypted, and there is no passphrase")
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".sig", ".asc"))]
    signed = json.loads(kurma(environment, *words, *given).stdout)
    assert (signed["id"], signed["over"]) == (image_id, "tar" if early else "archive")
    place = tmp_path / "keys" / "prefix.d" / "example.com" / "x"
    place.mkdir(parents=True, mode=0o700)
    (place / signed["fingerprint"]).write_bytes((tmp_path / "state" / "keys" / "public.asc").read_bytes())
    verify = ("image", "verify", "--format", "json", archive)
    assert json.loads(kurma(environment, *verify, *given).stdout)["fingerprint"] == signed["fingerprint"]
    wrong = kurma(environment, *verify, KURMA_PASSPHRASE="wrong")
    assert wrong.returncode == 125
    assert wrong.stderr.startswith(f"kurma: {archive}: the archive is encrypted, and the passphrase is wrong")
    # Encrypted anew, the bytes are others, and the tar in them is the same.
    build_encrypted(environment, tmp_path)
    again = kurma(environment, *verify, *given)
    assert again.returncode == (0 if early else 125), again.stderr
    assert early or "does not fit" in again.stderr
    (tmp_path / "root" / "file").write_text("another")
    build_encrypted(environment, tmp_path)
    assert "does not fit" in kurma(environment, *verify, *given).stderr


def test_a_line_that_ends_otherwise_and_from_standard_input(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "passphrase").write_bytes(SECRET.encode() + b"\r\n")
    words = build(tmp_path, "--encrypt", "--passphrase-file", f"{tmp_path}/passphrase")
    assert kurma(environment, *words).returncode == 0
    assert kurma(environment, "image", "validate", f"{tmp_path}/x.aci", KURMA_PASSPHRASE=SECRET).returncode == 0
    command = [sys.executable, "-m", "kurma_core.cli.main", "image", "validate", "--passphrase-file", "-"]
    done = subprocess.run(
        [*command, f"{tmp_path}/x.aci"], input=SECRET.encode(), env=environment, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_a_file_that_others_may_read_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    """Told once, and taken all the same."""
    file = tmp_path / "passphrase"
    file.write_text(SECRET)
    note = f"kurma: --passphrase-file: {file}: others may read it (mode %s): chmod go= {file}\n"
    for mode, said in ((0o644, note % "0644"), (0o640, note % "0640"), (0o600, "")):
        file.chmod(mode)
        done = kurma(environment, *build(tmp_path, "--encrypt", "--passphrase-file", str(file)))
        assert (done.returncode, done.stderr) == (0, said)
    file.chmod(0o644)
    words = ("image", "validate", "--passphrase-file", str(file), f"{tmp_path}/x.aci")
    assert kurma(environment, *words).stderr == note % "0644"
