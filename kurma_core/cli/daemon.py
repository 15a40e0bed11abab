"""``daemon``: kurmad, in the foreground."""

from __future__ import annotations

from kurma_core.cli.declare import command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session


@command(root=True)
def daemon(session: Session) -> None:
    """Serve the state directory: run the daemon, in the foreground.

    Commands that concern this state directory then go by way of it. SIGTERM ends it; pods that run go on.
    """
    import logging

    from kurma_core.daemon.kurmad import Daemon

    logging.basicConfig(level=logging.INFO, format="kurmad: %(message)s")
    Daemon(session.settings).serve()
