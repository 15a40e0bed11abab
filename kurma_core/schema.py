"""JSON forms of values: from one declaration a value is read strictly, written, and described.

A class is declared once::

    @frozen
    class PortMapping(JsonValue):
        host_port: Port
        pod_port: Port
        protocol: Protocol = "tcp"
        host_ip: str = field(default="", key="hostIP")

The annotations of its fields declare their JSON; ``host_port`` is the key ``hostPort``. A record without a class
is declared by an example: ``fit(value, {"name": str, "ports": [range(1, 9)], "reason?": (str, None)}, "the
record")``. Both become the same shapes. JSON Schema, OpenAPI and the tables of ``docs/reference/json.md`` are made
from them, too (:mod:`kurma_core.api.describe`).

Annotations are text, and are resolved when a value is first read or written. They are made of: ``str``, ``int``,
``float``, ``bool``, ``Json`` (any value), ``X | None``, ``tuple[X, ...]`` and ``frozenset[X]`` (lists),
``Mapping[str, X]`` and ``dict[str, X]`` (objects), :class:`JsonValue` classes, classes with ``parse`` and
``to_json`` (manifests), and names of shapes in the class's module, such as ``Port`` here.

Every command imports this module, and stagers contain it: it imports almost nothing.
"""

from __future__ import annotations

import sys

from kurma_core.value import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, ClassVar, Self

    Json = Any
    Form = Any
    #: Called for a key that is not declared: with the object's path, the key, and the declared keys.
    Unknown = Callable[[str, str, list[str]], None]

_LONGEST = 80
#: ``SchemaError.found`` for a missing value.
MISSING = "nothing"


class SchemaError(ValueError):
    """A JSON value does not have the declared shape.

    :param path: its path: ``$.app.ports[0].port``, or ``the record.name``.
    :param expected: the declared form, in words. :param found: the value, in words (:func:`describe`).
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(
            f"{path} is missing" if found == MISSING else f"{path}: expected {expected}, found {found}"
        )
        self.path = path
        self.expected = expected
        self.found = found


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Finds the known word that is most similar, for hints: ``did you mean WORD?``

    The only word that begins with ``word``, of three letters at least, counts as most similar.

    :param cutoff: the least similarity, from 0 to 1. None: no word is as similar.
    """
    import difflib  # takes long to import

    words = list(known)
    begun = [one for one in words if len(word) > 2 and one.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(difflib.get_close_matches(word[:100], words, 1, cutoff)), None)


def describe(value: object) -> str:
    """Describes ``value`` for an error: one line, printable, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "an empty list" if not value else "a list"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number that is too large"
    shown = f'"{ascii_text(value)}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def ascii_text(value: str) -> str:
    """Escapes characters of ``value`` that a terminal would not print unchanged."""
    return repr(value)[1:-1]


def child(path: str, key: str) -> str:
    """The path of ``key`` in the object at ``path``; a long key, or one that is not a plain word, is put in
    brackets."""
    if len(key) <= _LONGEST and key.isascii() and key.replace("_", "a").replace("-", "a").isalnum():
        return f"{path}.{key}"
    return f"{path}[{describe(key)}]"


def writable(text: str) -> bool:
    """Whether text can be encoded. JSON can escape lone surrogates; Python encodes only those that stand for bytes
    of file names (surrogateescape)."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


# --- shapes ----------------------------------------------------------------------------------------------------


class Shape:
    """The declared form of a JSON value. :meth:`read` makes the Python value, :meth:`write` the JSON value of
    it.

    :param value: the value to read or write. :param path: its path, for errors: ``$.app.ports[0]``.
    """

    __slots__ = ()
    #: Whether :meth:`write` returns the value unchanged.
    plain = True
    #: Description for errors.
    expected = "a value"

    def read(self, value: Json, path: str) -> Any:
        """Makes the Python value of a JSON value. :raises SchemaError: the value does not fit."""
        return value

    def write(self, value: Any) -> Json:
        """Makes the JSON value of a Python value that :meth:`read` has made."""
        return value

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        """Finds undeclared keys of the objects in a value; ignores other errors.

        :param tell: called for each undeclared key.
        """

    def _wrong(self, value: Json, path: str) -> SchemaError:
        return SchemaError(path, self.expected, describe(value))


