"""What somebody asks for when a pod is to be made: a template, and what the command line adds to it."""

from __future__ import annotations

from kurma_core.appc.image import App, ImageManifest, Isolator, NameValue
from kurma_core.pods.docker import docker_words
from kurma_core.value import field, frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kurma_core.appc.template import PodTemplate
    from kurma_core.models.network import NetworkRequest, PortMapping


@frozen
class AppOverrides:
    """What the command line changes of one app's manifest. None and empty: as the image has it.

    :param arguments: after ``--``: for a Docker image in place of its Cmd, behind its Entrypoint; for any other
        appended to ``exec`` (rkt's way).
    :param exec: in place of the whole command.
    :param user: without a ``group`` it brings its own groups, by the image's files, and none of the app's.
    :param environment: added, replacing what has the same name.
    :param isolators: (name, value), added, replacing what has the same name, or is of the other form of a set:
        retained or removed.
    """

    arguments: tuple[str, ...] = ()
    exec: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None
    working_directory: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    isolators: tuple[tuple[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return self != AppOverrides()


@frozen
class PodRequest:
    """:param template: the pod; images may be locators.
    :param uuid: None: a new random one.
    :param name: None: the first app's name and the head of the UUID.
    :param overrides: by app.
    :param networks: None: as the template says, else the default ones.
    :param ports: added to the manifest's.
    :param interactive: the app that gets the caller's standard input.
    :param terminal: the app that gets a terminal, besides those whose annotations say so.
    :param ephemeral: remove the pod once it has ended.
    :param hosts: further lines of ``/etc/hosts``: (address, names).
    :param isolators: (name, value) for the pod: the caller's own word, as those of ``overrides`` are (X6).
    :param grants: powers that the caller gives to all that ask for them, spelt as in ``grants`` of ``kurma.yml``.
    :param configured: the template stands in ``kurma.yml``, so that its own isolators are root's word, too.
    :param userns: ``none``, ``auto`` or ``UID:COUNT``; None: as the template's annotation says, else as is usual.
    :param dns: ``nameservers``, ``search``, ``options``; None: from the networks, else the host's.
    """

    template: PodTemplate
    uuid: str | None = None
    name: str | None = None
    overrides: Mapping[str, AppOverrides] = field(default_factory=dict)
    networks: tuple[NetworkRequest, ...] | None = None
    ports: tuple[PortMapping, ...] = ()
    stager: str | None = None
    renderer: str | None = None
    pull: str = "new"
    insecure: frozenset[str] = frozenset()
    verify: bool = False
    interactive: str | None = None
    terminal: str | None = None
    ephemeral: bool = False
    hostname: str | None = None
    dns: Mapping[str, tuple[str, ...]] | None = None
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    strict_isolators: bool = False
    strict_volumes: bool = False
    allow_volume_links: bool = False
    userns: str | None = None
    isolators: tuple[tuple[str, Any], ...] = ()
    grants: tuple[str, ...] = ()
    configured: bool = False


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
