"""A driver is checked against the specification of its kind when it is loaded: names, arguments, marks."""

from __future__ import annotations

import contextlib
import functools
import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

import pluggy
import pytest
from kurma_testing import bound

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import KurmaError, PluginError
from kurma_core.hookspecs import SPECS, Hooks, hookimpl, hookspec, implements
from kurma_core.hookspecs.driver import Driver, Option
from kurma_core.hookspecs.fetcher import (
    DetachedSignature,
    FetcherHooks,
    PublicKey,
    RemoteArchive,
    RemoteBlobHooks,
    RemoteLayer,
    RemoteLayers,
)
from kurma_core.hookspecs.isolator import Compiled, IsolatorAbout, IsolatorHooks, IsolatorHost, Power
from kurma_core.hookspecs.network import NetworkHooks
from kurma_core.hookspecs.renderer import RendererHooks
from kurma_core.hookspecs.stager import CallInHooks, RunningStagerHooks, StagerFeatures, StagerHooks
from kurma_core.models.image import Conventions, RenderedLayer
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.network import AddressResult, NetworkResult
from kurma_core.models.pod import AppStatus
from kurma_core.plugins import contract

#: The specifications of drivers, and of objects that drivers return.
KINDS = [kind for group in SPECS for kind in contract.kinds(group)]
KINDS += [RunningStagerHooks, CallInHooks, RemoteBlobHooks]
HOOKS = [
    pytest.param(kind, hook, id=f"{kind.__name__}.{hook.name}") for kind in KINDS for hook in kind.HOOKS.values()
]
HOST = IsolatorHost(cgroups={}, cpus=1)


class Smallest:
    @hookimpl
    def compile(self, value):
        return Compiled(IsolatorPlan(oom_score_adj=value))


def driver_with(**members):
    return type("Driver", (Smallest,), members)()


def refused(driver):
    with pytest.raises(TypeError) as caught:
        bound(IsolatorHooks, driver)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the specifications ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "hook"), HOOKS)
def test_a_specification_has_plain_arguments_and_a_known_answer(kind, hook):
    """A plugin can leave any argument out, and none has a default that hides a misspelt one."""
    for argument in list(inspect.signature(getattr(kind, hook.name)).parameters.values())[1:]:
        assert argument.kind is argument.POSITIONAL_OR_KEYWORD, argument
        assert argument.default is argument.empty, argument
    hook.answer.accepts(None)  # every name of the annotation is found


@pytest.mark.parametrize(("kind", "hook"), HOOKS)
def test_the_answer_of_a_driver_without_an_optional_hook_is_of_its_type(kind, hook):
    if hook.required:
        return
    made = object.__new__(kind)
    vars(made).update(dict.fromkeys(kind.ATTRIBUTES, "a"))
    try:
        answer = getattr(made, hook.name)(*(None for _ in hook.arguments))
    except KurmaError:
        return  # it refuses what needs the hook
    assert hook.answer.accepts(answer)


def all_hooks(kind, arguments=lambda hook: hook.arguments, leave_out=""):
    """A driver that implements every hook of a kind, remembers the arguments that it got and returns its
    attribute ``answer``."""
    source = "\n".join(
        f"def {hook.name}(self{''.join(f', {name}' for name in arguments(hook))}):\n"
        "    self.got = locals()\n"
        "    return vars(self).get('answer')"
        for hook in kind.HOOKS.values()
        if hook.name != leave_out
    )
    members: dict[str, Any] = {}
    exec(source, members)
    members = {name: hookimpl(members[name]) for name in kind.HOOKS if name != leave_out}
    values = {"tuple[str, ...]": ("a",), "str": "a", "int": 1, "str | None": None, "int | None": None}
    attributes = {name: values.get(answer.text, {}) for name, answer in kind.ATTRIBUTES.items()}
    return type("Driver", (), {**members, **attributes})()


