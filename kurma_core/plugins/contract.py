"""Checks a plugin against the contract of its kind: its hook, its declaration, its options, its driver.

The registry does so for every plugin that it loads; the testing kit does the same for a module that is not
installed. pluggy checks names and arguments of hooks; further rules find what pluggy accepts (a misspelt argument
with a default, a hook without a mark) and suggest the nearest name. Both are left out for a plugin that has not
changed since (:mod:`kurma_core.plugins.index`), and pluggy is not imported then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module

from kurma_core import hookspecs
from kurma_core.config.schema import Where, read, unknown
from kurma_core.hookspecs import GROUPS, PROJECT, SPECS, Hooks, ModuleHooks, implements, is_hook
from kurma_core.hookspecs.driver import LOCATORS, Driver, Option
from kurma_core.schema import Made, Number, SchemaError, Shape, Whole, describe, nearest, shape
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    import pluggy

    from kurma_core.hookspecs import Hook

    Json = Any
    H = TypeVar("H", bound=Hooks)

#: The optional hook of every module.
CHECKS = "kurma_checks"
#: Hooks of isolator drivers that the core calls only for isolators that the plugin declares, and the declaration.
_DECLARED = {"defaults": "default_isolators", "powers": "gated"}
#: The types of options.
_TYPES = (str, int, float, bool, list, dict)


def hook(group: str, name: str, module: object) -> Callable[..., Any]:
    """The plugin's hook of that group, checked.

    :raises TypeError: tells everything that is wrong with the module's hooks, in one line.
    :raises pluggy.PluginValidationError: pluggy refuses them.
    """
    import inspect

    wanted = GROUPS[group]
    wrong: list[str] = []
    functions = {each: found for each in dir(module) if inspect.isroutine(found := getattr(module, each, None))}
    for each in (wanted, CHECKS):
        if each in functions:
            _module_arguments(each, functions[each], wrong)
    others = functions.keys() - ModuleHooks.HOOKS.keys()
    wrong += [
        f"{each} is not a hook of a plugin's module{_nearest(each, ModuleHooks.HOOKS)}"
        for each in sorted(others)
        if is_hook(functions[each])
    ]
    if wanted not in functions:
        close = nearest(wanted, others)
        near = f"; its function {close} is not a hook" if close else ""
        module_name = getattr(module, "__name__", repr(module))
        wrong.append(f"{module_name} implements no {wanted} hook, which {group} asks for{near}")
    if wrong:
        raise TypeError("; ".join(wrong))
    caller: pluggy.HookCaller = getattr(_registered(ModuleHooks, module, f"{group}/{name}").hook, wanted)
    return caller


def module_arguments(name: str, function: Any) -> tuple[str, ...]:
    """The arguments that a module's implementation of a hook takes. :raises TypeError: it breaks the contract."""
    wrong: list[str] = []
    found = _module_arguments(name, function, wrong)
    if wrong:
        raise TypeError("; ".join(wrong))
    return found


def _module_arguments(name: str, function: Any, wrong: list[str]) -> tuple[str, ...]:
    if not is_hook(function):
        wrong.append(f"its function {name} has the name of a hook: mark it with @hookimpl, or rename it _{name}")
    return _arguments(ModuleHooks.HOOKS[name], function, function, wrong)


def _registered(kind: type[Hooks], plugin: object, name: str) -> pluggy.PluginManager:
    """Checks an object by pluggy. Each has a manager of its own, so that the error of one plugin does not show
    when another is checked; the core calls hooks one at a time, so nothing is broadcast.

    :raises pluggy.PluginValidationError: a hook of an unknown name, or arguments that the hook does not have.
    """
    import inspect

    import pluggy

    class Manager(pluggy.PluginManager):
        """Reads no property of a driver."""

        def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
            if isinstance(inspect.getattr_static(plugin, name, None), property):
                return None
            return super().parse_hookimpl_opts(plugin, name)

    manager = Manager(PROJECT)
    manager.add_hookspecs(kind)
    manager.register(plugin, name=name)
    manager.check_pending()
    return manager


def declared(group: str, name: str, module: object, *, checked: bool = False) -> Driver:
    """Calls the plugin's hook, and checks what it declares.

    :param checked: the hook has been checked, and has not changed since.
    :raises TypeError: it does not return a :class:`Driver`, or one of wrong values; and as :func:`hook`.
    """
    answer = getattr(module, GROUPS[group])() if checked else hook(group, name, module)()
    if not isinstance(answer, Driver):
        raise TypeError(f"its {GROUPS[group]} hook returned {answer!r} instead of a Driver")
    if not callable(answer.create):
        raise TypeError(f"its Driver's create is {answer.create!r}, which cannot be called")
    _items(answer.options, Option, "options")
    _options(answer.options)
    _items(answer.aliases, str, "aliases")
    _items(answer.annotations, str, "annotations")
    if answer.locators not in LOCATORS:
        raise TypeError(f"its Driver's locators are {answer.locators!r} instead of one of {', '.join(LOCATORS)}")
    for name in ("example", "help"):
        if not isinstance(getattr(answer, name), str):
            raise TypeError(f"its Driver's {name} is {getattr(answer, name)!r} instead of text")
    if group == "kurma.isolators":
        _isolators(answer)
    return answer


