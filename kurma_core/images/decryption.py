"""Who opens encrypted archives on their way into the store (A1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kurma_core.errors import DecryptionError

if TYPE_CHECKING:
    from kurma_core.image_store.stream import Decrypt, Plain
    from kurma_core.trust import Trust
    from kurma_core.trust.encryption import Passphrases


class Opener(Protocol):
    """Says how the archive that people call ``what`` is opened, should it be encrypted."""

    def of(self, what: str) -> Decrypt: ...


class Decryption:
    """By the passphrases that the user gives.

    :param passphrases: None: there are none.
    """

    def __init__(self, trust: Trust, passphrases: Callable[[], Passphrases] | None) -> None:
        self._trust = trust
        self._passphrases = passphrases

    def of(self, what: str) -> Decrypt:
        """Asks once, however often the archive is read."""
        known: list[Plain] = []

        def opened(head: bytes) -> Plain:
            if not known:
                passphrases = _Nobody() if self._passphrases is None else self._passphrases()
                known.append(self._trust.decryption(head, passphrases, what))
            return known[0]

        return opened


class _Nobody:
    attempts = 1

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        return None


class Refusal:
    """Images with host privilege come in without anybody there to give a passphrase, and are judged anew at each
    use, by bytes that anybody may look at."""

    def of(self, what: str) -> Decrypt:
        def opened(head: bytes) -> Plain:
            raise DecryptionError(
                "the archive is encrypted, and an image that runs with host privilege must not be",
                hint="publish it as it is; what it holds is protected by who may read it",
                reason="kind",
            )

        return opened
