"""``/pod/status.json``, which the supervisor writes and its call-ins read."""

from __future__ import annotations

from kurma_stager_default.inside import smalljson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = "/pod/status.json"
VERSION = 1


def apps() -> dict[str, dict[str, Any]]:
    """The state of each app, by name. :raises OSError: the pod has not come so far."""
    with open(PATH, encoding="utf-8") as file:
        value: dict[str, dict[str, Any]] = smalljson.decode(file.read())["apps"]
    return value
