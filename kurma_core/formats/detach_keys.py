"""Keys that a person leaves by (H8): as they are written down, and looked for in what is typed. Part of the light
library that ships inside the stager.
"""

from __future__ import annotations

#: As Docker and podman have it.
DEFAULT = "ctrl-p,ctrl-q"
#: How to write one.
HOW = "a character, or ctrl- and one of a-z @ [ \\ ] ^ _"
_CONTROL = "@abcdefghijklmnopqrstuvwxyz[\\]^_"


def parse(text: str) -> bytes:
    """``ctrl-p,ctrl-q``: single characters, or ``ctrl-`` and one of ``a-z @ [ \\ ] ^ _``; empty: none.

    :returns: the bytes that those keys type.
    :raises ValueError: names the word that is no key.
    """
    keys = bytearray()
    for word in text.split(",") if text else ():
        head, _, last = word.rpartition("-")
        if head == "ctrl" and len(last) == 1 and last in _CONTROL:
            keys.append(_CONTROL.index(last))
        elif len(word) == 1 and word.isascii() and word.isprintable():
            keys.append(ord(word))
        else:
            raise ValueError(f"{word!r} is no key")
    return bytes(keys)


class DetachKeys:
    """:attr:`seen` once all of them came, one after the other."""

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
                # The shortest part of what is held that cannot begin the keys any more.
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
