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
    Check = Callable[[Any], bool]
    #: Makes the object that stands for an object of the plugin, by its specification.
    Bound = Callable[[type["Hooks"], object], Any]
    Bind = Callable[[Any, Bound], Any]

#: Name of pluggy's project. pluggy's own markers set the attributes ``kurma_impl`` and ``kurma_spec``.
PROJECT = "kurma"
_IMPL, _SPEC = "kurma_impl", "kurma_spec"

_WHERE = dict.fromkeys(("Driver", "HostCheck"), "kurma_core.hookspecs.driver")

#: Version of the contract with plugins (``docs/reference/plugin_contract.md``).
CONTRACT = 1
#: The oldest version of the contract that this Kurma serves.
OLDEST = 1
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
    ``tuple[X, Y]``, ``Sequence[X]``, ``Collection[X]``, ``frozenset[X]`` and ``Mapping[X, Y]``. A specification
    stands for an object with hooks, ``BinaryIO`` for a :class:`Stream`. The fields of a value that this package
    or :mod:`kurma_core.models` defines are checked, too. A name that its module imports only for type checkers is
    listed in the module's ``_WHERE``, with the name's module.
    """

    __slots__ = ("_check", "_module", "bind", "text")

    def __init__(self, text: str, module: str) -> None:
        self.text = text
        #: Replaces objects of the plugin in an accepted value by those that stand for them; None: there are none.
        self.bind: Bind | None = None
        self._module = module
        self._check: Check | None = None

    def accepts(self, value: object) -> bool:
        if self._check is None:
            self._check, self.bind = self._read(self.text)
        return self._check(value)

    def _read(self, text: str) -> tuple[Check, Bind | None]:
        from kurma_core.schema import split

        choices = split(text, "|")
        if len(choices) > 1:
            return _either([self._read(choice) for choice in choices])
        head, bracket, rest = text.partition("[")
        if not bracket:
            return self._plain(text)
        arguments = split(rest[:-1], ",")
        inner = [self._read(argument) for argument in arguments if argument != "..."]
        checks = [check for check, _ in inner]
        kind = _CONTAINERS[head]
        if len(inner) == 1:
            ((each, bind),) = inner
            return (
                lambda value: (
                    isinstance(value, kind) and not isinstance(value, str | bytes) and all(map(each, value))
                ),
                None if bind is None else lambda value, bound: tuple(bind(one, bound) for one in value),
            )
        if kind is tuple:
            return (
                lambda value: (
                    isinstance(value, tuple)
                    and len(value) == len(checks)
                    and all(check(one) for check, one in zip(checks, value, strict=True))
                ),
                None,
            )
        key, item = checks
        return (
            lambda value: isinstance(value, kind) and all(key(name) and item(one) for name, one in value.items()),
            None,
        )

    def _plain(self, name: str) -> tuple[Check, Bind | None]:
        if name in ("Json", "Any", "object"):
            return lambda value: True, None
        if name == "None":
            return lambda value: value is None, None
        if name == "BinaryIO":
            return _is_stream, lambda value, bound: bound(Stream, value)
        kind = self._class(name)
        if issubclass(kind, Hooks):
            return lambda value: value is not None, lambda value, bound: bound(kind, value)
        if kind in (int, float):
            kinds = (int, float) if kind is float else int
            return lambda value: isinstance(value, kinds) and not isinstance(value, bool), None
        if kind.__module__.startswith(f"{__name__}."):
            return _of_value(kind)
        if kind.__module__.startswith("kurma_core.models."):
            return lambda value: isinstance(value, kind) and not wrong_field(value), None
        return lambda value: isinstance(value, kind), None

    def _class(self, name: str) -> type:
        module = vars(sys.modules[self._module])
        where = module.get("_WHERE", {}).get(name)
        if where is not None:
            from importlib import import_module

            return getattr(import_module(where), name)  # type: ignore[no-any-return]
        import builtins

        return module.get(name) or getattr(builtins, name)  # type: ignore[no-any-return]


def _either(choices: Sequence[tuple[Check, Bind | None]]) -> tuple[Check, Bind | None]:
    def bind(value: Any, bound: Bound) -> Any:
        found = next(bind for check, bind in choices if check(value))
        return value if found is None else found(value, bound)

    checks = [check for check, _ in choices]
    has_objects = any(bind is not None for _, bind in choices)
    return lambda value: any(check(value) for check in checks), bind if has_objects else None


#: By class of a value, the types of its fields.
_FIELDS: dict[type, Mapping[str, Answer]] = {}


def field_types(cls: type) -> Mapping[str, Answer]:
    """The types of the fields of a value that this package defines, by name; empty: another class."""
    return _FIELDS.get(cls, {})


def wrong_field(value: object) -> str:
    """The error in the fields of a value of :mod:`kurma_core.models`; empty: nothing, or another class."""
    from kurma_core.schema import JsonValue, SchemaError, check_fields

    try:
        if isinstance(value, JsonValue):
            check_fields(value)
    except SchemaError as error:
        return str(error)
    return ""


def _of_value(cls: type) -> tuple[Check, Bind | None]:
    fields = _FIELDS[cls] = {name: Answer(text, cls.__module__) for name, text in cls.__annotations__.items()}
    reads = {name: answer._read(answer.text) for name, answer in fields.items()}
    checks = [(name, check) for name, (check, _) in reads.items()]
    binds = {name: bind for name, (_, bind) in reads.items() if bind is not None}

    def bind(value: Any, bound: Bound) -> Any:
        from kurma_core.value import replace

        return replace(value, **{name: bind(getattr(value, name), bound) for name, bind in binds.items()})

    return (
        lambda value: isinstance(value, cls) and all(check(getattr(value, name)) for name, check in checks),
        bind if binds else None,
    )


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


class Stream(Hooks):
    """An open file of a plugin. It may be of any class with these methods, which have no marks."""

    @hookspec(required=True, raises=(OSError,))
    def read(self, size: int) -> bytes:
        """Returns at most ``size`` bytes; empty: the end."""

    @hookspec(required=True)
    def close(self) -> object:
        """May be called while another thread waits in ``read``, and again."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_stream(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in Stream.HOOKS)


