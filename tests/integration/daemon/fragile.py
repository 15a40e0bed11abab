"""kurmad, which kills itself (SIGKILL) at a point: ``fragile.py ARM WHEN WHERE ARGUMENT…``.

As in ``pods/runner.py``: ``WHEN`` is ``before`` or ``after`` the launch step ``WHERE``, ``undoing`` or ``undone``
of its undo; or ``entering`` or ``leaving`` a function ``module:Class.function``, with ``#N`` behind it: the N-th
time. All of it counts only once there is a file ``ARM``.
"""

import importlib
import os
import signal
import sys

from kurma_core.cli.main import main
from kurma_core.pods import launch


def strike(arm):
    if os.path.exists(arm):
        os.kill(os.getpid(), signal.SIGKILL)


def break_step(arm, when, name):
    (step,) = [step for step in launch.STEPS if step.name == name]
    kind = "do" if when in ("before", "after") else "undo"
    real = getattr(step, kind)

    def dying(pod):
        if when in ("before", "undoing"):
            strike(arm)
        real(pod)
        if when in ("after", "undone"):
            strike(arm)

    setattr(step, kind, dying)


def break_function(arm, when, where):
    place, _, count = where.partition("#")
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function = getattr(owner, name)
    left = int(count or 1)

    def dying(*args, **kwargs):
        nonlocal left
        left -= os.path.exists(arm)
        if when == "entering" and left <= 0:
            strike(arm)
        result = function(*args, **kwargs)
        if when == "leaving" and left <= 0:
            strike(arm)
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    arm, when, where, *arguments = sys.argv[1:]
    (break_function if ":" in where else break_step)(arm, when, where)
    sys.exit(main(arguments))
