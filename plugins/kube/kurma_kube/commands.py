"""Runs and removes the objects of a Kubernetes file."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING

from kurma_compose import configs, project
from kurma_compose.lock import all_locked

from kurma_core.errors import ManifestError, SecretNotFoundError, UsageError
from kurma_core.value import frozen
from kurma_kube import objects, pods
from kurma_kube.environment import Values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kurma_core.api.operations import Api
    from kurma_core.hookspecs.command import CommandSession
    from kurma_kube.objects import Objects


@frozen
class Wishes:
    """Options of ``play``. :param configs: files of ConfigMaps. :param networks: empty: the default ones."""

    configs: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    replace: bool = False
    grants: tuple[str, ...] = ()
    insecure: frozenset[str] = frozenset()


def play(session: CommandSession, file: str, wishes: Wishes) -> int:
    """Makes the pods of a file run. Everything is read before anything is changed.

    :returns: the exit code: of the first app that could not be started, else 0.
    :raises KurmaError: an object is malformed, or cannot be made.
    """
    found = objects.read(file, session.note)
    for path in wishes.configs:
        more = objects.read(path, session.note)
        if not more.configs or more.workloads or more.claims or more.secrets:
            raise UsageError(f"--configmap: {path} must have ConfigMaps alone")
        found.configs.update(more.configs)
    values = Values(found, cache(lambda: [one.name for one in session.client.secrets_list()]))
    made = []
    for workload in found.workloads:
        some = pods.converted(workload, values, list(wishes.networks), session.note)
        options = project.Options(
            grants=wishes.grants, insecure=wishes.insecure, pulls=pods.pulls(workload), replace=wishes.replace
        )
        try:
            wanted = project.made(workload.project, some, file, options, session.note)
        except ManifestError as error:
            # The reader of pod files names the place in the pod, which is not in the file.
            place = "standard input" if file == "-" else file
            error.message = f"{place}: {workload.title}: {error.message.removeprefix(f'{place}: ')}"
            raise
        made.append((wanted, options))
    session.need_daemon()
    client = session.client.managing()
    # Also for Secrets and volumes, which another command for the file may be removing.
    with all_locked(client, (workload.project for workload in found.workloads), session.note):
        _store(client, found, values)
        for claim in found.claims:
            if not any(one.name == claim.name for one in client.volumes_list()):
                client.volume_create(claim.name, uid=claim.uid, gid=claim.gid, labels=claim.labels)
                session.line(f"volume {claim.name}: created")
        code = 0
        for wanted, options in made:
            done = project.apply(session, client, wanted, options, "pod ")
            code = code or done
        _forget(client, found, keep=values.files)
    return code


def down(session: CommandSession, file: str, *, force: bool) -> None:
    """Removes the pods of a file, and its Secrets unless other pods name them. It can be repeated.

    :param force: also remove the volumes of PersistentVolumeClaims that no other pod uses.
    :raises KurmaError: the file is malformed, or something cannot be removed.
    """
    found = objects.read(file, lambda _: None)
    client = session.client.managing()
    with all_locked(client, (workload.project for workload in found.workloads), session.note):
        for workload in reversed(found.workloads):
            project.take_down(session, client, workload.project, workload.pod_names(), "pod ")
        _forget(client, found)
        stored = client.secrets_list() if found.secrets else []
        for name in found.secrets:
            # Also those of keys that an earlier version of the file had.
            mine = [one for one in stored if one.name.startswith(objects.secret_prefix(name))]
            used = sorted({pod for one in mine for pod in one.pods})
            if used:
                session.note(f"secret {name}: kept, since other pods name it: {', '.join(used)}")
            elif _remove_secrets(client, (one.name for one in mine)):
                session.line(f"secret {name}: removed")
        project.remove_volumes(session, client, [claim.name for claim in found.claims if force])


def _store(client: Api, found: Objects, values: Values) -> None:
    """Stores the values of Secrets, and those of ConfigMaps that are mounted as files."""
    for name, keys in found.secrets.items():
        for key, value in keys.items():
            encoded = base64.b64encode(value).decode()
            client.secret_create(objects.secret_name(name, key), encoded, replace=True)
    configs.store(client, values.files)


def _forget(client: Api, found: Objects, keep: Collection[str] = ()) -> None:
    """Removes files of the ConfigMaps that no pod uses any more."""
    configs.forget(client, tuple(objects.config_prefix(name) for name in found.configs), keep)


def _remove_secrets(client: Api, names: Iterable[str]) -> bool:
    """Removes secrets. :returns: whether there was one."""
    removed = False
    for name in names:
        try:
            client.secret_rm(name)
            removed = True
        except SecretNotFoundError:
            continue
    return removed
