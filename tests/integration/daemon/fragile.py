"""kurmad, which kills itself (SIGKILL) at a point: ``fragile.py ARM WHEN WHERE ARGUMENT…``.

As in ``pods/runner.py``: ``WHEN`` is ``before`` or ``after`` the launch step ``WHERE``, ``undoing`` or ``undone``
of its undo; or ``entering`` or ``leaving`` a function ``module:Class.function``, with ``#N`` behind it: the N-th
time. All of it counts only once there is a file ``ARM``.
"""

import os
import signal
import sys

from kurma_core.cli.main import main
from tests.integration.pods.strikes import strike_function, strike_step


def run(arm, when, where, *arguments):
    def armed():
        return os.path.exists(arm)

    def die():
        if armed():
            os.kill(os.getpid(), signal.SIGKILL)

    if ":" in where:
        strike_function(when, where, die, armed)
    else:
        strike_step(when, where, die)
    return main(list(arguments))


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
