"""Reads the secrets that are variables of an app's environment."""

from __future__ import annotations

import os

from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import App


def read(app: App) -> list[tuple[str, str]]:
    """The variables. Must be called in the stager's own root, by the process that becomes the app's: no other
    process holds the values.

    :raises SetupError: a file is missing.
    """
    found = []
    for name, path in app.secret_environment:
        try:
            with open(path, "rb", buffering=0) as file:
                found.append((name, os.fsdecode(file.read())))
        except OSError as error:
            raise SetupError(f"secret of the variable {name}: {error.strerror}") from None
    return found
