"""Isolators of a pod, compiled to plans by the isolator plugins, with a report of each (X1).

An isolator that no plugin looks after is reported as ignored; the App Container Executor ("Isolators") allows
that, and demands the report. Strict mode refuses instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import IsolatorError
from kurma_core.models import IsolatorPlan, IsolatorReport
from kurma_core.value import fields, frozen, replace

if TYPE_CHECKING:
    from kurma_core.appc.image import Isolator as DeclaredIsolator
    from kurma_core.hookspecs import Compiled, Isolator, IsolatorHost


@frozen
class Isolation:
    """What all isolators of a pod become."""

    pod: IsolatorPlan
    apps: Mapping[str, IsolatorPlan]
    reports: tuple[IsolatorReport, ...]


def host_facts(controllers: Mapping[str, int]) -> IsolatorHost:
    """:param controllers: cgroup version by controller."""
    from kurma_core.hookspecs import IsolatorHost

    return IsolatorHost(cgroups=dict(controllers), cpus=os.cpu_count() or 1)


def compile_isolators(
    pod: Iterable[DeclaredIsolator],
    apps: Mapping[str, Iterable[DeclaredIsolator]],
    drivers: Iterable[Isolator],
    host: IsolatorHost,
    *,
    strict: bool = False,
) -> Isolation:
    """Compiles the pod's isolators and each app's.

    :param drivers: every enabled isolator plugin; the first that names an isolator has it.
    :param strict: an isolator that is not enforced as it stands is an error.
    :raises IsolatorError: a value is wrong, two isolators contradict each other, or strictness.
    """
    compilers: dict[str, Isolator] = {}
    for driver in drivers:
        for name in driver.names:
            compilers.setdefault(name, driver)
    reports: list[IsolatorReport] = []

    def plan(scope: str | None, isolators: Iterable[DeclaredIsolator]) -> IsolatorPlan:
        result = IsolatorPlan()
        for isolator in isolators:
            compiled = _compile(isolator, scope, compilers, host)
            report = IsolatorReport(isolator.name, scope, compiled.outcome, compiled.note)
            if strict and compiled.outcome != "enforced":
                where = "the pod" if scope is None else f"app {scope}"
                raise IsolatorError(
                    f"isolator {isolator.name} of {where} would be {compiled.outcome}: {compiled.note}",
                    hint="leave out --strict-isolators to run without it",
                )
            reports.append(report)
            result = _merge(result, compiled.plan, isolator.name)
        return result

    pod_plan = plan(None, pod)
    app_plans = {name: plan(name, isolators) for name, isolators in apps.items()}
    return Isolation(pod_plan, app_plans, tuple(reports))


def _compile(
    isolator: DeclaredIsolator, scope: str | None, compilers: Mapping[str, Isolator], host: IsolatorHost
) -> Compiled:
    from kurma_core.hookspecs import Compiled

    driver = compilers.get(isolator.name)
    if driver is None:
        return Compiled(IsolatorPlan(), "ignored", "no installed plugin looks after it")
    compiled = driver.compile(isolator.name, isolator.value, "pod" if scope is None else "app", host)
    if compiled.outcome not in ("enforced", "modified", "ignored"):
        raise IsolatorError(f"isolator {isolator.name}: its plugin answered the outcome {compiled.outcome!r}")
    return compiled


def _merge(plan: IsolatorPlan, more: IsolatorPlan, name: str) -> IsolatorPlan:
    """``plan`` with what ``more`` sets; collections add up, single values may be set once."""
    empty = IsolatorPlan()
    changes: dict[str, object] = {}
    for each in fields(IsolatorPlan):
        old, new = getattr(plan, each.name), getattr(more, each.name)
        if new == getattr(empty, each.name) or new == old:
            continue
        if old == getattr(empty, each.name):
            changes[each.name] = new
        elif each.name == "cgroup":
            changes[each.name] = old + new
        elif isinstance(old, Mapping):
            changes[each.name] = {**old, **new}
        else:
            raise IsolatorError(f"isolator {name} contradicts another one that sets {each.name.replace('_', ' ')}")
    return replace(plan, **changes)
