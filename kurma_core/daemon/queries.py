"""Parameters that several operations have."""

from __future__ import annotations

from kurma_core.daemon.operations import Query

FORCE = Query("force", "flag", "at once, and by force", default=False)
#: How pods and apps are stopped.
STOP = (FORCE, Query("timeout", "seconds", "how long it has before it is ended by force"))
DRY_RUN = Query("dryRun", "flag", "only say what would be done", default=False)


__all__ = ["DRY_RUN", "FORCE", "STOP"]
