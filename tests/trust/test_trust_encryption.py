"""A1: archives encrypted with a passphrase, by Kurma and by plain gpg, each read by the other."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from kurma_core.errors import DecryptionError, HostError, UsageError
from kurma_core.trust.encryption import encrypting, opened
from kurma_core.trust.gpg import private_directory, running_gpg
from tests.kit.keys import Signers
from tests.trust.conftest import Place

SECRET = b"pass phrase with spaces, \xc3\xa4 and \"'"
#: More than any pipe or buffer on the way holds.
CONTENT = b"an image's bytes\n" * 300_000


class Answers:
    """Somebody who gives these answers, one after the other."""

    def __init__(self, *answers: bytes | None, person: bool = False) -> None:
        self._answers = list(answers)
        self.attempts = len(answers) if person else 1
        self.asked: list[tuple[str, bool]] = []

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        self.asked.append((what, wrong))
        return self._answers.pop(0)


class Gpg:
    """Plain gpg, as people use it, with a passphrase in a file."""

    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self._home = home
        (home / "passphrase").write_bytes(SECRET + b"\n")

    def __call__(self, *arguments: str, stdin: bytes) -> bytes:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--quiet", "--no-autostart"]
        command += ["--pinentry-mode", "loopback", "--passphrase-file", str(self._home / "passphrase")]
        # --symmetric asks the agent only for a number of rounds that suits the machine.
        command += ["--s2k-count", "65536", *arguments]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout


@pytest.fixture
def gpg(tmp_path: Path) -> Gpg:
    return Gpg(tmp_path / "gpg")


#: The way of the draft (App Container Image, Image Archives), and what else is the same to a reader.
WAYS = {
    "draft": ("--digest-algo", "sha256", "--cipher-algo", "AES256", "--symmetric"),
    "armored": ("--armor", "--cipher-algo", "AES256", "--symmetric"),
    "packed": ("--compress-algo", "zip", "--cipher-algo", "AES256", "--symmetric"),
    "AES128": ("--cipher-algo", "AES128", "--symmetric"),
}


def pieces(message: bytes, size: int = 1 << 16) -> Iterator[bytes]:
    return (message[at : at + size] for at in range(0, len(message), size))


def decrypt(message: bytes, *answers: bytes | None, size: int = 1 << 16) -> bytes:
    return b"".join(opened(message[: 1 << 18], Answers(*answers), "image.aci")(pieces(message, size)))


@pytest.mark.parametrize("way", WAYS)
def test_what_gpg_encrypts_is_read(way: str, gpg: Gpg, place: Place) -> None:
    message = gpg(*WAYS[way], stdin=CONTENT)
    assert CONTENT[:100] not in message
    assert decrypt(message, SECRET) == CONTENT
    assert place.left() == []


def test_gpg_reads_what_is_encrypted(gpg: Gpg, tmp_path: Path, place: Place) -> None:
    with open(tmp_path / "image.aci", "wb") as out:
        with encrypting(out, SECRET) as encrypted:
            encrypted.write(CONTENT)
    message = (tmp_path / "image.aci").read_bytes()
    assert gpg("--decrypt", stdin=message) == CONTENT
    assert decrypt(message, SECRET, size=7777) == CONTENT
    assert message[2:4] == b"\x04\x09"  # a version 4 session key, AES-256
    assert place.left() == []


def test_small_messages(gpg: Gpg) -> None:
    for content in (b"", b"x", b"x" * 600):
        assert decrypt(gpg("--symmetric", stdin=content), SECRET) == content


def reason_of(run: Callable[[], object]) -> object:
    with pytest.raises(DecryptionError) as caught:
        run()
    return caught.value.data["reason"]


def test_a_wrong_passphrase(gpg: Gpg, place: Place) -> None:
    message = gpg("--symmetric", stdin=CONTENT)
    with pytest.raises(DecryptionError, match="the passphrase is wrong") as caught:
        decrypt(message, b"wrong")
    assert caught.value.data["reason"] == "wrong"
    assert "--passphrase-file" in str(caught.value.hint)
    assert place.left() == []


def test_a_person_may_mistype_it(gpg: Gpg) -> None:
    """The stream is read once, and goes on where it was when the right one comes."""
    message = gpg("--symmetric", stdin=CONTENT)
    person = Answers(b"wrong", b"worse", SECRET, person=True)
    assert b"".join(opened(message[: 1 << 18], person, "image.aci")(pieces(message))) == CONTENT
    assert person.asked == [("image.aci", False), ("image.aci", True), ("image.aci", True)]
    person = Answers(b"wrong", b"worse", person=True)
    assert reason_of(lambda: opened(message[: 1 << 18], person, "image.aci")) == "wrong"


def test_no_passphrase(gpg: Gpg) -> None:
    message = gpg("--symmetric", stdin=b"x")
    assert reason_of(lambda: decrypt(message, None)) == "passphrase"


@pytest.mark.parametrize("passphrase", [b"", b"two\nlines", b"a\0b", b"x" * 2000])
def test_what_is_no_passphrase(passphrase: bytes, gpg: Gpg) -> None:
    """gpg would take the beginning of it, and say nothing."""
    with pytest.raises(UsageError, match="passphrase"):
        decrypt(gpg("--symmetric", stdin=b"x"), passphrase)


@pytest.mark.parametrize("compressed", ["none", "zlib"])
@pytest.mark.parametrize("how", ["changed", "cut", "cut at the end", "followed"])
def test_a_message_that_was_changed_on_its_way(how: str, compressed: str, gpg: Gpg) -> None:
    message = gpg("--compress-algo", compressed, "--symmetric", stdin=os.urandom(300_000))
    middle = len(message) // 2
    changed = {
        "changed": message[:middle] + bytes([message[middle] ^ 1]) + message[middle + 1 :],
        "cut": message[:middle],
        "cut at the end": message[:-1],
        "followed": message + message,
    }[how]
    assert reason_of(lambda: decrypt(changed, SECRET)) == "damaged"


def test_messages_of_other_kinds(gpg: Gpg, signers: Signers, tmp_path: Path) -> None:
    """Each says what it is; and where no passphrase can help, nobody is asked for one."""
    made = signers.gpg
    made("--quick-generate-key", "reader <reader@example.com>", "future-default", "default", "never")
    to = ("--trust-model", "always", "--recipient", "reader@example.com")
    me = ("--local-user", signers.fingerprints["alice"])
    (tmp_path / "passphrase").write_bytes(SECRET)
    both = made(
        *me, "--pinentry-mode", "loopback", "--sign", "--symmetric", "--passphrase-file",
        str(tmp_path / "passphrase"), stdin=CONTENT,
    )  # fmt: skip
    with pytest.raises(DecryptionError, match="signed and encrypted in one"):
        decrypt(both, SECRET)
    for armor in ((), ("--armor",)):
        with pytest.raises(DecryptionError, match="public key"):
            opened(made(*armor, *to, "--encrypt", stdin=b"x"), Answers(), "image.aci")
        with pytest.raises(DecryptionError, match="that is not encrypted"):
            opened(made(*armor, *me, "--compress-algo", "none", "--sign", stdin=b"x"), Answers(), "image.aci")
    with pytest.raises(DecryptionError, match="not encrypted with AES"):
        decrypt(gpg("--cipher-algo", "CAST5", "--symmetric", stdin=b"x"), SECRET)


def test_the_passphrase_is_nowhere_to_be_read(gpg: Gpg, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in an argument nor in a variable of gpg, nor in a file; and no agent is there."""
    monkeypatch.setenv("KURMA_PASSPHRASE", SECRET.decode())
    message = gpg("--symmetric", stdin=CONTENT)
    plain = opened(message[: 1 << 18], Answers(SECRET), "image.aci")(pieces(message))
    assert next(plain)
    programs = [found for found in place.left() if found.isdigit()]
    assert [Path("/proc", pid, "comm").read_text() for pid in programs] == ["gpg\n"]
    (pid,) = programs
    assert SECRET not in Path("/proc", pid, "cmdline").read_bytes()
    assert b"PASS" not in Path("/proc", pid, "environ").read_bytes()
    for top, _, names in os.walk(place.path):
        for name in names:
            assert SECRET not in Path(top, name).read_bytes()
    plain.close()
    assert place.left() == []


