"""Strict JSON: the second half of T8, and what strangers may send."""

from __future__ import annotations

import contextlib
import gc
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core import json_text
from kurma_core.errors import ManifestError
from kurma_core.json_text import JsonError, is_deeper, loads, read_document

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def refused(document, **data: object) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_document(document, "the image manifest")
    for key, value in data.items():
        assert caught.value.data[key] == value
    assert caught.value.data["what"] == "the image manifest"
    return caught.value


@pytest.mark.parametrize(
    ("text", "path", "key"),
    [
        ('{"a": 1, "a": 1}', "$.a", "a"),
        ('{"app": {"ports": [{}, {"name": "x", "port": 1, "name": "x"}]}}', "$.app.ports[1].name", "name"),
        ('[{"odd.key": {"b": 1, "b": {}}}]', '$[0]["odd.key"].b', "b"),
        ('{"a": {"x": 1, "x": 2}, "a": 3}', "$.a", "a"),
        (r'{"a": 1, "\u0061": 2}', "$.a", "a"),
    ],
)
def test_duplicate_keys(text, path, key):
    """T8"""
    refused(text, path=path, expected="each key once", found=f'key "{key}" twice')


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("{", 1, 2),
        ('{"a": 1,}', 1, 9),
        ('{\n  "a" 1\n}', 2, 7),
        ("{} x", 1, 4),
        ("{}{}", 1, 3),
        ("[1, 2", 1, 6),
        ("'a'", 1, 1),
        ('"a\nb"', 1, 3),
        ('{"a": "b\tc"}', 1, 9),
        ("\ufeff{}", 1, 1),
    ],
)
def test_malformed(text, line, column):
    """The error says where."""
    error = refused(text, path="$", line=line, column=column)
    assert f" at line {line}, column {column}" in str(error)
    assert " at at " not in str(error)
    assert "the image manifest" in str(error)
    refused(text.encode(), line=line)


def test_invalid_utf8():
    error = refused(b'{\n "a": "\xff"}', path="$", line=2, column=8)
    assert "0xff" in error.data["found"]
    refused('"é"'.encode("latin-1"))
    refused('{"a": 1}'.encode("utf-16"))


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_no_constants(name):
    """They too are told with their place; in strings they are words."""
    assert name in refused(f"[{name}]", path="$", line=1, column=2).data["found"]
    refused(f'{{"{name}": "\\\\\\"{name}",\n "a": [{name}, {name}]}}', path="$", line=2, column=8)
    assert loads(f'["{name}"]') == [name]


def test_numbers_out_of_range():
    refused('{"a": [1e400]}', path="$.a[0]")
    many = "1" * 5000
    assert "digits" in refused(f'["{many}", {many}.5,\n{many}]', path="$", line=2, column=1).data["found"]
    for wrong in (f"{many}.", f"{many}e", f"-{many}x"):
        assert "digits" in refused(wrong, path="$", line=1).data["found"]


def test_lone_surrogates():
    refused(r'{"a": "\ud800"}', path="$.a", found="a lone surrogate")
    refused(r'{"\udfff": 1}', path="$")
    assert loads(r'"\ud83d\ude00"') == "😀"


def test_what_own_formats_may_hold():
    """Bytes of file names; else they are read as strictly."""
    assert loads(r'["\udcff"]', own=True) == ["\udcff"]
    for text, words in (
        ('{"a": {"b": 1, "b": 2}}', r'^\$\.a\.b: expected each key once, found key "b" twice$'),
        ("[1e400]", r"^\$\[0\]: expected a number in the range"),
        ("[\nNaN]", r"^not JSON: NaN, which is no JSON number, at line 2, column 1$"),
        ("[" * 200, r"^\$: expected at most 128 levels of nesting, found more$"),
    ):
        with pytest.raises(JsonError, match=words):
            loads(text, own=True)


def test_depth():
    deepest = "[" * json_text.MAX_DEPTH + "]" * json_text.MAX_DEPTH
    loads(deepest)
    refused(f"[{deepest}]", path="$", found="more")
    loads(f"[{deepest}]", own=True)
    refused("[" * 1_000_000)
    refused('{"a":' * 100_000 + "1" + "}" * 100_000)


@pytest.mark.parametrize("opening", ["[", '{"a":', '["\\\\",', '["]\\"]",', "[1, ", "[\n"])
def test_how_deep(opening):
    """Told alike for what stands in strings, is closed again, or comes in lines."""
    for levels, far in ((100, False), (101, True)):
        assert is_deeper(opening * levels + ('"[' * far), 100) is far
    assert not is_deeper(json.dumps([opening] * 1000), 100)
    assert is_deeper("[" * 1000, 100)
    for levels in range(95, 105):
        text = "[{" * (levels // 2) + "[" * (levels % 2)
        whole = text + "]" * (levels % 2) + "}]" * (levels // 2)
        assert is_deeper(f"[{whole}, {whole}]", 100) is (levels + 1 > 100)


def test_how_deep_is_told_in_time():
    began = time.process_time()
    for text in ('"\\' * 500_000, '\\"' * 500_000, "[]" * 500_000):
        is_deeper(text + "[" * 200, 128)
    assert time.process_time() - began < 10, "twenty times what it takes; were it quadratic, it would be hours"


def test_finalizers_that_run_meanwhile_are_left_in_peace():
    """Python 3.11 collects garbage while it parses: at the interpreter's limit a finalizer could do nothing."""
    ended = []

    class Kept:
        def __init__(self):
            self.circle = self

        def __del__(self):
            ended.append(json.loads("[[[[1]]]]"))

    before = gc.get_threshold()
    gc.freeze()
    try:
        for threshold in range(2, 1000, 4):
            gc.collect()
            gc.set_threshold(threshold)  # so that it happens at every depth once
            Kept()
            refused("[" * 100_000)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    gc.collect()
    assert len(ended) == 250


@given(JSON)
def test_round_trip(value):
    assert loads(json_text.dumps(value)) == value
    assert loads(json_text.dumps(value, indent=2).encode(), own=True) == value


@given(JSON)
def test_reads_what_others_write(value):
    assert loads(json.dumps(value)) == value


@given(st.dictionaries(st.text(), st.integers()))
def test_output_is_stable(value):
    assert json_text.dumps(dict(reversed(value.items()))) == json_text.dumps(value)


@given(st.binary() | st.text())
def test_never_anything_but_a_manifest_error(document):
    with contextlib.suppress(ManifestError):
        read_document(document, "x")


def test_dumps_refuses_nan():
    with pytest.raises(ValueError):
        json_text.dumps(float("nan"))