class Text(Shape):
    """Text; with ``check``, text of a certain form.

    :param check: ``(value, path) -> text`` in canonical form; raises a SchemaError, or a ManifestError, which
        becomes one.
    :param title: of the text in JSON Schema.
    """

    __slots__ = ("check", "title")
    expected = "a string"

    def __init__(self, check: Callable[[object, str], str] | None = None, title: str = "") -> None:
        self.check = check
        self.title = title

    def read(self, value: Json, path: str) -> str:
        if isinstance(value, str) and not (value.isascii() or writable(value)):
            raise SchemaError(path, "Unicode text", "a lone surrogate")
        if self.check is not None:
            try:
                return self.check(value, path)
            except Exception as error:
                from kurma_core.errors import ManifestError

                if not isinstance(error, ManifestError):
                    raise
                data = error.data
                raise SchemaError(str(data["path"]), str(data["expected"]), str(data["found"])) from None
        if not isinstance(value, str):
            raise self._wrong(value, path)
        return value


class Bytes(Text):
    """Bytes as text: bytes that are not UTF-8 become U+DC80 and up, by Python's surrogateescape."""

    __slots__ = ()
    plain = False

    def read(self, value: Json, path: str) -> Any:
        return super().read(value, path).encode("utf-8", "surrogateescape")

    def write(self, value: Any) -> Json:
        return value.decode("utf-8", "surrogateescape")


class Flag(Shape):
    """True or false."""

    __slots__ = ()
    expected = "true or false"

    def read(self, value: Json, path: str) -> bool:
        if not isinstance(value, bool):
            raise self._wrong(value, path)
        return value