def implements(driver: Hooks, hook: Callable[..., object]) -> bool:
    """Whether the driver has that hook of its own: ``implements(stager, StagerHooks.begin)``."""
    name = hook.__name__
    return name in vars(driver) or getattr(type(driver), name) is not hook


class ModuleHooks(Hooks):
    """Hooks of a plugin's module: one for each kind, and ``kurma_checks``. A module implements one of the former.

    :raises PluginSkipped: this host lacks something that the plugin needs.
    """

    @hookspec
    def kurma_fetcher(self) -> Driver:
        """Brings a source of images, under the locator scheme that is the entry point's name.

        :called: for an image whose locator has the entry point's name as its scheme
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_renderer(self) -> Driver:
        """Brings a way of turning image graphs into directories.

        :called: when a pod is prepared, if ``renderer`` of ``kurma.yml`` names the plugin
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_stager(self) -> Driver:
        """Brings a stager: a way of running the inside of a pod.

        :called: when Kurma prepares, starts, or looks at a pod whose stager is the plugin: named in ``stager``,
            in ``--stager``, or as the ``driver`` of an entry of ``stagers``
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_network(self) -> Driver:
        """Brings a kind of network.

        :called: when a pod joins or leaves a network that names the plugin: an entry of ``container_networks``
            whose ``plugin`` is its name or whose ``aci`` is one of its aliases
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_isolator(self) -> Driver:
        """Brings a compiler of isolators.

        :called: when a pod is prepared, or an app is added to one
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_observer(self) -> Driver:
        """Brings an observer of pods.

        :called: when the first event is to be observed, in the observer's thread
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_service(self) -> Driver:
        """Brings a service of kurmad.

        :called: by kurmad alone, if ``kurma.yml`` enables the service
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_command(self) -> Driver:
        """Brings a command below ``kurma``; the entry point's name is the command.

        :called: when the command is, and once for ``kurma --help``
        :returns: the driver's factory and its options.
        """

    @hookspec
    def kurma_checks(self, context: DriverContext) -> Sequence[HostCheck]:
        """Checks what this host lacks. Plugins of every kind may have it beside the hook of their kind. All
        plugins are asked at the same time, and have 5 seconds. An exception, or no answer in time, is a failed
        check.

        :called: for ``kurma info --check``, if the plugin is enabled, also if it skips itself
        :param context: that of the driver's factory; a plugin that skips itself in its hook gets no options.
        :returns: a check for each thing that the plugin needs.
        :raises KurmaError: a check could not be made.
        """
        return ()
