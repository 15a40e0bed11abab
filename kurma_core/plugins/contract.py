"""Checks a plugin against the contract of its kind: its hook, its declaration, its options, its driver.

The registry does so for every plugin that it loads; the testing kit does the same for a module that is not
installed. pluggy checks the hook; that is left out for a plugin that has not changed since
(:mod:`kurma_core.plugins.index`), and pluggy is not imported then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from importlib import import_module

from kurma_core.config.schema import Where, read, unknown
from kurma_core.hookspecs import GROUPS, PROJECT, Hooks, is_hook
from kurma_core.hookspecs.driver import LOCATORS, Driver, Option
from kurma_core.schema import Made, Number, Shape, Whole, describe, shape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import pluggy

    from kurma_core.hookspecs.driver import DriverContext

    Json = Any

#: The module of :mod:`kurma_core.hookspecs` for each group, and its protocols: a driver satisfies one of them.
_PROTOCOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kurma.fetchers": ("fetcher", ("Fetcher",)),
    "kurma.renderers": ("renderer", ("Renderer",)),
    "kurma.stagers": ("stager", ("Stager", "StagerImageSource", "StagerOfImages")),
    "kurma.networks": ("network", ("Network",)),
    "kurma.isolators": ("isolator", ("Isolator",)),
}


def hook(group: str, name: str, module: object) -> Callable[..., Any]:
    """The plugin's hook of that group, checked by pluggy.

    :raises pluggy.PluginValidationError: a hook of an unknown name, or arguments that the hook does not have.
    :raises TypeError: the hook of the group is missing.
    """
    # A manager for each plugin: hooks return factories to be called one by one, so nothing is broadcast, and an
    # error in one plugin does not show when another is checked.
    manager = _manager()
    manager.register(module, name=f"{group}/{name}")
    manager.check_pending()
    caller: pluggy.HookCaller = getattr(manager.hook, GROUPS[group])
    if not caller.get_hookimpls():
        called = getattr(module, "__name__", repr(module))
        raise TypeError(f"{called} implements no {GROUPS[group]} hook, which {group} asks for")
    return caller


def _manager() -> pluggy.PluginManager:
    import inspect

    import pluggy

    class Manager(pluggy.PluginManager):
        """Knows our own mark of hooks (:func:`kurma_core.hookspecs.hookimpl`)."""

        def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
            function = getattr(plugin, name, None)
            if not inspect.isroutine(function) or not is_hook(function):
                return None
            return {
                "wrapper": False,
                "hookwrapper": False,
                "optionalhook": False,
                "tryfirst": False,
                "trylast": False,
                "specname": None,
            }

    for hook_name in GROUPS.values():
        pluggy.HookspecMarker(PROJECT)(getattr(Hooks, hook_name))
    manager = Manager(PROJECT)
    manager.add_hookspecs(Hooks)
    return manager


def declared(group: str, name: str, module: object, *, checked: bool = False) -> Driver[Any]:
    """Calls the plugin's hook, and checks what it declares.

    :param checked: the hook has been checked, and has not changed since.
    :raises TypeError: it does not return a :class:`Driver`, or one of wrong values; and as :func:`hook`.
    """
    if checked:
        answer = getattr(module, GROUPS[group])()
    else:
        answers = hook(group, name, module)()
        answer = answers[0] if answers else None
    if not isinstance(answer, Driver):
        raise TypeError(f"its {GROUPS[group]} hook returned {answer!r} instead of a Driver")
    if not callable(answer.create):
        raise TypeError(f"its Driver's create is {answer.create!r}, which cannot be called")
    _items(answer.options, Option, "options")
    _items(answer.aliases, str, "aliases")
    _items(answer.annotations, str, "annotations")
    if answer.locators not in LOCATORS:
        raise TypeError(f"its Driver's locators are {answer.locators!r} instead of one of {', '.join(LOCATORS)}")
    if not isinstance(answer.example, str):
        raise TypeError(f"its Driver's example is {answer.example!r} instead of text")
    return answer


def _items(values: object, kind: type, what: str) -> None:
    if not isinstance(values, tuple | list) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"its Driver's {what} are {values!r} instead of a tuple of {kind.__name__}")


def made(group: str, declaration: Driver[Any], context: DriverContext) -> Any:
    """Makes the driver with that context.

    :raises TypeError: it lacks a member that the protocol of its kind requires.
    :raises Exception: whatever its factory raises.
    """
    driver = declaration.create(context)
    module, protocols = _PROTOCOLS[group]
    kind = import_module(f"kurma_core.hookspecs.{module}")
    lacks = [_lacking(driver, getattr(kind, protocol)) for protocol in protocols]
    if all(lacks):
        fewest = min(lacks, key=len)
        raise TypeError(f"its driver ({type(driver).__name__}) lacks {', '.join(fewest)}")
    return driver


def _lacking(driver: object, protocol: type) -> list[str]:
    names = [name for name in vars(protocol) if not name.startswith("_")]
    names += [name for name in getattr(protocol, "__annotations__", ()) if name not in names]
    return [name for name in names if not hasattr(driver, name)]


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


def known_power(word: str, drivers: Iterable[Any]) -> tuple[bool, str | None]:
    """Whether the word of a grant names a power that one of these isolator drivers knows; if not, also the most
    similar word that does."""
    import difflib

    known: dict[str, Collection[str] | None] = {}
    for driver in drivers:
        if hasattr(driver, "powers"):
            gated = getattr(driver, "gated", None)
            for name in driver.names if gated is None else gated:
                known.setdefault(name, None if gated is None else gated[name])
    isolator, equals, part = word.partition("=")
    if isolator not in known:
        return False, next(iter(difflib.get_close_matches(isolator[:100], known, 1, 0)), None)
    parts = known[isolator]
    if not equals or parts is None or part in (*parts, "full"):
        return True, None
    close = difflib.get_close_matches(part[:100], parts, 1, 0)
    return False, f"{isolator}={close[0]}" if close else isolator


def _copy(value: Json) -> Json:
    return value.copy() if isinstance(value, list | dict) else value
