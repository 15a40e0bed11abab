"""Makes the stager manifest of a pod (Kurma Stager Specification, Stager Manifest)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kurma_core.staging.stager_root import USER_NAMESPACE
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.hookspecs.pod_setup import AppSetup, PodSetup
    from kurma_core.models.isolator import IdRange, IsolatorPlan

#: The key of ``stagerConfig`` that is reserved for Kurma, and the version of its value.
RESERVED_KEY = "kurma.io"
RESERVED_VERSION = 1
#: The stager's directory of hosts files, which the core keeps up to date.
NAMES = "/pod/hosts"


def stager_manifest(
    pod: PodSetup,
    version: str,
    *,
    stop_timeout: float,
    log_size: int,
    log_count: int,
    terminal_size: tuple[int, int] | None = None,
) -> bytes:
    """The manifest as JSON.

    :param version: version of Kurma.
    :param stop_timeout: seconds between SIGTERM and SIGKILL for an app.
    :param log_size: bytes after which an app's log is rotated; ``log_count`` files are kept.
    :param terminal_size: initial rows and columns of the apps' terminals.
    """
    document = {
        "kurmaVersion": version,
        "name": pod.name,
        "pod": pod.manifest.to_json(),
        "images": dict(pod.images),
        "appImageOrder": {app.name: [layer.id for layer in app.layers] for app in pod.apps},
        "stagerConfig": {
            **pod.config,
            RESERVED_KEY: {
                "version": RESERVED_VERSION,
                "uuid": pod.uuid,
                "hostname": pod.hostname,
                "dns": None if pod.dns is None else {key: list(values) for key, values in pod.dns.items()},
                "hosts": [[address, list(names)] for address, names in pod.hosts],
                "names": NAMES if pod.names else None,
                "podPlan": _plan(pod.pod_plan),
                "keep": pod.keep,
                "stopTimeout": stop_timeout,
                "logs": {"size": log_size, "count": log_count},
                "userns": None if pod.userns is None else _userns(pod.userns.ids),
                "apps": {app.name: _app(pod, app, terminal_size) for app in pod.apps},
            },
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _userns(ids: IdRange) -> dict[str, Any]:
    whole = [[0, ids.first, ids.count]]
    return {"path": USER_NAMESPACE, "uids": whole, "gids": whole}


def _app(pod: PodSetup, app: AppSetup, size: tuple[int, int] | None) -> dict[str, Any]:
    terminal: object = app.terminal
    if app.terminal and size is not None:
        terminal = {"rows": size[0], "columns": size[1]}
    mapped = {volume.name for volume in pod.volumes if volume.idmap}
    return {
        "mounts": [
            {
                "volume": mount.volume,
                "path": mount.path,
                "readOnly": mount.read_only,
                "seed": mount.seed,
                "idmap": mount.volume in mapped,
            }
            for mount in app.mounts
        ],
        "environment": [list(pair) for pair in app.environment],
        "stdin": app.interactive,
        "stdinOpen": app.stdin_open,
        "terminal": terminal,
        "makeWorkingDirectory": app.make_working_directory,
        "replaceFiles": list(app.replace_files),
        "stopSignal": app.stop_signal,
        "plan": _plan(pod.plans[app.name]),
    }


def _plan(plan: IsolatorPlan) -> dict[str, Any]:
    """The plan for the stager, without the traffic limits, which the core applies to the pod's network namespace,
    and without the app's rights on the daemon's API."""
    return replace(plan, traffic=(), api=None).to_json()
