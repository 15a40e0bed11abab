"""Reads the values of the secrets that the apps of a pod name, for one start of the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import SecretError
from kurma_core.hookspecs.pod_setup import SecretSetup
from kurma_core.secret_store import SecretStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.appc.pod import PodApp
    from kurma_core.appc.secrets import AppSecret
    from kurma_core.models.isolator import IdRange
    from kurma_core.pods.record.pod_store import PodStore

#: Most bytes of ``NAME=VALUE`` with its final NUL: the kernel's limit for a string of the environment.
_VARIABLE = 128 << 10


def values(apps: Iterable[PodApp], ids: IdRange | None, state_dir: str) -> Mapping[str, tuple[SecretSetup, ...]]:
    """See :func:`.app_settings.secret_values`."""
    store = SecretStore(state_dir)
    return {
        app.name: tuple(_setup(app.name, secret, store, ids) for secret in app.secrets)
        for app in apps
        if app.secrets
    }


def _setup(app: str, secret: AppSecret, store: SecretStore, ids: IdRange | None) -> SecretSetup:
    what = f"app {app}: secret {secret.name}"
    try:
        value = store.value(secret.name)
    except SecretError as error:
        error.prefix(f"app {app}")
        raise
    if secret.environment is not None:
        if b"\0" in value:
            raise SecretError(
                f"{what}: its value has a NUL byte, which no variable can have",
                hint="mount it as a file",
                secret=secret.name,
            )
        if len(secret.environment.encode()) + len(value) + 2 > _VARIABLE:
            raise SecretError(
                f"{what}: its value is too large for a variable", hint="mount it as a file", secret=secret.name
            )
        return SecretSetup(secret.name, value, variable=secret.environment)
    first = 0
    if ids is not None:
        first = ids.first
        if max(secret.uid, secret.gid) >= ids.count:
            raise SecretError(
                f"{what}: the pod's user namespace has no user or group {max(secret.uid, secret.gid)}",
                hint=f"its IDs are 0 to {ids.count - 1}",
                secret=secret.name,
            )
    return SecretSetup(
        secret.name,
        value,
        path=secret.target,
        uid=first + secret.uid,
        gid=first + secret.gid,
        mode=int(secret.mode, 8),
    )


def users(store: PodStore) -> dict[str, list[str]]:
    """The names of the pods that name each secret. Pods whose definition is damaged never start, and do not count.

    :raises HostError: a definition cannot be read for want of descriptors or memory.
    """
    from kurma_core.errors import HostError, KurmaError

    found: dict[str, list[str]] = {}
    for uuid in store.uuids():
        try:
            document = store.directory(uuid).read_document()
        except HostError:
            raise  # the pod may start
        except KurmaError:
            continue
        for name in sorted({secret.name for app in document.manifest.apps for secret in app.secrets}):
            found.setdefault(name, []).append(document.name)
    return {name: sorted(pods) for name, pods in found.items()}
