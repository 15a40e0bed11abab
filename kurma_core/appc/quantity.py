"""Parses and formats quantities of resources: "1.5Gi", "300m", "2e3", 0.3. It calculates with integers only.

Implements App Container Executor, Resource Isolators. The base units are bytes (also used for bytes per second),
plain counts, and, for cores, the thousandth of a core. Fractions of a base unit are rounded up.
"""

from __future__ import annotations

from kurma_core.errors import ManifestError
from kurma_core.json_text import Literal
from kurma_core.schema import describe

#: Base units of one unit.
UNITS = {"bytes": 1, "count": 1, "cores": 1000}
#: The largest quantity, in base units, that the kernel's interfaces can hold.
MAX = (1 << 63) - 1

_SUFFIXES = {
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_FACTORS = {"": 1, "k": 10**3, **_SUFFIXES}
_DIGITS = frozenset("0123456789")
_EXPECTED = {
    "bytes": 'a quantity of bytes ("128974848", "1.5Gi", "2G")',
    "count": 'a quantity ("1000", "2K")',
    "cores": 'a quantity of cores ("2", "0.5", "250m")',
}
_MAX_TEXT = 64
# A larger exponent decides alone whether the result overflows or rounds to the minimum: _MAX_TEXT digits cannot
# offset it.
_MAX_EXPONENT = 200


def parse_quantity(value: object, path: str, *, unit: str = "bytes") -> int:
    """Read a quantity.

    :param value: a string, or a JSON number; not negative.
    :param unit: ``bytes``, ``count`` or ``cores``.
    :return: bytes, a count, or milli-cores.
    :raises ManifestError: it is malformed, or more than :data:`MAX`.
    """
    scale = UNITS[unit]
    split = _split(_written(value))
    if split is None:
        raise ManifestError(
            path,
            _EXPECTED[unit],
            describe(value),
            hint="suffixes: K M G T P E (powers of 1000), Ki Mi Gi Ti Pi Ei (powers of 1024), m (thousandths)",
        )
    digits, exponent, suffix = split
    number = int(digits) * scale
    if suffix == "m":
        exponent -= 3
    else:
        number *= _FACTORS[suffix]
    if number and exponent > _MAX_EXPONENT:
        result = MAX + 1
    elif exponent >= 0:
        result = number * 10 ** min(exponent, _MAX_EXPONENT)
    else:
        result = -(-number // 10 ** min(-exponent, _MAX_EXPONENT))
    if result > MAX:
        raise ManifestError(path, f"{_EXPECTED[unit]} of at most 2^63-1", describe(value))
    return result


def format_quantity(number: int, unit: str = "bytes") -> str:
    """Formats ``number`` base units with the largest suffix that is exact.

    Cores are written as ``2`` or ``250m``.
    ``parse_quantity(format_quantity(n, u), …, unit=u) == n`` for all 0 <= n <= MAX.
    """
    if UNITS[unit] == 1000:
        return f"{number}m" if number % 1000 else str(number // 1000)
    exact = [(factor, suffix) for suffix, factor in _SUFFIXES.items() if number and number % factor == 0]
    factor, suffix = max(exact, default=(1, ""))
    return f"{number // factor}{suffix}"


def _written(value: object) -> str:
    """Returns the text of a quantity; "" for values that cannot be one."""
    if isinstance(value, str):
        return value
    if isinstance(value, Literal):
        return value.text
    # A float without its literal text comes from YAML or a program; repr is the shortest decimal for it.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    return ""


def _split(written: str) -> tuple[str, int, str] | None:
    """Splits a quantity into digits without point, power of ten, and suffix; None if it is malformed."""
    if len(written) > _MAX_TEXT:
        return None
    rest = written.lstrip("0123456789")
    whole = written[: len(written) - len(rest)]
    fraction = ""
    if rest.startswith("."):
        after = rest[1:]
        rest = after.lstrip("0123456789")
        fraction = after[: len(after) - len(rest)]
    if not whole and not fraction:
        return None
    exponent = 0
    if rest[:1] in ("e", "E") and rest not in _FACTORS:
        power = rest[2:] if rest[1:2] in ("+", "-") else rest[1:]
        if not power or not _DIGITS.issuperset(power):
            return None
        exponent = -int(power) if rest[1] == "-" else int(power)
        rest = ""
    if rest != "m" and rest not in _FACTORS:
        return None
    return whole + fraction, exponent - len(fraction), rest
