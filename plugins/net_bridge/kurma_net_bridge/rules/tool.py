"""Running ``nft`` and ``iptables``: fed, and their refusals told in one line."""

from __future__ import annotations

import os

from kurma_core.errors import NetworkError
from kurma_core.linux.programs import ProgramTimeout, run, search_path


def run_tool(arguments: list[str], batch: str, failed: str, network: str) -> str:
    """Runs a program to its end, with ``batch`` as its input; what it has printed.

    :param arguments: the first is a path. :param failed: begins the message of an error.
    :raises NetworkError: it could not be started, did not end in a minute, or refused.
    """
    name = os.path.basename(arguments[0])
    try:
        finished = run(arguments, stdin=batch.encode(), environment={"PATH": search_path(), "LC_ALL": "C"})
    except OSError as error:
        raise NetworkError(
            f"{failed}: cannot execute {arguments[0]}: {error.strerror}", network=network, errno=error.errno
        ) from None
    except ProgramTimeout:
        raise NetworkError(f"{failed}: {name} took more than a minute and was killed", network=network) from None
    if finished.status != 0:
        lines = [line for line in finished.stderr.decode(errors="replace").splitlines() if line.strip()]
        # What only warns comes first.
        wrong = [line for line in lines if not line.lower().startswith(("# warning", "warning"))]
        # iptables-restore tells its name and version first, and the reason in the next line.
        said = " ".join(line.strip() for line in (wrong or lines)[: 2 if name.endswith("restore") else 1])
        why = said or f"it ended with status {finished.status}"
        raise NetworkError(f"{failed}: {name}: {why}", network=network)
    return finished.stdout.decode(errors="replace")
