"""Pods, images, networks, volumes, secrets, usage and events as the page gets them: JSON.

Each value is named here: manifests, environments, commands, annotations and configurations may hold secrets, and
never leave kurmad.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kurma_core.api.host import Event, NetworkInfo, SecretInfo
    from kurma_core.api.images import ListedImage
    from kurma_core.api.pods import LogLine, Usage
    from kurma_core.api.volumes import VolumeInfo
    from kurma_core.models.pod import AppStatus, PodRecord

Json = Any
#: Pods of one answer at most.
MOST_PODS = 1000
_CREDENTIALS = re.compile(r"(//)[^/@\s]*@")


def pods_json(records: Iterable[PodRecord]) -> Json:
    """The pods, those that run first, then the newest first; at most :data:`MOST_PODS`.

    :returns: ``pods``, and ``left``: how many there are beyond them.
    """
    newest = sorted(records, key=lambda pod: pod.created_at, reverse=True)
    newest.sort(key=lambda pod: pod.state in ("stopped", "errored"))
    return {"pods": [_pod(pod) for pod in newest[:MOST_PODS]], "left": max(0, len(newest) - MOST_PODS)}


def _pod(pod: PodRecord) -> Json:
    return {
        "uuid": pod.uuid,
        "name": pod.name,
        "displayName": pod.display_name or pod.name,
        "state": pod.state,
        "reason": pod.reason,
        "exitCode": pod.exit_code,
        "createdAt": pod.created_at,
        "startedAt": pod.started_at,
        "finishedAt": pod.finished_at,
        "manager": pod.manager,
        "restartPolicy": pod.restart.policy,
        "restarts": pod.restart.count,
        "restartsAt": pod.restart.next,
        "stager": pod.stager,
        "apps": [_app(app, pod.images, pod.image_names) for app in pod.apps],
        "networks": [
            {"network": one.network, "interface": one.interface, "addresses": list(one.addresses)}
            for one in pod.attachments
        ],
        "hostNetwork": not pod.attachments,
        "ports": sorted({port.text for one in pod.attachments for port in one.ports}),
        "notes": list(pod.notes),
    }


def _app(app: AppStatus, images: Mapping[str, str], names: Mapping[str, str]) -> Json:
    return {
        "name": app.name,
        "state": app.state,
        "exitCode": app.exit_code,
        "says": app.says,
        "health": None if app.health is None else app.health.status,
        "ready": app.ready,
        "startedAt": app.started_at,
        "finishedAt": app.finished_at,
        "restarts": app.restarts,
        "image": images.get(app.name),
        "imageName": without_passwords(names.get(app.name) or ""),
    }


def images_json(images: Iterable[ListedImage]) -> Json:
    return [
        {
            "id": one.record.id,
            "name": one.record.name,
            "version": one.record.version,
            "names": [without_passwords(name) for name in one.record.names],
            "size": one.record.size + one.record.archive_size,
            "trust": one.trust,
            "fetchedAt": one.record.fetched_at,
            "lastUsed": one.record.last_used,
            "managers": list(one.record.managers),
        }
        for one in images
    ]


def networks_json(networks: Iterable[NetworkInfo]) -> Json:
    return [
        {
            "name": one.name,
            "driver": one.driver,
            "source": one.source,
            "interface": one.interface,
            "default": one.default,
            "problem": one.problem,
        }
        for one in networks
    ]


def volumes_json(volumes: Iterable[VolumeInfo]) -> Json:
    """Without sizes: to measure a volume takes as long as it has files."""
    return [
        {
            "name": one.name,
            "uid": one.uid,
            "gid": one.gid,
            "mode": one.mode,
            "createdAt": one.created_at,
            "pods": list(one.pods),
        }
        for one in volumes
    ]


def secrets_json(secrets: Iterable[SecretInfo]) -> Json:
    return [{"name": one.name, "pods": list(one.pods)} for one in secrets]


def usage_json(usages: Iterable[Usage]) -> Json:
    """Counters by pod: the page subtracts two of them."""
    return {
        one.uuid: {
            "clock": one.clock,
            "cpu": one.total.cpu,
            "memory": _working_set(one.total.memory, one.total.memory_reclaimable),
            "memoryLimit": one.total.memory_limit,
            "pids": one.total.pids,
            "received": one.network_received,
            "sent": one.network_sent,
        }
        for one in usages
    }


def _working_set(memory: int | None, reclaimable: int | None) -> int | None:
    return None if memory is None else max(0, memory - (reclaimable or 0))


def event_json(event: Event) -> Json:
    return {
        "seq": event.seq,
        "at": event.at,
        "subject": event.subject,
        "kind": event.kind,
        "id": event.id,
        "pod": event.detail.get("pod"),
        "name": without_passwords(event.name),
        "exitCode": event.detail.get("exitCode"),
        "reason": event.detail.get("reason"),
    }


def log_json(line: LogLine) -> Json:
    """An array, since there are many: app, time, stream, whether the line continues, text."""
    return [line.app, line.at, line.stream, line.partial, line.text.decode(errors="replace")]


def without_passwords(text: str) -> str:
    """Removes user and password from the addresses in the text."""
    return _CREDENTIALS.sub(r"\1", text)
