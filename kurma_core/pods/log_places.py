"""Where the logs of a pod's apps are: in the pod's directory, or in a directory of the host that the pod names.

The pod's annotation ``kurma.io/log-dir`` names the directory, an app's ``kurma.io/log-path`` the file below it.
Other programs rotate and remove these files.
"""

from __future__ import annotations

import os

from kurma_core.errors import StagerError, UsageError
from kurma_core.models.pod import LOG_DIRECTORY, LOG_PATH
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kurma_core.appc.pod import PodApp, PodManifest
    from kurma_core.hookspecs.stager import StagerHooks

#: Most bytes of a path of a log.
_LONGEST = 1024


@frozen
class OutsideLog:
    """A log in the pod's log directory.

    :param root: that directory; links on its own path are followed.
    :param path: relative to it; no link in this path is followed.
    """

    root: str
    path: str

    @property
    def whole(self) -> str:
        """The path of the file on the host."""
        return f"{self.root}/{self.path}"


def log_path(pod: PodManifest, app: PodApp) -> str | None:
    """The path of an app's log below the pod's log directory. Empty: the app has no log. None: the log is in the
    pod's directory."""
    given = app.annotation(LOG_PATH)
    if given is None and pod.annotation(LOG_DIRECTORY) is not None:
        return f"{app.name}.log"
    return given


def check_directory(pod: PodManifest, state_dir: str) -> None:
    """Checks the pod's log directory, before anything is made. :raises UsageError: the annotation has an invalid
    value, or leads into Kurma's own state."""
    directory = pod.annotation(LOG_DIRECTORY)
    if directory is None:
        return
    if not directory.startswith("/") or "\0" in directory or directory.rstrip("/") == "":
        raise UsageError(
            f"the pod's annotation {LOG_DIRECTORY} is {directory!r}",
            hint="name an absolute path of a directory of the host",
        )
    real, state = os.path.realpath(directory), os.path.realpath(state_dir)
    if f"{real}/".startswith(f"{state}/") or f"{state}/".startswith(f"{real}/"):
        raise UsageError(
            f"the pod's log directory {directory} is a place of Kurma's own state", hint="choose another one"
        )


def check_path(pod: PodManifest, app: PodApp) -> None:
    """Checks the path of an app's log. :raises UsageError: it is not a relative path, leaves the directory, or the
    pod has no log directory, or another app has the same log."""
    path = app.annotation(LOG_PATH)
    if path:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or not path.isprintable() or len(path) > _LONGEST:
            raise UsageError(
                f"app {app.name}: its annotation {LOG_PATH} is {path!r}",
                hint=f"name a file by a relative path without '..', of at most {_LONGEST} characters",
            )
        if pod.annotation(LOG_DIRECTORY) is None:
            raise UsageError(
                f"app {app.name} has the annotation {LOG_PATH}, and its pod has no log directory",
                hint=f"name a directory by --log-dir, or by the pod's annotation {LOG_DIRECTORY}",
            )
    own = log_path(pod, app)
    for other in pod.apps:
        if own and other.name != app.name and log_path(pod, other) == own:
            raise UsageError(
                f"apps {other.name} and {app.name} have the same log {own}",
                hint=f"choose another {LOG_PATH} for one of them",
            )


def check_stager(driver: StagerHooks, name: str, pod: PodManifest) -> None:
    """:raises StagerError: the pod or an app says where its logs are, which this stager does not support."""
    if pod.annotation(LOG_DIRECTORY) is None and all(app.annotation(LOG_PATH) is None for app in pod.apps):
        return
    if not driver.features().log_directories:
        raise StagerError(
            f"stager {name} does not write logs where a pod wants them",
            hint=f"run the pod with another stager, or without {LOG_DIRECTORY} and {LOG_PATH}",
        )


def outside_logs(manifest: Mapping[str, Any]) -> dict[str, OutsideLog | None]:
    """By app, the log in the pod's log directory; None: the app has no log. Other apps are left out.

    :param manifest: the pod manifest as JSON.
    """
    directory = _annotation(manifest, LOG_DIRECTORY)
    found: dict[str, OutsideLog | None] = {}
    for app in manifest.get("apps") or []:
        path = _annotation(app, LOG_PATH)
        if path is None and directory is not None:
            path = f"{app['name']}.log"
        if path is not None:
            found[app["name"]] = OutsideLog(directory.rstrip("/"), path) if path and directory else None
    return found


def _annotation(value: Mapping[str, Any], name: str) -> str | None:
    for one in value.get("annotations") or []:
        if one["name"] == name:
            return str(one["value"])
    return None
