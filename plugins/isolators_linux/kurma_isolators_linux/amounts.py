"""Reads the values of resource isolators: requests, limits and whole numbers, in base units."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kurma_core.appc.quantity import parse_quantity
from kurma_core.errors import IsolatorError, ManifestError
from kurma_core.schema import describe


def members(name: str, value: Any, known: Collection[str], example: str) -> Mapping[str, Any]:
    """Returns the members of the isolator's value that are not null.

    :param known: the members that it may have.
    :param example: an example value, for the error.
    :raises IsolatorError: the value is not an object, or has other members.
    """
    if not isinstance(value, Mapping):
        raise IsolatorError(f"isolator {name}: expected an object such as {example}, got {describe(value)}")
    for key in value:
        if key not in known:
            raise IsolatorError(
                f"isolator {name}: it has no member {describe(key)}", hint=f"a value is such as {example}"
            )
    return {key: one for key, one in value.items() if one is not None}


def amount(name: str, value: Mapping[str, Any], key: str, unit: str, *, least: int = 0) -> int | None:
    """Reads one member, in base units; None: it is missing.

    :param unit: as in :func:`kurma_core.appc.quantity.parse_quantity`.
    :param least: the minimum.
    :raises IsolatorError: it is not a quantity, or too small.
    """
    if key not in value:
        return None
    try:
        found = parse_quantity(value[key], key, unit=unit)
    except ManifestError as error:
        raise IsolatorError(
            f"isolator {name}: {key}: expected {error.data['expected']}, got {error.data['found']}",
            hint=error.hint,
        ) from None
    if found < least:
        raise IsolatorError(
            f"isolator {name}: a {key} of {describe(value[key])} is too small: {_at_least(least, unit)}"
        )
    return found


def request_and_limit(
    name: str, value: Any, unit: str, example: str, *, least: int = 1
) -> tuple[int | None, int | None]:
    """Reads ``request``, which defaults to the limit, and ``limit``. At least one is required.

    :param least: the minimum of the limit.
    :raises IsolatorError: both are missing, or the request exceeds the limit.
    """
    given = members(name, value, ("request", "limit", "default"), example)
    if given.get("default", False) is not False:
        raise IsolatorError(f"isolator {name}: it has no default, which is for block devices and networks")
    limit = amount(name, given, "limit", unit, least=least)
    request = amount(name, given, "request", unit)
    if request is None:
        request = limit
    if request is None:
        raise IsolatorError(f"isolator {name}: expected a request, a limit or both, such as {example}")
    if limit is not None and request > limit:
        raise IsolatorError(
            f"isolator {name}: it requests {describe(given['request'])}, more than its limit of "
            f"{describe(given['limit'])}"
        )
    return request, limit


def default_limit(name: str, value: Any, unit: str, example: str, *, least: int = 1) -> int:
    """Reads the limit of an isolator that applies to all devices: {"default": true, "limit": …}.

    :raises IsolatorError: ``default`` is not true, there is a request, or the limit is missing.
    """
    given = members(name, value, ("default", "limit", "request"), example)
    if given.get("default") is not True or "request" in given:
        raise IsolatorError(
            f'isolator {name}: expected "default": true and a limit, and no request',
            hint=f"a value is such as {example}: it holds for all devices",
        )
    return required_limit(name, given, unit, example, least=least)


def required_limit(name: str, given: Mapping[str, Any], unit: str, example: str, *, least: int = 1) -> int:
    """Reads the limit. :param given: the result of :func:`members`. :raises IsolatorError: it has no limit."""
    limit = amount(name, given, "limit", unit, least=least)
    if limit is None:
        raise IsolatorError(f"isolator {name}: expected a limit, such as {example}")
    return limit


def told(unit: str, **amounts: int | None) -> str:
    """Formats amounts in base units, for people: ``request 250 millicores, limit 500 millicores``."""
    return ", ".join([f"{key} {number} {unit}".rstrip() for key, number in amounts.items() if number is not None])


def _at_least(least: int, unit: str) -> str:
    if least == 1:
        return "it must be more than 0"
    for suffix, factor in (("Mi", 1 << 20), ("K", 1000)):
        if unit == "bytes" and least % factor == 0:
            return f"at least {least // factor}{suffix}"
    return f"at least {least}"


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """Reads a whole number. :raises IsolatorError: the value is not one from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise IsolatorError(
            f"isolator {name}: expected a whole number from {least} to {most}, got {describe(value)}"
        )
    return value
