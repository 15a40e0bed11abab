"""The contracts between the core and its plugins: hook specifications, one module for each kind of plugin.

A plugin is a module named by an entry point of one of the groups in :data:`GROUPS`. It implements the hook of its
kind, which takes no arguments and returns a :class:`.driver.Driver`: a factory, and the options that the plugin's
section of ``kurma.yml`` may hold. The core makes each driver at most once per process, when it is first needed.

The methods of a driver are hooks, too, marked with :func:`hookimpl`. A specification, a subclass of
:class:`Hooks`, declares those of a kind: their arguments, and the type of their answer. The core checks a driver
against it when it loads it, leaves out the arguments that the driver does not take, and checks each answer
(:mod:`kurma_core.plugins.calls`). It calls drivers one at a time, in configured order, undoing in reverse.

This package imports none of its modules, so that a command loads only the kinds that it needs.

A plugin that cannot work on this host raises :class:`kurma_core.errors.PluginSkipped` from its hook or factory.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import sys
from _collections_abc import Collection, Mapping, Sequence  # without collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, TypeVar, overload

    from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck

    F = TypeVar("F", bound=Callable[..., Any])

#: Name of pluggy's project. pluggy's own markers set the attributes ``kurma_impl`` and ``kurma_spec``.
PROJECT = "kurma"
_IMPL, _SPEC = "kurma_impl", "kurma_spec"

_WHERE = dict.fromkeys(("Driver", "HostCheck"), "kurma_core.hookspecs.driver")

#: Version of the contract with plugins, and the oldest that this Kurma serves (``docs/plugin_contract.md``).
CONTRACT, OLDEST = 1, 1
#: The entry-point group by which a distribution declares the version of the contract that its plugins need. The
#: entry's name is the version, so that it is known before a module is imported.
NEEDED = "kurma.contract"
#: The hook of a plugin's module, by entry-point group.
GROUPS: Mapping[str, str] = {
    "kurma.fetchers": "kurma_fetcher",
    "kurma.renderers": "kurma_renderer",
    "kurma.stagers": "kurma_stager",
    "kurma.networks": "kurma_network",
    "kurma.isolators": "kurma_isolator",
    "kurma.observers": "kurma_observer",
    "kurma.services": "kurma_service",
    "kurma.commands": "kurma_command",
}
#: The specification of drivers, by entry-point group: a module of this package, and its classes. A driver
#: implements the required hooks of one of them.
SPECS: Mapping[str, tuple[str, ...]] = {
    "kurma.fetchers": ("fetcher", "FetcherHooks"),
    "kurma.renderers": ("renderer", "RendererHooks"),
    "kurma.stagers": ("stager", "StagerHooks", "StagerImageHooks", "StagerOfImagesHooks"),
    "kurma.networks": ("network", "NetworkHooks"),
    "kurma.isolators": ("isolator", "IsolatorHooks"),
    "kurma.observers": ("observer", "ObserverHooks"),
    "kurma.services": ("service", "ServiceHooks"),
    "kurma.commands": ("command", "CommandHooks"),
}


# --- marks -----------------------------------------------------------------------------------------------------


def hookimpl(function: F) -> F:
    """Marks a function of a plugin's module, or a method of its driver, as a hook.

    It is pluggy's ``HookimplMarker("kurma")`` without options. It does not import pluggy, nor does a start whose
    plugins have not changed.
    """
    setattr(function, _IMPL, {})
    return function


def is_hook(function: object) -> bool:
    """Whether :func:`hookimpl` marked it."""
    return isinstance(getattr(function, _IMPL, None), dict)


if TYPE_CHECKING:

    @overload
    def hookspec(function: F) -> F: ...
    @overload
    def hookspec(*, required: bool = False, raises: tuple[type[BaseException], ...] = ()) -> Callable[[F], F]: ...


def hookspec(function: Any = None, *, required: bool = False, raises: tuple[type[BaseException], ...] = ()) -> Any:
    """Declares a method of a specification as a hook. Its body is the answer for drivers that lack it.

    A hook has no keyword-only arguments and no defaults: the core passes every argument.

    :param required: every driver implements it; the body is empty.
    :param raises: exceptions besides ``KurmaError`` that reach the caller unchanged.
    """
    if function is None:
        return lambda function: _specified(function, required, raises)
    return _specified(function, required, raises)


def _specified(function: F, required: bool, raises: tuple[type[BaseException], ...]) -> F:
    setattr(function, _SPEC, {"firstresult": True, "required": required, "raises": raises})
    return function


# --- specifications --------------------------------------------------------------------------------------------


class Answer:
    """The type of an answer: an annotation, read when the first value is checked.

    It is made of classes, ``X | Y``, ``None``, ``Json`` and ``object`` (any value), ``tuple[X, ...]``,
    ``tuple[X, Y]``, ``Sequence[X]``, ``Collection[X]``, ``frozenset[X]`` and ``Mapping[X, Y]``. ``X`` and
    ``X | None``, where X is a specification, stand for an object with hooks. A name that its module imports only
    for type checkers is listed in the module's ``_WHERE``, with the name's module.
    """

    __slots__ = ("_check", "_module", "kind", "text")

    def __init__(self, text: str, module: str) -> None:
        self.text = text
        #: The specification of the object that is returned; None: the answer is a plain value.
        self.kind: type[Hooks] | None = None
        self._module = module
        self._check: Callable[[Any], bool] | None = None

    def accepts(self, value: object) -> bool:
        if self._check is None:
            self._check = self._read(self.text)
        return self._check(value)

    def _read(self, text: str) -> Callable[[Any], bool]:
        from kurma_core.schema import split

        choices = split(text, "|")
        if len(choices) > 1:
            checks = [self._read(choice) for choice in choices]
            return lambda value: any(check(value) for check in checks)
        head, bracket, rest = text.partition("[")
        if not bracket:
            return self._plain(text)
        arguments = split(rest[:-1], ",")
        inner = [self._read(argument) for argument in arguments if argument != "..."]
        kind = _CONTAINERS[head]
        if len(inner) == 1:
            (each,) = inner
            return lambda value: (
                isinstance(value, kind) and not isinstance(value, str | bytes) and all(map(each, value))
            )
        if kind is tuple:
            return lambda value: (
                isinstance(value, tuple)
                and len(value) == len(inner)
                and all(check(one) for check, one in zip(inner, value, strict=True))
            )
        key, item = inner
        return lambda value: (
            isinstance(value, kind) and all(key(name) and item(one) for name, one in value.items())
        )

    def _plain(self, name: str) -> Callable[[Any], bool]:
        if name in ("Json", "Any", "object"):
            return lambda value: True
        if name == "None":
            return lambda value: value is None
        kind = self._class(name)
        if issubclass(kind, Hooks):
            self.kind = kind
            return lambda value: value is not None
        if kind in (int, float):
            kinds = (int, float) if kind is float else int
            return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
        return lambda value: isinstance(value, kind)

    def _class(self, name: str) -> type:
        module = vars(sys.modules[self._module])
        where = module.get("_WHERE", {}).get(name)
        if where is not None:
            from importlib import import_module

            return getattr(import_module(where), name)  # type: ignore[no-any-return]
        import builtins

        return module.get(name) or getattr(builtins, name)  # type: ignore[no-any-return]


_CONTAINERS: Mapping[str, Any] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "Sequence": Sequence,
    "Collection": Collection,
    "Mapping": Mapping,
}


class Hook:
    """One hook of a specification: its name, the arguments that the core passes, and the type of its answer."""

    __slots__ = ("answer", "arguments", "name", "raises", "required", "takes_objects")

    def __init__(self, function: Any) -> None:
        options, code = getattr(function, _SPEC), function.__code__
        self.name: str = function.__name__
        self.arguments: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
        self.required: bool = options["required"]
        self.raises: tuple[type[BaseException], ...] = options["raises"]
        self.answer = Answer(function.__annotations__["return"], function.__module__)
        #: Whether an argument is an object with hooks, such as a running stager.
        self.takes_objects = any("Hooks" in function.__annotations__[name] for name in self.arguments)


class Hooks:
    """Base of specifications. An instance stands for one driver, or for an object that a driver returned: made by
    the registry, it passes calls to the plugin's object; a hook that the plugin lacks has the specification's
    body. A class of the core that implements a specification is a subclass of it.

    Annotated attributes of a specification are required; they are read once.
    """

    HOOKS: ClassVar[Mapping[str, Hook]] = {}
    ATTRIBUTES: ClassVar[Mapping[str, Answer]] = {}

    def __init_subclass__(cls) -> None:
        own = {name: Hook(function) for name, function in vars(cls).items() if hasattr(function, _SPEC)}
        if own:
            attributes = {name: Answer(text, cls.__module__) for name, text in cls.__annotations__.items()}
            cls.HOOKS = {**cls.HOOKS, **own}
            cls.ATTRIBUTES = {**cls.ATTRIBUTES, **attributes}


def implements(driver: Hooks, hook: Callable[..., object]) -> bool:
    """Whether the driver has that hook of its own: ``implements(stager, StagerHooks.begin)``."""
    name = hook.__name__
    return name in vars(driver) or getattr(type(driver), name) is not hook


class ModuleHooks(Hooks):
    """Hooks of a plugin's module, one for each kind. ``docs/hooks`` documents each; a test compares the
    signatures."""

    @hookspec
    def kurma_fetcher(self) -> Driver:
        """A source of images, under the locator scheme that is the entry point's name."""

    @hookspec
    def kurma_renderer(self) -> Driver:
        """A way of turning image graphs into directories."""

    @hookspec
    def kurma_stager(self) -> Driver:
        """A stager."""

    @hookspec
    def kurma_network(self) -> Driver:
        """A kind of network."""

    @hookspec
    def kurma_isolator(self) -> Driver:
        """A compiler of isolators."""

    @hookspec
    def kurma_observer(self) -> Driver:
        """An observer of pods."""

    @hookspec
    def kurma_service(self) -> Driver:
        """A service of kurmad."""

    @hookspec
    def kurma_command(self) -> Driver:
        """A command below ``kurma``; the entry point's name is the command."""

    @hookspec
    def kurma_checks(self, context: DriverContext) -> Sequence[HostCheck]:
        """Checks what this host lacks; optional, for every kind. Called for ``kurma info --check``."""
        return ()
