"""Decides the settings with which an app is started: overrides of its manifest, Docker annotations, terminal and
input."""

from __future__ import annotations

from kurma_core.appc.image import App, ImageManifest, Isolator, NameValue
from kurma_core.errors import UsageError
from kurma_core.models.pod import STDIN, TERMINAL
from kurma_core.value import replace

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kurma_core.api.pods import AppOverrides
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import PodApp
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.services import Services


def with_isolators(own: tuple[Isolator, ...], given: tuple[tuple[str, Any], ...]) -> tuple[Isolator, ...]:
    """A pod's isolators, with ``given`` ones in place of those of the same name; values that are objects are
    merged by key."""
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
    """The app's manifest with the overrides applied.

    :param base: the pod's ``app``, else the image's; None: neither has one.
    :param groups_of: gives primary group and supplementary group IDs of a user, from the image.
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
    """An app's isolators, with ``given`` ones in place of those of the same name. A retain-set also replaces a
    remove-set, and the other way round, since they are two forms of one setting."""
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


_PREFIX = "appc.io/docker/"
_STOP_SIGNAL = "kurma.io/docker/stopsignal"


def is_docker(image: ImageManifest) -> bool:
    """Whether the image was converted from a Docker image. Such images expect, for instance, that a missing
    working directory is made."""
    return any(annotation.name.startswith(_PREFIX) for annotation in image.annotations)


def stop_signal(image: ImageManifest) -> int:
    """Number of the signal that asks the image's app to end: its ``StopSignal``, else SIGTERM.

    A name that is no signal of this machine is ignored: it came with the image, so the user cannot correct it.
    """
    import signal

    word = (image.annotation(_STOP_SIGNAL) or "").upper()
    if word.isascii() and word.isdigit() and 1 <= int(word) < signal.NSIG:
        return int(word)
    name, _, offset = (word if word.startswith("SIG") else f"SIG{word}").partition("+")
    if name == "SIGRTMIN" and offset.isascii() and offset.isdigit():
        return min(signal.SIGRTMIN + int(offset), signal.SIGRTMAX)
    return int(signal.Signals.__members__.get(name, signal.SIGTERM))


def docker_words(image: ImageManifest, which: str) -> tuple[str, ...] | None:
    """Entrypoint or Cmd of a Docker image, from its annotation, which is a JSON list; None: it has none."""
    text = image.annotation(f"appc.io/docker/{which}")
    if text is None:
        return None
    from kurma_core.json_text import loads

    try:
        words = loads(text)
    except ValueError:
        import shlex

        return tuple(shlex.split(text))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"image {image.name}: annotation appc.io/docker/{which} is no list of words: {text}")
    return tuple(words)


def check_terminal(app: PodApp) -> None:
    """:raises UsageError: one of the app's annotations has an invalid value."""
    for name in (TERMINAL, STDIN):
        _says(app, name)


def has_terminal(document: PodDocument, app: PodApp) -> bool:
    return document.terminal == app.name or _says(app, TERMINAL)


def keeps_stdin(document: PodDocument, app: PodApp) -> bool:
    """Whether the app's standard input stays open, so that an attached client can type, regardless of the pod's
    starter."""
    return document.interactive == app.name or _says(app, STDIN)


def typed_into(document: PodDocument) -> str | None:
    """The app whose terminal gets the caller's standard input."""
    for app in document.manifest.apps:
        if document.interactive == app.name and has_terminal(document, app):
            return app.name
    return None


def foreground_input(services: Services, record: PodRecord) -> tuple[bool, bool]:
    """Whether the pod's foreground command reads standard input, and whether that is for a terminal.

    With a stager that has no call-ins, such as a stage1, the stager's own standard input is used, whatever the
    apps' settings are.
    """
    if getattr(services.stagers.of_pod(record.stager), "begin", None) is None:
        return True, True
    document = services.store.directory(record.uuid).read_document()
    return document.interactive is not None, typed_into(document) is not None


def _says(app: PodApp, name: str) -> bool:
    value = app.annotation(name)
    if value not in (None, "true", "false"):
        raise UsageError(f"app {app.name}: its annotation {name} is {value!r}", hint="it is true or false")
    return bool(value == "true")
