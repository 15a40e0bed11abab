"""Changes annotations of a pod, or of an app, that Kurma does not act on. The pod may be in any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.appc.image import NameValue
from kurma_core.appc.types import ac_identifier, fits
from kurma_core.errors import UsageError
from kurma_core.pods.finder import APPS_PATIENCE
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kurma_core.appc.pod import PodManifest
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.finder import PodFinder

#: Beginnings of names that have a meaning for Kurma or its stagers.
_ACTED_ON = ("kurma.io/", "appc.io/", "coreos.com/")
#: Words behind ``kurma.io/`` that are no plugins.
_OWN = ("pod", "app", "daemon", "stager", "image")
#: Most bytes of all annotations of a pod or app that are not a plugin's, and of each that is; and of all that are.
_LIMIT, _LIMIT_OF_PLUGINS = 256 << 10, 2 << 20


def annotate(
    finder: PodFinder, reference: str, app: str | None, set: Mapping[str, str], remove: Collection[str]
) -> PodRecord:
    """Sets and removes annotations in one step.

    A pod's user annotations keep their kind. A new name that is not an identifier of the App Container
    specification becomes a user annotation of the pod. All others are annotations of the pod, or of the app.

    :param app: None: those of the pod.
    :param remove: names; missing ones are ignored.
    :raises UsageError: Kurma acts on one of them, an app cannot have it, or they are too long.
    :raises AppNotFoundError: the pod has no such app.
    """
    for name in (*set, *remove):
        _check(name)
    directory = finder.find(reference)
    with directory.apps_lock(APPS_PATIENCE):
        document = directory.read_document()
        manifest = document.manifest
        if app is None:
            manifest = _of_pod(manifest, set, remove)
        else:
            wrong = next((name for name in set if not fits(ac_identifier, name)), None)
            if wrong is not None:
                hint = "a-z and 0-9, with any of -._~/ between them"
                raise UsageError(f"{wrong!r} is not a name of an app's annotation", hint=hint)
            changed = replace(manifest.app(app), annotations=_merged(manifest.app(app).annotations, set, remove))
            apps = tuple(changed if one.name == app else one for one in manifest.apps)
            manifest = replace(manifest, apps=apps)
        directory.write_pod(replace(document, manifest=manifest))
    return finder.read(directory)


def _check(name: str) -> None:
    """:raises UsageError: Kurma acts on it."""
    if not name:
        raise UsageError("an annotation needs a name")
    if name.startswith(_ACTED_ON) and not _is_of_plugin(name):
        raise UsageError(
            f"annotation {name} cannot be changed: Kurma acts on it",
            hint="make the pod again with another value; kurma.io/PLUGIN/NAME is a plugin's own",
        )


def _is_of_plugin(name: str) -> bool:
    """Whether it is ``kurma.io/PLUGIN/NAME``."""
    rest = name.removeprefix("kurma.io/")
    plugin, slash, _ = rest.partition("/")
    return bool(slash) and rest != name and plugin not in _OWN


def _of_pod(manifest: PodManifest, set: Mapping[str, str], remove: Collection[str]) -> PodManifest:
    own = {name for name in set if name in manifest.user_annotations or not fits(ac_identifier, name)}
    of_user = {name: text for name, text in manifest.user_annotations.items() if name not in remove}
    of_user.update((name, set[name]) for name in own)
    _check_size(of_user.items(), _LIMIT, "all annotations")
    others = {name: text for name, text in set.items() if name not in own}
    merged = _merged(manifest.annotations, others, remove)
    return replace(manifest, annotations=merged, user_annotations=of_user)


def _merged(
    annotations: tuple[NameValue, ...], set: Mapping[str, str], remove: Collection[str]
) -> tuple[NameValue, ...]:
    kept = [
        NameValue(one.name, set[one.name]) if one.name in set else one
        for one in annotations
        if one.name not in remove or one.name in set
    ]
    there = {one.name for one in kept}
    found = (*kept, *(NameValue(name, text) for name, text in set.items() if name not in there))
    # A plugin's may be large from the pod's start on: they leave people's annotations their room.
    pairs = [(one.name, one.value) for one in found]
    _check_size([one for one in pairs if not _is_of_plugin(one[0])], _LIMIT, "all annotations")
    _check_size([one for one in pairs if _is_of_plugin(one[0])], _LIMIT_OF_PLUGINS, "all annotations of plugins")
    for one in set.items():
        _check_size([one], _LIMIT, f"annotation {one[0][:80]}")
    return found


def _check_size(pairs: Iterable[tuple[str, str]], limit: int, what: str) -> None:
    """:raises UsageError: the names and values have more bytes than the limit."""
    size = sum(len(name) + len(text) for name, text in pairs)
    if size > limit:
        raise UsageError(f"{what}: {size} bytes, the limit is {limit}", hint="shorten or remove annotations")
