"""Credentials by host, from the files of ``auth.d``.

Each file ``*.json`` there holds one object (or a list of them), readable by its owner alone::

    {"hosts": ["example.com", "registry.example.com:5000"], "type": "basic", "user": "u", "password": "p"}
    {"hosts": ["example.com"], "type": "bearer", "token": "t"}

Documents of rkt are read as well: ``rktKind`` ``auth`` (of type ``basic`` or ``oauth``) and ``dockerAuth``.

Files are read in the order of their names; for each host the first file that names it counts. A host without a
port means the default ports.
"""

from __future__ import annotations

import base64
import os
import stat
from typing import Any

from kurma_core.errors import ConfigError


class Credentials:
    """Finds credentials by host. The files are read at the first look-up.

    :param directory: it need not exist; "" for none.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._found: dict[str, dict[str, str]] | None = None

    def header(self, host: str) -> str | None:
        """Returns the value of ``Authorization`` for ``host[:port]``; None: there are no credentials for it.

        :raises ConfigError: a file of the directory is malformed, or other users may read it.
        """
        entry = self._entries().get(canonical(host))
        if entry is None:
            return None
        if entry["type"] == "bearer":
            return f"Bearer {entry['token']}"
        return basic(entry["user"], entry["password"])

    def login(self, host: str) -> tuple[str, str] | None:
        """Returns user and password for ``host[:port]``; None: there are none, or only a token.

        :raises ConfigError: as :meth:`header`.
        """
        entry = self._entries().get(canonical(host))
        if entry is None or entry["type"] != "basic":
            return None
        return entry["user"], entry["password"]

    def _entries(self) -> dict[str, dict[str, str]]:
        if self._found is None:
            self._found = {}
            for path in self._files():
                for entry in _read(path):
                    for host in entry.pop("hosts"):
                        self._found.setdefault(canonical(host), entry)
        return self._found

    def _files(self) -> list[str]:
        try:
            names = sorted(os.listdir(self._directory)) if self._directory else []
        except FileNotFoundError:
            return []
        return [os.path.join(self._directory, name) for name in names if name.endswith(".json")]


def canonical(host: str) -> str:
    """Returns a host in lower case, without the default ports of http and https."""
    host = host.lower()
    for port in (":443", ":80"):
        host = host.removesuffix(port)
    return host


def basic(user: str, password: str) -> str:
    """Returns the value of ``Authorization`` for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _read(path: str) -> list[dict[str, Any]]:
    from kurma_core.json_text import loads

    try:
        with open(path, "rb", opener=_not_waiting) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{path}: not a regular file", file=path)
            if stat.S_IMODE(mode) & 0o077:
                raise ConfigError(
                    f"{path}: others may read these credentials", hint=f"chmod 600 {path}", file=path
                )
            content = loads(file.read())
    except IsADirectoryError:
        raise ConfigError(f"{path}: not a regular file", file=path) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read as credentials: {error.strerror}", file=path) from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read as credentials: {error}", file=path) from None
    entries = [_from_rkt(entry) for entry in (content if isinstance(content, list) else [content])]
    for entry in entries:
        _check(path, entry)
    return entries


def _not_waiting(path: str, flags: int) -> int:
    """Opens a file without waiting: opening a FIFO would block until it has a writer."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _from_rkt(entry: Any) -> Any:
    """Converts a document of rkt to our form; returns other and malformed documents unchanged."""
    if not isinstance(entry, dict) or entry.get("rktVersion") != "v1":
        return entry
    docker = entry.get("rktKind") == "dockerAuth"
    kind, hosts = ("basic", entry.get("registries")) if docker else (entry.get("type"), entry.get("domains"))
    given = entry.get("credentials")
    if not isinstance(given, dict) or kind not in ("basic", "oauth"):
        return entry
    return {**given, "hosts": hosts, "type": {"oauth": "bearer"}.get(kind, kind)}


_KEYS = {"basic": {"user", "password"}, "bearer": {"token"}}


def _check(path: str, entry: object) -> None:
    if not isinstance(entry, dict) or entry.get("type") not in _KEYS:
        raise ConfigError(f'{path}: expected an object with "type" of basic or bearer', file=path)
    wanted = _KEYS[entry["type"]] | {"hosts", "type"}
    if set(entry) != wanted:
        raise ConfigError(f"{path}: expected the keys {', '.join(sorted(wanted))}", file=path)
    hosts = entry["hosts"]
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ConfigError(f'{path}: expected "hosts" to be a list of names', file=path)
    for host in hosts:
        if not host or any(character in "/@?# " for character in host):
            raise ConfigError(
                f"{path}: {host!r} is not a host", hint="write example.com, or example.com:5000", file=path
            )
    if not all(isinstance(value, str) for key, value in entry.items() if key != "hosts"):
        raise ConfigError(f"{path}: expected texts", file=path)
    token = entry.get("token", "x")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        # The message does not repeat the token. The usual mistake is a line end after it.
        raise ConfigError(f'{path}: "token" must be printable ASCII without spaces, and not empty', file=path)
    if ":" in entry.get("user", ""):
        raise ConfigError(f'{path}: "user" must not hold a colon (RFC 7617)', file=path)
