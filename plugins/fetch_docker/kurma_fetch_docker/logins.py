"""Who we are to a registry: ``auth.d``, Docker's ``config.json``, and its credential helpers."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any

from kurma_fetch_http.credentials import Credentials, canonical

from kurma_core.errors import FetchUnauthorizedError
from kurma_core.value import frozen
from kurma_fetch_docker.reference import HUB, HUB_NAMES

#: Seconds that a credential helper may take.
_HELPER_TIMEOUT = 30.0


@frozen
class Login:
    """A user and a password; or, with ``user`` empty, a token to be exchanged for others."""

    user: str
    password: str


class Logins:
    """Looked up by registry, when one asks for credentials.

    :param auth_dir: counts before Docker's own file.
    :param docker_config: path of ``config.json``; "" for where Docker looks for it.
    """

    def __init__(self, auth_dir: str, docker_config: str = "") -> None:
        self._credentials = Credentials(auth_dir)
        self._path = docker_config or _docker_config()

    def find(self, registry: str) -> Login | None:
        """:raises FetchUnauthorizedError: the file is malformed, or a helper fails."""
        for name in HUB_NAMES if registry == HUB else (registry,):
            found = self._credentials.login(name)
            if found is not None:
                return Login(*found)
        return self._from_docker(registry)

    def bearer(self, registry: str) -> str | None:
        """The value of ``Authorization`` for a registry that ``auth.d`` has a token for."""
        header = self._credentials.header(registry)
        return header if header is not None and header.startswith("Bearer ") else None

    def _from_docker(self, registry: str) -> Login | None:
        try:
            with open(self._path, "rb") as file:
                config = json.load(file)
            auths = dict(config.get("auths") or {})
            helpers = dict(config.get("credHelpers") or {})
            store = config.get("credsStore")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise FetchUnauthorizedError(f"{self._path}: cannot be read: {error}", path=self._path) from None
        names = _names(registry)
        for name in names:
            if name in helpers:
                return _ask_helper(str(helpers[name]), name)
        if store:
            for name in names:
                found = _ask_helper(str(store), name)
                if found is not None:
                    return found
        by_host = {_host(key): value for key, value in auths.items()}
        for name in names:
            entry = by_host.get(_host(name))
            if isinstance(entry, dict) and (login := _decoded(entry, self._path)) is not None:
                return login
        return None


def _docker_config() -> str:
    directory = os.environ.get("DOCKER_CONFIG") or os.path.join(os.path.expanduser("~"), ".docker")
    return os.path.join(directory, "config.json")


def _names(registry: str) -> tuple[str, ...]:
    """What Docker may have stored a registry under."""
    if registry == HUB:
        return ("https://index.docker.io/v1/", *HUB_NAMES)
    return (registry, f"https://{registry}", f"http://{registry}")


def _host(key: str) -> str:
    return canonical(key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0])


def _decoded(entry: dict[str, Any], path: str) -> Login | None:
    if entry.get("identitytoken"):
        return Login("", str(entry["identitytoken"]))
    if entry.get("username"):
        return Login(str(entry["username"]), str(entry.get("password", "")))
    if not entry.get("auth"):
        return None
    try:
        user, _, password = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise FetchUnauthorizedError(f"{path}: holds an entry that cannot be decoded", path=path) from None
    return Login(user, password.rstrip("\0"))


def _ask_helper(name: str, server: str) -> Login | None:
    """``docker-credential-NAME get``; None: it knows of no credentials."""
    import subprocess

    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise FetchUnauthorizedError(f"credential helper {name!r}: not a name")
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(
            [program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise FetchUnauthorizedError(
            f"credential helper {program} is not installed", hint="it is named in Docker's config.json"
        ) from None
    except subprocess.TimeoutExpired:
        raise FetchUnauthorizedError(f"credential helper {program}: no answer in time") from None
    if done.returncode != 0:
        text = (done.stdout + done.stderr).decode(errors="replace").strip()
        if "not found" in text.lower():
            return None
        raise FetchUnauthorizedError(f"credential helper {program} failed: {text[:200]}")
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise FetchUnauthorizedError(f"credential helper {program}: its answer is malformed") from None
    return Login("" if user == "<token>" else user, secret)
