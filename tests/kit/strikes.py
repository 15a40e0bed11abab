"""Where a process is struck: at steps of the launch table, and as it enters or leaves functions."""

import importlib
import itertools

from kurma_core.pods.run import launch


def strike_step(when, name, strike):
    """Has ``strike`` called ``before`` or ``after`` the launch step of that name, or as it is ``undoing``, or when
    it is ``undone``."""
    (step,) = [step for step in launch.STEPS if step.name == name]
    kind = "do" if when in ("before", "after") else "undo"
    real = getattr(step, kind)

    def struck(pod):
        if when in ("before", "undoing"):
            strike()
        real(pod)
        if when in ("after", "undone"):
            strike()

    setattr(step, kind, struck)


def strike_function(when, where, strike, counts=lambda: True):
    """Has ``strike`` called when ``entering`` or ``leaving`` a function.

    :param where: ``module:Class.function``; with ``#N`` behind it: the N-th time.
    :param counts: whether a call counts.
    """
    place, _, number = where.partition("#")
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function = getattr(owner, name)
    numbers = itertools.count(1)

    def struck(*args, **kwargs):
        now = counts() and next(numbers) == int(number or 1)
        if now and when == "entering":
            strike()
        result = function(*args, **kwargs)
        if now and when == "leaving":
            strike()
        return result

    setattr(owner, name, struck)
