"""Apps of a pod: the one that people name, and what a request puts over what manifests say."""

from __future__ import annotations

from kurma_core.appc.image import App, ImageManifest, Isolator, NameValue
from kurma_core.errors import AppNotFoundError
from kurma_core.pods.docker import docker_words
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.api.pods import AppOverrides
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


def with_isolators(own: tuple[Isolator, ...], given: tuple[tuple[str, Any], ...]) -> tuple[Isolator, ...]:
    """A pod's isolators, with others over those of the same name; of objects, key by key."""
    found = {isolator.name: isolator for isolator in own}
    for name, value in given:
        had = found[name].value if name in found else None
        if isinstance(had, dict) and isinstance(value, dict):
            value = {**had, **value}
        found[name] = Isolator(name, value)
    return tuple(found.values())


def overridden(
    base: App | None,
    overrides: AppOverrides,
    image: ImageManifest,
    groups_of: Callable[[str], tuple[str, tuple[int, ...]]],
) -> App:
    """The app's manifest with the overrides in it.

    :param base: the pod's ``app``, else the image's; None: neither has one.
    :param groups_of: primary group and further group IDs of a user, as the image has them.
    """
    app = base if base is not None else App(exec=(), user="0", group="0")
    command = overrides.exec or _command(app, overrides.arguments, image)
    if overrides.exec and overrides.arguments:
        command = overrides.exec + overrides.arguments
    environment = {pair.name: pair for pair in app.environment}
    environment.update({name: NameValue(name, value) for name, value in overrides.environment})
    isolators = _over(app.isolators, overrides.isolators)
    if overrides.user is not None:
        group, further = groups_of(overrides.user) if overrides.group is None else (overrides.group, ())
        app = replace(app, user=overrides.user, group=group, supplementary_gids=further)
    elif overrides.group is not None:
        app = replace(app, group=overrides.group)
    return replace(
        app,
        exec=command,
        working_directory=overrides.working_directory or app.working_directory,
        environment=tuple(environment.values()),
        isolators=isolators,
    )


def _over(base: tuple[Isolator, ...], given: tuple[tuple[str, Any], ...]) -> tuple[Isolator, ...]:
    """An app's isolators, with others in place of those of the same name. A set to be retained takes the place of
    one to be removed, too, and the other way round: they are two forms of one thing."""
    found = {isolator.name: isolator for isolator in base}
    new = {name: Isolator(name, value) for name, value in given}
    for name in new:
        for form, other in (("-retain-set", "-remove-set"), ("-remove-set", "-retain-set")):
            if name.endswith(form):
                found.pop(name.removesuffix(form) + other, None)
    return tuple({**found, **new}.values())


def _command(app: App, arguments: tuple[str, ...], image: ImageManifest) -> tuple[str, ...]:
    if not arguments:
        return app.exec
    entrypoint = docker_words(image, "entrypoint")
    if entrypoint is None and docker_words(image, "cmd") is None:
        return app.exec + arguments
    return (entrypoint or ()) + arguments
