"""Gets passphrases of encrypted archives: from a file, the environment, or a person at the terminal.

Never from the command line, which all users of the machine can read.
"""

from __future__ import annotations

import os
import stat
import sys

from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "KURMA_PASSPHRASE"
_ATTEMPTS = 3
_LARGEST = 1 << 16
_OTHERS = 0o044


class UserPassphrases:
    """:param file: of ``--passphrase-file``. :param variable: the value of :data:`VARIABLE`.
    :param before: called before the terminal is written to.
    """

    def __init__(self, file: str | None, variable: bytes | None, before: Callable[[], object]) -> None:
        self._file = file
        self._variable = variable
        self._before = before
        self._told = False
        given = file is not None or variable is not None
        #: Number of attempts.
        self.attempts = 1 if given or not _at_terminal() else _ATTEMPTS

    def get(self, what: str, *, wrong: bool, word: str = "passphrase") -> bytes | None:
        """The passphrase of the archive called ``what``; None: there is none.

        :param wrong: the previous passphrase was wrong. :param word: how the question calls it.
        :raises UsageError: the file cannot be read, or is empty.
        """
        given = self._given()
        if given is not None or not _at_terminal():
            return given
        if wrong:
            self._say("wrong passphrase; try again")
        return self._ask(f"{word} of {what}: ")

    def new(self, what: str) -> bytes:
        """A passphrase for a new archive; a person must type it twice.

        :raises UsageError: there is none.
        """
        given = self._given()
        if given is not None:
            return given
        if not _at_terminal():
            raise UsageError(
                "cannot encrypt: there is no passphrase",
                hint=f"give it by --passphrase-file FILE, in {VARIABLE}, or at a terminal",
            )
        for _ in range(_ATTEMPTS):
            first = self._ask(f"new passphrase for {what}: ")
            if first and first == self._ask("once more: "):
                return first
            self._say("the two differ; try again" if first else "the passphrase is empty; try again")
        raise UsageError("cannot encrypt: the two passphrases differ")

    def _given(self) -> bytes | None:
        if self._file is None:
            return self._variable
        from kurma_core.named_files import content

        path = "/dev/stdin" if self._file == "-" else self._file
        said = content(path, option="--passphrase-file", endless=True, largest=_LARGEST)
        first = said.split(b"\n")[0].removesuffix(b"\r")
        if not first:
            raise UsageError(f"--passphrase-file: {self._file} has no passphrase in its first line")
        self._tell_of_mode(path)
        return first

    def _tell_of_mode(self, path: str) -> None:
        """Warns, once, that other users may read the file."""
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) and mode & _OTHERS and not self._told:
            self._told = True
            self._say(
                f"--passphrase-file: {path}: others may read it (mode {stat.S_IMODE(mode):04o}): chmod go= {path}"
            )

    def _ask(self, prompt: str) -> bytes | None:
        """None: the person ended the input instead."""
        from getpass import getpass

        self._before()
        try:
            return os.fsencode(getpass("".join(char if char.isprintable() else "?" for char in prompt))) or None
        except EOFError:
            return None

    def _say(self, text: str) -> None:
        self._before()
        print(f"kurma: {text}", file=sys.stderr)


def _at_terminal() -> bool:
    """Whether a person may answer: standard input or standard error is a terminal."""
    return os.isatty(0) or os.isatty(2)