def test_it_is_a_stream(gpg: Gpg) -> None:
    """The content comes while the message does; leaving it in the middle ends gpg and its feeder."""
    message = gpg("--compress-algo", "none", "--symmetric", stdin=os.urandom(20 << 20))
    taken = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces(message):
            taken += len(piece)
            yield piece

    plain: Generator[bytes] = opened(message[: 1 << 18], Answers(SECRET), "image.aci")(counted())
    assert next(plain)
    time.sleep(0.3)
    assert taken < len(message) // 2
    plain.close()
    now = taken
    time.sleep(0.05)
    assert taken == now


def test_what_ends_the_source_comes_through(gpg: Gpg) -> None:
    message = gpg("--symmetric", stdin=CONTENT)

    def broken() -> Iterator[bytes]:
        yield message[:1000]
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        b"".join(opened(message[: 1 << 18], Answers(SECRET), "image.aci")(broken()))


def test_gpg_that_fails_says_why(tmp_path: Path) -> None:
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(HostError, match=r"gpg cannot encrypt.*space"),
    ):
        with encrypting(full, SECRET) as encrypted:  # type: ignore[arg-type]
            encrypted.write(CONTENT)


def test_no_gpg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(HostError, match="gpg is not installed"):
        decrypt(b"\x8c\x0d", SECRET)
    with open(os.devnull, "wb") as out, pytest.raises(HostError, match="gpg is not installed"):
        encrypting(out, SECRET).__enter__()


def test_gpg_has_the_callers_limit_of_core_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gpg reads its limit and then sets it: if the limit is lowered in between, gpg fails where it lacks
    CAP_SYS_RESOURCE."""
    program = tmp_path / "gpg"
    program.write_text("#!/bin/sh\nread line\nulimit -H -c\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with private_directory() as home, running_gpg(home, (), stdout=subprocess.PIPE) as gpg:
        assert gpg.feed([b"\n"])
        assert gpg.process.stdout is not None
        said = gpg.process.stdout.read().decode().strip()
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert said == ("unlimited" if limit == resource.RLIM_INFINITY else str(limit // 512))
