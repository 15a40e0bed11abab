"""Makes the names of interfaces inside a pod, from templates (Kurma Network Specification)."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from kurma_core.errors import NetworkError

#: The kernel's limit, in bytes, without the terminating NUL (IFNAMSIZ - 1).
MAX_LENGTH = 15
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"  # 32 letters: a random byte picks one without bias
_TRIES = 64
#: Names that are reserved under /proc/sys/net/*/conf.
_RESERVED = ("all", "default", ".", "..")


def check_name(name: str, network: str) -> str:
    """Returns ``name`` if the kernel accepts it as an interface's.

    :raises NetworkError: it is empty, longer than 15 bytes, reserved, or has invalid characters.
    """
    why = None
    size = len(os.fsencode(name))
    if not 0 < size <= MAX_LENGTH:
        why = f"it has {size} bytes, 1 to {MAX_LENGTH} are allowed"
    elif name in _RESERVED:
        why = "the name is reserved"
    elif not all("!" <= character <= "~" and character not in "/:%" for character in name):
        why = "only visible ASCII characters without / : % are allowed"
    if why:
        raise NetworkError(f'network "{network}": impossible interface name {name!r}: {why}', network=network)
    return name


def is_template(text: str) -> bool:
    """Whether ``text`` has a placeholder."""
    return "{{" in text


def render(template: str, taken: Collection[str], uuid: str, network: str) -> str:
    """Makes an interface name from ``template`` that is not in ``taken``.

    ``{{num}}`` is the lowest number from 0 on that makes a free name, ``{{uuid}}`` and ``{{shortuuid}}`` (its
    first eight characters) are the pod's, ``{{random N}}`` is N random letters and digits.

    :raises NetworkError: a placeholder is unknown or unclosed, the name is invalid, or no name is free.
    """
    parts = _parse(template, network)
    numbered = any(part == ("num",) for part in parts)
    random = any(len(part) == 2 for part in parts)
    for number in range(len(taken) + 1 if numbered else _TRIES if random else 1):
        name = check_name("".join([_fill(part, number, uuid) for part in parts]), network)
        if name not in taken:
            return name
    raise NetworkError(
        f'network "{network}": the pod already has an interface {name}',
        hint="give it another one (--net NAME:INTERFACE), or a template such as eth{{num}}",
        network=network,
    )


def assign(wanted: Sequence[tuple[str, str]], uuid: str) -> tuple[str, ...]:
    """Interface names for a pod's networks, in order.

    Plain names are assigned first, so that a template never takes a name that a later network asks for.

    :param wanted: each network's name and its interface name or template; "" stays "": the driver names it.
    :param uuid: the pod's.
    :raises NetworkError: two networks ask for one name, or a name is invalid.
    """
    names: dict[int, str] = {}
    for templates in (False, True):
        for index, (network, text) in enumerate(wanted):
            if not text:
                names[index] = ""
            elif is_template(text) == templates:
                names[index] = render(text, set(names.values()), uuid, network)
    return tuple(names[index] for index in range(len(wanted)))


# A part is ("text", TEXT, ""), ("num",), ("uuid",), ("shortuuid",) or ("random", N).
_Part = tuple[str, ...]


def _parse(template: str, network: str) -> list[_Part]:
    parts: list[_Part] = []
    rest = template
    while rest:
        before, opening, rest = rest.partition("{{")
        if before:
            parts.append(("text", before, ""))
        if not opening:
            break
        inner, closing, rest = rest.partition("}}")
        words = tuple(inner.split())
        known = words in (("num",), ("uuid",), ("shortuuid",)) or (
            len(words) == 2 and words[0] == "random" and words[1] in [str(n) for n in range(1, MAX_LENGTH + 1)]
        )
        if not (closing and known):
            raise NetworkError(
                f'network "{network}": interface template "{template}": unknown part "{{{{{inner}{closing}"',
                hint="there are {{num}}, {{uuid}}, {{shortuuid}} and {{random N}} with N from 1 to 15",
                network=network,
            )
        parts.append(words)
    return parts


def _fill(part: _Part, number: int, uuid: str) -> str:
    match part[0]:
        case "text":
            return part[1]
        case "num":
            return str(number)
        case "uuid":
            return uuid
        case "shortuuid":
            return uuid[:8]
    return "".join([_ALPHABET[byte % 32] for byte in os.urandom(int(part[1]))])
