"""Isolators: compiled by plugins, reported (X1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kurma_testing import bound

from kurma_core import isolation
from kurma_core.api.host import IsolatorInfo
from kurma_core.api.pods import AppOverrides
from kurma_core.appc.image import App, Isolator
from kurma_core.errors import IsolatorError, PluginError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.isolator import Compiled, IsolatorAbout, IsolatorHooks, IsolatorHost, Power
from kurma_core.isolation import IsolatorPlugin, Rules, check_held, isolator_list
from kurma_core.models.isolator import (
    CgroupSetting,
    Device,
    IoPriority,
    IsolatorPlan,
    IsolatorReport,
    MemoryPolicy,
    Scheduling,
    TrafficLimit,
)
from kurma_core.plugins.index import Plugin
from kurma_core.pods.prepare.app_settings import overridden
from kurma_core.value import replace

HOST = IsolatorHost(cgroups={"memory": 1}, cpus=2)
LIMIT, NONE = "example.com/limit", "example.com/none"


def plugins(drivers: Any) -> list[IsolatorPlugin]:
    """The plugins of drivers that have what their plugins declare as attributes."""
    return [
        IsolatorPlugin(
            driver.names,
            lambda driver=driver: driver,  # type: ignore[misc]
            defaults=driver.names,
            exclusive=getattr(driver, "exclusive", ()),
        )
        for driver in drivers
    ]


def compile_isolators(pod: Any, apps: Any, drivers: Any, host: IsolatorHost, **options: Any) -> Any:
    return isolation.compile_isolators(pod, apps, plugins(drivers), host, **options)


def scopes(name: str, drivers: Any) -> tuple[str, ...]:
    return isolation.scopes(name, plugins(drivers))


class Score(IsolatorHooks):
    names: tuple[str, ...] = ("os/linux/oom-score-adj",)

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        if value > 1000:
            raise IsolatorError(f"{name}: {value} is over 1000")
        return Compiled(IsolatorPlan(oom_score_adj=value))


class Writes(IsolatorHooks):
    names = ("example.com/a", "example.com/b")

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        setting = CgroupSetting("memory", name[-1], f"{scope}:{host.cgroups['memory']}")
        limits = {"a": {"as": (1, 2)}, "b": {"rttime": (1, -1)}}[name[-1]] if scope == "app" else {}
        return Compiled(IsolatorPlan(cgroup=(setting,), rlimits=limits), "modified", "a bit")


def run(pod: list[Isolator], app: list[Isolator], **options: bool) -> Any:
    return compile_isolators(pod, {"app": app}, [Score(), Writes()], HOST, **options)


def test_an_unknown_isolator_is_ignored_and_told() -> None:
    result = run([Isolator("example.com/none", 1)], [])
    assert result.reports == (
        IsolatorReport("example.com/none", None, "ignored", "no installed plugin looks after it", value=1),
    )
    assert result.pod == IsolatorPlan()
    (near,) = run([], [Isolator("os/linux/oom-score-ajd", 1)]).reports
    assert (near.outcome, near.note) == (
        "ignored",
        "no installed plugin looks after it; there is os/linux/oom-score-adj",
    )


def test_plans_of_several_isolators_add_up_per_scope() -> None:
    result = run(
        [Isolator("example.com/a", 1)],
        [Isolator("example.com/a", 1), Isolator("example.com/b", 1), Isolator("os/linux/oom-score-adj", 7)],
    )
    assert [setting.value for setting in result.pod.cgroup] == ["pod:1"]
    plan = result.apps["app"]
    assert [setting.file for setting in plan.cgroup] == ["a", "b"]
    assert plan.rlimits == {"as": (1, 2), "rttime": (1, -1)}
    assert plan.oom_score_adj == 7
    assert [report.outcome for report in result.reports] == ["modified", "modified", "modified", "enforced"]


def test_contradictions_are_errors() -> None:
    class Scores(Score):
        names = ("example.com/one", "example.com/other")

    two = [Isolator("example.com/one", 1), Isolator("example.com/other", 2)]
    with pytest.raises(IsolatorError, match=r"other contradicts example\.com/one: both set oom score adj$"):
        compile_isolators([], {"app": two}, [Scores()], HOST)


class Given(IsolatorHooks):
    """Compiles to the plans that it was given, by the isolator's name."""

    def __init__(self, **plans: IsolatorPlan) -> None:
        self._plans = {f"example.com/{name}": plan for name, plan in plans.items()}
        self.names = tuple(self._plans)

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        return Compiled(self._plans[name])


