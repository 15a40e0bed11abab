"""Compiles a pod's isolators to plans by the isolator plugins, reports on each, and lists the installed isolators.

If no plugin handles an isolator of an image or a pod file, it is reported as ignored; the App Container Executor
("Isolators") allows that, and demands the report. In strict mode, and for isolators that the user typed, this is
an error. An app without an isolator that the configuration requires is always refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from kurma_core.errors import IsolatorError, KurmaError
from kurma_core.models.isolator import OWN_SYSCTLS, IsolatorPlan, IsolatorReport, sysctl_namespace
from kurma_core.schema import SchemaError, describe
from kurma_core.value import field, fields, frozen, replace

if TYPE_CHECKING:
    from kurma_core.api.host import IsolatorInfo
    from kurma_core.appc.image import Isolator as DeclaredIsolator
    from kurma_core.errors import PluginCollisionError
    from kurma_core.hookspecs.isolator import Compiled, IsolatorHooks, IsolatorHost, Power
    from kurma_core.plugins.registry import PluginRegistry


Json = Any
#: Lists of a plan to which several isolators may add.
_LISTS = ("cgroup", "devices", "traffic", "mounts")


@frozen
class Isolation:
    """The compiled isolators of a pod and its apps.

    :param held: by app, those of :attr:`Rules.required` that it has.
    """

    pod: IsolatorPlan
    apps: Mapping[str, IsolatorPlan]
    reports: tuple[IsolatorReport, ...]
    held: Mapping[str, tuple[str, ...]]


@frozen
class Rules:
    """Rules for when an isolator that is not enforced is an error, also without strict mode.

    :param typed: names of isolators that the user typed, by app; key None: for the pod. These must not be ignored.
    :param required: by isolator, whether every app must have it (True), or whether its absence is only reported
        (False). An app has the isolator if its default is enforced or gives way to another isolator of the app, or
        if the app's own isolator, or one of the same exclusive group, is not ignored.
    :param absent: reasons why isolator plugins do not work.
    """

    typed: Mapping[str | None, Collection[str]] = field(default_factory=dict)
    required: Mapping[str, bool] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


_NO_RULES = Rules()


def host_facts(
    controllers: Mapping[str, int], shared: frozenset[str], pods: str = "", *, api: bool = False
) -> IsolatorHost:
    """Collects the facts that compilers of isolators get.

    :param controllers: cgroup version by controller.
    :param shared: namespaces that the pod shares with the host.
    :param pods: the directory of all pods.
    :param api: a daemon serves the state directory.
    """
    from kurma_core.hookspecs.isolator import IsolatorHost

    return IsolatorHost(
        dict(controllers),
        os.cpu_count() or 1,
        userns="user" not in shared,
        host_network="net" in shared,
        shared=shared,
        pods=pods,
        api=api,
    )


def powers(
    isolators: Iterable[DeclaredIsolator], drivers: Iterable[IsolatorHooks], scope: str, host: IsolatorHost
) -> tuple[Power, ...]:
    """Returns the powers over the host that the isolators ask for. Isolators without a plugin ask for none.

    :param scope: ``app`` or ``pod``.
    :param host: its ``siblings`` are all isolators of the scope.
    :raises IsolatorError: a value is wrong.
    """
    compilers = _Compilers(drivers)
    return tuple(
        power
        for isolator in isolators
        if (driver := compilers.driver(isolator.name)) is not None
        for power in driver.powers(isolator.name, isolator.value, scope, host)
    )


def namespaces(isolators: Iterable[DeclaredIsolator], drivers: Iterable[IsolatorHooks]) -> Mapping[str, str]:
    """Returns the namespaces that the isolators choose for the pod: ``host`` or ``private`` by kind.

    :raises IsolatorError: a value is wrong.
    """
    compilers = _Compilers(drivers)
    found: dict[str, str] = {}
    for isolator in isolators:
        driver = compilers.driver(isolator.name)
        if driver is not None:
            found.update(driver.namespaces(isolator.name, isolator.value))
    return found


def compile_isolators(
    pod: Iterable[DeclaredIsolator] | None,
    apps: Mapping[str, Iterable[DeclaredIsolator]],
    drivers: Iterable[IsolatorHooks],
    host: IsolatorHost,
    *,
    strict: bool = False,
    rules: Rules = _NO_RULES,
    unapplied: str = "",
    partly: Mapping[str, str] | None = None,
    fewer_capabilities: Collection[str] = (),
) -> Isolation:
    """Compiles the pod's isolators, each app's, and the defaults.

    :param drivers: the isolator plugins (:func:`isolator_drivers`); the first that names an isolator compiles it.
    :param pod: None: the pod exists already, and ``host`` has its isolators; only the apps' are compiled.
    :param strict: an isolator of the manifest that is not enforced unchanged is an error.
    :param unapplied: the reason why the stager will not apply the plans; empty: it will.
    :param partly: isolators that such a stager applies in part, and which part.
    :param fewer_capabilities: the apps whose images expect fewer default capabilities.
    :raises IsolatorError: a value is wrong, two isolators contradict each other, or the rules forbid it.
    :raises PluginCollisionError: two plugins claim one of the isolators.
    """
    compilers = _Compilers(drivers, rules, strict=strict, unapplied=unapplied, partly=partly)
    pod_plan, reports = IsolatorPlan(), tuple[IsolatorReport, ...]()
    if pod is not None:
        isolators = tuple(pod)
        pod_plan, reports = compilers.scope(None, isolators, host)
        if isolators:
            host = replace(host, pod={isolator.name: isolator.value for isolator in isolators})
    else:
        compilers.look_at_pod(host)
    app_plans, held = {}, {}
    for name, declared in apps.items():
        its_host = replace(host, fewer_capabilities=True) if name in fewer_capabilities else host
        app_plans[name], more = compilers.scope(name, tuple(declared), its_host)
        held[name], lacking = compilers.required(name, more)
        reports += (*more, *lacking)
    return Isolation(pod_plan, app_plans, reports, held)


def check_held(
    apps: Iterable[str], held: Mapping[str, Collection[str]], required: Collection[str], stager: str
) -> None:
    """Refuses to start a pod that was made before the configuration required an isolator that its apps lack.

    :param held: as :attr:`Isolation.held`.
    :raises IsolatorError: an app lacks a required isolator.
    """
    for app in apps:
        missing = [name for name in required if name not in held.get(app, ())]
        if missing:
            _refuse(app, missing, f"the pod was made without them, under stager {stager}", "make the pod anew")


def isolator_drivers(registry: PluginRegistry) -> tuple[IsolatorHooks, ...]:
    """Returns the working isolator plugins. If several claim an isolator, the plugin counts that the configuration
    names; if it names none, the use of the isolator raises the collision.
    """
    drivers = registry.drivers("kurma.isolators", tell=False)
    claims = registry.isolator_claims()
    found: list[IsolatorHooks] = []
    for plugin, driver in drivers.items():
        names = tuple(name for name in driver.names if claims.get(name) == (plugin,))
        found.append(driver if len(names) == len(driver.names) else _part(driver, names))
    for isolator, plugins in claims.items():
        if len(plugins) > 1:
            error = registry.isolator_collision(isolator, plugins)
            found.append(_collision(isolator, error, [drivers[plugin] for plugin in plugins]))
    return tuple(found)


def _part(driver: IsolatorHooks, names: tuple[str, ...]) -> IsolatorHooks:
    """A plugin without the isolators that the configuration gives to another plugin."""
    part = object.__new__(type(driver))
    vars(part).update(vars(driver), names=names)
    return part


def _collision(isolator: str, error: KurmaError, drivers: Collection[IsolatorHooks]) -> IsolatorHooks:
    """Stands for an isolator that several plugins claim: each use raises the collision."""
    from kurma_core.hookspecs.isolator import IsolatorHooks

    def refuse(*_: Any) -> NoReturn:
        raise error

    class Collision(IsolatorHooks):
        names = (isolator,)
        compile = powers = namespaces = about = refuse  # type: ignore[assignment]

        def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Json], ...]:
            found = (pair for driver in drivers for pair in driver.defaults(scope, names, host))
            return tuple(pair for pair in found if pair[0] == isolator)

    return Collision()


def scopes(name: str, drivers: Iterable[IsolatorHooks]) -> tuple[str, ...]:
    """Returns the scopes of an isolator, ``app``, ``pod`` or both; both if its plugin does not tell."""
    driver = next((driver for driver in drivers if name in driver.names), None)
    return ("app", "pod") if driver is None else tuple(driver.about(name).scopes)


class _Compilers:
    """Compiles isolators, each by its plugin."""

    def __init__(
        self,
        drivers: Iterable[IsolatorHooks],
        rules: Rules = _NO_RULES,
        *,
        strict: bool = False,
        unapplied: str = "",
        partly: Mapping[str, str] | None = None,
    ) -> None:
        self._drivers = tuple(drivers)
        self._rules = rules
        self._strict = strict
        #: Defaults that gave way to an isolator of the app, by app.
        self._gave_way: dict[str | None, set[str]] = {}
        self._unapplied = unapplied
        self._partly = partly or {}
        self._by_name: dict[str, IsolatorHooks] = {}
        #: The plan that the pod's isolators give to each of its apps.
        self._each = IsolatorPlan()
        self._of_each: list[tuple[str, IsolatorPlan]] = []
        for driver in self._drivers:
            for name in driver.names:
                self._by_name.setdefault(name, driver)

    def scope(
        self,
        scope: str | None,
        isolators: tuple[DeclaredIsolator, ...],
        host: IsolatorHost,
    ) -> tuple[IsolatorPlan, tuple[IsolatorReport, ...]]:
        """Compiles all isolators of one scope: those of the manifest, in their order, then the defaults.

        :param scope: the app's name; None: the pod.
        """
        asked = [(isolator.name, isolator.value) for isolator in isolators]
        self._refuse_twice([name for name, _ in asked], scope)
        defaults = self._defaults(scope, [name for name, _ in asked], host)
        if asked or defaults:
            host = replace(host, siblings=dict([*defaults, *asked]))
        plan = IsolatorPlan() if scope is None else self._each
        # The parts of the pod's isolators that concern each app.
        before = [] if scope is None else list(self._of_each)
        reports = []
        for each, default in [*((one, False) for one in asked), *((one, True) for one in defaults)]:
            name, value = each
            compiled = self._compile(name, value, scope, host)
            walls = compiled.plan.seccomp is not None or compiled.plan.capabilities is not None
            if default and plan.privileged and walls:
                compiled = replace(compiled, plan=IsolatorPlan(), outcome="ignored", note="the app is privileged")
                self._gave_way.setdefault(scope, set()).add(name)
            # The core applies limits of traffic and the API itself; the stager applies all else.
            each_apps = compiled.apps is not None and compiled.apps.api is None
            sets = each_apps or replace(compiled.plan, traffic=(), api=None) != IsolatorPlan()
            if self._unapplied and sets:
                how = ("modified", self._partly[name]) if name in self._partly else ("ignored", self._unapplied)
                compiled = replace(compiled, outcome=how[0], note=how[1])
            if compiled.outcome == "ignored" and name in self._rules.typed.get(scope, ()):
                raise IsolatorError(
                    f"cannot enforce isolator {name} of {_called(scope)}: {compiled.note}",
                    hint="leave out the option to run without it",
                )
            if self._strict and not default and compiled.outcome != "enforced":
                raise IsolatorError(
                    f"isolator {name} of {_called(scope)} would be {compiled.outcome}: {compiled.note}",
                    hint="leave out --strict-isolators to run without it",
                )
            outcome, note, amounts = compiled.outcome, compiled.note, compiled.amounts
            both = clash(plan, compiled.plan) if default else None
            if both is None:
                plan = merged(plan, compiled.plan, name, before)
                before.append((name, compiled.plan))
            else:
                # A default gives way: another plugin's isolator may set the same field.
                outcome, note = "ignored", f"an isolator that was asked for sets {both}"
                if not self._unapplied:
                    self._gave_way.setdefault(scope, set()).add(name)
            reports.append(IsolatorReport(name, scope, outcome, note, default, value, amounts))
            if scope is None and compiled.apps is not None:
                self._mean_for_each(compiled.apps, name)
        return plan, tuple(reports)

    def required(
        self, app: str, reports: Iterable[IsolatorReport]
    ) -> tuple[tuple[str, ...], tuple[IsolatorReport, ...]]:
        """Returns those of :attr:`Rules.required` that the app has, and further reports of those that it may lack
        and that have no report yet.

        :param reports: of the app's isolators.
        :raises IsolatorError: it lacks a required isolator.
        """
        outcomes = {report.name: report for report in reports}
        good = {True: ("enforced",), False: ("enforced", "modified")}
        held = {name for name, report in outcomes.items() if report.outcome in good[report.default]}
        held |= self._gave_way.get(app, set())
        lacking: dict[str, str] = {}
        for name in self._rules.required:
            others = self._instead_of(name)
            if held.isdisjoint((name, *others)):
                said = next((outcomes[one].note for one in (name, *others) if one in outcomes), "")
                lacking[name] = said or self._unknown(name)
        missing = [name for name in lacking if self._rules.required[name]]
        if missing:
            off = ", ".join(f"{name}: false" for name in missing)
            hint = f"mend that, or run apps without them: `required_isolators: {{{off}}}` in kurma.yml"
            if self._unapplied:
                hint = "choose another stager, or put `without_isolators: true` in its section of `stagers`"
            _refuse(app, missing, "; ".join(dict.fromkeys(lacking[name] for name in missing)), hint)
        unreported = [(name, note) for name, note in lacking.items() if name not in outcomes]
        reports = [IsolatorReport(name, app, "ignored", note, True) for name, note in unreported]
        return tuple(name for name in self._rules.required if name not in lacking), tuple(reports)

    def _instead_of(self, name: str) -> list[str]:
        """Isolators of the same plugin that exclude this one, and so can take its place."""
        driver = self._by_name.get(name)
        groups = [group for group in (() if driver is None else driver.exclusive()) if name in group]
        return sorted({other for group in groups for other in group} - {name})

    def _unknown(self, name: str) -> str:
        """Explains why an isolator has no effect."""
        if name in self._by_name:
            return "nothing asks for it, and its plugin has no default"
        return "; ".join((f"no installed plugin looks after it{self._near(name)}", *self._rules.absent))

    def look_at_pod(self, host: IsolatorHost) -> None:
        """Compiles the isolators of an existing pod for their effect on each of its apps."""
        for name, value in host.pod.items():
            apps = self._compile(name, value, None, host).apps
            if apps is not None:
                self._mean_for_each(apps, name)

    def _mean_for_each(self, plan: IsolatorPlan, name: str) -> None:
        self._each = merged(self._each, plan, name, self._of_each)
        self._of_each.append((f"{name} of the pod", plan))

    def driver(self, isolator: str) -> IsolatorHooks | None:
        """Returns the plugin that compiles an isolator; None: no plugin does."""
        return self._by_name.get(isolator)

    def _refuse_twice(self, names: list[str], scope: str | None) -> None:
        """Refuses duplicates and excluded combinations.

        :raises IsolatorError: an isolator is repeated, or stands beside another that it excludes.
        """
        for number, name in enumerate(names):
            if name in names[:number]:
                raise IsolatorError(f"isolator {name} of {_called(scope)} stands there twice")
        for driver in self._drivers:
            for group in driver.exclusive():
                both = [name for name in names if name in group and self._by_name.get(name) is driver]
                if len(both) > 1:
                    raise IsolatorError(f"isolator {both[1]} of {_called(scope)} cannot stand beside {both[0]}")

    def _defaults(self, scope: str | None, names: list[str], host: IsolatorHost) -> list[tuple[str, Json]]:
        found: dict[str, Json] = {}
        for driver in self._drivers:
            for name, value in driver.defaults(_kind(scope), names, host):
                if self._by_name.get(name) is driver and name not in names:
                    found.setdefault(name, value)
        return list(found.items())

    def _compile(self, name: str, value: Json, scope: str | None, host: IsolatorHost) -> Compiled:
        from kurma_core.hookspecs.isolator import Compiled

        driver = self._by_name.get(name)
        if driver is None:
            return Compiled(IsolatorPlan(), "ignored", self._unknown(name))
        compiled = driver.compile(name, value, _kind(scope), host)
        if compiled.outcome not in ("enforced", "modified", "ignored"):
            raise IsolatorError(f"isolator {name}: its plugin answered the outcome {compiled.outcome!r}")
        _check_plan(name, compiled.plan, _kind(scope), host)
        if compiled.apps is not None:
            _check_plan(name, compiled.apps, "app", host)
        return compiled

    def _near(self, name: str) -> str:
        """Suggests the nearest known name: a protection whose name is mistyped has no effect."""
        import difflib

        found = difflib.get_close_matches(name[:100], list(self._by_name), 1, 0.85)
        return f"; there is {found[0]}" if found else ""


def _check_plan(name: str, plan: IsolatorPlan, scope: str, host: IsolatorHost) -> None:
    """Checks what a plugin compiled: a plan reaches the pod and its apps, never the host.

    :raises IsolatorError: a value is wrong, has no meaning for the scope, or would change the host.
    """
    try:
        plan.check(scope)
    except SchemaError as error:
        raise IsolatorError(f"isolator {name}: its plugin made a wrong plan: {error}") from None
    for sysctl in plan.sysctls:
        kind = sysctl_namespace(sysctl)
        if kind is None or kind in host.host_namespaces:
            why = "is no setting of a pod's own" if kind is None else f"is of the host's {kind} namespace"
            raise IsolatorError(
                f"isolator {name}: its plugin made a wrong plan: sysctl {describe(sysctl)} {why}",
                hint=f"a pod's own are: {OWN_SYSCTLS}",
            )


def _refuse(app: str, missing: list[str], why: str, hint: str) -> NoReturn:
    """Refuses an app that lacks required isolators. :raises IsolatorError: always."""
    raise IsolatorError(
        f"cannot run app {app} without {', '.join(missing)}, which Kurma's configuration requires: {why}",
        hint=hint,
        app=app,
    )


def _kind(scope: str | None) -> str:
    return "pod" if scope is None else "app"


def _called(scope: str | None) -> str:
    return "the pod" if scope is None else f"app {scope}"


def clash(plan: IsolatorPlan, more: IsolatorPlan) -> str | None:
    """Returns the name of a field that both plans set and only one may, with the key in a mapping whose values
    differ; None: they can be merged."""
    empty = IsolatorPlan()
    for each in fields(IsolatorPlan):
        old, new = getattr(plan, each.name), getattr(more, each.name)
        if isinstance(old, Mapping):
            both = next((key for key in new if old.get(key, new[key]) != new[key]), None)
            if both is not None:
                return f"{each.name.replace('_', ' ')} {both}"
        adds_up = isinstance(old, Mapping) or (isinstance(old, tuple) and each.name in _LISTS)
        if new not in (getattr(empty, each.name), old) and old != getattr(empty, each.name) and not adds_up:
            return each.name.replace("_", " ")
    return None


def merged(
    plan: IsolatorPlan, more: IsolatorPlan, name: str, before: Iterable[tuple[str, IsolatorPlan]] = ()
) -> IsolatorPlan:
    """Merges two plans: collections add up, single values may be set once.

    :param before: the isolators that ``plan`` is made of, each with its own plan.
    """
    both = clash(plan, more)
    if both is not None:
        other = next((who for who, sets in before if clash(sets, more) == both), "another one")
        raise IsolatorError(f"isolator {name} contradicts {other}: both set {both}")
    empty = IsolatorPlan()
    changes: dict[str, object] = {}
    for each in fields(IsolatorPlan):
        old, new = getattr(plan, each.name), getattr(more, each.name)
        if new == getattr(empty, each.name) or new == old:
            continue
        if old == getattr(empty, each.name):
            changes[each.name] = new
        elif isinstance(old, Mapping):
            changes[each.name] = {**old, **new}
        else:
            changes[each.name] = old + new
    return replace(plan, **changes)


def isolator_list(
    drivers: Mapping[str, IsolatorHooks],
    host: IsolatorHost,
    claims: Mapping[str, tuple[str, ...]],
    collision: Callable[[str, tuple[str, ...]], PluginCollisionError],
) -> tuple[IsolatorInfo, ...]:
    """Lists the isolators of all plugins and whether this host enforces each (``kurma isolators list``), by name.

    :param drivers: by the plugin's name.
    :param claims: the plugins that compile each isolator.
    :param collision: makes the error for an isolator that several plugins claim.
    """
    from kurma_core.api.host import IsolatorInfo

    defaults = {
        plugin: dict((*driver.defaults("pod", (), host), *driver.defaults("app", (), host)))
        for plugin, driver in drivers.items()
    }
    found = []
    for name, plugins in sorted(claims.items()):
        if len(plugins) > 1:
            note = collision(name, plugins).message
            found.append(IsolatorInfo(name, ", ".join(plugins), outcome="refused", note=note))
        else:
            (plugin,) = plugins
            found.append(_info(name, plugin, drivers[plugin], host, defaults[plugin].get(name)))
    return tuple(found)


def _info(name: str, plugin: str, driver: IsolatorHooks, host: IsolatorHost, default: Json) -> IsolatorInfo:
    from kurma_core.api.host import IsolatorInfo
    from kurma_core.hookspecs import implements
    from kurma_core.hookspecs.isolator import IsolatorHooks

    if not implements(driver, IsolatorHooks.about):
        return IsolatorInfo(name, plugin, default=default)
    about = driver.about(name)
    try:
        # Compiled as if it were granted and the core had made the namespaces that it needs.
        asked = driver.powers(name, about.example, about.scopes[0], host)
        shared = frozenset(power.namespace for power in asked if power.namespace is not None)
        compiled = driver.compile(name, about.example, about.scopes[0], replace(host, shared=host.shared | shared))
        outcome, note = compiled.outcome, compiled.note
    except KurmaError as error:
        outcome, note = "refused", error.message
    return IsolatorInfo(name, plugin, about.scopes, about.value, about.example, outcome, note, default)
