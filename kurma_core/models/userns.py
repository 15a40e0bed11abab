"""Ranges of ids that user namespaces have."""

from __future__ import annotations

from kurma_core.schema import JsonValue, Whole
from kurma_core.value import frozen

#: The largest id there is; the one above it says "none".
MAX_ID = (1 << 32) - 2
#: A pod's annotation that says which user namespace it has.
ANNOTATION = "kurma.io/userns"

TYPE_CHECKING = False
if TYPE_CHECKING:
    Id = int
else:
    Id = Whole(1, MAX_ID)


@frozen
class IdRange(JsonValue):
    """Users and groups of the host that a pod's user namespace has: its 0 is ``first`` outside, and so on (H9)."""

    first: Id
    count: Id

    @classmethod
    def parse(cls, text: str) -> IdRange:
        """``UID:COUNT``. :raises ValueError: it is none, or root's own id is in it."""
        first, colon, count = text.partition(":")
        if not colon or not all(part.isascii() and part.isdecimal() and len(part) < 11 for part in (first, count)):
            raise ValueError(text)
        found = cls(int(first), int(count))
        if not (found.first and found.count and found.last <= MAX_ID):
            raise ValueError(text)
        return found

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def overlaps(self, other: IdRange) -> bool:
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}:{self.count}"


#: What people are told who say it wrongly.
USERNS_WORDS = "none, auto, or UID:COUNT with a UID from 1 on"


def userns_word(text: str) -> str:
    """What ``--userns`` takes: ``none``, ``auto`` or ``UID:COUNT``. :raises ValueError: another word."""
    if text not in ("none", "auto"):
        IdRange.parse(text)
    return text