def given(scope: str, host: IsolatorHost = HOST, **plans: IsolatorPlan) -> IsolatorPlan:
    """The plan of the app, or of the pod, of these isolators."""
    asked = [Isolator(f"example.com/{name}", 1) for name in plans]
    pod, app = (asked, []) if scope == "pod" else ([], asked)
    result = compile_isolators(pod, {"app": app}, [Given(**plans)], host)
    return result.pod if scope == "pod" else result.apps["app"]


def test_plans_of_two_plugins_add_up_by_field() -> None:
    """18: single values collide, also of one key; all else adds up."""
    first = IsolatorPlan(umask=0, rlimits={"nofile": (1, 2)}, io_priority=IoPriority("idle"))
    more = IsolatorPlan(scheduling=Scheduling("batch", nice=5), rlimits={"rttime": (1, -1), "nofile": (1, 2)})
    assert given("app", first=first, more=more) == IsolatorPlan(
        umask=0,
        io_priority=IoPriority("idle"),
        scheduling=Scheduling("batch", nice=5),
        rlimits={"nofile": (1, 2), "rttime": (1, -1)},
    )
    for other, both in (
        (IsolatorPlan(umask=0o77), "umask"),
        (IsolatorPlan(io_priority=IoPriority("idle", 7)), "io priority"),
        (IsolatorPlan(rlimits={"nofile": (2, 2)}), "rlimits nofile"),
    ):
        with pytest.raises(IsolatorError, match=rf"example\.com/other contradicts .*first: both set {both}$"):
            given("app", first=first, other=other)


def compiled_by_plugin(make: Any, scope: str) -> None:
    """Compiles an isolator by a plugin that answers with the value that ``make`` returns."""

    class Wild:
        @hookimpl
        def compile(self) -> Compiled:
            return make()  # type: ignore[no-any-return]

    driver = bound(IsolatorHooks, Wild(), "kurma.isolators", "wild")
    plugin = IsolatorPlugin(("example.com/bad",), lambda: driver)
    asked = [Isolator("example.com/bad", 1)]
    pod, app = (asked, []) if scope == "pod" else ([], asked)
    isolation.compile_isolators(pod, {"app": app}, [plugin], HOST)


def wrong_times() -> Scheduling:
    return Scheduling("deadline", runtime=5, deadline=4, period=4)


