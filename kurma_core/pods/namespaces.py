"""Which namespaces a pod has of its own, and which it shares with the host (X6).

Root's word comes first (``--net``, ``--userns``, and the ``networks`` of the pod's file), then what the pod's
isolators say, then its apps', who share one pod and must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import IsolatorError
from kurma_core.isolation import namespaces
from kurma_core.models.isolator import HostMount, IsolatorPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kurma_core.appc.image import Isolator as DeclaredIsolator
    from kurma_core.hookspecs.isolator import Isolator

#: Those that the stager makes; the core makes the network's and the user namespace.
OF_THE_STAGER = ("ipc", "pid", "uts")
#: The isolator that people ask by.
NAME = "os/linux/namespaces"
_MEMORY = "/dev/shm"  # noqa: S108 - the host's shared memory, which is meant


def wishes(
    pod: Iterable[DeclaredIsolator],
    apps: Mapping[str, Iterable[DeclaredIsolator]],
    drivers: tuple[Isolator, ...],
) -> Mapping[str, str]:
    """What the isolators of a pod ask for: ``host`` or ``private`` by kind of namespace.

    :raises IsolatorError: apps contradict each other, and the pod does not decide; or a value is wrong."""
    decided = namespaces(pod, drivers)
    said: dict[str, tuple[str, str]] = {}
    for app, isolators in apps.items():
        for kind, word in namespaces(isolators, drivers).items():
            other, first = said.setdefault(kind, (app, word))
            if first != word and kind not in decided:
                raise IsolatorError(
                    f"app {app} asks for the {kind} namespace to be {word}, and app {other} for the opposite: the "
                    "apps of a pod share one",
                    hint="say it for the pod, or put them into pods of their own",
                    app=app,
                )
    return {**{kind: word for kind, (_, word) in said.items()}, **decided}


def plan(shared: frozenset[str]) -> IsolatorPlan:
    """The pod's plan, as far as its namespaces go. :param shared: those of the host's."""
    kinds = [kind for kind in OF_THE_STAGER if kind in shared]
    # What is shared in memory by name is a file there: it belongs to the IPC namespace as people know it.
    memory = (HostMount(_MEMORY, _MEMORY),) if "ipc" in kinds else ()
    return IsolatorPlan(namespaces=dict.fromkeys(kinds, "host"), mounts=memory)