@pytest.mark.parametrize("kind", KINDS)
def test_every_hook_is_passed_on(kind):
    driver = all_hooks(kind)
    found, taken = contract.taken((kind,), driver)
    assert found is kind
    assert taken == {name: hook.arguments for name, hook in kind.HOOKS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_without_a_required_hook_is_refused(kind):
    required = [hook.name for hook in kind.HOOKS.values() if hook.required]
    assert required
    for name in required:
        with pytest.raises(TypeError, match=rf"its driver \(Driver\): lacks {name}$"):
            bound(kind, all_hooks(kind, leave_out=name))


ARGUMENTS = [
    pytest.param(kind, hook, name, id=f"{kind.__name__}.{hook.name} {name}")
    for kind in KINDS
    for hook in kind.HOOKS.values()
    for name in hook.arguments
]


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("kind", "hook", "absent"), ARGUMENTS)
def test_a_driver_of_yesterday_works_when_the_core_adds_an_argument(kind, hook, absent, by_name):
    """The argument is left out for a driver that does not take it."""
    driver = all_hooks(kind, lambda one: [name for name in one.arguments if name != absent])
    call = getattr(bound(kind, driver), hook.name)
    values = {name: object() for name in hook.arguments}
    with contextlib.suppress(PluginError):  # it answers None
        call(**values) if by_name else call(*values.values())
    del values[absent]
    assert driver.got == {"self": driver, **values}


OBJECT = object()
_NO_TEXTS = (None, "ab", ["a"], ("a", 1), (b"a",), {"a": "b"}, 1)
_NO_TABLE = (None, "a", [("a", "b")], (), {1: "a"})
_NO_OBJECT = (None, 1, "a", OBJECT, ())
#: Answers that a hook of that type cannot have: another type, a wrong element, True for 1, None.
WRONG: dict[str, tuple[Any, ...]] = {
    "None": (0, "", (), OBJECT),
    "Json": (),  # any value of JSON
    "bool": (None, 1, "yes"),
    "bool | str": (None, 1, ()),
    "int": (None, True, "1", 1.0),
    "int | None": (True, "1", 1.0),
    "str": (None, 1, b"a", ("a",)),
    "str | None": (1, b"a", ("a",)),
    "tuple[str, ...]": _NO_TEXTS,
    "tuple[str, ...] | None": _NO_TEXTS[1:],
    "frozenset[str]": (None, {"a"}, frozenset((1,)), "a"),
    "Collection[str]": (None, "a", (1,), 1),
    "Collection[frozenset[str]]": (None, "a", (("a",),), (frozenset((1,)),)),
    "tuple[tuple[str, Json], ...]": (None, (("a",),), ((1, "a"),), [("a", 1)], {"a": 1}),
    "Mapping[str, str]": (*_NO_TABLE, {"a": 1}),
    "Mapping[str, Json]": _NO_TABLE,
    "Mapping[str, Json] | None": _NO_TABLE[1:],
    "Mapping[str, Mapping[str, Json]]": (*_NO_TABLE, {"a": 1}),
    "Mapping[str, Collection[str] | None] | None": (*_NO_TABLE[1:], {"a": 1}, {"a": "b"}),
    "Mapping[str, AppStatus]": (*_NO_TABLE, {"a": OBJECT}),
    "Sequence[Leak]": (None, "a", (OBJECT,), 1),
    "tuple[Power, ...]": (None, [], (OBJECT,), (Power(name=1),), (Power("a", least=2),)),  # type: ignore[arg-type]
    "tuple[PublicKey, ...]": (None, [], (OBJECT,), (PublicKey("text", "url"),)),  # type: ignore[arg-type]
    "tuple[RenderedLayer, ...]": (None, [], (OBJECT,)),
    "ImageManifest | None": (1, "a", OBJECT),
    "NetworkResult | None": (1, "a", OBJECT),
    "Conventions": _NO_OBJECT,
    "StagerError": (*_NO_OBJECT, ValueError()),
    "Typer": _NO_OBJECT,
    "Compiled": (*_NO_OBJECT, Compiled(IsolatorPlan(), outcome=5), Compiled(plan=None)),  # type: ignore[arg-type]
    "IsolatorAbout": (*_NO_OBJECT, IsolatorAbout("app", "", None)),  # type: ignore[arg-type]
    "StagerFeatures": (*_NO_OBJECT, StagerFeatures(status_file="yes")),  # type: ignore[arg-type]
    "DetachedSignature | None": (1, b"a", OBJECT, DetachedSignature("text")),  # type: ignore[arg-type]
    "BinaryIO": (None, b"bytes", OBJECT),
    "RemoteArchive | RemoteLayers": (
        *_NO_OBJECT,
        RemoteArchive("a", "b", "file", None),  # type: ignore[arg-type]
        RemoteArchive("a", "b", "file", OBJECT),  # type: ignore[arg-type]
        RemoteArchive("a", "b", "file", RemoteBlobHooks(), max_age="1"),  # type: ignore[arg-type]
        RemoteLayers("a", "b", "file", ImageManifest("a"), [], "sha256:0"),  # type: ignore[arg-type]
        RemoteLayers("a", "b", "file", ImageManifest("a"), (RemoteLayer("a", None),), "sha256:0"),  # type: ignore[arg-type]
        RemoteLayers("a", "b", "file", ImageManifest("a"), (RemoteLayer("a", OBJECT),), "sha256:0"),  # type: ignore[arg-type]
    ),
    "StagerHooks": _NO_OBJECT,
    "RunningStagerHooks": _NO_OBJECT,
    "RunningStagerHooks | None": _NO_OBJECT[1:],
    "CallInHooks": _NO_OBJECT,
}