@pytest.mark.parametrize(
    ("scope", "wrong", "said"),
    [
        ("app", lambda: IsolatorPlan(umask=0o1000), "umask: expected an integer from 0 to 511, found 512"),
        ("app", lambda: IsolatorPlan(rlimits={"files": (1, 1)}), "rlimits.files: expected one of cpu, fsize"),
        ("app", lambda: IsolatorPlan(rlimits={"nofile": (-2, 1)}), "rlimits.nofile"),
        ("app", lambda: IsolatorPlan(io_priority=IoPriority("best-effort", 8)), "io_priority.level"),
        ("app", lambda: IsolatorPlan(scheduling=Scheduling("fair")), "scheduling.policy"),
        ("app", lambda: IsolatorPlan(scheduling=Scheduling(nice=20)), "scheduling.nice"),
        ("app", lambda: IsolatorPlan(memory_policy=MemoryPolicy("bind", "3-1")), "memory_policy.nodes"),
        ("app", lambda: IsolatorPlan(cgroup=(CgroupSetting("pids", "../pids.max", "1"),)), "cgroup[0].file"),
        ("app", lambda: IsolatorPlan(cgroup=(CgroupSetting("cgroup", "cgroup.procs", "1"),)), "cgroup[0].file"),
        ("pod", lambda: IsolatorPlan(cgroup=(CgroupSetting("freezer", "freezer.state", "1"),)), "cgroup[0].file"),
        ("pod", lambda: IsolatorPlan(umask=0), "umask: expected no value in the plan of the pod"),
        ("pod", lambda: IsolatorPlan(rlimits={"nofile": (1, 1)}), "rlimits: expected no value in the plan"),
        ("app", lambda: IsolatorPlan(sysctls={"net.a": "1"}), "sysctls: expected no value in the plan of the app"),
        ("pod", lambda: IsolatorPlan(sysctls={"kernel.core_pattern": "x"}), "is not a setting of a pod's own"),
        ("pod", lambda: IsolatorPlan(sysctls={"net.//.kernel.x": "x"}), "is not a setting of a pod's own"),
        ("pod", lambda: IsolatorPlan(sysctls={"kernel.hostname": "x"}), "is not a setting of a pod's own"),
        ("pod", lambda: IsolatorPlan(sysctls={"user.max_net_namespaces": "1"}), "is of the host's user namespace"),
    ],
)
def test_a_strangers_plan_reaches_neither_the_host_nor_the_stager_if_it_is_wrong(
    scope: str, wrong: Any, said: str
) -> None:
    """18."""
    with pytest.raises(PluginError) as caught:
        compiled_by_plugin(lambda: Compiled(wrong()), scope)
    message = (
        f"cannot compile isolator example.com/bad: isolator plugin 'wild' of {__name__} answered compile with a"
    )
    assert caught.value.message.startswith(message)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert "mistake in the plugin" in caught.value.hint or "a pod's own are" in caught.value.hint


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rlimits": 7}, "rlimits: expected Mapping[str, tuple[Limit, Limit]], found 7"),
        ({"cgroup": {"../../x": "1"}}, "cgroup: expected tuple[CgroupSetting, ...], found {'../../x': '1'}"),
        ({"cgroup": ({},)}, "cgroup: expected tuple[CgroupSetting, ...], found ({},)"),
        ({"seccomp": b"xx"}, "seccomp: expected 1 to 4096 instructions of 8 bytes, found 2 bytes"),
        ({"seccomp": bytes(8 * 4097)}, "seccomp: expected 1 to 4096 instructions of 8 bytes, found 32776 bytes"),
        ({"seccomp": "text"}, "seccomp: expected Filter | None, found 'text'"),
        ({"capabilities": ["CAP_CHOWN"]}, "capabilities: expected tuple[str, ...] | None, found ['CAP_CHOWN']"),
        ({"privileged": 1}, "privileged: expected true or false, found 1"),
        ({"devices": (Device("/dev/x", "b", "7", 0),)}, 'devices[0].major: expected an integer from 0, found "7"'),
        ({"scheduling": "batch"}, "scheduling: expected Scheduling | None, found 'batch'"),
    ],
)
@pytest.mark.parametrize("to", ["plan", "apps"])
def test_a_wrong_value_in_a_plan_is_the_plugins_fault(wrong: Any, said: str, to: str) -> None:
    """18."""
    plans = {"plan": IsolatorPlan(), to: IsolatorPlan(**wrong)}
    with pytest.raises(PluginError) as caught:
        compiled_by_plugin(lambda: Compiled(**plans), "app")
    assert f"answered compile with a Compiled whose {to} is a wrong IsolatorPlan: {said}" in caught.value.message


def test_an_outcome_that_does_not_exist_is_the_plugins_fault() -> None:
    """18."""
    with pytest.raises(PluginError, match=r"^cannot compile isolator example.com/bad: isolator plugin 'wild' of "):
        compiled_by_plugin(lambda: Compiled(IsolatorPlan(), "perhaps"), "app")


@pytest.mark.parametrize("make", [wrong_times, lambda: Scheduling("rr"), lambda: Scheduling("idle", 5)])
def test_a_scheduling_that_no_kernel_takes_is_none(make: Any) -> None:
    """18."""
    with pytest.raises(ValueError, match="the scheduling: expected"):
        make()


@pytest.mark.parametrize("make", [lambda: MemoryPolicy("bind"), lambda: MemoryPolicy("local", "0")])
def test_a_memory_policy_without_meaning_is_none(make: Any) -> None:
    """18."""
    with pytest.raises(ValueError, match="the memory policy: expected"):
        make()


def test_sysctls_of_all_the_pods_own_namespaces() -> None:
    """18: a namespace that the pod shares is the host's."""
    own = {
        "net.core.somaxconn": "1",
        "fs.mqueue.msg_max": "2",
        "kernel.domainname": "d",
        "vm.memfd_noexec": "1",
        "user.max_net_namespaces": "0",
    }
    host = replace(HOST, userns=True)
    assert given("pod", host, own=IsolatorPlan(sysctls=own)).sysctls == own
    for kind, name in zip(("net", "ipc", "uts", "pid"), own, strict=False):
        with pytest.raises(PluginError, match=f"is of the host's {kind} namespace"):
            given("pod", replace(host, shared=frozenset({kind})), own=IsolatorPlan(sysctls={name: "1"}))
    with pytest.raises(PluginError, match="is of the host's net namespace"):
        given("pod", replace(host, host_network=True), own=IsolatorPlan(sysctls={"net.a": "1"}))


