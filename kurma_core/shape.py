"""The shape of JSON records that Kurma has written: what has another one is damaged, and is told where it is read.

A shape is written as the record looks::

    {"name": str, "ports": [range(1, 65536)], "labels": {str: str}, "reason?": (str, None)}

- ``str``, ``bool``, ``int``, ``float``, ``dict``, ``list``: a value of that type; ``object``: any value.
- A ``range``: a whole number in it. A ``frozenset``: one of those texts. None: null.
- A tuple: a value of any of these shapes.
- ``[shape]``: a list of such values. ``[one, other]``: a list of just these.
- ``{str: shape}``: an object whose values are such.
- ``{"key": shape, "key?": shape}``: an object that has the one key and may have the other. Keys that a shape does
  not name are not looked at.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    Shape = Any

#: Whole numbers: of bytes, and of other things that are counted.
COUNT = range(1 << 63)
#: Number of a process.
PID = range(1, 1 << 31)
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


class ShapeError(ValueError):
    """A record, or a part of one, has another shape than Kurma gives it."""


def fit(value: Json, shape: Shape, path: str) -> None:
    """:param path: what the value is called. :raises ShapeError: it has another shape; says where."""
    kind = type(shape)
    if kind is type:
        if type(value) is shape or shape is object:
            if shape is not str or value.isascii() or _writable(value):
                return
        elif shape is float and type(value) is int and -(1 << 53) <= value <= 1 << 53:
            return
    elif kind is dict:
        _fit_object(value, shape, path)
        return
    elif kind is list:
        if type(value) is list:
            if len(shape) > 1 and len(shape) != len(value):
                raise ShapeError(f"{path}: expected {len(shape)} values, found {len(value)}")
            for index, one in enumerate(value):
                fit(one, shape[index if len(shape) > 1 else 0], f"{path}[{index}]")
            return
    elif kind is tuple:
        if None in shape and value is None:
            return
        _fit_any(value, [one for one in shape if one is not None], path)
        return
    elif kind is range:
        if type(value) is int and value in shape:
            return
    elif kind is frozenset:
        if type(value) is str and value in shape:
            return
    elif value is None:
        return
    raise ShapeError(f"{path}: expected {_called(shape)}, found {_found(value)}")


def _fit_object(value: Json, shape: Shape, path: str) -> None:
    if type(value) is not dict:
        raise ShapeError(f"{path}: expected an object, found {_found(value)}")
    if str in shape:
        for key, one in value.items():
            fit(key, str, f"a key of {path}")
            fit(one, shape[str], f"{path}.{key}")
        return
    for key, one in shape.items():
        name = key.removesuffix("?")
        if name in value:
            fit(value[name], one, f"{path}.{name}")
        elif name is key:
            raise ShapeError(f"{path}.{name} is missing")


def _fit_any(value: Json, shapes: list[Shape], path: str) -> None:
    for one in shapes[:-1]:
        try:
            fit(value, one, path)
        except ShapeError:
            continue
        return
    fit(value, shapes[-1], path)


def _writable(text: str) -> bool:
    """JSON can name halves of surrogate pairs, which nothing can print; file names may hold those of bytes."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _called(shape: Shape) -> str:
    if isinstance(shape, range):
        return f"a whole number from {shape.start} to {shape.stop - 1}"
    if isinstance(shape, frozenset):
        return "one of " + ", ".join(sorted(shape))
    if shape in (int, float):
        return "a number"
    return _KINDS.get(shape if isinstance(shape, type) else type(shape), "null")


def _found(value: Json) -> str:
    if isinstance(value, str):
        return f"{value[:40]!a}" if len(value) <= 40 else f"{value[:40]!a}…"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}" if abs(value) < 1 << 64 else "a number that is too large"
    return _KINDS.get(type(value), "a number")


__all__ = ["COUNT", "PID", "ShapeError", "fit"]
