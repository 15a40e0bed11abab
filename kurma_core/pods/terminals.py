"""Which apps of a pod have a terminal, and which a standard input that stays open (H8, G9)."""

from __future__ import annotations

from kurma_core.errors import UsageError
from kurma_core.models.pod import STDIN, TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.appc.pod import PodApp
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.services import Services


def check(app: PodApp) -> None:
    """:raises UsageError: one of the app's annotations has no such value."""
    for name in (TERMINAL, STDIN):
        _says(app, name)


def has_terminal(document: PodDocument, app: PodApp) -> bool:
    return document.terminal == app.name or _says(app, TERMINAL)


def keeps_stdin(document: PodDocument, app: PodApp) -> bool:
    """Whether others may attach to it and type, whoever started the pod."""
    return document.interactive == app.name or _says(app, STDIN)


def typed_into(document: PodDocument) -> str | None:
    """The app whose terminal the caller's standard input is typed into."""
    for app in document.manifest.apps:
        if document.interactive == app.name and has_terminal(document, app):
            return app.name
    return None


def foreground_input(services: Services, record: PodRecord) -> tuple[bool, bool]:
    """Whether the pod's foreground command reads standard input, and whether that is for a terminal.

    A stager without call-ins of its own, as a stage1, has the input of its foreground whatever its apps are.
    """
    from kurma_core.pods.document import read_document  # not for the command line

    if getattr(services.stagers.of_pod(record.stager), "begin", None) is None:
        return True, True
    document = read_document(services.store.directory(record.uuid))
    return document.interactive is not None, typed_into(document) is not None


def _says(app: PodApp, name: str) -> bool:
    value = app.annotation(name)
    if value not in (None, "true", "false"):
        raise UsageError(f"app {app.name}: its annotation {name} is {value!r}", hint="it is true or false")
    return bool(value == "true")
