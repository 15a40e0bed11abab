"""kurmad, which kills itself (SIGKILL) at a point: ``fragile.py ARM POINTS ARGUMENT…``.

``POINTS`` is JSON: a list of ``[WHEN, WHERE]``. As in ``runner.py``: ``WHEN`` is ``before`` or ``after`` the
launch step ``WHERE``, ``undoing`` or ``undone`` of its undo; or ``entering`` or ``leaving`` a function
``module:Class.function``, with ``#N`` behind it: the N-th time. Of these it is the one that the file ``ARM`` says,
from the moment that it is there.
"""

import json
import os
import signal
import sys

from kurma_core.cli.main import main
from tests.kit.strikes import strike_function, strike_step


def install(arm, point):
    when, where = point

    def armed():
        try:
            with open(arm) as file:
                return json.load(file) == point
        except FileNotFoundError:
            return False

    def die():
        if armed():
            os.kill(os.getpid(), signal.SIGKILL)

    if ":" in where:
        strike_function(when, where, die, armed)
    else:
        strike_step(when, where, die)


if __name__ == "__main__":
    arm, points, *arguments = sys.argv[1:]
    for point in json.loads(points):
        install(arm, point)
    sys.exit(main(arguments))
