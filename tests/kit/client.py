"""How tests open a client: this module alone knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.client import Settings, connect

if TYPE_CHECKING:
    from kurma_core.client.client import Client


def open_client(config_file: str, state_dir: str | None = None, *, start: bool = False, **settings: Any) -> Client:
    """A client, in process or by way of a kurmad.

    :param state_dir: None: as configured.
    :param start: a kurmad is started if none serves the state directory.
    :param settings: as of ``kurma_core.client.Settings``.
    """
    return connect(Settings(config_file, state_dir, **settings), start=start)
