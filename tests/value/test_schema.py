"""JSON forms of values: what is declared once is read strictly and written."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kurma_core import schema
from kurma_core.schema import (
    Count,
    ExitCode,
    JsonValue,
    Made,
    Map,
    Number,
    Pairs,
    Port,
    SchemaError,
    Words,
    fit,
    nearest,
    resolve,
    shape,
)
from kurma_core.value import field, frozen

State: Any = Words("up", "down")


@frozen
class App(JsonValue):
    NAMED_BY = "name"

    name: str
    exit_code: ExitCode | None = None


@frozen
class Pod(JsonValue):
    COMPUTED = {"first": str}  # noqa: RUF012 - of the class

    uuid: str
    state: State
    apps: tuple[App, ...]
    host_ip: str = field(default="", key="hostIP")
    labels: Mapping[str, str] = field(default_factory=dict)
    values: tuple[tuple[str, Any], ...] = field(default=(), shape=Pairs(("name", "value")))

    @property
    def first(self) -> str:
        return self.apps[0].name


@frozen
class Wish(JsonValue):
    PARTIAL = True

    name: str
    port: Port = 80
    pod: Pod | None = None
    names: frozenset[str] = frozenset()


@frozen
class Page(JsonValue):
    pod: Pod = field(inline=True)
    size: Count = 0


POD = Pod("u", "up", (App("a", 3), App("b")), "::", {"x": "y"}, (("q", {"z": None}),))
SAID = {
    "uuid": "u",
    "state": "up",
    "apps": {"a": {"exitCode": 3}, "b": {"exitCode": None}},
    "hostIP": "::",
    "labels": {"x": "y"},
    "values": [{"name": "q", "value": {"z": None}}],
    "first": "a",
}


def test_a_value_is_written_and_read_as_it_is_declared() -> None:
    assert POD.to_json() == SAID
    assert Pod.from_json(SAID) == POD
    assert Page(POD, 5).to_json() == {**SAID, "size": 5}
    assert Page.from_json({**SAID, "size": 5}) == Page(POD, 5)
    assert Wish("a", names=frozenset("cab")).to_json()["names"] == ["a", "b", "c"]


def test_what_is_partial_may_leave_out_what_has_a_default() -> None:
    assert Wish.from_json({"name": "a", "port": None}) == Wish("a")
    with pytest.raises(SchemaError, match=r"the Wish\.name is missing"):
        Wish.from_json({"port": 1})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"uuid": 5}, r"^x\.uuid: expected a string, found 5$"),
        ({"uuid": "\ud800"}, r"^x\.uuid: expected Unicode text, found a lone surrogate$"),
        ({"state": "off"}, r'^x\.state: expected one of up, down, found "off"$'),
        ({"apps": []}, r"^x\.apps: expected an object, found an empty list$"),
        (
            {"apps": {"a": {"exitCode": 256}}},
            r"^x\.apps\.a\.exitCode: expected an integer from 0 to 255, found 256$",
        ),
        ({"apps": {"a": {"exitCode": True}}}, r"exitCode: expected .*, found true$"),
        ({"apps": {"a": {}}}, r"^x\.apps\.a\.exitCode is missing$"),
        ({"labels": {"a b": 1}}, r'^x\.labels\["a b"\]: expected a string, found 1$'),
        ({"values": [{"value": 1}]}, r"^x\.values\[0\]\.name is missing$"),
    ],
)
def test_what_does_not_fit_is_told_with_its_path(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        Pod.from_json({**SAID, **changed}, "x")


def test_a_key_that_is_left_out_and_one_that_is_unknown() -> None:
    with pytest.raises(SchemaError, match=r"x\.hostIP is missing"):
        Pod.from_json({key: one for key, one in SAID.items() if key != "hostIP"}, "x")
    told: list[Any] = []
    wrong = {"name": "a", "zork": 1, "pod": {**SAID, "apps": {"a": {"exitCode": 1, "zork": 2}}}}
    shape(Wish).find_unknown(wrong, "$", lambda path, key, known: told.append((path, key, known)))
    assert told == [("$", "zork", ["name", "port", "pod", "names"]), ("$.pod.apps.a", "zork", ["exitCode"])]
    assert Wish.from_json(wrong, "$").name == "a"


def test_a_record_that_is_no_class() -> None:
    form = {"name": str, "ports": [range(1, 10)], "reason?": (str, None), "by": {str: bool}, "two": [int, str]}
    good = {"name": "a", "ports": [1], "by": {"x": True}, "two": [1, "b"], "other": 1}
    fit(good, form, "r")
    for changed, words in (
        ({"ports": [10]}, r"r\.ports\[0\]: expected an integer from 1 to 9, found 10"),
        ({"reason": 1}, r"r\.reason: expected a string, found 1"),
        ({"by": {"x": 1}}, r"r\.by\.x: expected true or false, found 1"),
        ({"two": [1]}, r"r\.two: expected 2 values, found 1"),
    ):
        with pytest.raises(SchemaError, match=words):
            fit({**good, **changed}, form, "r")


def test_shapes_that_convert() -> None:
    hours: Any = Made("a number of hours", lambda text: 60 * int(text.removesuffix("h")), str)
    times = Map(hours, Made("a day", str.upper, Words("mon", "tue")))
    assert times.read({"mon": "2h"}, "$") == {"MON": 120}
    for value, words in (
        ({"mon": "x"}, r'^\$\.mon: expected a number of hours, found "x"$'),
        ({"mon": 5}, r"^\$\.mon: expected a number of hours, found 5$"),
        ({"sun": "1h"}, r'^\$\.sun: expected a day, found "sun"$'),
    ):
        with pytest.raises(SchemaError, match=words):
            times.read(value, "$")
    with pytest.raises(SchemaError, match=r"^x: expected a number from 0 to 5, found 6$"):
        Number(0, most=5).read(6, "x")


def test_an_annotation_without_a_json_form_is_a_mistake() -> None:
    for text in ("Callable[[int], str]", "Mapping[int, str]", "Unheard"):
        with pytest.raises(TypeError):
            resolve(text, globals())
    assert resolve("Mapping[str, Any] | None", globals()).read(None, "") is None


def test_forms_that_are_remembered_are_constants() -> None:
    """``fit`` remembers what it made of a form, by its identity: one that is made anew each time would stay."""
    root = Path(__file__).parents[2]
    files = [*root.glob("kurma_core/**/*.py"), *root.glob("plugins/*/kurma_*/**/*.py")]
    calls = [
        (file, node)
        for file in files
        if "fit(" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fit"
    ]
    assert calls
    for file, call in calls:
        form = call.args[1]
        fixed = isinstance(form, ast.Attribute) or (isinstance(form, ast.Name) and form.id in ("dict", "shape"))
        assert fixed or (isinstance(form, ast.Name) and form.id.isupper()), f"{file}:{call.lineno}"


def test_hints_name_the_nearest_word():
    assert nearest("netwroks", ["renderers", "networks"]) == "networks"
    assert nearest("zzz", ["renderers", "networks"]) is None
    assert nearest("zzz", ["renderers"], 0) == "renderers"
    assert nearest("dir", ["directory", "door"]) == "directory", "the only word that begins so"
    assert nearest("dir", ["directory", "direction"]) is None


def test_one_place_looks_for_similar_words():
    core = Path(schema.__file__).parent
    assert [path.name for path in core.rglob("*.py") if "import difflib" in path.read_text()] == ["schema.py"]
