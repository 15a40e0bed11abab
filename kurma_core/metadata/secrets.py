"""A pod's metadata token and signing key: files that only root can read, made at the pod's first start."""

from __future__ import annotations

import os

from kurma_core.linux.files import replace_file

#: Bytes of randomness in each; the token is written in hexadecimal digits.
_TOKEN_SIZE, _KEY_SIZE = 24, 64
_HEX = frozenset("0123456789abcdef")


class Secrets:
    """A pod's secrets, which no output shows.

    :param token: part of the service's URL. :param key: signs for the pod.
    """

    __slots__ = ("key", "token")

    def __init__(self, token: str, key: bytes) -> None:
        self.token = token
        self.key = key


def token_file(directory: str) -> str:
    return f"{directory}/token"


def keep(directory: str) -> Secrets:
    """Returns the pod's secrets; makes them if they are missing or incomplete.

    :param directory: their own directory, which the pod's stager does not see.
    :raises OSError: they cannot be written.
    """
    found = load(directory)
    if found is not None:
        return found
    os.makedirs(directory, mode=0o700, exist_ok=True)
    made = Secrets(os.urandom(_TOKEN_SIZE).hex(), read_key(directory) or os.urandom(_KEY_SIZE))
    replace_file(token_file(directory), made.token.encode() + b"\n")
    replace_file(f"{directory}/key", made.key.hex().encode() + b"\n")
    return made


def load(directory: str) -> Secrets | None:
    """Reads the secrets; None: they are missing or incomplete. :raises OSError: they cannot be read."""
    token = _read(token_file(directory), _TOKEN_SIZE)
    key = read_key(directory)
    return None if token is None or key is None else Secrets(token.hex(), key)


def read_key(directory: str) -> bytes | None:
    """Reads the key; None: there is none. :raises OSError: it cannot be read."""
    return _read(f"{directory}/key", _KEY_SIZE)


def _read(path: str, size: int) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        text = os.read(fd, 4 * size).decode("ascii", "replace").removesuffix("\n")
    finally:
        os.close(fd)
    return bytes.fromhex(text) if len(text) == 2 * size and _HEX.issuperset(text) else None
