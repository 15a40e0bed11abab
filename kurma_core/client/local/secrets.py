"""Operations on secrets, done in this process."""

from __future__ import annotations

import base64

from kurma_core.errors import SecretError, UsageError
from kurma_core.pods.prepare import secrets
from kurma_core.secret_store import LARGEST, SecretStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.host import SecretInfo
    from kurma_core.client.local.managers import Managers

#: Most characters of a value in base64.
_LONGEST = 4 * (LARGEST // 3 + 1)


class LocalSecrets:
    """The methods of :class:`kurma_core.api.operations.Api` that are about secrets, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    def secrets_list(self) -> list[SecretInfo]:
        found = list(self._store("list secrets").scan())
        users = secrets.users(self._m.store)
        return [_info(name, changed, users) for name, changed in found]

    def secret(self, secret: str) -> SecretInfo:
        """:raises SecretNotFoundError: there is no such secret."""
        changed = self._store("show a secret").changed_at(secret)
        return _info(secret, changed, secrets.users(self._m.store))

    def secret_create(self, name: str, value: str, replace: bool) -> SecretInfo:
        """No error shows the value.

        :raises SecretExistsError: it exists, and ``replace`` is false.
        :raises UsageError: the name is wrong, or the value is not base64, empty or too large.
        """
        store = self._store("create a secret")
        try:
            # Longer ones are refused by their size, without the cost of decoding them.
            found = base64.b64decode(value[: _LONGEST + 4], validate=True)
        except ValueError:
            raise UsageError(
                f"cannot create secret {name[:40]}: its value must be base64-encoded",
                hint="printf %s VALUE | base64 -w0",
            ) from None
        store.write(name, found, replace=replace)
        return self.secret(name)

    def secret_rm(self, secret: str, force: bool) -> None:
        """:raises SecretNotFoundError: there is no such secret.
        :raises SecretError: pods name it, and ``force`` is false.
        """
        store = self._store("remove a secret")
        store.changed_at(secret)
        if not force and (pods := secrets.users(self._m.store).get(secret)):
            raise SecretError(
                f"cannot remove secret {secret}: pods name it: {', '.join(pods)}",
                hint=f"kurma rm {' '.join(pods)}; or --force: they cannot start again then",
                secret=secret,
            )
        store.remove(secret)

    def _store(self, what: str) -> SecretStore:
        self._m.need_root(what)
        self._m.check_state_directory()
        return SecretStore(self._m.config.state_dir)


def _info(name: str, changed: float, users: dict[str, list[str]]) -> SecretInfo:
    from kurma_core.api.host import SecretInfo
    from kurma_core.formats.timestamps import timestamp

    return SecretInfo(name, timestamp(changed), tuple(users.get(name, ())))
