"""Running a command inside an app: the stager's ``run`` call-in (Kurma Stager Specification, ``run``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.pods.apps import the_app
from kurma_core.pods.inside import call, check_runs
from kurma_core.pods.records import read_document

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.services import Services


def enter(
    services: Services, record: PodRecord, app: str | None, document: Mapping[str, Any], stdio: Stdio
) -> int:
    """The command's exit code.

    :param document: what stands in the ``run`` call-in's JSON; user, group, environment and working directory
        are the app's own where it does not name them.
    :raises PodStateError: the pod does not run.
    :raises PodEndedError: it has ended, and the command was killed.
    :raises AppNotFoundError: no such app, or several and none named.
    """
    app = the_app(record, app).name
    check_runs(record, "enter")
    text = json.dumps({**_account(services, record, app, document.get("user")), **document}).encode()
    terminal = bool(document.get("tty"))
    return call(services, record, "run", (app,), stdio, text, what="enter", terminal=terminal)


def _account(services: Services, record: PodRecord, app: str, user: str | None) -> dict[str, Any]:
    """The specification has ``user`` and ``group`` required: the app's own, with its further groups. Another user
    that is asked for brings its own."""
    if user is not None:
        group, further = services.images.groups_of(record.images[app], user)
        return {"group": group, "supplementaryGIDs": list(further)}
    manifest = read_document(services.store.directory(record.uuid)).manifest.app(app)
    own = manifest.app
    if own is None:
        own = services.images.manifest(record.images[app]).app
    if own is None:
        return {}
    account: dict[str, Any] = {"user": own.user, "group": own.group}
    if own.supplementary_gids:
        account["supplementaryGIDs"] = list(own.supplementary_gids)
    return account
