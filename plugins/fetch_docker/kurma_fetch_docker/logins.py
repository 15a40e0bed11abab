"""Finds a registry's credentials: in ``auth.d``, and in the files of podman and Docker."""

from __future__ import annotations

import base64
import binascii
import errno
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from kurma_fetch_http.credentials import Credentials, canonical

from kurma_core.errors import FetchUnauthorizedError
from kurma_core.json_text import JsonError, loads
from kurma_core.value import frozen
from kurma_fetch_docker.credential_helpers import HELPER_TIMEOUT, ask_helper
from kurma_fetch_docker.reference import HUB, HUB_NAMES

if TYPE_CHECKING:
    from kurma_core.models.image import FetchCredentials

_KEYS = ("identitytoken", "registrytoken", "username", "password", "auth")
#: Key of Docker Hub in Docker's files.
_HUB_KEY = "https://index.docker.io/v1/"


@frozen
class Login:
    """A user and a password; or, with ``user`` empty, a refresh token.

    :param origin: the file that holds it, for messages.
    :param bearer: an access token to send unchanged, instead of user and password.
    """

    user: str
    password: str
    origin: str = ""
    bearer: str = ""

    def __repr__(self) -> str:
        return f"Login(from {self.origin})"


class Logins:
    """Finds logins when a registry asks for credentials.

    :param auth_dir: the directory ``auth.d``, which comes before the files.
    :param docker_config: the only file to read; "" for the files of podman and Docker.
    :param helper_timeout: seconds that a credential helper may take.
    """

    def __init__(self, auth_dir: str, docker_config: str = "", *, helper_timeout: float = HELPER_TIMEOUT) -> None:
        self._auth_dir = auth_dir
        self._credentials = Credentials(auth_dir)
        self._paths = (docker_config,) if docker_config else usual_files()
        self._helper_timeout = helper_timeout

    def find(self, registry: str, repository: str = "") -> Login | None:
        """Returns the first login for the repository, for one of its parents, or for the registry as a whole.

        :raises FetchUnauthorizedError: a file is malformed, or a helper fails.
        :raises ConfigError: a file of ``auth.d`` is malformed.
        """
        for name in HUB_NAMES if registry == HUB else (registry,):
            found = self._credentials.login(name)
            if found is not None:
                return Login(*found, origin=self._auth_dir)
            header = self._credentials.header(name)
            if header is not None:
                return Login("", "", origin=self._auth_dir, bearer=header.removeprefix("Bearer "))
        for path in self._paths:
            login = self._from_file(path, registry, repository)
            if login is not None:
                return login
        return None

    def _from_file(self, path: str, registry: str, repository: str) -> Login | None:
        try:
            with open(path, "rb", opener=_regular) as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FetchUnauthorizedError(f"{path}: cannot be read: {reason}", path=path) from None
        config = _mapping(_parsed(text, path), path, "")
        auths, helpers = (
            _mapping({} if config.get(key) is None else config[key], path, key) for key in ("auths", "credHelpers")
        )
        store = _text(config.get("credsStore"), path, "credsStore")
        names = _names(registry, repository)
        for name in names:
            if name in helpers:
                return self._ask(_text(helpers[name], path, f"credHelpers: {name}"), name, path)
        for name in (_HUB_KEY, *HUB_NAMES) if registry == HUB else (registry, f"https://{registry}"):
            if store and (found := self._ask(store, name, path)) is not None:
                return found
        entries = {_key(name): (name, entry) for name, entry in reversed(auths.items())}
        for name in names:
            written, entry = entries.get(_key(name), ("", {}))
            if (login := _decoded({} if entry is None else entry, path, f"auths: {written}")) is not None:
                return login
        return None

    def _ask(self, helper: str, server: str, path: str) -> Login | None:
        found = ask_helper(helper, server, path, self._helper_timeout)
        if found is None:
            return None
        user, secret = found
        return Login("" if user == "<token>" else user, secret, f"docker-credential-{helper}")


