"""Expands the URL templates of discovery tags to the addresses where an image may be.

A template has two readings. The late reading substitutes every ``{variable}`` literally; ``{name}`` is the whole
name. The early reading is RFC 6570, and ``{name}`` is the rest after the matched prefix (``specs`` 0.1.0, Meta
Discovery).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from kurma_core.value import frozen
from kurma_fetch_http.web_archive import signature_places

if TYPE_CHECKING:
    from kurma_fetch_http.meta_tags import Tag

_VARIABLE = re.compile(r"\{[^{}]*\}?|\}")
#: Characters of values that are not percent-encoded: all but those that end an address's path.
_SAFE = "/:+,;=@!$&'()*~"
_ASC = ("aci.asc", "archive")
_SIG = ("sig", "tar")


@frozen
class Candidate:
    """Possible addresses of an image and its signature.

    :param image: the archive's address.
    :param signatures: addresses of its signature, each with the signed content, in the order of trying.
    :param simple: the address was guessed from the name alone, so an HTML page there does not count as an image.
    """

    image: str
    signatures: tuple[tuple[str, str], ...]
    simple: bool = False


def candidates(tag: Tag, name: str, values: Mapping[str, str]) -> tuple[Candidate, ...]:
    """Returns the addresses of the late reading, then of the early one if it differs. A reading that leaves a
    variable without a value is skipped.

    :param name: name of the image; the tag's prefix is a prefix of it.
    :param values: the variables except ``name`` and ``ext``: ``version``, ``os``, ``arch`` and any label.
    """
    found = []
    late = _late(tag.target, {**values, "name": name})
    if late is not None:
        found.append(late)
    early = _early(tag.target, {**values, "name": name[len(tag.prefix) :].lstrip("/")})
    if early is not None and early.image not in {one.image for one in found}:
        found.append(early)
    return tuple(found)


def simple(name: str, scheme: str = "https") -> Candidate:
    """Returns the addresses of simple discovery."""
    return Candidate(
        f"{scheme}://{name}.aci",
        ((f"{scheme}://{name}.sig", "tar"), (f"{scheme}://{name}.aci.asc", "archive")),
        simple=True,
    )


def _is_address(text: str) -> bool:
    """Whether it can be parsed as an address: ``https://[x/`` cannot."""
    try:
        urlsplit(text).port  # noqa: B018 - urlsplit checks the port only on access
    except ValueError:
        return False
    return True


def _late(template: str, values: Mapping[str, str]) -> Candidate | None:
    def filled(ext: str) -> str | None:
        known = {**values, "ext": ext}
        missing = False

        def value(match: re.Match[str]) -> str:
            nonlocal missing
            variable = match[0][1:-1]
            if match[0] != f"{{{variable}}}" or variable not in known:
                missing = True
                return ""
            return quote(known[variable], safe=_SAFE)

        text = _VARIABLE.sub(value, template)
        return None if missing else text

    image = filled("aci")
    if image is None or not _is_address(image):
        return None
    if "{ext}" not in template:
        return Candidate(image, signature_places(image))
    return Candidate(image, tuple((filled(ext) or "", over) for ext, over in (_ASC, _SIG)))


def _early(template: str, values: Mapping[str, str]) -> Candidate | None:
    import uritemplate

    try:
        parsed = uritemplate.URITemplate(template)
        variables = set(parsed.variable_names)
        if not all(values.get(variable) for variable in variables - {"ext"}):
            return None

        def expanded(ext: str) -> str:
            return str(parsed.expand({**values, "ext": ext})) + ("" if "ext" in variables else f".{ext}")

        image = expanded("aci")
        signatures = tuple((expanded(ext), over) for ext, over in (_SIG, _ASC))
    except (ValueError, TypeError, LookupError):  # raised by the library for malformed templates
        return None
    return None if _VARIABLE.search(image) or not _is_address(image) else Candidate(image, signatures)
