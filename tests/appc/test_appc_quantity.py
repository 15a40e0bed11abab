"""Quantities: T7."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core.appc.quantity import MAX, UNITS, format_quantity, parse_quantity
from kurma_core.errors import ManifestError
from kurma_core.json_text import loads

SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{letter: Fraction(1000) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("128974848", 128974848),
        ("125952Ki", 128974848),
        ("123Mi", 128974848),
        ("1.5Gi", 3 << 29),
        ("2G", 2 * 10**9),
        ("1k", 1000),
        ("1K", 1000),
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1Ei", 1 << 60),
        ("2500e-1", 250),
        ("0", 0),
        (".5K", 500),
        ("5.", 5),
        ("0.3", 1),
        ("1001m", 2),
        ("1.0000000000000000001Ki", 1025),
        ("9223372036854775807", MAX),
        ("0e999999999", 0),
        ("1e-999999999", 1),
        (1073741824, 1 << 30),
    ],
)
def test_bytes(text, number):
    """T7: exact, and rounded up to whole bytes; the specification's own three examples are one value."""
    assert parse_quantity(text, "$") == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1000), ("300m", 300), ("0.3", 300), (".0001", 1), ("1.0005", 1001), ("2e-3", 2), (2, 2000), (0.3, 300)],
)
def test_cores(text, number):
    """T7: in thousandths of a core."""
    assert parse_quantity(text, "$", unit="cores") == number


def test_json_number_is_read_as_written():
    """T7: never through floating point, not even where JSON has a number."""
    value = loads('{"limit": 9007199254740993.0, "small": 0.1000000000000000000001}')
    assert parse_quantity(value["limit"], "$") == 9007199254740993
    assert parse_quantity(value["small"], "$", unit="cores") == 101


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "-1", "+1", "1GB", "1g", "1ki", "1 G", ".", "e3", "1e", "1e+", "1e3K", "1Km", "0x10"]  # noqa: RUF005
    + ["1_0", "٣", "nan", "inf", "1" * 65],
)
def test_refuses(text):
    """T7"""
    with pytest.raises(ManifestError) as caught:
        parse_quantity(text, "$.app.isolators[0].value.limit")
    assert caught.value.data["path"] == "$.app.isolators[0].value.limit"
    assert "a quantity of bytes" in caught.value.data["expected"]
    assert caught.value.data["found"].startswith(f'"{text}'[:40])
    assert caught.value.hint


@pytest.mark.parametrize(("value", "found"), [(True, "true"), (None, "null"), ([], "an empty list"), (-1, "-1")])
def test_refuses_other_values(value, found):
    """T7"""
    with pytest.raises(ManifestError) as caught:
        parse_quantity(value, "$", unit="cores")
    assert "cores" in caught.value.data["expected"]
    assert caught.value.data["found"] == found


@pytest.mark.parametrize("text", ["9223372036854775808", "8Ei", "10E", "1e400", "1e999999999"])
def test_too_large(text):
    """T7: neither wrapped nor computed for ever."""
    with pytest.raises(ManifestError) as caught:
        parse_quantity(text, "$")
    assert "2^63-1" in caught.value.data["expected"]


@given(
    whole=st.integers(0, 10**12).map(str) | st.just(""),
    fraction=st.text("0123456789", max_size=12) | st.none(),
    suffix=st.sampled_from(sorted(SUFFIXES)),
    unit=st.sampled_from(sorted(UNITS)),
)
def test_agrees_with_exact_fractions(whole, fraction, suffix, unit):
    """T7"""
    text = whole if fraction is None else f"{whole}.{fraction}"
    if not any(character.isdigit() for character in text):
        return
    exact = Fraction(f"0{text.rstrip('.')}") * SUFFIXES[suffix] * UNITS[unit]
    if ceil(exact) <= MAX:
        assert parse_quantity(text + suffix, "$", unit=unit) == ceil(exact)
    else:
        with pytest.raises(ManifestError):
            parse_quantity(text + suffix, "$", unit=unit)


@given(st.integers(0, 10**9), st.integers(-20, 9), st.sampled_from(["e", "E"]))
def test_exponents_agree_with_exact_fractions(digits, exponent, letter):
    """T7"""
    assert parse_quantity(f"{digits}{letter}{exponent}", "$") == ceil(digits * Fraction(10) ** exponent)


@given(st.integers(0, MAX) | st.integers(0, 4000).map(lambda n: n << 20), st.sampled_from(sorted(UNITS)))
def test_canonical_form_means_the_same(number, unit):
    """T7: exact, stable under a second round."""
    written = format_quantity(number, unit)
    assert parse_quantity(written, "$", unit=unit) == number
    assert format_quantity(parse_quantity(written, "$", unit=unit), unit) == written


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, "bytes", "0"),
        (1536, "bytes", "1536"),
        (1 << 30, "bytes", "1Gi"),
        (2 * 10**9, "bytes", "2G"),
        (3 << 29, "bytes", "1536Mi"),
        (2000, "cores", "2"),
        (1500, "cores", "1500m"),
        (0, "cores", "0"),
    ],
)
def test_canonical_form(number, unit, text):
    """T7"""
    assert format_quantity(number, unit) == text


def test_imports_no_arithmetic_but_integers():
    """T7, and start-up time: neither decimal nor fractions is loaded."""
    code = "import sys, kurma_core.appc.quantity; print({'decimal', 'fractions'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
