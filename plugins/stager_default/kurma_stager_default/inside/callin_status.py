"""``/opt/stager/status``: what the apps do, as JSON (Kurma Stager Specification, "status"; G5)."""

from __future__ import annotations

import sys

from kurma_stager_default.inside import smalljson
from kurma_stager_default.inside.statusfile import apps

_SHOWN = ("pid", "exited", "exitCode", "exitReason", "message", "startedAt", "finishedAt", "log")


def main() -> int:
    found = {name: {key: app[key] for key in _SHOWN if app.get(key) is not None} for name, app in apps().items()}
    sys.stdout.write(smalljson.encode(found) + "\n")
    return 0
