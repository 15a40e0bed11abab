"""Access to the page: tokens, the cookie made of them, roles, and the checks of requests.

There are two roles, each with a token: ``admin`` sees everything and changes pods; ``viewer`` sees what Kurma's
API shows to read-only callers, so no logs. The cookie holds a digest of the token, so that kurmad keeps no
sessions.

A browser sends a cookie with requests that a foreign page makes. Three checks refuse these: the request's Host
must be one of ours (a foreign name that resolves to 127.0.0.1 is not), its Origin must be that Host, and the
cookie is ``SameSite=Strict``.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING

from kurma_core.errors import HostError
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_dashboard.options import Options

ADMIN, VIEWER = ROLES = ("admin", "viewer")
#: The least length of a token that an administrator has written.
_SHORTEST = 20
_LONGEST = 200


class RefusedError(Exception):
    """A request is refused. :param status: of the answer. :param reason: for people."""

    def __init__(self, status: int, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.hint = status, reason, hint


# --- tokens ----------------------------------------------------------------------------------------------------


def token_path(directory: str, role: str) -> str:
    return f"{directory}/{role}.token"


def read_token(directory: str, role: str) -> str:
    """:raises HostError: it cannot be read, or other users can read it.
    :raises FileNotFoundError: there is none.
    """
    path = token_path(directory, role)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise HostError.of("cannot read a token of the dashboard", error) from None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise HostError(f"{path}: other users may know this token", hint=f"rm {path}; restart kurmad")
        token = file.read(_LONGEST + 1).decode("ascii", "replace").strip()
    if not _SHORTEST <= len(token) <= _LONGEST or not token.isascii() or not token.isprintable():
        raise HostError(
            f"{path}: a token must have {_SHORTEST} to {_LONGEST} printable ASCII characters",
            hint=f"rm {path}; restart kurmad",
        )
    return token


def make_tokens(directory: str) -> dict[str, str]:
    """Reads the token of each role, and makes a missing one. :raises HostError: they cannot be read or written."""
    found = {}
    for role in ROLES:
        try:
            found[role] = read_token(directory, role)
        except FileNotFoundError:
            found[role] = secrets.token_urlsafe(32)
            write_private(token_path(directory, role), found[role])
    return found


def write_private(path: str, text: str) -> None:
    """Writes a file of root's alone, wholly or not at all. :raises HostError: it cannot be written."""
    new = f"{path}.new"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            os.fchmod(fd, 0o600)
            file.write(f"{text}\n")
        os.replace(new, path)
    except OSError as error:
        raise HostError.of("dashboard: cannot write its files", error) from None


# --- requests --------------------------------------------------------------------------------------------------


@frozen
class Access:
    """Decides about requests.

    :param tokens: by role.
    """

    tokens: Mapping[str, str]
    options: Options

    def role_of_token(self, token: str) -> str | None:
        """None: the token is wrong."""
        return _match({role: known.encode() for role, known in self.tokens.items()}, token)

    def role_of_cookie(self, cookie: str | None) -> str | None:
        """None: the cookie is missing, wrong, or of an earlier token."""
        return _match({role: _session(token) for role, token in self.tokens.items()}, cookie or "")

    def cookie(self, role: str) -> str:
        """The value of the cookie for that role."""
        return _session(self.tokens[role]).decode()

    def check_host(self, host: str) -> None:
        """Refuses a name that is not ours: DNS of a foreign page may point to this host.

        :raises RefusedError: the name is not one of ours.
        """
        name = _without_port(host).lower()
        if name in ("localhost", *self.options.hosts):
            return
        try:
            address = ip_address(name)
        except ValueError:
            pass
        else:
            if address.is_loopback or self.options.remote:
                return
        raise RefusedError(
            403, "this name is not one of the dashboard's", "add it to `hosts` of the dashboard in kurma.yml"
        )

    def check_origin(self, headers: Mapping[str, str], *, required: bool) -> None:
        """Refuses requests that a foreign page has made.

        :param required: the request changes something, so a browser sends its Origin.
        :raises RefusedError: the request comes from another page, or does not say from which.
        """
        origin = headers.get("origin")
        ours = tuple(f"{scheme}://{headers['host']}".lower() for scheme in ("http", "https"))
        if (origin is None and required) or (origin is not None and origin.lower() not in ours):
            raise RefusedError(403, "the request does not come from this page")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RefusedError(403, "the request comes from another page")


def _session(token: str) -> bytes:
    return hmac.digest(token.encode(), b"kurma dashboard: cookie", "sha256").hex().encode()


def _match(known: Mapping[str, bytes], given: str) -> str | None:
    """The role with that secret; compares in constant time."""
    said = given.encode(errors="replace")
    found = [role for role, secret in known.items() if hmac.compare_digest(secret, said)]
    return found[0] if found else None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def port_of(host: str) -> str:
    """The port in a Host header, as far as it is digits."""
    port = host.rpartition(":")[2]
    return port if port.isascii() and port.isdigit() else "80"
