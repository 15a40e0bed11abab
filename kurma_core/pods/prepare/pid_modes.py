"""Checks which PID namespace an app asks for by its annotation: the pod's, one of its own, the host's, or that of
another app of the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import AppNotFoundError, ManifestError, StagerError, UsageError
from kurma_core.models.pod import PID, PID_HOST, PID_OF_APP, PID_OWN, PID_POD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kurma_core.appc.image import App
    from kurma_core.appc.pod import PodApp
    from kurma_core.hookspecs.stager import StagerHooks

_WORDS = f"{PID_POD}, {PID_OWN}, {PID_HOST} or {PID_OF_APP}NAME"


def pid_mode(app: PodApp) -> str:
    """``pod``, ``own``, ``host`` or ``app:NAME``. :raises ManifestError: the annotation has another value."""
    word = app.annotation(PID)
    if word is None:
        return PID_POD
    if word in (PID_POD, PID_OWN, PID_HOST) or word.startswith(PID_OF_APP):
        return word
    raise ManifestError(f"app {app.name}: annotation {PID}", _WORDS, repr(word[:200]))


def check(app: PodApp, effective: App, apps: Collection[PodApp]) -> None:
    """Checks the PID namespace that an app asks for.

    :param effective: what the app runs. :param apps: the pod's apps.
    :raises AppNotFoundError: the pod has no app of that name. :raises UsageError: it is the app itself, or one in
        the host's namespace, which each app needs a grant for; or the app has event handlers, which run before and
        after the namespace exists.
    """
    word = pid_mode(app)
    if word == PID_HOST:
        for one in apps:
            if one.annotation(PID) == f"{PID_OF_APP}{app.name}":
                raise _host(one.name, app.name)
    if word in (PID_POD, PID_HOST):
        return
    if word != PID_OWN:
        other = word.removeprefix(PID_OF_APP)
        if other == app.name:
            raise UsageError(f"app {app.name}: it cannot share its own PID namespace", hint=f"write {PID_OWN}")
        found = [one for one in apps if one.name == other]
        if not found:
            raise AppNotFoundError(
                f"app {app.name} is to share the PID namespace of app {other}: the pod has no such app"
            )
        if found[0].annotation(PID) == PID_HOST:
            raise _host(app.name, other)
    if effective.event_handlers:
        raise UsageError(
            f"app {app.name}: with an event handler, an app cannot have the PID namespace {word}",
            hint=f"leave the handlers out, or use {PID_POD}",
        )


def _host(app: str, other: str) -> UsageError:
    return UsageError(
        f"app {app} cannot share the PID namespace of app {other}, which is the host's", hint=f"write {PID_HOST}"
    )


def check_stager(driver: StagerHooks, name: str, apps: Iterable[PodApp]) -> None:
    """:param name: of the stager. :raises StagerError: the stager gives apps only the pod's PID namespace."""
    for app in apps:
        word = app.annotation(PID)
        if word not in (None, PID_POD) and not driver.features().pid_namespaces:
            raise StagerError(
                f"stager {name} cannot give app {app.name} the PID namespace {word}",
                hint="run the pod with another stager",
            )
