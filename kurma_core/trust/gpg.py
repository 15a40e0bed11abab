"""Runs GnuPG: in a private home directory, without the system's configuration, network or web of trust."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from kurma_core.cancellation import current
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
#: Bytes of any file that gpg writes for us.
_LARGEST_FILE = 1 << 20
_PIPE = 1 << 20
# Names of an agent's socket must fit 107 bytes.
_LONGEST_HOME = 60
_PREFIX = "kurma-gpg-"
#: Seconds after which a directory without a lock was left by a dead process.
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
    """Removes directories that killed processes left: those without a lock. One that was made just now may not be
    locked yet."""
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


def read_key(file: str) -> bytes:
    """A file of the keystore. :raises TrustError: it cannot be read."""
    try:
        with open(file, "rb") as source:
            return source.read(_LARGEST_KEY)
    except OSError as error:
        raise TrustError(f"cannot read the key {file}: {error.strerror}", path=file) from error


def gpg_reason(output: object) -> str:
    """The last thing that gpg said to people."""
    lines = [line for line in str(output).split("\n") if line and not line.startswith("[GNUPG:]")]
    return lines[-1].removeprefix("gpg: ") if lines else "it says nothing"


class GpgProcess:
    """A gpg that is running, or has ended."""

    def __init__(self, process: subprocess.Popen[bytes], status: str, messages: str) -> None:
        self.process = process
        self._status = status
        self._messages = messages

    @property
    def stdin(self) -> IO[bytes]:
        return cast("IO[bytes]", self.process.stdin)

    def feed(self, pieces: Iterable[bytes]) -> bool:
        """Writes all pieces to its standard input, and closes it. False: gpg ended before it had read them."""
        try:
            for piece in pieces:
                self.stdin.write(piece)
            self.stdin.close()
        except BrokenPipeError:
            return False
        return True

    def wait(self) -> int:
        """Its exit code. Ended early where the operation is cancelled."""
        with current().waking(self.process.kill):
            return self.process.wait()

    def statuses(self) -> list[list[str]]:
        """Word and fields of each status line, once it has ended."""
        with open(self._status, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
        prefix = "[GNUPG:] "
        return [line.removeprefix(prefix).split(" ") for line in lines if line.startswith(prefix)]

    def words(self) -> list[str]:
        """The words alone."""
        return [word for word, *_ in self.statuses()]

    def reason(self) -> str:
        """The last thing that it said to people."""
        with open(self._messages, encoding="utf-8", errors="replace") as file:
            return gpg_reason(file.read())


@contextmanager
def running_gpg(
    directory: str,
    arguments: Sequence[str],
    *,
    home: Sequence[str] | None = None,
    stdin: int | IO[bytes] = subprocess.PIPE,
    stdout: int = subprocess.DEVNULL,
    passphrase: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[GpgProcess]:
    """A running gpg, which is ended when the context is left.

    Its status lines and messages go to files: a pipe might be full while gpg waits for more input. Files that it
    writes are limited, so that a status that it repeats without end does not fill the disk.

    :param directory: private; gets the files ``status`` and ``messages``.
    :param home: the options that name its home; None: the directory, without an agent.
    :param passphrase: given to it by a pipe of its own, and nowhere else.
    :param environment: the caller's own, whose configuration and agent are used; None: none of that.
    :raises HostError: gpg is not installed.
    """
    command = [gpg_program(), "--batch"]
    if environment is None:
        command += [*OPTIONS, "--no-tty", *(home or (f"--homedir={directory}", "--no-autostart"))]
    said = [f"{directory}/status", f"{directory}/messages"]
    with contextlib.ExitStack() as files:
        status, messages = (files.enter_context(open(path, "xb")) for path in said)
        passed = [status.fileno()]
        command.append(f"--status-fd={status.fileno()}")
        if passphrase is not None:
            secret, end = os.pipe()
            files.callback(os.close, secret)
            try:
                os.write(end, passphrase + b"\n")  # less than a pipe holds
            finally:
                os.close(end)
            passed.append(secret)
            command += ["--pinentry-mode=loopback", f"--passphrase-fd={secret}"]
        clean = {"PATH": os.environ.get("PATH", os.defpath), "HOME": directory, "LC_ALL": "C"}
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=stdin,
            stdout=stdout,
            stderr=messages,
            pipesize=_PIPE,
            pass_fds=passed,
            env=clean if environment is None else environment,
            cwd="/" if environment is None else None,
        )
        try:
            # The agent of the caller, which gpg may start, has the caller's limits. gpg itself turns core dumps
            # off, and fails if their limit changes meanwhile.
            if environment is None and stdout in (subprocess.PIPE, subprocess.DEVNULL):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
            yield GpgProcess(process, *said)
        finally:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                close_pipe(pipe)
            process.wait()


def close_pipe(pipe: IO[bytes] | None) -> None:
    """Closes a pipe to or from gpg; what was not written by now is not wanted."""
    if pipe is not None:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
