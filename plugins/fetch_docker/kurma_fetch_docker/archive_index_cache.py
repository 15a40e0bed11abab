"""Caches the index of a compressed archive: the names, offsets and sizes of its files.

The cache is keyed by the archive file's inode, size and times, so that a changed file is read again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from threading import get_native_id

from kurma_core.json_text import loads
from kurma_core.value import frozen

#: Bytes of the largest cached document, and the number of cached archives.
_LONGEST = 1 << 20
_MOST = 64


@frozen
class Table:
    """The index of one tar.

    :param spans: offset and size in the tar, by name. :param links: target names of links, by name.
    :param documents: contents of small files, by name.
    """

    spans: Mapping[str, tuple[int, int]]
    links: Mapping[str, str]
    documents: Mapping[str, bytes]


def identity(path: str, descriptor: int) -> dict[str, object]:
    """Returns the cache key of an open file; it changes when the file is written to or replaced."""
    found = os.fstat(descriptor)
    names = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return {"path": path, **{name: getattr(found, name) for name in names}}


class Remembered:
    """The cache file of one archive, in ``state_dir/archives``. If it is lost or damaged, the archive is
    decompressed once more."""

    def __init__(self, state_dir: str, found: Mapping[str, object]) -> None:
        self._state_dir = state_dir
        self._identity = dict(found)
        text = json.dumps(self._identity, sort_keys=True)
        self._directory = os.path.join(state_dir, "archives")
        self._path = os.path.join(self._directory, f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.json")

    def load(self) -> Table | None:
        """Reads the cached index; None: there is none."""
        try:
            with open(self._path, "rb") as file:
                content = loads(file.read(), own=True)
            if content["version"] != 1 or content["identity"] != self._identity:
                return None
            os.utime(self._path)
            return Table(
                {str(name): (int(start), int(size)) for name, (start, size) in content["spans"].items()},
                {str(name): str(target) for name, target in content["links"].items()},
                {str(name): base64.b64decode(text) for name, text in content["documents"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def store(self, table: Table) -> None:
        """Writes the index to the cache; ignores errors."""
        documents = {
            name: base64.b64encode(content).decode()
            for name, content in table.documents.items()
            if len(content) <= _LONGEST
        }
        content = {
            "version": 1,
            "identity": self._identity,
            "spans": {name: list(span) for name, span in table.spans.items()},
            "links": dict(table.links),
            "documents": documents,
        }
        with contextlib.suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            temporary = f"{self._path}.{get_native_id()}"
            with open(temporary, "w", encoding="ascii", opener=_private) as file:
                json.dump(content, file)
            os.replace(temporary, self._path)
            self._prune()

    def _prune(self) -> None:
        entries = sorted(os.scandir(self._directory), key=lambda entry: entry.stat().st_mtime)
        for entry in entries[:-_MOST]:
            os.unlink(entry.path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