@pytest.mark.parametrize(
    ("plan", "version"),
    [
        (IsolatorPlan(), 1),
        (IsolatorPlan(seccomp=b"12345678"), 2),
        (IsolatorPlan(privileged=True), 3),
        (IsolatorPlan(umask=0), 4),
        (IsolatorPlan(io_priority=IoPriority("idle"), privileged=True), 4),
        (IsolatorPlan(scheduling=Scheduling("deadline", runtime=1, deadline=2, period=3)), 4),
        (IsolatorPlan(memory_policy=MemoryPolicy("bind", "0-3,6", static=True)), 4),
        (IsolatorPlan(keyrings=True, umask=0), 5),
        (IsolatorPlan(masked_paths=()), 5),
        (IsolatorPlan(read_only_paths=("/etc/x", "/proc/sys"), seccomp=bytes(8)), 5),
    ],
)
def test_a_plan_has_the_version_of_its_newest_field(plan: IsolatorPlan, version: int) -> None:
    """18: a stager that does not know a field refuses the plan."""
    document = plan.to_json()
    assert document["version"] == version
    assert IsolatorPlan.from_json(document) == plan


class Filters(IsolatorHooks):
    names = ("example.com/one", "example.com/other")

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        return Compiled(IsolatorPlan(seccomp=name.encode()))


def test_two_filters_of_system_calls_contradict_each_other() -> None:
    both = [Isolator("example.com/one", 1), Isolator("example.com/other", 1)]
    assert compile_isolators([], {"app": both[:1]}, [Filters()], HOST).apps["app"].seccomp == b"example.com/one"
    with pytest.raises(IsolatorError, match=r"isolator example\.com/other contradicts example\.com/one: both set"):
        compile_isolators([], {"app": both}, [Filters()], HOST)


def test_what_the_pod_sets_for_each_app_is_named_as_the_pods() -> None:
    class ForEach(Filters):
        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            plan = IsolatorPlan(seccomp=name.encode())
            return Compiled(IsolatorPlan(), apps=plan) if scope == "pod" else Compiled(plan)

    pod, app = [Isolator("example.com/one", 1)], [Isolator("example.com/other", 1)]
    with pytest.raises(IsolatorError, match=r"other contradicts example\.com/one of the pod: both set seccomp$"):
        compile_isolators(pod, {"app": app}, [ForEach()], HOST)


@pytest.mark.parametrize("isolator", [Isolator("example.com/none", 1), Isolator("example.com/a", 1)])
def test_strictness_refuses_what_is_not_enforced(isolator: Isolator) -> None:
    with pytest.raises(IsolatorError, match=r"of app app would be (ignored|modified)"):
        run([], [isolator], strict=True)
    assert run([], [Isolator("os/linux/oom-score-adj", 1)], strict=True).apps["app"].oom_score_adj == 1


def test_a_wrong_value_is_the_plugins_to_refuse() -> None:
    with pytest.raises(IsolatorError, match="5000 is over 1000"):
        run([], [Isolator("os/linux/oom-score-adj", 5000)])


