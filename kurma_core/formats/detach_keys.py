"""Detach keys: parses their notation, and finds them in the input. The stager's image contains this module."""

from __future__ import annotations

#: As Docker and podman have it.
DEFAULT = "ctrl-p,ctrl-q"
#: The notation of one key, for errors.
HOW = "a character, or ctrl- and one of a-z @ [ \\ ] ^ _"
_CONTROL = "@abcdefghijklmnopqrstuvwxyz[\\]^_"


def parse(text: str) -> bytes:
    """``ctrl-p,ctrl-q``: single characters, or ``ctrl-`` and one of ``a-z @ [ \\ ] ^ _``; empty: none.

    :returns: the bytes that a terminal sends for those keys.
    :raises ValueError: a word is not a key; it names the word.
    """
    keys = bytearray()
    for word in text.split(",") if text else ():
        head, _, last = word.rpartition("-")
        if head == "ctrl" and len(last) == 1 and last in _CONTROL:
            keys.append(_CONTROL.index(last))
        elif len(word) == 1 and word.isascii() and word.isprintable():
            keys.append(ord(word))
        else:
            raise ValueError(f"{word!r} is not a key")
    return bytes(keys)


class DetachKeys:
    """Searches input for the keys. :attr:`seen`: all of them have come, in sequence."""

    __slots__ = ("_held", "_keys", "seen")

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = 0
        self.seen = False

    def look(self, data: bytes) -> bytes:
        """Returns the bytes that go on. The beginning of the keys is held back until the next byte decides."""
        keys = self._keys
        if not keys or (not self._held and keys[0] not in data):
            return data
        out = bytearray()
        for byte in data:
            while self._held and byte != keys[self._held]:
                # Release the shortest part of the held bytes that cannot begin the key sequence.
                held = keys[: self._held]
                cut = next(n for n in range(1, self._held + 1) if keys.startswith(held[n:]))
                out += held[:cut]
                self._held -= cut
            if byte != keys[self._held]:
                out.append(byte)
                continue
            self._held += 1
            if self._held == len(keys):
                self.seen = True
                break
        return bytes(out)
