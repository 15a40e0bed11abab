"""Reads and writes ``/pod/status.json``: the supervisor writes it, its call-ins read it."""

from __future__ import annotations

import os

from kurma_core.formats import small_json
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = "/pod/status.json"
VERSION = 1
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Least bytes to allocate for the next version; it gets twice the size of the current one otherwise.
_LEAST = 1 << 14


def write(value: dict[str, Any], path: str = PATH) -> None:
    """Replaces the file as a whole. Each write makes the file of the next and allocates its space, so that the
    next write succeeds on a full disk.

    :raises OSError: the file cannot be written; the old one is unchanged.
    """
    spare, after = f"{path}.next", f"{path}.after"
    content = small_json.encode_valid(value).encode() + b"\n"
    fd = os.open(spare, _FLAGS, 0o644)
    try:
        rest, at = memoryview(content), 0
        while at < len(content):
            at += os.pwrite(fd, rest[at:], at)
        os.ftruncate(fd, at)
    finally:
        os.close(fd)
    size = 2 * len(content)
    # The next file is made before the rename. The rename frees the old file's inode, and if that is the only free
    # one, another process may take it.
    made = _put_aside(after, size)
    os.rename(spare, path)
    if made:
        os.rename(after, spare)
    else:
        _put_aside(spare, size)


def _put_aside(spare: str, size: int) -> bool:
    """Makes a file with allocated space. :returns: whether the file exists."""
    try:
        fd = os.open(spare, _FLAGS, 0o644)
    except OSError:
        return False  # the next write does without allocated space
    try:
        os.posix_fallocate(fd, 0, max(_LEAST, size))
    except OSError:
        pass  # the disk is full: keep the space that could be allocated
    finally:
        os.close(fd)
    return True


def apps(path: str = PATH) -> dict[str, dict[str, Any]]:
    """The state of each app, by name.

    :raises SetupError: the file is missing or damaged.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value: dict[str, dict[str, Any]] = small_json.decode(file.read())["apps"]
        if not all(isinstance(app, dict) and "exited" in app for app in value.values()):
            raise ValueError("an app is missing its state")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path}: is damaged: {error}") from None
    return value
