"""A pod's file, as people hand it to a command."""

from __future__ import annotations

from kurma_core.cli import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any


def is_early(document: Json) -> bool:
    """Whether a pod's file holds an early document; another one imports nothing for that."""
    if not isinstance(document, dict) or document.get("acKind") in (None, "PodManifest"):
        return False
    from kurma_core.appc.early_image import is_early_pod

    return is_early_pod(document)


def read(file: str, option: str = "") -> Json:
    """The value in a pod's file, JSON or YAML; ``-`` is standard input. An early document must be JSON (E9).

    :param option: which names the file.
    :raises UsageError: it cannot be read, and an option names it. :raises KurmaError: it cannot be read, or is
        neither.
    """
    if not file.endswith(".json"):
        from kurma_core.config.files import text_of, value_of
        from kurma_core.errors import ConfigError, HostError, UsageError
        from kurma_core.json_text import read_document
        from kurma_core.named_files import called

        path = "/dev/stdin" if file == "-" else file
        try:
            text = text_of(path, pipe=True)
        except ConfigError as error:
            if option and isinstance(error.__cause__, HostError):
                raise UsageError(f"{option}: {error.message}", path=path) from None
            raise
        name = called(path)
        value = value_of(name, text)
        return read_document(text, name) if is_early(value) else value
    return values.json_file(file, option, endless=True)
