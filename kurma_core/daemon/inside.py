"""A command that is to be run in an app, as its request says it."""

from __future__ import annotations

from typing import Any

from kurma_core.appc import types
from kurma_core.appc._reader import Reader
from kurma_core.errors import UsageError

Json = Any


def command(body: Json) -> dict[str, Any]:
    """Arguments of :meth:`LocalClient.enter`, by name.

    :raises ManifestError: it is malformed. :raises UsageError: there is no command.
    """
    reader = Reader(body, "$", None)
    words = reader.strings("exec", types.text)
    if not words:
        raise UsageError("exec is empty: it is the command and its arguments")
    return {
        "app": reader.optional("app", types.nonempty),
        "command": words,
        "user": reader.optional("user", types.nonempty),
        "group": reader.optional("group", types.nonempty),
        "working_directory": reader.optional("workingDirectory", types.absolute_path),
        "environment": tuple(
            (one.string("name", types.environment_name), one.string("value", types.text))
            for one in reader.objects("environment")
        ),
        "terminal": reader.boolean("tty", False),
    }


__all__ = ["command"]
