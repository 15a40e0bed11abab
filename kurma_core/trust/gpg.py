"""Runs GnuPG: in a private home directory, without the system's configuration, network or web of trust."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kurma_core.errors import HostError, TrustError

if TYPE_CHECKING:
    import gnupg

#: No configuration of the system's, no network, no web of trust: the keys given count.
OPTIONS = (
    "--no-options",
    "--disable-dirmngr",
    "--no-auto-key-retrieve",
    "--no-auto-key-locate",
    "--trust-model=always",
    "--no-auto-check-trustdb",
)
_LARGEST_KEY = 1 << 20
# Names of an agent's socket must fit 107 bytes.
_LONGEST_HOME = 60
_PREFIX = "kurma-gpg-"
#: Seconds. Who makes a directory holds it long before.
_YOUNG = 60


@contextmanager
def private_directory() -> Iterator[str]:
    """A directory for us alone (0700) with a short path, removed afterwards."""
    place = tempfile.gettempdir()
    if len(place) > _LONGEST_HOME - 20:
        place = "/tmp"  # noqa: S108 (mkdtemp makes a name of its own there, 0700)
    _sweep(place)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=place)
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # sockets may vanish under our hands
        os.close(held)


def _sweep(place: str) -> None:
    """Takes away what killed processes left: directories of ours that nobody holds. One that was made just now may
    not be held yet."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(_PREFIX):
                continue
            with contextlib.suppress(OSError):
                fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    status = os.fstat(fd)
                    if status.st_uid == os.geteuid() and time.time() - status.st_ctime > _YOUNG:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(fd)


def gpg_program() -> str:
    """The program. :raises HostError: it is not installed."""
    found = shutil.which("gpg")
    if found is None:
        raise HostError("gpg is not installed", hint="apt-get install gnupg")
    return found


def gpg_in(home: str, *options: str) -> gnupg.GPG:
    """GnuPG in that home. :raises HostError: it is not installed."""
    import gnupg

    return gnupg.GPG(gpgbinary=gpg_program(), gnupghome=home, options=[*OPTIONS, *options])


def gpg_reason(output: object) -> str:
    """The last thing that gpg said to people."""
    lines = [line for line in str(output).splitlines() if line and not line.startswith("[GNUPG:]")]
    return lines[-1].removeprefix("gpg: ") if lines else "it says nothing"


def feed(process: subprocess.Popen[bytes], pieces: Iterable[bytes]) -> None:
    """Give it all that it reads on its standard input."""
    assert process.stdin is not None
    # It has heard enough where the signature is none.
    with contextlib.suppress(BrokenPipeError), process.stdin as stream:
        for piece in pieces:
            stream.write(piece)


def read_key(file: str) -> bytes:
    """A file of the keystore. :raises TrustError: it cannot be read."""
    try:
        with open(file, "rb") as source:
            return source.read(_LARGEST_KEY)
    except OSError as error:
        raise TrustError(f"cannot read the key {file}: {error.strerror}", path=file) from error
