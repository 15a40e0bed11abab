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
    maps = _config_maps(client, found)
    # Also for Secrets and volumes, which another command may be removing.
    with all_locked(client, found.locks(maps), session.note):
        _store(client, found, values)
        for claim in found.claims:
            if not any(one.name == claim.name for one in client.volumes_list()):
                client.volume_create(claim.name, uid=claim.uid, gid=claim.gid, labels=claim.labels)
                session.line(f"volume {claim.name}: created")
        code = 0
        for wanted, options in made:
            done = project.apply(session, client, wanted, options, "pod ")
            code = code or done
        _forget(client, maps, keep=values.files)
    return code


def down(session: CommandSession, file: str, *, force: bool) -> None:
    """Removes the pods of a file, and its Secrets unless other pods name them. It can be repeated.

    :param force: also remove the volumes of PersistentVolumeClaims that no other pod uses.
    :raises KurmaError: the file is malformed, or something cannot be removed.
    """
    found = objects.read(file, lambda _: None)
    client = session.client.managing()
    maps = _config_maps(client, found)
    with all_locked(client, found.locks(maps), session.note):
        for workload in reversed(found.workloads):
            project.take_down(session, client, workload.project, workload.pod_names(), "pod ")
        _forget(client, maps)
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


def _config_maps(client: Api, found: Objects) -> set[str]:
    """The names of the file's ConfigMaps, and of those of which its present pods have files: ``--configmap`` may
    have named another file when they were made."""
    names, projects = set(found.configs), {workload.project for workload in found.workloads}
    for pod in client.pods():
        if pod.annotation(project.PROJECT) in projects:
            secrets = [one["name"] for app in pod.manifest["apps"] for one in app.get("secrets") or ()]
            parsed = filter(None, map(objects.parsed_secret, secrets))
            names |= {name for kind, name, _ in parsed if kind == "ConfigMap"}
    return names


def _forget(client: Api, names: Iterable[str], keep: Collection[str] = ()) -> None:
    """Removes files of the ConfigMaps that no pod uses any more. :param names: of the ConfigMaps."""
    configs.forget(client, tuple(map(objects.config_prefix, names)), keep)


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