class GivenLogin(Logins):
    """A login for one registry, before those of this machine.

    :param others: the logins for other registries, such as mirrors.
    """

    def __init__(self, login: Login, registry: str, others: Logins) -> None:
        self._login = login
        self._registry = registry
        self._others = others

    def find(self, registry: str, repository: str = "") -> Login | None:
        return self._login if registry == self._registry else self._others.find(registry, repository)


def login_of(given: FetchCredentials) -> Login:
    """The login of credentials that a caller gives for one fetch; a token comes before a password."""
    origin = "the request"
    if given.identity_token:
        return Login("", given.identity_token, origin)
    if given.registry_token:
        return Login("", "", origin, given.registry_token)
    return Login(given.user, given.password, origin)


def _parsed(text: bytes, path: str) -> Any:
    """Parses JSON. :raises FetchUnauthorizedError: it is not JSON."""
    try:
        return loads(text)
    except JsonError as error:
        why = str(error) if text.strip() else "it is empty, which is not JSON"
        raise FetchUnauthorizedError(f"{path}: {why}", path=path) from None


def _mapping(value: Any, path: str, where: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _wrong(value, path, where, "an object")


def _text(value: Any, path: str, where: str) -> str:
    """Returns the text; "" for null."""
    return value or "" if isinstance(value, str | None) else _wrong(value, path, where, "text")


def _wrong(value: Any, path: str, where: str, expected: str) -> NoReturn:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    found = kinds.get(type(value), "a number")
    place = f"{path}: {where}" if where else path
    raise FetchUnauthorizedError(f"{place}: expected {expected}, found {found}", path=path)


def _regular(path: str, flags: int) -> int:
    """Opens only a regular file: reading a pipe may block for ever, and a device may have no end."""
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def usual_files(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the credential files of podman, skopeo and Docker, in podman's order (containers-auth.json(5))."""
    given = environment.get("REGISTRY_AUTH_FILE")
    if given:
        return (given,)
    home = environment.get("HOME") or os.path.expanduser("~")
    runtime = environment.get("XDG_RUNTIME_DIR")
    return (
        os.path.join(runtime, "containers/auth.json") if runtime else f"/run/containers/{os.getuid()}/auth.json",
        os.path.join(environment.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "containers/auth.json"),
        os.path.join(environment.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json"),
    )


def _names(registry: str, repository: str) -> tuple[str, ...]:
    """Returns the keys under which files may hold credentials for the repository, the most specific first."""
    if registry == HUB:
        return (*_scopes("docker.io", repository), _HUB_KEY, *HUB_NAMES)
    return (*_scopes(registry, repository), f"https://{registry}", f"http://{registry}")


def _scopes(registry: str, repository: str) -> tuple[str, ...]:
    parts = [registry, *repository.split("/")] if repository else [registry]
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


def _key(name: str) -> str:
    """Normalizes a key for comparison: drops the scheme and the API version (``https://HOST/v1/`` means the host).
    The rest after the host is a repository or a parent of repositories."""
    _, scheme, rest = name.partition("://")
    host, _, path = (rest if scheme else name).partition("/")
    path = path.strip("/")
    if scheme or path in ("v1", "v2"):
        path = ""
    return f"{canonical(host)}/{path}".rstrip("/")


def _decoded(value: Any, path: str, where: str) -> Login | None:
    entry = {
        key: _text(one, path, f"{where}: {key}")
        for key, one in _mapping(value, path, where).items()
        if key in _KEYS
    }
    if entry.get("identitytoken"):
        return Login("", entry["identitytoken"], path)
    if entry.get("registrytoken"):
        return Login("", "", path, entry["registrytoken"])
    if entry.get("username"):
        return Login(entry["username"], entry.get("password", ""), path)
    if not entry.get("auth"):
        return None
    try:
        user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        colon = ""
    if not colon:
        raise FetchUnauthorizedError(f"{path}: {where}: auth: expected USER:PASSWORD in base64", path=path)
    return Login(user, password.rstrip("\0"), path)
