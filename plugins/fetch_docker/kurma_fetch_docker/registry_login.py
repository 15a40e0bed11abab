"""Logs in to a registry: checks a user and a password with it, and keeps them in ``auth.d``."""

from __future__ import annotations

import json
import os

from kurma_fetch_http.credentials import Credentials

from kurma_core.errors import ConfigError, FetchError
from kurma_core.hookspecs.driver import DriverContext
from kurma_core.hookspecs.fetcher import FetchRequest
from kurma_core.linux.files import replace_file
from kurma_fetch_docker.logins import Login, Logins
from kurma_fetch_docker.reference import registry_of
from kurma_fetch_docker.registries import Endpoints


class _Given(Logins):
    """The one login that is to be checked, for any registry."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def find(self, registry: str, repository: str = "") -> Login | None:
        return self._login


def log_in(locator: str, user: str, secret: str, request: FetchRequest, context: DriverContext) -> str:
    """See :meth:`kurma_core.hookspecs.fetcher.FetcherHooks.log_in`. The registry is asked, no mirror of it. Notes
    that the registry asks for no credentials, and thus has not checked them.

    :raises ConfigError: another file of ``auth.d`` that is read earlier names the registry.
    """
    registry = registry_of(locator)
    given = _Given(Login(user, secret, origin="the command line"))
    if not Endpoints(context, request, given).client(registry, "").check_credentials():
        context.note(
            f"registry {registry} asks for no credentials: those of {user} are kept, but were not checked"
        )
    path = _path(context, registry)
    entry = {"hosts": [registry], "type": "basic", "user": user, "password": secret}
    try:
        os.makedirs(context.auth_dir, mode=0o700, exist_ok=True)
        replace_file(path, json.dumps(entry).encode() + b"\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: credentials cannot be written: {reason}", file=path) from None
    if Credentials(context.auth_dir).login(registry) != (user, secret):
        os.unlink(path)
        raise ConfigError(
            f"{path}: another file of {context.auth_dir}, which is read first, also names {registry}",
            hint=f"remove {registry} from that file",
            file=path,
        )
    return path


def log_out(locator: str, context: DriverContext) -> str:
    """See :meth:`kurma_core.hookspecs.fetcher.FetcherHooks.log_out`."""
    registry = registry_of(locator)
    path = _path(context, registry)
    try:
        os.unlink(path)
    except FileNotFoundError:
        raise FetchError(
            f"{locator}: Kurma is not logged in to {registry}: there is no {path}",
            hint="credentials may be in other files of auth.d, or in those of podman and Docker",
            url=locator,
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: cannot be removed: {reason}", file=path) from None
    return path


def _path(context: DriverContext, registry: str) -> str:
    return os.path.join(context.auth_dir, f"login-{registry}.json")