class Defaults(IsolatorHooks):
    """One isolator that holds everywhere, unless there is another; it tells what it was compiled with."""

    names: tuple[str, ...] = ("example.com/limit", "example.com/none")

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    exclusive: tuple[frozenset[str], ...] = (frozenset((LIMIT, NONE)),)

    def defaults(self, scope: str, names: Any, host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
        return () if "example.com/none" in names else (("example.com/limit", scope),)

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        self.seen.append((scope, dict(host.pod), dict(host.siblings)))
        if name == "example.com/none":
            return Compiled(IsolatorPlan())
        limit = CgroupSetting("memory", "memory.max", str(value))
        return Compiled(IsolatorPlan(cgroup=(limit,)), "modified", "a bit", "one")


def limits(plan: IsolatorPlan) -> list[str]:
    return [setting.value for setting in plan.cgroup]


def test_what_nobody_asked_for_holds_and_is_told_as_such() -> None:
    result = compile_isolators([], {"app": []}, [Defaults()], HOST, strict=True)
    assert (limits(result.pod), limits(result.apps["app"])) == (["pod"], ["app"])
    assert result.reports == (
        IsolatorReport("example.com/limit", None, "modified", "a bit", True, "pod", "one"),
        IsolatorReport("example.com/limit", "app", "modified", "a bit", True, "app", "one"),
    )
    assert IsolatorReport.from_json(result.reports[0].to_json()) == result.reports[0]


def test_a_default_gives_way() -> None:
    isolators = {"other": [Isolator("example.com/none", 1)], "own": [Isolator("example.com/limit", "mine")]}
    result = compile_isolators(None, isolators, [Defaults()], HOST)
    assert limits(result.apps["other"]) == []
    assert limits(result.apps["own"]) == ["mine"]
    assert [(report.scope, report.default) for report in result.reports] == [("other", False), ("own", False)]


def test_a_default_gives_way_to_another_plugins_isolator_that_sets_the_same() -> None:
    class Filter(Defaults):
        names = ("example.com/filter",)

        exclusive = ()

        def defaults(self, scope: str, names: Any, host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
            return (("example.com/filter", "of nobody"),)

        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            return Compiled(IsolatorPlan(seccomp=value.encode()))

    class Asked(Filter):
        names = ("example.com/asked",)

        def defaults(self, scope: str, names: Any, host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
            return ()

    isolator = Isolator("example.com/asked", "of somebody")
    result = compile_isolators([], {"app": [isolator]}, [Filter(), Asked()], HOST, strict=True)
    assert result.apps["app"].seccomp == b"of somebody"
    assert [(report.name, report.outcome, report.note) for report in result.reports if report.scope] == [
        ("example.com/asked", "enforced", ""),
        ("example.com/filter", "ignored", "an isolator that was asked for sets seccomp"),
    ]


def test_a_default_that_its_plugin_does_not_declare() -> None:
    plugin = IsolatorPlugin((LIMIT, NONE), Defaults, defaults=(NONE,))
    with pytest.raises(PluginError, match=r"^isolator example\.com/limit is a default, and its plugin does not"):
        isolation.compile_isolators([], {"app": []}, [plugin], HOST)


def test_only_the_drivers_are_loaded_that_are_needed() -> None:
    """18: those of the given isolators, of defaults, and of required isolators."""

    def load(name: str) -> Any:
        return lambda: loaded.append(name) or Defaults()

    loaded: list[str] = []
    given = [
        IsolatorPlugin(("example.com/default",), load("default"), defaults=(LIMIT,)),
        IsolatorPlugin(("example.com/given",), load("given"), exclusive=(frozenset(["example.com/given"]),)),
        IsolatorPlugin(("example.com/required",), load("required")),
        IsolatorPlugin(("example.com/unused",), load("unused"), gated={"example.com/unused": None}),
    ]
    app = {"app": [Isolator("example.com/given", 1), Isolator("example.com/unknown", 1)]}
    isolation.powers(app["app"], given, "app", HOST)
    isolation.namespaces(app["app"], given)
    assert isolation.scopes("example.com/unknown", given) == ("app", "pod")
    assert set(loaded) == {"given"}
    isolation.compile_isolators([], app, given, HOST, rules=Rules(required={"example.com/required": False}))
    assert set(loaded) == {"default", "given", "required"}


def test_a_plugin_that_does_not_work() -> None:
    def broken() -> Any:
        raise PluginError("isolator plugin 'limit' of kurma-limit 1.0 is broken: no")

    plugin = IsolatorPlugin((LIMIT, NONE), broken, defaults=(LIMIT,))
    app = {"app": [Isolator(NONE, 1)]}
    assert isolation.powers(app["app"], [plugin], "app", HOST) == ()
    (report,) = isolation.compile_isolators([], app, [plugin], HOST).reports
    assert (report.outcome, report.note) == ("ignored", "isolator plugin 'limit' of kurma-limit 1.0 is broken: no")
    with pytest.raises(IsolatorError, match=r"kurma-limit 1\.0 is broken: no"):
        isolation.compile_isolators([], app, [plugin], HOST, rules=Rules(required={LIMIT: True}))


def test_of_those_that_exclude_each_other_there_is_one() -> None:
    both = [Isolator("example.com/none", 1), Isolator("example.com/limit", 1)]
    expected = "isolator example.com/limit of app app cannot stand beside example.com/none"
    with pytest.raises(IsolatorError, match=expected):
        compile_isolators([], {"app": both}, [Defaults()], HOST)


def test_an_app_is_compiled_in_sight_of_its_pod_and_of_its_other_isolators() -> None:
    driver = Defaults()
    compile_isolators([Isolator("example.com/limit", "p")], {"app": [Isolator("a.b/c", 3)]}, [driver], HOST)
    assert driver.seen == [
        ("pod", {}, {"example.com/limit": "p"}),
        ("app", {"example.com/limit": "p"}, {"example.com/limit": "app", "a.b/c": 3}),
    ]
    assert compile_isolators(None, {}, [driver], HOST).reports == ()


def test_devices_and_traffic_of_several_isolators_add_up() -> None:
    class Adds(IsolatorHooks):
        names = ("example.com/a", "example.com/b")

        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            plan = IsolatorPlan(devices=(Device(name, "c", 1, 3),), traffic=(TrafficLimit("in", value),))
            return Compiled(plan)

    isolators = [Isolator("example.com/a", 1), Isolator("example.com/b", 2)]
    plan = compile_isolators([], {"app": isolators}, [Adds()], HOST).apps["app"]
    assert [device.path for device in plan.devices] == ["example.com/a", "example.com/b"]
    assert [limit.rate for limit in plan.traffic] == [1, 2]
    assert IsolatorPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("plan", "version"),
    [
        (IsolatorPlan(sysctls={"a": "b"}), 1),
        (IsolatorPlan(traffic=(TrafficLimit("out", 7, "eth0"),)), 1),
        (IsolatorPlan(seccomp=bytes(16)), 2),
        (IsolatorPlan(devices=(Device("/dev/x", "b", 7, 0, "rw", 0o600, 5, 6),), seccomp=bytes(8)), 3),
        (IsolatorPlan(apparmor="profile"), 3),
        (IsolatorPlan(selinux="a:b:c:s0"), 3),
        (IsolatorPlan(privileged=True), 3),
        (IsolatorPlan(namespaces={"ipc": "host"}), 3),
    ],
)
def test_a_plan_is_of_the_version_of_what_it_sets(plan: IsolatorPlan, version: int) -> None:
    assert plan.to_json()["version"] == version
    assert IsolatorPlan.from_json(plan.to_json()) == plan


class Told(Defaults):
    def about(self, name: str) -> IsolatorAbout:
        return IsolatorAbout(("pod",), "anything", name[-4:])


def test_whose_an_isolator_is_the_plugin_tells() -> None:
    drivers: Any = [Score(), Told()]
    assert scopes("example.com/none", drivers) == ("pod",)
    assert scopes("os/linux/oom-score-adj", drivers) == ("app", "pod")
    assert scopes("example.com/unknown", drivers) == ("app", "pod")


def test_the_list_of_isolators() -> None:
    class Refusing(Told):
        names = ("example.com/zero",)

        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            raise IsolatorError(f"not {value} here")

    class Sharing(Told):
        names = ("example.com/share",)

        def powers(self, name: str, value: Any, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
            return (Power(f"{name}=pid", "pid"), Power(name))

        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            return Compiled(IsolatorPlan(), note=",".join(host.shared))

    def plugin(name: str) -> Plugin:
        return Plugin("kurma.isolators", name, name, f"kurma-{name}", "1.0", "/site")

    drivers: Any = {"score": Score(), "told": Told(), "refusing": Refusing(), "sharing": Sharing()}
    claims = {name: (plugin(by),) for by, driver in drivers.items() for name in driver.names}
    claims |= {"example.com/two": (plugin("score"), plugin("told")), "example.com/broken": (plugin("broken"),)}
    broken, limit, none, share, two, zero, score = isolator_list(drivers, HOST, claims)
    assert broken == IsolatorInfo(
        "example.com/broken", "broken", outcome="ignored", note="its plugin does not work"
    )
    assert (two.plugin, two.outcome) == ("score, told", "refused")
    assert two.note == (
        "isolator example.com/two is claimed by isolator plugin 'score' of kurma-score 1.0 and isolator plugin "
        "'told' of kurma-told 1.0"
    )
    assert share.note == "pid", "what the core makes for it is there"
    assert limit == IsolatorInfo(
        "example.com/limit", "told", ("pod",), "anything", "imit", "modified", "a bit", default="app"
    )
    assert (none.outcome, none.default) == ("enforced", None)
    assert (zero.outcome, zero.note, zero.plugin) == ("refused", "not zero here", "refusing")
    assert score == IsolatorInfo("os/linux/oom-score-adj", "score")
    assert limit.to_json()["scopes"] == ["pod"]


def test_the_command_lines_isolators_take_the_place_of_the_images() -> None:
    def over(*given: tuple[str, Any]) -> tuple[Isolator, ...]:
        app = App(exec=("/x",), user="0", group="0", isolators=base)
        image: Any = SimpleNamespace(annotation=lambda name: None, annotations=())
        return overridden(app, AppOverrides(isolators=given), image, lambda user: (user, ())).isolators

    base = (Isolator("a/x", 1), Isolator("a/y-remove-set", 1), Isolator("a/z-retain-set", 1))
    found = over(("a/x", 2), ("a/y-retain-set", 2), ("a/z-remove-set", 2))
    assert found == (Isolator("a/x", 2), Isolator("a/y-retain-set", 2), Isolator("a/z-remove-set", 2))
    assert over(("a/y-remove-set", 3)) == (base[0], Isolator("a/y-remove-set", 3), base[2])
    base = (Isolator("os/linux/capabilities-remove-set", 1), Isolator("kurma.io/seccomp-profile", 1))
    forms = (("kurma.io/capabilities", 2), ("os/linux/seccomp-retain-set", 2))
    assert over(*forms) == tuple(Isolator(*form) for form in forms)
    base = ()
    # Who asks for both gets to hear of it from the plugin.
    assert len(over(("a/y-retain-set", 2), ("a/y-remove-set", 2))) == 2


class Everything(IsolatorHooks):
    """A pod's isolator that is one of each of its apps, and a filter that holds where there is none."""

    names = ("example.com/all", "example.com/filter")

    def defaults(self, scope: str, names: Any, host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
        return (("example.com/filter", b"usual"),) if scope == "app" else ()

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        if name == "example.com/filter":
            return Compiled(IsolatorPlan(seccomp=value))
        plan = IsolatorPlan(privileged=True)
        return Compiled(plan) if scope == "app" else Compiled(IsolatorPlan(), apps=plan)


def test_a_pods_isolator_may_be_one_of_each_of_its_apps() -> None:
    every = Isolator("example.com/all", True)
    result = compile_isolators([every], {"a": [], "b": []}, [Everything()], HOST)
    assert result.pod == IsolatorPlan()
    assert all(result.apps[app].privileged for app in "ab")
    there = replace(HOST, pod={every.name: every.value})
    assert compile_isolators(None, {"late": []}, [Everything()], there).apps["late"].privileged
    assert not compile_isolators(None, {"late": []}, [Everything()], HOST).apps["late"].privileged


def test_a_privileged_app_has_the_filter_that_it_asks_for_and_no_other() -> None:
    every, own = Isolator("example.com/all", True), Isolator("example.com/filter", b"own")
    result = compile_isolators([], {"a": [every], "b": [every, own], "c": []}, [Everything()], HOST)
    assert [result.apps[app].seccomp for app in "abc"] == [None, b"own", b"usual"]
    told = {one.scope: (one.outcome, one.note) for one in result.reports if one.name == own.name and one.default}
    assert told["a"] == ("ignored", "the app is privileged")


def test_under_a_stager_that_does_not_apply_them_they_are_ignored() -> None:
    asked = [Isolator("os/linux/oom-score-adj", 1)]
    result = compile_isolators([], {"app": asked}, [Score()], HOST, unapplied="stager x does not")
    assert [(one.outcome, one.note) for one in result.reports] == [("ignored", "stager x does not")]
    with pytest.raises(IsolatorError, match="would be ignored: stager x does not"):
        compile_isolators([], {"app": asked}, [Score()], HOST, strict=True, unapplied="stager x does not")
    # But those that it knows something of.
    partly = {"os/linux/oom-score-adj": "it does half of it"}
    result = compile_isolators([], {"app": asked}, [Score()], HOST, unapplied="stager x does not", partly=partly)
    assert [(one.outcome, one.note) for one in result.reports] == [("modified", "it does half of it")]


def test_one_that_stands_twice_is_refused() -> None:
    twice = [Isolator("example.com/a", 1), Isolator("example.com/b", 1), Isolator("example.com/a", 1)]
    with pytest.raises(IsolatorError, match=r"isolator example\.com/a of the pod is given twice"):
        run(twice, [])
    with pytest.raises(IsolatorError, match=r"isolator example\.com/a of app app is given twice"):
        run([], twice)


# --- what must be enforced -------------------------------------------------------------------------------------


class Filter(Defaults):
    """Its default is enforced, or gives way to its other isolator."""

    outcome = "enforced"

    def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
        return Compiled(IsolatorPlan(seccomp=name.encode()), self.outcome, "why not")


def required(app: list[Isolator], *drivers: Any, needed: bool = True, **options: Any) -> Any:
    rules = Rules(required={LIMIT: needed}, absent=("isolator plugin 'x' is broken: so",))
    return compile_isolators(None, {"app": app}, drivers, HOST, rules=rules, **options)


def test_an_app_has_the_required_isolators_or_what_takes_their_place() -> None:
    """X4, X5: by its default, by the app's own choice, or by another isolator of the plugin."""

    class Choice(IsolatorHooks):
        names = ("example.com/choice",)

        def compile(self, name: str, value: Any, scope: str, host: IsolatorHost) -> Compiled:
            return Compiled(IsolatorPlan(seccomp=b"choice", privileged=value))

    assert required([], Filter()).held == {"app": (LIMIT,)}
    for own in (Isolator(LIMIT, 1), Isolator(NONE, 1)):
        assert required([own], Filter(), strict=True).held == {"app": (LIMIT,)}
    for value in (True, False):
        assert required([Isolator("example.com/choice", value)], Choice(), Filter()).held == {"app": (LIMIT,)}


class Ignoring(Filter):
    outcome = "ignored"


class Modifying(Filter):
    outcome = "modified"


class NoDefault(Filter):
    def defaults(self, scope: str, names: Any, host: IsolatorHost) -> tuple[tuple[str, Any], ...]:
        return ()


@pytest.mark.parametrize(
    ("app", "drivers", "options", "why"),
    [
        ([], [], {}, r"no installed plugin looks after it; isolator plugin 'x' is broken: so$"),
        ([], [Ignoring()], {}, "why not$"),
        ([], [Modifying()], {}, "why not$"),
        ([Isolator(LIMIT, 1)], [Ignoring()], {}, "why not$"),
        ([Isolator(NONE, 1)], [Ignoring()], {}, "why not$"),
        ([], [NoDefault()], {}, "nothing asks for it, and its plugin has no default$"),
        ([], [Filter()], {"unapplied": "stager y does not apply it"}, "stager y does not apply it$"),
    ],
)
def test_an_app_without_a_required_isolator_is_refused(app: Any, drivers: Any, options: Any, why: str) -> None:
    """X4, X5. Where the configuration does without, it is reported."""
    said = rf"^cannot run app app without {LIMIT}, which Kurma's configuration requires: {why}"
    with pytest.raises(IsolatorError, match=said) as caught:
        required(app, *drivers, **options)
    assert (
        "without_isolators" in str(caught.value.hint) if options else f"{LIMIT}: false" in str(caught.value.hint)
    )
    result = required(app, *drivers, needed=False, **options)
    assert result.held == {"app": ()}
    assert LIMIT in {one.name for one in result.reports if one.outcome != "enforced" and one.scope == "app"}


def test_a_pod_of_when_less_was_required_is_not_started() -> None:
    check_held(["a"], {"a": (LIMIT,)}, [LIMIT], "default")
    check_held(["a"], {}, [], "default")
    for held in ({}, {"a": (NONE,)}):
        with pytest.raises(
            IsolatorError, match=f"cannot run app a without {LIMIT}, .*made without them, under stager s$"
        ):
            check_held(["a"], held, [LIMIT], "s")


def test_what_the_user_typed_is_enforced_or_refused() -> None:
    """X1: strict or not. What is modified is told."""
    typed = Rules(typed={"app": {"example.com/gone", "example.com/a"}, None: {"example.com/gone"}})
    gone, modified = Isolator("example.com/gone", 1), Isolator("example.com/a", 1)
    with pytest.raises(
        IsolatorError, match=r"^cannot enforce isolator example\.com/gone of app app: no installed"
    ):
        compile_isolators([], {"app": [gone]}, [Writes()], HOST, rules=typed)
    with pytest.raises(
        IsolatorError, match=r"^cannot enforce isolator example\.com/gone of the pod: no installed"
    ):
        compile_isolators([gone], {"app": []}, [Writes()], HOST, rules=typed)
    assert (
        compile_isolators([], {"app": [modified]}, [Writes()], HOST, rules=typed).reports[0].outcome == "modified"
    )
    # As of an image: reported.
    assert compile_isolators([], {"other": [gone]}, [Writes()], HOST, rules=typed).reports[0].outcome == "ignored"
    with pytest.raises(IsolatorError, match=r"example\.com/a of app app: stager z does not"):
        compile_isolators([], {"app": [modified]}, [Writes()], HOST, rules=typed, unapplied="stager z does not")
