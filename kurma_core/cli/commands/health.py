"""``kurma healthcheck``: runs the health check of an app."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import APP, FORMAT, POD_OR_APP, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session


@command(POD_OR_APP, APP, FORMAT, root=True, example="kurma healthcheck run shop/web")
def run(session: Session, *, pod: str, app: str | None) -> int:
    """Check the health of an app now.

    Prints the output of the check, and records its result, which counts as every other. Exits with 0 if the check
    passes, and with 1 if it fails.
    """
    pod, app = values.find_pod_and_app(session.client, pod, app)
    done = session.client.healthcheck(pod, app)
    if session.format == "table":
        text = done.result.output.rstrip("\n")
        if text:
            session.line(text)
    else:
        session.show(done, str)
    return 0 if done.result.passed else 1