def _items(values: object, kind: type, what: str) -> None:
    if not isinstance(values, tuple | list) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"its Driver's {what} are {values!r} instead of a tuple of {kind.__name__}")


def _options(declared: Sequence[Option]) -> None:
    """Checks the options that a plugin declares. :raises TypeError: one is wrong."""
    names = set[str]()
    for option in declared:
        its = f"its Driver's option {option.name!r}"
        if not isinstance(option.name, str) or not option.name:
            raise TypeError(f"{its} has no name that is text")
        if option.name in names:
            raise TypeError(f"{its} is declared twice")
        names.add(option.name)
        if option.type not in _TYPES:
            kinds = ", ".join(kind.__name__ for kind in _TYPES)
            shown = getattr(option.type, "__name__", repr(option.type))
            raise TypeError(f"{its} is of type {shown} instead of one of {kinds}")
        if not isinstance(option.help, str):
            raise TypeError(f"{its} has the help {option.help!r} instead of text")
        bounds = [bound for bound in (option.least, option.most) if bound is not None]
        if bounds and option.type not in (int, float):
            raise TypeError(f"{its} has a bound, and is not a number")
        if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds):
            raise TypeError(f"{its} has a bound that is not a number: {bounds!r}")
        if bounds != sorted(bounds):
            raise TypeError(f"{its} has a least value above its most")
        if not isinstance(option.choices, tuple | list):
            raise TypeError(f"{its} has the choices {option.choices!r} instead of a tuple")
        plain = _shape(replace(option, choices=()))
        values = [("choice", one, plain) for one in option.choices]
        if option.default is not None:  # the driver gets None if the key is absent
            values.append(("default", option.default, _shape(option)))
        for what, value, form in values:
            try:
                form.read(value, "")
            except SchemaError as error:
                expected = f"expected {error.expected}, found {value!r:.80}"
                raise TypeError(f"{its} has a wrong {what}: {expected}") from None


def _isolators(declared: Driver) -> None:
    """Checks what an isolator plugin declares. :raises TypeError: it is wrong."""
    _items(declared.isolators, str, "isolators")
    _items(declared.default_isolators, str, "default_isolators")
    _items(declared.exclusive, frozenset, "exclusive")
    if not declared.isolators:
        raise TypeError("its Driver declares no isolators")
    if not isinstance(declared.gated, Mapping):
        raise TypeError(f"its Driver's gated is {declared.gated!r} instead of a mapping")
    for name, parts in declared.gated.items():
        if isinstance(parts, str) or not (parts is None or isinstance(parts, Collection)):
            raise TypeError(f"its Driver's gated has {name}: {parts!r} instead of a tuple of parts, or None")
    named = {"default_isolators": declared.default_isolators, "gated": declared.gated}
    named["exclusive"] = [name for together in declared.exclusive for name in together]
    for what, names in named.items():
        for name in names:
            if name not in declared.isolators:
                near = _nearest(str(name), declared.isolators)
                raise TypeError(f"its Driver's {what} has {name!r}, which is not one of its isolators{near}")


def check_declared(group: str, declared: Driver, driver: Hooks) -> None:
    """Checks a driver by what its plugin declares. :raises TypeError: a hook of it would never be called."""
    if group == "kurma.isolators":
        for hook, what in _DECLARED.items():
            if implements(driver, getattr(type(driver), hook)) and not getattr(declared, what):
                raise TypeError(f"its driver has the hook {hook}, and its Driver declares no {what}")


def kinds(group: str) -> tuple[type[Hooks], ...]:
    """The specifications of the group's drivers: a driver implements one of them."""
    module, *names = SPECS[group]
    found = import_module(f"{hookspecs.__name__}.{module}")
    return tuple(getattr(found, name) for name in names)


def taken(of: Sequence[type[H]], driver: object) -> tuple[type[H], dict[str, tuple[str, ...]]]:
    """Checks a driver, or an object that a driver returned, against the specifications of its kind.

    :param of: the specifications; the driver must implement one of them.
    :returns: the specification, and by hook the arguments that the driver takes.
    :raises TypeError: tells everything that is wrong with it, in one line.
    :raises pluggy.PluginValidationError: pluggy refuses it.
    """
    found = [(kind, *_read(kind, driver)) for kind in of]
    kind, hooks, wrong = min(found, key=lambda one: (bool(one[2]), -len(one[1])))
    if wrong:
        raise TypeError(f"its driver ({type(driver).__name__}): {'; '.join(wrong)}")
    _registered(kind, driver, type(driver).__qualname__)
    return kind, hooks