class Whole(Shape):
    """A whole number.

    :param least: the smallest; None: there is no bound. :param most: the largest; None: there is no bound.
    """

    __slots__ = ("expected", "least", "most")

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self.least = least
        self.most = most
        bounds = "" if least is None else f" from {least}"
        self.expected = "an integer" + bounds + ("" if most is None else f" to {most}")

    def read(self, value: Json, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(value, path)
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            raise self._wrong(value, path)
        return value


class Number(Shape):
    """A number.

    :param least: the smallest; None: there is no bound. :param most: the largest; None: there is no bound.
    :param below: excluded bound; None: there is none.
    """

    __slots__ = ("below", "expected", "least", "most")

    def __init__(self, least: float | None = None, below: float | None = None, most: float | None = None) -> None:
        self.least = least
        self.below = below
        self.most = most
        self.expected = "a number" + ("" if least is None else f" from {least:g}")
        self.expected += "" if below is None else f" to less than {below:g}"
        self.expected += "" if most is None else f" to {most:g}"

    def read(self, value: Json, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not -(1 << 1023) < value < 1 << 1023:
            raise self._wrong(value, path)
        low = self.least is not None and value < self.least
        high = (self.below is not None and value >= self.below) or (self.most is not None and value > self.most)
        if low or high:
            raise self._wrong(value, path)
        return value


class Words(Shape):
    """One of some words."""

    __slots__ = ("expected", "words")

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = "one of " + ", ".join(words)

    def read(self, value: Json, path: str) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise self._wrong(value, path)
        return value


class Null(Shape):
    """Null alone."""

    __slots__ = ()
    expected = "null"

    def read(self, value: Json, path: str) -> None:
        if value is not None:
            raise self._wrong(value, path)


class Made(Shape):
    """A value converted by a function: ``30s`` to a duration.

    :param expected: description for errors. :param make: the function; raises a ValueError or an ArithmeticError
        for values that it cannot convert.
    :param inner: the shape that the value must have before.
    """

    __slots__ = ("expected", "inner", "make")
    plain = False

    def __init__(self, expected: str, make: Callable[[Any], Any], inner: Form = object) -> None:
        self.expected = expected
        self.make = make
        self.inner = shape(inner)

    def read(self, value: Json, path: str) -> Any:
        try:
            return self.make(self.inner.read(value, path))
        except (ValueError, ArithmeticError):
            raise self._wrong(value, path) from None


class Plain(Shape):
    """An object, or a list, of anything. :param kind: ``dict`` or ``list``."""

    __slots__ = ("expected", "kind")

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.expected = "an object" if kind is dict else "a list"

    def read(self, value: Json, path: str) -> Any:
        if not isinstance(value, self.kind):
            raise self._wrong(value, path)
        return value

    def write(self, value: Any) -> Json:
        return self.kind(value)

    plain = False


class Either(Shape):
    """A value of any of these shapes; the last one's error counts."""

    __slots__ = ("expected", "plain", "shapes")

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes
        self.plain = all(shape.plain for shape in shapes)
        self.expected = " or ".join(shape.expected for shape in shapes)

    def read(self, value: Json, path: str) -> Any:
        for shape in self.shapes[:-1]:
            try:
                return shape.read(value, path)
            except SchemaError:
                continue
        return self.shapes[-1].read(value, path)

    def write(self, value: Any) -> Json:
        return next((shape.write(value) for shape in self.shapes if not shape.plain), value)


class Maybe(Shape):
    """A value of the inner shape, or null."""

    __slots__ = ("expected", "inner", "plain")

    def __init__(self, inner: Shape) -> None:
        self.inner = inner
        self.plain = inner.plain
        self.expected = inner.expected

    def read(self, value: Json, path: str) -> Any:
        return None if value is None else self.inner.read(value, path)

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        self.inner.find_unknown(value, path, tell)

    def write(self, value: Any) -> Json:
        return None if value is None else self.inner.write(value)


class List(Shape):
    """A list. :param inner: the shape of its values. :param make: makes the Python collection."""

    __slots__ = ("inner", "make")
    plain = False
    expected = "a list"

    def __init__(self, inner: Shape, make: Callable[[Any], Any] = list) -> None:
        self.inner = inner
        self.make = make

    def read(self, value: Json, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise self._wrong(value, path)
        read = self.inner.read
        return self.make([read(one, f"{path}[{index}]") for index, one in enumerate(value)])

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        for index, one in enumerate(value if isinstance(value, list) else ()):
            self.inner.find_unknown(one, f"{path}[{index}]", tell)

    def write(self, value: Any) -> Json:
        found = value if not isinstance(value, frozenset) else sorted(value)
        return list(found) if self.inner.plain else [self.inner.write(one) for one in found]


class Row(Shape):
    """A list of a fixed length, each value with its own shape."""

    __slots__ = ("shapes",)
    plain = False
    expected = "a list"

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes

    def read(self, value: Json, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise self._wrong(value, path)
        if len(value) != len(self.shapes):
            raise SchemaError(path, f"{len(self.shapes)} values", f"{len(value)}")
        found = [shape.read(value[at], f"{path}[{at}]") for at, shape in enumerate(self.shapes)]
        return tuple(found)

    def write(self, value: Any) -> Json:
        return [shape.write(one) for shape, one in zip(self.shapes, value, strict=True)]


class Map(Shape):
    """An object with arbitrary keys.

    :param inner: the shape of its values. :param key: the shape of the keys; None: any text.
    """

    __slots__ = ("inner", "key")
    plain = False
    expected = "an object"

    def __init__(self, inner: Shape, key: Shape | None = None) -> None:
        self.inner = inner
        self.key = key

    def read(self, value: Json, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(value, path)
        found = {}
        for key, one in value.items():
            if not isinstance(key, str) or not (key.isascii() or writable(key)):
                raise SchemaError(path, "keys that are Unicode text", f"key {describe(key)}")
            at = child(path, key)
            name = key if self.key is None else self.key.read(key, at)
            found[name] = self.inner.read(one, at)
        return found

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        for key, one in value.items() if isinstance(value, dict) else ():
            self.inner.find_unknown(one, child(path, str(key)), tell)

    def write(self, value: Any) -> Json:
        return dict(value) if self.inner.plain else {key: self.inner.write(one) for key, one in value.items()}


class Keys(Shape):
    """An object with these keys.

    :param shapes: by key. :param optional: keys that may be left out.
    """

    __slots__ = ("optional", "plain", "shapes")
    expected = "an object"

    def __init__(self, shapes: Mapping[str, Shape], optional: frozenset[str]) -> None:
        self.shapes = shapes
        self.optional = optional
        self.plain = all(shape.plain for shape in shapes.values())

    def read(self, value: Json, path: str) -> Any:
        if not isinstance(value, dict):
            raise self._wrong(value, path)
        for key, shape in self.shapes.items():
            if key in value:
                shape.read(value[key], child(path, key))
            elif key not in self.optional:
                raise SchemaError(child(path, key), shape.expected, MISSING)
        return value

    def write(self, value: Any) -> Json:
        return {key: self.shapes[key].write(one) if key in self.shapes else one for key, one in value.items()}


class Pairs(Shape):
    """Pairs as objects: ``(("a", 1), …)`` is ``[{"name": "a", "value": 1}, …]``.

    :param keys: the two keys. :param first: declares the shape of the first values. :param second: of the others.
    """

    __slots__ = ("keys", "shapes")
    plain = False
    expected = "a list"

    def __init__(self, keys: tuple[str, str], first: Form = str, second: Form = object) -> None:
        self.keys = keys
        self.shapes = (shape(first), shape(second))

    def read(self, value: Json, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise self._wrong(value, path)
        return tuple([self._pair(one, f"{path}[{index}]") for index, one in enumerate(value)])

    def _pair(self, value: Json, path: str) -> tuple[Any, ...]:
        if not isinstance(value, dict):
            raise SchemaError(path, "an object", describe(value))
        found = []
        for key, one in zip(self.keys, self.shapes, strict=True):
            if key not in value and not isinstance(one, (Maybe, Any_)):
                raise SchemaError(child(path, key), one.expected, MISSING)
            found.append(one.read(value.get(key), child(path, key)))
        return tuple(found)

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        for index, one in enumerate(value if isinstance(value, list) else ()):
            _tell_unknown(one, list(self.keys), f"{path}[{index}]", tell)

    def write(self, value: Any) -> Json:
        names = self.keys
        one, other = self.shapes
        return [{names[0]: one.write(pair[0]), names[1]: other.write(pair[1])} for pair in value]


class Any_(Shape):
    """Any JSON value."""

    __slots__ = ()


class Parsed(Shape):
    """A document that its own class reads, such as a manifest.

    :param kind: a class with ``parse(value)``, which raises a :class:`KurmaError`, and ``to_json``; or its full
        name as text, so that its module is imported only when a value is read.
    """

    __slots__ = ("_kind",)
    plain = False
    expected = "an object"

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @property
    def kind(self) -> Any:
        kind = self._kind  # another thread may be here, too
        if isinstance(kind, str):
            module, _, name = kind.rpartition(".")
            __import__(module)
            kind = self._kind = getattr(sys.modules[module], name)
        return kind

    def read(self, value: Json, path: str) -> Any:
        return self.kind.parse(value)

    def write(self, value: Any) -> Json:
        return value.to_json()


class Object(Shape):
    """A :class:`JsonValue`; or an object of several, keyed by :attr:`JsonValue.NAMED_BY`.

    :param kind: the class. :param by: the name of the field that is the key; None: a single value.
    """

    __slots__ = ("by", "kind")
    plain = False
    expected = "an object"

    def __init__(self, kind: type[JsonValue], by: str | None = None) -> None:
        self.kind = kind
        self.by = by

    def read(self, value: Json, path: str) -> Any:
        if self.by is None:
            return self.kind.from_json(value, path)
        if not isinstance(value, dict):
            raise self._wrong(value, path)
        found = []
        for key, one in value.items():
            where = child(path, key)
            if not isinstance(one, dict):
                raise SchemaError(where, "an object", describe(one))
            found.append(self.kind(**{self.by: key, **_read(self.kind, one, where)}))
        return tuple(found)

    def find_unknown(self, value: Json, path: str, tell: Unknown) -> None:
        if not isinstance(value, dict):
            return
        objects = {path: value} if self.by is None else {child(path, key): one for key, one in value.items()}
        for where, one in objects.items():
            _tell_unknown(one, _keys(self.kind), where, tell)
            for each in members(self.kind):
                if each.key is not None and isinstance(one, dict):
                    each.shape.find_unknown(one.get(each.key), child(where, each.key), tell)

    def write(self, value: Any) -> Json:
        if self.by is None:
            return value.to_json()
        return {getattr(one, self.by): one.to_json() for one in value}


def _tell_unknown(value: Json, known: list[str], path: str, tell: Unknown) -> None:
    if isinstance(value, dict):
        for key in value:
            if key not in known:
                tell(path, key, known)


# --- classes ---------------------------------------------------------------------------------------------------


class Member:
    """One field of a :class:`JsonValue` and its JSON form.

    :param name: name of the field. :param key: key in the JSON object; None: the field's own keys are put into the
        object (``inline``).
    :param shape: the shape for reading; in a :attr:`JsonValue.PARTIAL` class the value may be null.
    :param written: the shape for writing.
    :param needed: the key is required.
    """

    __slots__ = ("key", "name", "needed", "shape", "written")

    def __init__(self, name: str, key: str | None, shape: Shape, written: Shape, needed: bool) -> None:
        self.name = name
        self.key = key
        self.shape = shape
        self.written = written
        self.needed = needed


class JsonValue:
    """Base of frozen values with a JSON form. See the head of this module."""

    __slots__ = ()

    #: Its name in JSON Schema; empty: it is described inline at each use.
    JSON_NAME: ClassVar[str] = ""
    #: Keys with a default may be missing or null. Otherwise every key is required.
    PARTIAL: ClassVar[bool] = False
    #: Keys of computed properties, by the property's name: they are written, and not read.
    COMPUTED: ClassVar[Mapping[str, Form]] = {}
    #: A field that is not among the keys: a tuple of such values becomes an object keyed by that field.
    NAMED_BY: ClassVar[str] = ""

    def to_json(self) -> dict[str, Json]:
        """Makes the JSON value, in the order of the fields."""
        kind = type(self)
        writers = _WRITERS.get(kind)
        if writers is None:
            writers = _WRITERS[kind] = tuple(
                [(one.name, one.key, None if one.shape.plain else one.shape.write) for one in members(kind)]
            )
        found: dict[str, Json] = {}
        for name, key, write in writers:
            value = getattr(self, name)
            if key is None:
                found.update(value.to_json())
            else:
                found[key] = value if write is None else write(value)
        return found

    @classmethod
    def from_json(cls, value: Json, path: str = "") -> Self:
        """Reads the value; ignores undeclared keys (see :meth:`Shape.find_unknown`).

        :param path: the value's name in errors.
        :raises SchemaError: the value has another shape.
        """
        path = path or f"the {cls.JSON_NAME or cls.__name__}"
        if not isinstance(value, dict):
            raise SchemaError(path, "an object", describe(value))
        return cls(**_read(cls, value, path))


_MEMBERS: dict[type, tuple[Member, ...]] = {}
#: By class: name, key, and the function that writes the value; None: it is written unchanged.
_WRITERS: dict[type, tuple[tuple[str, str | None, Callable[[Any], Json] | None], ...]] = {}
#: By class: each member, and the default of its field.
_CHECKS: dict[type, tuple[tuple[Member, Any], ...]] = {}


def members(kind: type[JsonValue]) -> tuple[Member, ...]:
    """Returns the members of a class in the order in which they are written; computed ones last.

    :param kind: the class.
    """
    found = _MEMBERS.get(kind)
    if found is None:
        found = _MEMBERS[kind] = tuple(_members(kind))
    return found


def _members(kind: type[JsonValue]) -> list[Member]:
    found = []
    annotations: dict[str, tuple[str, dict[str, Any]]] = {}
    for base in reversed(kind.__mro__):
        module = sys.modules[base.__module__].__dict__
        for name, text in base.__dict__.get("__annotations__", {}).items():  # noqa: RUF063 - inspect is not light
            annotations[name] = text, module
    for each in fields(kind):
        if each.name == kind.NAMED_BY or not each.in_json:
            continue
        its = shape(each.shape) if each.shape is not None else resolve(*annotations[each.name])
        key = None if each.inline else each.key or camel_case(each.name)
        needed = each.required or not kind.PARTIAL
        may_be_null = kind.PARTIAL and not needed and not isinstance(its, (Maybe, Any_))
        found.append(Member(each.name, key, Maybe(its) if may_be_null else its, its, needed))
    for name, form in kind.COMPUTED.items():
        its = shape(form)
        found.append(Member(name, camel_case(name), its, its, False))
    return found


def camel_case(name: str) -> str:
    """The JSON key of a field: ``exitCode`` for ``exit_code``. :param name: of the field."""
    first, *others = name.split("_")
    return first + "".join([word.capitalize() for word in others])


def _read(kind: type[JsonValue], value: Json, path: str) -> dict[str, Any]:
    found = {}
    computed = kind.COMPUTED
    for one in members(kind):
        key = one.key
        if one.name in computed:
            continue
        if key is None:
            found[one.name] = one.shape.read(value, path)
        elif key in value:
            given = value[key]
            if given is not None or one.needed or isinstance(one.shape, Any_):
                found[one.name] = one.shape.read(given, f"{path}.{key}")
        elif one.needed:
            raise SchemaError(f"{path}.{key}", one.shape.expected, MISSING)
    return found


def check_fields(value: JsonValue) -> None:
    """Checks the types and the forms of the fields of a value that a plugin made, and of the values in them.

    :raises SchemaError: a field is wrong. Its path begins with the name of the field.
    """
    kind = type(value)
    checks = _CHECKS.get(kind)
    if checks is None:
        defaults = {each.name: each.default for each in fields(kind)}
        checks = _CHECKS[kind] = tuple(
            [(one, defaults[one.name]) for one in members(kind) if one.name not in kind.COMPUTED]
        )
    for member, default in checks:
        name, form = member.name, member.shape
        item = getattr(value, name)
        if item is default:
            continue
        try:
            found = form.read(form.write(item), name)
            fits = found == item if not isinstance(form, Any_) else _is_json(item)
        except SchemaError:
            raise
        except Exception:  # noqa: BLE001 (a value of another type may fail in any way)
            fits = False
        if not fits:
            shown = repr(item)
            raise SchemaError(name, _annotation(kind, name), shown[:_LONGEST] + "…" * (len(shown) > _LONGEST))


def _annotation(kind: type, name: str) -> str:
    """The declared type of a field."""
    declared = [base.__dict__.get("__annotations__", {}) for base in kind.__mro__]  # noqa: RUF063 - inspect is not light
    return str(next(found[name] for found in declared if name in found))


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(one) for one in value)
    return value is None or isinstance(value, str | int | float)


def _keys(kind: type[JsonValue]) -> list[str]:
    found: list[str] = []
    for one in members(kind):
        if one.key is not None:
            found.append(one.key)
        else:
            assert isinstance(one.shape, Object)
            found += _keys(one.shape.kind)
    return found


# --- from Python to shapes -------------------------------------------------------------------------------------

_ANY = Any_()
_NAMES: dict[str, Shape] = {
    "str": Text(),
    "int": Whole(),
    "float": Number(),
    "bool": Flag(),
    "bytes": Bytes(),
    "object": _ANY,
    "Json": _ANY,
    "Any": _ANY,
    "None": Null(),
    "dict": Plain(dict),
    "list": Plain(list),
}
_LISTS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "list": list,
    "Sequence": tuple,
    "Collection": tuple,
    "frozenset": frozenset,
}


def resolve(text: str, module: Mapping[str, Any]) -> Shape:
    """Returns the shape of an annotation.

    :param text: the annotation. :param module: the namespace for its names.
    :raises TypeError: the annotation has no JSON form.
    """
    found = _NAMES.get(text)
    if found is not None:
        return found
    parts = split(text, "|")
    if len(parts) > 1:
        inner = [resolve(part, module) for part in parts if part != "None"]
        found = inner[0] if len(inner) == 1 else Either(*inner)
        return Maybe(found) if len(inner) < len(parts) else found
    head, bracket, rest = text.partition("[")
    if not bracket:
        if text in module:
            return shape(module[text])
        raise TypeError(f"{text} is not known where it is declared")
    arguments = split(rest[:-1], ",")
    if head in ("Mapping", "dict"):
        if arguments[0] != "str":
            raise TypeError(f"{text}: keys of JSON objects are text")
        return Map(resolve(arguments[1], module))
    if head == "tuple" and arguments[-1] != "...":
        return Row(*[resolve(one, module) for one in arguments])
    if head in _LISTS:
        inner_shape = resolve(arguments[0], module)
        if isinstance(inner_shape, Object) and inner_shape.kind.NAMED_BY:
            return Object(inner_shape.kind, inner_shape.kind.NAMED_BY)
        return List(inner_shape, _LISTS[head])
    raise TypeError(f"{text} has no JSON form")


def split(text: str, at: str) -> list[str]:
    """Splits text at ``at``, outside of brackets."""
    if at not in text:
        return [text]
    if "[" not in text:
        return [part.strip() for part in text.split(at)]
    found, depth, begin = [], 0, 0
    for index, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == at and not depth:
            found.append(text[begin:index].strip())
            begin = index + 1
    return [*found, text[begin:].strip()]


def shape(form: Form) -> Shape:
    """Returns the shape that a Python value, ``form``, declares.

    - ``str``, ``bool``, ``int``, ``float``, ``dict``, ``list``: a value of that type; ``object``: any value.
    - A ``range``: a whole number in it. A ``frozenset``: one of those words. None: null.
    - A tuple: a value of any of these shapes.
    - ``[shape]``: a list of such values. ``[one, other]``: a list of exactly these.
    - ``{str: shape}``: an object with such values.
    - ``{"key": shape, "key?": shape}``: an object with a required and an optional key. Other keys are ignored.
    - A :class:`JsonValue` class, or a class with ``parse`` and ``to_json``. A function: text that it checks.
    - A shape: itself.
    """
    if isinstance(form, Shape):
        return form
    if form is None:
        return _NAMES["None"]
    if isinstance(form, type):
        if issubclass(form, JsonValue):
            return Object(form)
        if form.__module__ == "builtins":
            return _NAMES[form.__name__]
        return Parsed(form)
    if isinstance(form, range):
        return Whole(form.start, form.stop - 1)
    if isinstance(form, frozenset):
        return Words(*sorted(form))
    if isinstance(form, list):
        return List(shape(form[0])) if len(form) == 1 else Row(*map(shape, form))
    if isinstance(form, tuple):
        inner = [shape(one) for one in form if one is not None]
        found = inner[0] if len(inner) == 1 else Either(*inner)
        return Maybe(found) if None in form else found
    if isinstance(form, dict):
        if str in form:
            return Map(shape(form[str]))
        optional = frozenset([key[:-1] for key in form if key.endswith("?")])
        return Keys({key.removesuffix("?"): shape(one) for key, one in form.items()}, optional)
    if callable(form):
        return Text(form)
    raise TypeError(f"{form!r} stands for no shape")


#: Shapes by the id of the declaration; the declaration is kept, too, so that no other object gets its id.
_MADE: dict[int, tuple[Form, Shape]] = {}


def fit(value: Json, form: Form, path: str) -> None:
    """Checks a record without a class.

    :param value: the JSON value.
    :param form: see :func:`shape`; it must be a constant, for its shape is cached. :param path: the value's name
        in errors.
    :raises SchemaError: the value has another shape; names the place.
    """
    made = _MADE.get(id(form))
    if made is None:
        made = _MADE[id(form)] = form, shape(form)
    made[1].read(value, path)


# --- common words ----------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Count = int
    Port = int
    ExitCode = int
    Pid = int
    Seconds = float
    Timestamp = str
else:
    #: A count, of bytes for example.
    Count = Whole(0)
    #: A port of TCP, UDP or SCTP.
    Port = Whole(1, 65535)
    #: An exit code; 128+N for signal N.
    ExitCode = Whole(0, 255)
    #: The number of a process.
    Pid = Whole(0)
    #: A duration in seconds.
    Seconds = Number(0, 1e9)
    #: A time as in RFC 3339, in UTC.
    Timestamp = Text(title="RFC 3339, UTC")

#: A count, for :func:`fit`.
COUNT = range(1 << 63)
#: The number of a process, for :func:`fit`.
PID = range(1, 1 << 31)
