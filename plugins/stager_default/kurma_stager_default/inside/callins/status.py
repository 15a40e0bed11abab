"""The call-in ``status``: prints the state of the pod's apps as JSON (Kurma Stager Specification, "status")."""

from __future__ import annotations

import os
import select
import sys

from kurma_core.formats import small_json
from kurma_stager_default.inside.errors import SetupError, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHOWN = ("pid", "exited", "exitCode", "exitReason", "message", "startedAt", "finishedAt", "log", "logDropped")
# Milliseconds to wait for the supervisor's answer; the core waits ten seconds for this call-in.
_PATIENCE = 2000


def main() -> int:
    try:
        apps = find()
    except SetupError as error:
        complain(f"status: {error}")
        return 1
    found = {name: {key: app[key] for key in _SHOWN if app.get(key) is not None} for name, app in apps.items()}
    sys.stdout.write(small_json.encode_valid(found) + "\n")
    return 0


def find(root: str = "") -> dict[str, dict[str, Any]]:
    """The state of each app: from the supervisor; if that does not answer, from status.json; if there is none yet,
    from the manifest.

    :param root: the directory that holds the stager's files, without a slash at its end.
    :raises SetupError: none of these can be read.
    """
    from kurma_stager_default.inside import manifest
    from kurma_stager_default.inside.pod import status_file

    try:
        return _asked(root)
    except SetupError as silent:
        try:
            return status_file.apps(root + status_file.PATH)
        except SetupError as unreadable:
            if os.path.lexists(root + status_file.PATH):
                raise SetupError(f"{silent}; {unreadable}") from None
    try:
        return {app.name: {"exited": False} for app in manifest.load(f"{root}/manifest").apps}
    except (manifest.ManifestError, OSError) as error:
        raise SetupError(str(error)) from None


def _asked(root: str) -> dict[str, dict[str, Any]]:
    from kurma_stager_default.inside.callins.control_client import Asking, Refused
    from kurma_stager_default.inside.pod.control_socket import PATH

    asking = Asking({"do": "status"}, path=root + PATH)
    try:
        poll = select.poll()
        poll.register(asking, select.POLLIN)
        if not poll.poll(_PATIENCE):
            raise SetupError("the pod's supervisor does not answer")
        answer, fds = asking.hear()
        if answer is None or not fds:
            raise SetupError("the pod's supervisor has ended")
        with open(fds[0], "rb") as file:
            file.seek(0)
            apps: dict[str, dict[str, Any]] = small_json.decode(file.read().decode())["apps"]
        return apps
    except Refused as refused:
        raise SetupError(str(refused)) from None
    finally:
        asking.close()