@pytest.mark.parametrize(("kind", "hook"), HOOKS)
def test_a_wrong_answer_of_any_hook_is_the_plugins_fault(kind, hook):
    """It names plugin and hook; nothing of the core gets the answer."""
    driver = all_hooks(kind)
    call = getattr(bound(kind, driver, "kurma.networks", "wild"), hook.name)
    for answer in WRONG[hook.answer.text]:
        driver.answer = answer
        with pytest.raises(PluginError) as caught:
            call(*(OBJECT for _ in hook.arguments))
        message = str(caught.value)
        answered = f"network plugin 'wild' of {type(driver).__module__} answered {hook.name} with "
        failed = (
            f"network plugin 'wild' of {type(driver).__module__} failed in {hook.name}: TypeError: its driver ("
        )
        assert message.startswith((answered, failed)), message
        assert "\n" not in message


def test_the_field_of_a_wrong_value_is_named():
    driver = all_hooks(IsolatorHooks)
    driver.answer = Compiled(IsolatorPlan(), outcome=5)
    with pytest.raises(PluginError, match=r"answered compile with a Compiled whose outcome is 5, not str$"):
        bound(IsolatorHooks, driver).compile("a", 1, "app", HOST)


@pytest.mark.parametrize(
    ("kind", "hook", "answer", "said"),
    [
        (NetworkHooks, "add", NetworkResult(5), "a wrong NetworkResult: addresses: expected tuple[AddressResult"),
        (
            NetworkHooks,
            "add",
            NetworkResult((AddressResult(5),)),
            "a wrong NetworkResult: addresses[0].address: expected a s",
        ),
        (
            NetworkHooks,
            "add",
            NetworkResult((), routes=(("a",),)),
            "a wrong NetworkResult: routes: expected tuple[",
        ),
        (
            NetworkHooks,
            "add",
            NetworkResult((), raw={1: 2}),
            "a wrong NetworkResult: raw: expected Json, found {1: 2}",
        ),
        (
            NetworkHooks,
            "add",
            NetworkResult((), raw=[b"a"]),
            "a wrong NetworkResult: raw: expected Json, found [b'a",
        ),
        (
            RendererHooks,
            "render",
            (RenderedLayer("a", 5),),
            "a wrong RenderedLayer: path: expected a string, found 5",
        ),
        (
            FetcherHooks,
            "conventions",
            Conventions(stop_signal="9"),
            "a wrong Conventions: stop_signal: expected an i",
        ),
        (StagerHooks, "status", {"a": AppStatus("a", pid="1")}, "a wrong AppStatus: pid: expected an integer"),
        (
            StagerHooks,
            "status",
            {"a": AppStatus("a", exit_code=999)},
            "a wrong AppStatus: exit_code: expected an int",
        ),
    ],
)
def test_a_wrong_value_deep_inside_an_answer_is_the_plugins_fault(kind, hook, answer, said):
    """18."""
    driver = all_hooks(kind)
    driver.answer = answer
    with pytest.raises(PluginError) as caught:
        getattr(bound(kind, driver, "kurma.networks", "wild"), hook)(*(OBJECT for _ in kind.HOOKS[hook].arguments))
    assert str(caught.value).startswith(f"network plugin 'wild' of {__name__} answered {hook} with {said}")


@pytest.mark.parametrize(
    "answer",
    [
        NetworkResult(
            (AddressResult("10.0.0.2/24", "10.0.0.1"),), (("0.0.0.0/0", None),), raw={"a": [1, None, 1.5]}
        ),
        NetworkResult((), search=("a",)),
    ],
)
def test_a_right_value_is_passed_on_unchanged(answer):
    """18."""
    driver = all_hooks(NetworkHooks)
    driver.answer = answer
    assert bound(NetworkHooks, driver).add(OBJECT) is answer


