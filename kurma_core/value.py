"""Frozen values: classes that are their annotated fields, compared and shown by them, and never changed.

``@dataclass(frozen=True, slots=True)`` makes the same by writing and compiling methods for each class: half a
millisecond a class, and twelve for the import. A command that imports a hundred such classes waits 60 ms for them,
a third of what it takes in all. :func:`frozen` shares its methods among all. Type checkers see a dataclass.
"""

from __future__ import annotations

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import cached_property
    from typing import Any, TypeVar, dataclass_transform, overload

    T = TypeVar("T")
    kept = cached_property
else:

    def dataclass_transform(**_: object) -> Callable[[T], T]:
        return lambda decorator: decorator

    class kept:
        """A property that is made when it is first asked for, as :func:`functools.cached_property`, which takes
        longer to import than most of what it is used for.

        :param make: the method that makes the value.
        """

        def __init__(self, make: Callable[[Any], T]) -> None:
            self._make = make
            self._lock = _thread.RLock()
            self.__doc__ = make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            with self._lock:
                found = instance.__dict__.get(self._name, self)
                if found is self:
                    found = instance.__dict__[self._name] = self._make(instance)
            return found


_REQUIRED: Any = object()


class Field:
    """One field of a value: its name, what it is when it is not given, and how JSON has it.

    :param default: see :func:`field`. :param factory: its ``default_factory``. :param key: see :func:`field`.
    :param shape: see :func:`field`. :param inline: see :func:`field`. :param in_json: see :func:`field`.
    """

    __slots__ = ("default", "factory", "in_json", "inline", "key", "kw_only", "name", "shape")

    def __init__(
        self,
        default: Any,
        factory: Callable[[], Any] | None,
        key: str | None = None,
        shape: Any = None,
        inline: bool = False,
        in_json: bool = True,
    ) -> None:
        self.name = ""
        self.default = default
        self.factory = factory
        self.key = key
        self.shape = shape
        self.inline = inline
        self.in_json = in_json
        self.kw_only = False

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is _REQUIRED and self.factory is None


def field(
    *,
    default: Any = _REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    key: str | None = None,
    shape: Any = None,
    inline: bool = False,
    in_json: bool = True,
) -> Any:
    """Stands for a field's default in the class's body, as in :mod:`dataclasses`.

    The rest is for values that have a JSON form (:mod:`kurma_core.schema`).

    :param default: the field's default. :param default_factory: makes the default, for each value anew.
    :param key: in JSON; None: the name in camel case.
    :param shape: None: as the annotation says.
    :param inline: the keys of this value stand beside those of the other fields.
    :param in_json: False: it is neither written nor read, and has a default.
    """
    return Field(default, default_factory, key, shape, inline, in_json)


def fields(value: Any) -> tuple[Field, ...]:
    """The fields of a value, or of its class, in order."""
    found: tuple[Field, ...] = value.__value_fields__
    return found


def replace(value: T, **changes: Any) -> T:
    """A new value of the same class, with these fields changed. :raises TypeError: it has no such field."""
    given = {each.name: getattr(value, each.name) for each in fields(value)}
    return type(value)(**{**given, **changes})


if TYPE_CHECKING:

    @overload
    def frozen(cls: type[T]) -> type[T]: ...
    @overload
    def frozen(cls: None = None, *, kw_only: bool) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, *, kw_only: bool = False) -> Any:
    """Class decorator. Fields are the annotations of the class's body, behind those of its bases; ``ClassVar``
    ones are left alone. The class gets slots, equality and hash by its fields, and refuses to be changed.

    :param kw_only: the fields of this class's body are given by name only, and are so in classes derived from it.
    """
    if cls is None:
        return lambda cls: _frozen(cls, kw_only)
    return _frozen(cls, kw_only)


def _frozen(cls: type[T], kw_only: bool) -> type[T]:
    own = {}
    body = dict(cls.__dict__)
    for name, annotation in body.get("__annotations__", {}).items():
        # Annotations are text: every module here begins with `from __future__ import annotations`.
        if "ClassVar" in annotation:
            continue
        default = body.pop(name, _REQUIRED)
        each = default if isinstance(default, Field) else Field(default, None)
        each.name = name
        each.kw_only = kw_only
        own[name] = each
    inherited = {
        each.name: each for base in reversed(cls.__mro__[1:]) for each in getattr(base, "__value_fields__", ())
    }
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    every = tuple({**inherited, **own}.values())
    body["__slots__"] = tuple(name for name in own if name not in inherited)
    body["__value_fields__"] = every
    body["__match_args__"] = tuple(each.name for each in every if not each.kw_only)
    body["__init__"] = _initializer(cls.__qualname__, every)
    # What the class itself defines stays; Python sets __hash__ to None beside an __eq__ of its own.
    body.update({name: method for name, method in _SHARED.items() if body.get(name) is None})
    meta: Any = type(cls)
    made: type[T] = meta(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


_set = object.__setattr__


def _is_kw_only(each: Field) -> bool:
    return each.kw_only


def _initializer(title: str, every: tuple[Field, ...]) -> Callable[..., None]:
    names = [each.name for each in every if not each.kw_only]
    in_order = sorted(every, key=_is_kw_only)
    all_names = {each.name for each in every}

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        if given.keys() == all_names and not args:  # as what reads JSON gives them
            for name, item in given.items():
                _set(self, name, item)
        else:
            if len(args) > len(names):
                raise TypeError(f"{title} takes {len(names)} values, {len(args)} were given")
            for name, item in zip(names, args):  # noqa: B905 - the rest comes below
                if name in given:
                    raise TypeError(f"{title} got {name} twice")
                _set(self, name, item)
            for each in in_order[len(args) :]:
                if each.name in given:
                    _set(self, each.name, given.pop(each.name))
                elif each.factory is not None:
                    _set(self, each.name, each.factory())
                elif each.default is not _REQUIRED:
                    _set(self, each.name, each.default)
                else:
                    raise TypeError(f"{title} needs a value for {each.name}")
            if given:
                raise TypeError(f"{title} has no {next(iter(given))}")
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()

    return __init__


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, each.name) for each in self.__value_fields__])


def _equal(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((type(self), _values(self)))


def _repr(self: Any) -> str:
    inside = ", ".join([f"{each.name}={getattr(self, each.name)!r}" for each in self.__value_fields__])
    return f"{type(self).__qualname__}({inside})"


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise AttributeError(f"{type(self).__qualname__} is a value: its {name} cannot be changed")


def _reduce(self: Any) -> tuple[Any, ...]:
    return _remade, (type(self), _values(self))


def _remade(kind: type[T], values: tuple[Any, ...]) -> T:
    return kind(**{each.name: value for each, value in zip(fields(kind), values, strict=True)})


_SHARED = {
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__reduce__": _reduce,
}
