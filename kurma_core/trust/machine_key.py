"""The signing keys of this machine: each made once, ed25519, without a passphrase, root's alone.

A key lies in a GnuPG home of its own, with two files of ours: ``fingerprint`` and, as ``public.asc``, its public
half. An agent runs only while a key is made or used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kurma_core import cancellation
from kurma_core.errors import TrustError
from kurma_core.linux.files import lock_file, locked
from kurma_core.linux.process import wait_pidfd
from kurma_core.trust import keystore

_AGENT_ENDS = 5.0  # seconds


class MachineKey:
    """:param home: the GnuPG home; made, 0700, when a key is.
    :param called: the key's name in errors and in its user ID.
    """

    def __init__(self, home: str, called: str = "this machine's key") -> None:
        self.home = home
        self._called = called

    def known(self) -> str | None:
        """Its fingerprint, if it has been made."""
        try:
            with open(f"{self.home}/fingerprint") as file:
                text = file.read().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TrustError(
                f"cannot read {self._called} {self.home}: {error.strerror}", path=self.home
            ) from error
        if not keystore.is_fingerprint(text):
            raise TrustError(
                f"{self._called} is damaged: {self.home}/fingerprint holds no fingerprint",
                hint=f"remove {self.home}; what was signed with the key is built and signed again",
                path=self.home,
            )
        return text

    def public_key(self) -> str:
        """The file that holds its public half."""
        return f"{self.home}/public.asc"

    def fingerprint(self) -> str:
        """Its fingerprint; the key is made if need be. :raises TrustError: it cannot be made."""
        known = self.known()
        if known is not None:
            return known
        try:
            os.makedirs(self.home, 0o700, exist_ok=True)
            os.chmod(self.home, 0o700)
            lock = lock_file(f"{self.home}/lock", flock=cancellation.lock)
        except OSError as error:
            raise TrustError(
                f"cannot make {self._called} in {self.home}: {error.strerror}", path=self.home
            ) from error
        try:
            return self.known() or self._make()
        finally:
            os.close(lock)

    def _make(self) -> str:
        """Runs with the lock held. A key that was made and not yet recorded is taken."""
        from kurma_core.trust.gpg import gpg_in, gpg_reason

        with self._short_home() as (_, home):
            gpg = gpg_in(home)
            there = [key["fingerprint"] for key in gpg.list_keys(secret=True)]
            if not there:
                made = gpg.gen_key(
                    gpg.gen_key_input(
                        key_type="EDDSA",
                        key_curve="ed25519",
                        key_usage="sign",
                        name_real=f"Kurma, {self._called}",
                        name_email="kurma@localhost",
                        expire_date="0",
                        no_protection=True,
                    )
                )
                if not made.fingerprint:
                    raise TrustError(f"gpg cannot make {self._called} in {self.home}: {gpg_reason(made.stderr)}")
                there = [made.fingerprint]
            fingerprint = str(there[0])
            self._write("public.asc", gpg.export_keys(fingerprint))
            self._write("fingerprint", fingerprint + "\n")
        return fingerprint

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all, also after a power cut."""
        new = f"{self.home}/{name}.new"
        with open(new, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, f"{self.home}/{name}")
        directory = os.open(self.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def sign(self, source: str | Iterable[bytes]) -> bytes:
        """An armored detached signature over a file, or over bytes as they come.

        :raises TrustError: it cannot be made.
        """
        from kurma_core.trust.signatures import detached_signature

        fingerprint = self.fingerprint()
        # One at a time: each ends the agent when it is done.
        with locked(f"{self.home}/lock", flock=cancellation.lock), self._short_home() as (directory, home):
            made, gpg = detached_signature(directory, fingerprint, source, home=(f"--homedir={home}",))
            if made is None:
                what = source if isinstance(source, str) else "the image"
                raise TrustError(f"gpg cannot sign {what} with {self._called}: {gpg.reason()}")
        return made

    @contextmanager
    def _short_home(self) -> Iterator[tuple[str, str]]:
        """A private directory, and in it a short name of our GnuPG home, where the agent's socket lies. The agent
        ends with the block."""
        from kurma_core.trust.gpg import private_directory

        with private_directory() as directory:
            home = f"{directory}/home"
            os.symlink(os.path.abspath(self.home), home)
            try:
                yield directory, home
            finally:
                _end_agent(home)


def _end_agent(home: str) -> None:
    """End the agent that gpg started for that home, and see it gone; none is success."""
    import shutil
    import signal
    import subprocess

    talk = shutil.which("gpg-connect-agent")
    if talk is None or not os.path.exists(f"{home}/S.gpg-agent"):
        return
    asked = subprocess.run(
        [talk, "--homedir", home, "--no-autostart", "GETINFO pid", "/bye"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_AGENT_ENDS,
    )
    said = [line.partition(" ")[2] for line in asked.stdout.splitlines() if line.startswith("D ")]
    if not said or not said[0].isdigit():
        return
    try:
        agent = os.pidfd_open(int(said[0]))
    except ProcessLookupError:
        return
    try:
        subprocess.run(
            [talk, "--homedir", home, "--no-autostart", "KILLAGENT", "/bye"],
            capture_output=True,
            check=False,
            timeout=_AGENT_ENDS,
        )
        if not wait_pidfd(agent, _AGENT_ENDS):
            signal.pidfd_send_signal(agent, signal.SIGKILL)
    finally:
        os.close(agent)