def test_a_hook_may_take_its_arguments_in_another_order():
    class Turned(Smallest):
        @hookimpl
        def compile(self, host, name):
            return Compiled(IsolatorPlan(), note=f"{name} {host.cpus}")

    assert bound(IsolatorHooks, Turned()).compile("a", 1, "app", HOST).note == "a 1"


def test_a_hook_that_the_driver_lacks_has_the_specifications_answer():
    driver = bound(IsolatorHooks, Smallest())
    assert driver.powers("a", 1, "app", HOST) == ()
    assert driver.compile("a", 7, "app", HOST).plan.oom_score_adj == 7
    assert implements(driver, IsolatorHooks.compile)
    assert not implements(driver, IsolatorHooks.powers)

    class Core(IsolatorHooks):
        def about(self, name):
            raise NotImplementedError

    assert implements(Core(), IsolatorHooks.about)
    assert not implements(Core(), IsolatorHooks.powers)


# --- faults of a driver ----------------------------------------------------------------------------------------


@hookimpl
def _defalts(self, scope, names, host): ...


@hookimpl
def _misspelt(self, scop, names): ...


@hookimpl
def _with_a_default(self, scope, namse=None): ...


@hookimpl
def _any_names(self, scope, **more): ...


@hookimpl
def _any_values(self, *more): ...


@hookimpl
def _by_position(self, scope, /): ...


@hookimpl
def _by_keyword(self, *, scope): ...


@hookimpl
def _generator(self, scope):
    yield ("a", 1)


@hookimpl
async def _coroutine(self, scope): ...


def _unmarked(self, scope, names, host): ...


def _decorated(function):
    return lambda *arguments: function(*arguments)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"defalts": _defalts}, "defalts is not a hook of IsolatorHooks; the nearest is defaults"),
        ({"defaults": _misspelt}, "defaults takes scop, which its hook does not pass; the nearest is scope"),
        (
            {"defaults": _with_a_default},
            "defaults takes namse, which its hook does not pass; the nearest is names",
        ),
        ({"defaults": _any_names}, "defaults takes **more, which gets nothing: name the arguments"),
        ({"defaults": _any_values}, "defaults takes *more, which gets nothing: name the arguments"),
        ({"defaults": _by_position}, "defaults takes scope by position only: leave out the /"),
        ({"defaults": _by_keyword}, "defaults takes scope by keyword only: leave out the *"),
        ({"defaults": _generator}, "defaults is a generator or a coroutine: return the whole answer"),
        ({"defaults": _coroutine}, "defaults is a generator or a coroutine: return the whole answer"),
        ({"defaults": _unmarked}, "its method defaults has the name of a hook: mark it with @hookimpl, or rename"),
        (
            {"defaults": _decorated(_misspelt)},
            "its method defaults has the name of a hook: mark it with @hookimpl",
        ),
        ({"powers": {"example.com/one": None}}, "powers is a hook and must be a method"),
        ({"powers": property(lambda self: {})}, "powers is a hook and must be a method"),
        (
            {"defaults": pluggy.HookimplMarker("kurma")(wrapper=True)(lambda self, scope: None)},
            "defaults cannot be a wrapper",
        ),
    ],
)
def test_a_fault_of_a_driver_is_named_with_what_is_meant(members, said):
    assert said in refused(driver_with(**members))


def test_a_hook_that_is_set_on_the_object_is_refused():
    driver = Smallest()
    driver.compile = lambda value: None
    assert "the hook compile is set on the object: define it in the class" in refused(driver)


def test_the_nearest_method_is_named_for_a_hook_that_is_missing():
    class Misspelt:
        def compil(self, value): ...

    assert refused(Misspelt()) == "its driver (Misspelt): lacks compile; its method compil is not a hook"


def test_all_faults_are_told_at_once():
    said = refused(driver_with(defaults=_misspelt, powers=_unmarked, compyle=_by_keyword))
    for words in ("defaults takes scop", "its method powers", "compyle is not a hook"):
        assert words in said


@pytest.mark.parametrize(
    "member",
    [
        staticmethod(hookimpl(lambda scope: ((scope, 1),))),
        classmethod(hookimpl(lambda cls, scope: ((scope, 1),))),
        functools.wraps(hookimpl(lambda self, scope: None))(lambda self, scope: ((scope, 1),)),
        pluggy.HookimplMarker("kurma")(lambda self, scope: ((scope, 1),)),
    ],
    ids=["staticmethod", "classmethod", "decorated", "marked by pluggy"],
)
def test_a_hook_may_be_any_method_that_has_its_mark(member):
    assert bound(IsolatorHooks, driver_with(defaults=member)).defaults("app", (), HOST) == (("app", 1),)


