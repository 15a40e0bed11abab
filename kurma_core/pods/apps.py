"""An app of a pod, as people name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import AppNotFoundError

if TYPE_CHECKING:
    from kurma_core.models.pod import AppStatus, PodRecord


def the_app(record: PodRecord, app: str | None) -> AppStatus:
    """The pod's app of that name; None: its only one.

    :raises AppNotFoundError: there is none, or not only one.
    """
    names = ", ".join(each.name for each in record.apps)
    for each in record.apps:
        if app == each.name or (app is None and len(record.apps) == 1):
            return each
    if app is not None:
        raise AppNotFoundError(f"pod {record.name} has no app {app}", hint=f"its apps: {names or 'none'}")
    if not record.apps:
        raise AppNotFoundError(f"pod {record.name} has no apps", hint=f"kurma app add {record.name} IMAGE")
    raise AppNotFoundError(f"pod {record.name} has several apps", hint=f"name one of {names}")
