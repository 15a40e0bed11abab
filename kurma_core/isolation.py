"""Compiles a pod's isolators to plans by the isolator plugins, reports on each, and lists the installed isolators.

If no plugin handles an isolator of an image or a pod file, it is reported as ignored; the App Container Executor
("Isolators") allows that, and demands the report. In strict mode, and for isolators that the user typed, this is
an error. An app without an isolator that the configuration requires is always refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from kurma_core.errors import IsolatorError, KurmaError, PluginError
from kurma_core.models.isolator import OWN_SYSCTLS, IsolatorPlan, IsolatorReport, sysctl_namespace
from kurma_core.plugins.calls import plugin_error
from kurma_core.schema import SchemaError, describe, nearest
from kurma_core.value import field, fields, frozen, replace

if TYPE_CHECKING:
    from kurma_core.api.host import IsolatorInfo
    from kurma_core.appc.image import Isolator as DeclaredIsolator
    from kurma_core.hookspecs.isolator import Compiled, IsolatorHooks, IsolatorHost, Power
    from kurma_core.plugins.index import Plugin
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
    isolators: Iterable[DeclaredIsolator], plugins: Iterable[IsolatorPlugin], scope: str, host: IsolatorHost
) -> tuple[Power, ...]:
    """Returns the powers over the host that the isolators ask for. Isolators without a plugin ask for none.

    :param scope: ``app`` or ``pod``.
    :param host: its ``siblings`` are all isolators of the scope.
    :raises IsolatorError: a value is wrong.
    """
    compilers = _Compilers(plugins)
    return tuple(
        power
        for isolator in isolators
        if (driver := compilers.driver(isolator.name)) is not None
        for power in driver.powers(isolator.name, isolator.value, scope, host)
    )


def namespaces(isolators: Iterable[DeclaredIsolator], plugins: Iterable[IsolatorPlugin]) -> Mapping[str, str]:
    """Returns the namespaces that the isolators choose for the pod: ``host`` or ``private`` by kind.

    :raises IsolatorError: a value is wrong.
    """
    compilers = _Compilers(plugins)
    found: dict[str, str] = {}
    for isolator in isolators:
        driver = compilers.driver(isolator.name)
        if driver is not None:
            found.update(driver.namespaces(isolator.name, isolator.value))
    return found


def changed(name: str, before: Json, value: Json, plugins: Iterable[IsolatorPlugin]) -> Json:
    """The value of an isolator after an update, as its plugin makes it. :raises IsolatorError: it is wrong."""
    driver = _Compilers(plugins).driver(name)
    return value if driver is None else driver.changed(name, before, value)


def compile_isolators(
    pod: Iterable[DeclaredIsolator] | None,
    apps: Mapping[str, Iterable[DeclaredIsolator]],
    plugins: Iterable[IsolatorPlugin],
    host: IsolatorHost,
    *,
    strict: bool = False,
    rules: Rules = _NO_RULES,
    unapplied: str = "",
    partly: Mapping[str, str] | None = None,
    fewer_capabilities: Collection[str] = (),
) -> Isolation:
    """Compiles the pod's isolators, each app's, and the defaults.

    :param plugins: see :func:`isolator_plugins`; the first that names an isolator compiles it. Only those are
        loaded that compile one of these isolators, that have defaults, or that have a required isolator.
    :param pod: None: the pod exists already, and ``host`` has its isolators; only the apps' are compiled.
    :param strict: an isolator of the manifest that is not enforced unchanged is an error.
    :param unapplied: the reason why the stager will not apply the plans; empty: it will.
    :param partly: isolators that such a stager applies in part, and which part.
    :param fewer_capabilities: the apps whose images expect fewer default capabilities.
    :raises IsolatorError: a value is wrong, two isolators contradict each other, or the rules forbid it.
    :raises PluginCollisionError: two plugins claim one of the isolators.
    """
    compilers = _Compilers(plugins, rules, strict=strict, unapplied=unapplied, partly=partly)
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


@frozen
class IsolatorPlugin:
    """An isolator plugin: what it declares, and its driver.

    :param names: the isolators that it compiles, without those that the configuration gives to another plugin.
    :param load: returns the driver, and loads it the first time.
    :param defaults, exclusive, gated: as in :class:`kurma_core.hookspecs.driver.Driver`.
    :param collision: the error of an isolator that several plugins claim; each use of it raises the error.
    """

    names: tuple[str, ...]
    load: Callable[[], IsolatorHooks]
    defaults: Collection[str] = ()
    exclusive: Collection[frozenset[str]] = ()
    gated: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    collision: KurmaError | None = None

    def driver(self) -> IsolatorHooks | None:
        """The driver; None: the plugin does not work.

        :raises PluginCollisionError: several plugins claim the isolator.
        """
        if self.collision is not None:
            raise self.collision
        try:
            return self.load()
        except KurmaError:
            return None


def isolator_plugins(registry: PluginRegistry) -> tuple[IsolatorPlugin, ...]:
    """Returns the isolator plugins; none is loaded that the index knows. If several claim an isolator, the plugin
    counts that the configuration names; if it names none, the use of the isolator raises the collision.

    :raises PluginCollisionError: two distributions claim one name of a plugin.
    """

    def loader(name: str) -> Callable[[], IsolatorHooks]:
        return lambda: registry.driver("kurma.isolators", name)

    registry.names("kurma.isolators")
    owners = registry.isolator_claims()
    found = [
        IsolatorPlugin(
            names=tuple(name for name in own.isolators if owners.get(name) == (plugin,)),
            load=loader(plugin.name),
            defaults=own.default_isolators,
            exclusive=own.exclusive,
            gated=own.gated,
        )
        for plugin, own in registry.declarations("kurma.isolators")
    ]
    for isolator, plugins in owners.items():
        if len(plugins) > 1:
            from kurma_core.plugins import claims

            error = claims.collision(claims.ISOLATOR + isolator, plugins)
            found.append(IsolatorPlugin((isolator,), loader(plugins[0].name), collision=error))
    return tuple(found)


def scopes(name: str, plugins: Iterable[IsolatorPlugin]) -> tuple[str, ...]:
    """Returns the scopes of an isolator, ``app``, ``pod`` or both; both if its plugin does not tell."""
    driver = _Compilers(plugins).driver(name)
    return ("app", "pod") if driver is None else tuple(driver.about(name).scopes)


class _Compilers:
    """Compiles isolators, each by its plugin."""

    def __init__(
        self,
        plugins: Iterable[IsolatorPlugin],
        rules: Rules = _NO_RULES,
        *,
        strict: bool = False,
        unapplied: str = "",
        partly: Mapping[str, str] | None = None,
    ) -> None:
        self._plugins = tuple(plugins)
        self._rules = rules
        self._strict = strict
        #: Defaults that gave way to an isolator of the app, by app.
        self._gave_way: dict[str | None, set[str]] = {}
        self._unapplied = unapplied
        self._partly = partly or {}
        self._by_name: dict[str, IsolatorPlugin] = {}
        #: The plan that the pod's isolators give to each of its apps.
        self._each = IsolatorPlan()
        self._of_each: list[tuple[str, IsolatorPlan]] = []
        for plugin in self._plugins:
            for name in plugin.names:
                self._by_name.setdefault(name, plugin)

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
            sets = each_apps or replace(compiled.plan, traffic=(), api=None, environment={}) != IsolatorPlan()
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
        plugin = self._by_name.get(name)
        groups = [group for group in (() if plugin is None else plugin.exclusive) if name in group]
        return sorted({other for group in groups for other in group} - {name})

    def _unknown(self, name: str) -> str:
        """Explains why an isolator has no effect."""
        plugin = self._by_name.get(name)
        if plugin is not None:
            try:
                plugin.load()
            except KurmaError as error:
                return error.message
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
        """Returns the driver that compiles an isolator; None: no plugin that works does.

        :raises PluginCollisionError: several plugins claim it.
        """
        plugin = self._by_name.get(isolator)
        return None if plugin is None else plugin.driver()

    def _refuse_twice(self, names: list[str], scope: str | None) -> None:
        """Refuses duplicates and excluded combinations.

        :raises IsolatorError: an isolator is repeated, or stands beside another that it excludes.
        """
        for number, name in enumerate(names):
            if name in names[:number]:
                raise IsolatorError(f"isolator {name} of {_called(scope)} is given twice")
        for plugin in self._plugins:
            for group in plugin.exclusive:
                both = [name for name in names if name in group and self._by_name.get(name) is plugin]
                if len(both) > 1:
                    raise IsolatorError(f"isolator {both[1]} of {_called(scope)} cannot stand beside {both[0]}")

    def _defaults(self, scope: str | None, names: list[str], host: IsolatorHost) -> list[tuple[str, Json]]:
        found: dict[str, Json] = {}
        for plugin in self._plugins:
            driver = plugin.driver() if plugin.defaults else None
            for name, value in () if driver is None else driver.defaults(_kind(scope), names, host):
                if name not in plugin.defaults:
                    raise PluginError(f"isolator {name} is a default, and its plugin does not declare it as one")
                owner = self._by_name.get(name)
                theirs = owner is plugin or (owner is not None and owner.collision is not None)
                if theirs and name not in names:
                    found.setdefault(name, value)
        return list(found.items())

    def _compile(self, name: str, value: Json, scope: str | None, host: IsolatorHost) -> Compiled:
        from kurma_core.hookspecs.isolator import Compiled

        driver = self.driver(name)
        if driver is None:
            return Compiled(IsolatorPlan(), "ignored", self._unknown(name))
        try:
            compiled = driver.compile(name, value, _kind(scope), host)
            if compiled.outcome not in ("enforced", "modified", "ignored"):
                words = "enforced, modified or ignored"
                raise plugin_error(driver, f"answered compile with the outcome {compiled.outcome!r}, not {words}")
            _check_plan(driver, compiled.plan, _kind(scope), host)
            if compiled.apps is not None:
                _check_plan(driver, compiled.apps, "app", host)
        except PluginError as error:
            error.prefix(f"cannot compile isolator {name}")
            raise
        return compiled

    def _near(self, name: str) -> str:
        """Suggests the nearest known name: a protection whose name is mistyped has no effect."""
        found = nearest(name, self._by_name, 0.85)
        return f"; there is {found}" if found else ""


def _check_plan(driver: IsolatorHooks, plan: IsolatorPlan, scope: str, host: IsolatorHost) -> None:
    """Checks what a plugin compiled: a plan reaches the pod and its apps, never the host.

    :raises PluginError: a value has no meaning for the scope, or would change the host.
    """
    try:
        plan.check(scope)
    except SchemaError as error:
        raise plugin_error(driver, f"answered compile with a wrong plan: {error}") from None
    for sysctl in plan.sysctls:
        kind = sysctl_namespace(sysctl)
        if kind is None or kind in host.host_namespaces:
            why = "is not a setting of a pod's own" if kind is None else f"is of the host's {kind} namespace"
            wrong = plugin_error(driver, f"answered compile with a wrong plan: sysctl {describe(sysctl)} {why}")
            wrong.hint = f"a pod's own are: {OWN_SYSCTLS}"
            raise wrong


def _refuse(app: str, missing: list[str], why: str, hint: str) -> NoReturn:
    """Refuses an app that lacks required isolators. :raises IsolatorError: always."""
    raise IsolatorError(
        f"cannot run app {app} without {', '.join(missing)}, which Kurma's configuration requires: {why}",
        hint=hint,
        app=app,
        isolators=missing,
        reason=why,
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
    drivers: Mapping[str, IsolatorHooks], host: IsolatorHost, claims: Mapping[str, tuple[Plugin, ...]]
) -> tuple[IsolatorInfo, ...]:
    """Lists the isolators of all plugins and whether this host enforces each (``kurma isolators list``), by name.

    :param drivers: by the plugin's name; without those that do not work.
    :param claims: the plugins that compile each isolator.
    """
    from kurma_core.api.host import IsolatorInfo
    from kurma_core.plugins.claims import ISOLATOR, collision

    defaults = {
        plugin: dict((*driver.defaults("pod", (), host), *driver.defaults("app", (), host)))
        for plugin, driver in drivers.items()
    }
    found = []
    for name, plugins in sorted(claims.items()):
        by = ", ".join(plugin.name for plugin in plugins)
        if len(plugins) > 1:
            note = collision(ISOLATOR + name, plugins).message
            found.append(IsolatorInfo(name, by, outcome="refused", note=note))
        elif by in drivers:
            found.append(_info(name, by, drivers[by], host, defaults[by].get(name)))
        else:
            found.append(IsolatorInfo(name, by, outcome="ignored", note="its plugin does not work"))
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