def test_no_property_of_a_driver_is_read():
    def read(self):
        raise AssertionError

    assert bound(IsolatorHooks, driver_with(state=property(read))).compile("a", 1, "app", HOST)


def test_a_driver_may_be_a_subclass_of_the_specification():
    class Sub(IsolatorHooks):
        @hookimpl
        def compile(self, value):
            return Compiled(IsolatorPlan(oom_score_adj=value))

    driver = bound(IsolatorHooks, Sub())
    assert driver.compile("a", 7, "app", HOST).plan.oom_score_adj == 7
    assert driver.defaults("app", (), HOST) == ()


class Box(Hooks):
    """A specification of two kinds of driver: this one, and :class:`Bag`."""

    @hookspec(required=True)
    def open(self, force: bool) -> int: ...


class Bag(Hooks):
    @hookspec(required=True)
    def fill(self) -> Box | None: ...

    @hookspec
    def seal(self) -> bool:
        return False


def test_the_specification_is_found_by_the_hooks():
    class Sack:
        @hookimpl
        def fill(self): ...

    found, taken = contract.taken((Box, Bag), Sack())
    assert (found, taken) == (Bag, {"fill": ()})

    class Neither:
        @hookimpl
        def seal(self): ...

        @hookimpl
        def fil(self): ...

    with pytest.raises(TypeError, match="fil is not a hook of Bag; the nearest is fill; lacks fill"):
        contract.taken((Box, Bag), Neither())


def test_the_module_of_each_kind_is_in_the_table():
    for module, *names in SPECS.values():
        found = import_module(f"kurma_core.hookspecs.{module}")
        assert all(issubclass(getattr(found, name), Hooks) for name in names)


# --- the declaration of a plugin -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([Option("a", set, 1, "")], "'a' is of type set instead of one of str, int, float, bool, list, dict"),
        ([Option("a", "str", "", "")], "'a' is of type 'str' instead of one of str, "),
        ([Option(1, str, "", "")], "1 has no name that is text"),
        ([Option("", str, "", "")], "'' has no name that is text"),
        ([Option("a", str, "", "")] * 2, "'a' is declared twice"),
        ([Option("a", str, "", None)], "'a' has the help None instead of text"),
        ([Option("a", int, "1", "")], "'a' has a wrong default: expected an integer, found '1'"),
        ([Option("a", int, True, "")], "'a' has a wrong default: expected an integer, found True"),
        ([Option("a", str, 5, "")], "'a' has a wrong default: expected a string, found 5"),
        ([Option("a", list, (), "")], "'a' has a wrong default: expected a list, found ()"),
        ([Option("a", int, 9, "", most=8)], "'a' has a wrong default: expected an integer to 8, found 9"),
        (
            [Option("a", str, "c", "", choices=("a", "b"))],
            '\'a\' has a wrong default: expected one of "a", "b", fou',
        ),
        ([Option("a", str, "a", "", choices=("a", 2))], "'a' has a wrong choice: expected a string, found 2"),
        ([Option("a", str, "a", "", choices="ab")], "'a' has the choices 'ab' instead of a tuple"),
        ([Option("a", int, 5, "", least=6, most=4)], "'a' has a least value above its most"),
        ([Option("a", int, 5, "", least="1")], "'a' has a bound that is not a number: ['1']"),
        ([Option("a", str, "", "", least=1)], "'a' has a bound, and is not a number"),
    ],
)
def test_a_wrong_option_is_told_when_the_plugin_is_loaded(options, said):
    """18."""
    with pytest.raises(TypeError) as caught:
        contract.declared("kurma.networks", "wild", module_with(options))
    assert str(caught.value).startswith(f"its Driver's option {said}")
    assert "\n" not in str(caught.value)


def test_right_options_are_accepted():
    """18."""
    options = (
        Option("a", str, None, ""),
        Option("b", float, 1, "", least=0, most=2.5),
        Option("c", list, [], ""),
        Option("d", dict, {}, ""),
        Option("e", str, "", "", choices=("", "x")),
        Option("f", bool, False, ""),
    )
    assert contract.declared("kurma.networks", "wild", module_with(options)).options == options


def module_with(options):
    """The module of a plugin that declares these options."""
    module = ModuleType("wild")
    module.kurma_network = lambda: Driver(create=lambda context: None, options=tuple(options))
    hookimpl(module.kurma_network)
    return module
