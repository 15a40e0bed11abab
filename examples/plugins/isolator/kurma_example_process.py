"""Isolators beyond the specification's, which need no stager of their own.

- ``example.com/umask``: ``"0027"``, the file mode mask of the app's programs.
- ``example.com/nice``: −20 to 19; below 0 needs a grant.
- ``example.com/io-priority``: ``{"class": "best-effort", "level": 6}``; the class ``realtime`` needs a grant.
- ``example.com/cgroups``: how many cgroups may be made in the app's, or in the pod's.
"""

from __future__ import annotations

from typing import Any

from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext
from kurma_core.hookspecs.isolator import Compiled, IsolatorAbout, IsolatorHost, Power
from kurma_core.models.isolator import CgroupSetting, IoPriority, IsolatorPlan, Scheduling
from kurma_core.schema import SchemaError, fit

UMASK, NICE, IO, GROUPS = (f"example.com/{name}" for name in ("umask", "nice", "io-priority", "cgroups"))
REALTIME = f"{IO}=realtime"
SHAPES = {
    NICE: range(-20, 20),
    IO: {"class": frozenset(("realtime", "best-effort", "idle")), "level?": range(8)},
    GROUPS: range(1 << 31),
}
ABOUT = {
    UMASK: IsolatorAbout(("app",), "an octal number, as text", "0027"),
    NICE: IsolatorAbout(("app",), "a number from -20 to 19", 5),
    IO: IsolatorAbout(("app",), "{class, level}", {"class": "idle", "level": 0}),
    GROUPS: IsolatorAbout(("app", "pod"), "a number", 0),
}


class Process:
    def __init__(self, context: DriverContext) -> None:
        pass

    @hookimpl
    def about(self, name: str) -> IsolatorAbout:
        return ABOUT[name]

    @hookimpl
    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        if scope not in ABOUT[name].scopes:
            raise IsolatorError(f"isolator {name} is an app's, not a pod's")
        if name == UMASK:
            return Compiled(IsolatorPlan(umask=_umask(value)))
        try:
            fit(value, SHAPES[name], "its value")
        except SchemaError as error:
            raise IsolatorError(f"isolator {name}: {error}") from None
        if name == NICE:
            return Compiled(IsolatorPlan(scheduling=Scheduling(nice=value)))
        if name == IO:
            return Compiled(IsolatorPlan(io_priority=IoPriority(value["class"], value.get("level", 4))))
        if "cgroup" not in host.cgroups:
            return Compiled(IsolatorPlan(), "ignored", "this host has no cgroup v2")
        return Compiled(IsolatorPlan(cgroup=(CgroupSetting("cgroup", "cgroup.max.descendants", str(value)),)))

    @hookimpl
    def powers(self, name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
        plan = self.compile(name, value, scope, host).plan
        if plan.scheduling is not None and plan.scheduling.nice < 0:
            return (Power(NICE),)
        if plan.io_priority is not None and plan.io_priority.kind == "realtime":
            return (Power(REALTIME),)
        return ()


def _umask(value: Any) -> int:
    octal = isinstance(value, str) and 0 < len(value) <= 4 and set(value) <= set("01234567")
    if not octal or int(value, 8) > 0o777:
        raise IsolatorError(f'isolator {UMASK}: expected an octal number such as "0027"')
    return int(value, 8)


@hookimpl
def kurma_isolator() -> Driver:
    return Driver(Process, isolators=(UMASK, NICE, IO, GROUPS), gated={NICE: (), IO: ("realtime",)})
