"""Isolators: compiled by plugins, reported (X1)."""

from __future__ import annotations

from typing import Any

import pytest

from kurma_core.appc.image import Isolator
from kurma_core.errors import IsolatorError
from kurma_core.hookspecs import Compiled, IsolatorHost
from kurma_core.isolation import compile_isolators
from kurma_core.models import CgroupSetting, IsolatorPlan, IsolatorReport

HOST = IsolatorHost(cgroups={"memory": 1}, cpus=2)


class Score:
    names = ("os/linux/oom-score-adj",)

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        if value > 1000:
            raise IsolatorError(f"{name}: {value} is over 1000")
        return Compiled(IsolatorPlan(oom_score_adj=value))


class Writes:
    names = ("example.com/a", "example.com/b")

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        setting = CgroupSetting("memory", name[-1], f"{scope}:{host.cgroups['memory']}")
        return Compiled(IsolatorPlan(cgroup=(setting,), rlimits={name[-1]: (1, 2)}), "modified", "a bit")


def run(pod: list[Isolator], app: list[Isolator], **options: bool) -> Any:
    return compile_isolators(pod, {"app": app}, [Score(), Writes()], HOST, **options)


def test_an_unknown_isolator_is_ignored_and_told() -> None:
    result = run([Isolator("example.com/none", 1)], [])
    assert result.reports == (
        IsolatorReport("example.com/none", None, "ignored", "no installed plugin looks after it"),
    )
    assert result.pod == IsolatorPlan()


def test_plans_of_several_isolators_add_up_per_scope() -> None:
    result = run(
        [Isolator("example.com/a", 1)],
        [Isolator("example.com/a", 1), Isolator("example.com/b", 1), Isolator("os/linux/oom-score-adj", 7)],
    )
    assert [setting.value for setting in result.pod.cgroup] == ["pod:1"]
    plan = result.apps["app"]
    assert [setting.file for setting in plan.cgroup] == ["a", "b"]
    assert plan.rlimits == {"a": (1, 2), "b": (1, 2)}
    assert plan.oom_score_adj == 7
    assert [report.outcome for report in result.reports] == ["modified", "modified", "modified", "enforced"]


def test_contradictions_are_errors() -> None:
    with pytest.raises(IsolatorError, match="contradicts another one that sets oom score adj"):
        run([], [Isolator("os/linux/oom-score-adj", 1), Isolator("os/linux/oom-score-adj", 2)])


class Filters:
    names = ("example.com/one", "example.com/other")

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        return Compiled(IsolatorPlan(seccomp=name.encode()))


def test_two_filters_of_system_calls_contradict_each_other() -> None:
    both = [Isolator("example.com/one", 1), Isolator("example.com/other", 1)]
    assert compile_isolators([], {"app": both[:1]}, [Filters()], HOST).apps["app"].seccomp == b"example.com/one"
    with pytest.raises(IsolatorError, match="contradicts another one that sets seccomp"):
        compile_isolators([], {"app": both}, [Filters()], HOST)


@pytest.mark.parametrize("isolator", [Isolator("example.com/none", 1), Isolator("example.com/a", 1)])
def test_strictness_refuses_what_is_not_enforced(isolator: Isolator) -> None:
    with pytest.raises(IsolatorError, match=r"of app app would be (ignored|modified)"):
        run([], [isolator], strict=True)
    assert run([], [Isolator("os/linux/oom-score-adj", 1)], strict=True).apps["app"].oom_score_adj == 1


def test_a_wrong_value_is_the_plugins_to_refuse() -> None:
    with pytest.raises(IsolatorError, match="5000 is over 1000"):
        run([], [Isolator("os/linux/oom-score-adj", 5000)])
