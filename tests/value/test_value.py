"""Frozen values behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import dataclass
from dataclasses import field as twin_field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.value import field, fields, frozen, replace

T = TypeVar("T")


@frozen
class Point:
    """A place."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)

    ORIGIN: ClassVar[int] = 0
    LIMIT = 7

    @property
    def sum(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Twin:
    x: int
    y: int = 2
    names: list[str] = twin_field(default_factory=list)


@frozen
class Named(Point):
    title: str = "t"


@frozen
class Box(Generic[T]):
    item: T


@frozen
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


def test_fields_by_place_by_name_and_by_default() -> None:
    assert (Point(1).x, Point(1).y, Point(1).names) == (1, 2, [])
    assert Point(1, names=["a"], y=5).sum == 6
    assert Point(1).names is not Point(1).names
    assert (Point.ORIGIN, Point.LIMIT, Point.__doc__) == (0, 7, "A place.")
    assert [each.name for each in fields(Point)] == ["x", "y", "names"]


@pytest.mark.parametrize(
    ("args", "given", "why"),
    [
        ((), {}, "needs a value for x"),
        ((1, 2, [], 4), {}, "takes 3 values, 4 were given"),
        ((1,), {"x": 1}, "got x twice"),
        ((1,), {"z": 1}, "has no z"),
    ],
)
def test_wrong_calls(args: tuple[object, ...], given: dict[str, object], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Point(*args, **given)  # type: ignore[arg-type]


@given(st.integers(), st.integers(), st.integers(), st.integers())
def test_equal_and_hashed_by_the_fields(a: int, b: int, c: int, d: int) -> None:
    one, two = Point(a, b, ()), Point(c, d, ())  # type: ignore[arg-type]
    assert (one == two) == ((a, b) == (c, d))
    if one == two:
        assert hash(one) == hash(two)


def test_values_of_different_classes_differ() -> None:
    assert Point(1) != Named(1)
    assert Point(1) != (1, 2, [])


def test_it_cannot_be_changed_or_extended() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="its x cannot be changed"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        point.other = 3  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        del point.x
    assert not hasattr(point, "__dict__")


def test_replace_copy_and_pickle() -> None:
    point = Point(1, 3, ["a"])
    assert replace(point, x=9) == Point(9, 3, ["a"])
    with pytest.raises(TypeError, match="has no z"):
        replace(point, z=1)
    assert copy.deepcopy(point) == point == pickle.loads(pickle.dumps(point))


def test_inheritance_generics_and_post_init() -> None:
    assert repr(Named(1, title="n")) == "Named(x=1, y=2, names=[], title='n')"
    assert Box(3).item == 3
    assert Box[int](3) == Box(3)
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_shown_and_matched_as_a_dataclass_is() -> None:
    assert repr(Point(1)) == repr(Twin(1)).replace("Twin", "Point").replace(repr(Twin(1).names), "[]")
    match Point(1, 5):
        case Point(x, y):
            assert (x, y) == (1, 5)


def test_it_is_light() -> None:
    root = str(Path(__file__).parents[2])
    script = (
        f"import sys; sys.path.insert(0, {root!r}); import kurma_core.value\n"
        "print([m for m in ('dataclasses', 'inspect', 'typing') if m in sys.modules])"
    )
    command = [sys.executable, "-S", "-I", "-c", script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