def _read(kind: type[Hooks], driver: object) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The hooks that a driver implements, each with the arguments that it takes, and the faults of the driver."""
    import inspect

    cls = type(driver)
    found: dict[str, tuple[str, ...]] = {}
    wrong: list[str] = []
    public: list[str] = []
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if member is inspect.getattr_static(kind, name, None):
            continue  # inherited from the specification, or from object
        function, hook = getattr(member, "__func__", member), kind.HOOKS.get(name)
        if hook is None and is_hook(function):
            wrong.append(f"{name} is not a hook of {kind.__name__}{_nearest(name, kind.HOOKS)}")
        elif hook is None:
            public += [name] if callable(function) and not name.startswith("_") else []
        elif not inspect.isroutine(member):
            wrong.append(f"{name} is a hook and must be a method")
        elif not is_hook(function):
            wrong.append(f"its method {name} has the name of a hook: mark it with @hookimpl, or rename it _{name}")
            found[name] = ()
        else:
            found[name] = _arguments(hook, function, getattr(driver, name), wrong)
    on_object = sorted(kind.HOOKS.keys() & getattr(driver, "__dict__", {}).keys())
    wrong += [f"the hook {name} is set on the object: define it in the class" for name in on_object]
    for name, hook in kind.HOOKS.items():
        if hook.required and name not in found:
            close = nearest(name, public)
            wrong.append(f"lacks {name}" + (f"; its method {close} is not a hook" if close else ""))
    wrong += [f"lacks {name}" for name in kind.ATTRIBUTES if not hasattr(driver, name)]
    return found, wrong


def _arguments(hook: Hook, function: Any, method: Callable[..., Any], wrong: list[str]) -> tuple[str, ...]:
    """The arguments that a hook's implementation takes, in its own order."""
    import inspect

    options = getattr(inspect.unwrap(function), "kurma_impl", None) or getattr(function, "kurma_impl", {})
    if options.get("wrapper") or options.get("hookwrapper"):
        wrong.append(f"{hook.name} cannot be a wrapper")
    if any(is_a(function) for is_a in (inspect.isgeneratorfunction, inspect.iscoroutinefunction)):
        wrong.append(f"{hook.name} is a generator or a coroutine: return the whole answer")
    names = []
    for argument in inspect.signature(method).parameters.values():
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            wrong.append(f"{hook.name} takes {argument}, which gets nothing: name the arguments")
        elif argument.kind is argument.KEYWORD_ONLY:
            wrong.append(f"{hook.name} takes {argument.name} by keyword only: leave out the *")
        elif argument.kind is argument.POSITIONAL_ONLY:
            wrong.append(f"{hook.name} takes {argument.name} by position only: leave out the /")
        elif argument.name not in hook.arguments:
            near = _nearest(argument.name, hook.arguments)
            wrong.append(f"{hook.name} takes {argument.name}, which its hook does not pass{near}")
        else:
            names.append(argument.name)
    return tuple(names)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f"; the nearest is {close}" if close else ""


def options(
    section: Mapping[str, Json], known: tuple[Option, ...], place: str, origins: Mapping[str, str]
) -> dict[str, Json]:
    """Checks the administrator's values by the plugin's options, and fills in defaults.

    :param place: dotted path of the section, for errors.
    :param origins: the file of each value, by dotted path.
    :raises ConfigError: an unknown key, or a value of a wrong type.
    """
    table = {option.name: option for option in known}
    values: dict[str, Json] = {option.name: _copy(option.default) for option in known}
    for name, value in section.items():
        path = f"{place}.{name}"
        file = next((f for key, f in origins.items() if key == path or key.startswith(path + ".")), "kurma.yml")
        if name not in table:
            unknown(Where(file, place), name, table)
        if value is not None:
            values[name] = read(_shape(table[name]), value, Where(file, path))
    return values


def _shape(option: Option) -> Shape:
    if option.type is int:
        least, most = (None if one is None else int(one) for one in (option.least, option.most))
        found: Shape = Whole(least, most)
    elif option.type is float:
        number = Number(option.least, most=option.most)
        found = Made(number.expected, float, number)
    else:
        found = shape(option.type)
    if not option.choices:
        return found

    def chosen(value: Json) -> Json:
        if value not in option.choices:
            raise ValueError(value)
        return value

    return Made("one of " + ", ".join(map(describe, option.choices)), chosen, found)


#: Powers that a key of a volume asks for, and not an isolator: as :attr:`Driver.gated`.
_OF_VOLUMES: Mapping[str, Collection[str]] = {"kurma.io/propagation": ("rshared",)}


def known_power(word: str, gated: Iterable[Mapping[str, Collection[str] | None]]) -> tuple[bool, str | None]:
    """Whether the word of a grant names a power that an isolator plugin declares, or that a volume asks for; if
    not, also the most similar word that does.

    :param gated: :attr:`Driver.gated` of the plugins.
    """
    known: dict[str, Collection[str] | None] = {}
    for isolators in (*gated, _OF_VOLUMES):
        for name, parts in isolators.items():
            known.setdefault(name, parts)
    isolator, equals, part = word.partition("=")
    if isolator not in known:
        return False, nearest(isolator, known, 0)
    parts = known[isolator]
    if not equals or parts is None or part in (*parts, "full"):
        return True, None
    close = nearest(part, parts, 0)
    return False, f"{isolator}={close}" if close else isolator


def _copy(value: Json) -> Json:
    return value.copy() if isinstance(value, list | dict) else value
