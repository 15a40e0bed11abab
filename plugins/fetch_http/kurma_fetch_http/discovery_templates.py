"""Expands the URL templates of discovery tags to the addresses where an image may be.

A template has two readings. The late one puts in every ``{variable}`` as it is; ``{name}`` is the whole name. The
early one is RFC 6570, and ``{name}`` is what follows the matched prefix (``specs`` 0.1.0, Meta Discovery).
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
#: Characters that stand for themselves in what is put in: all but those that end an address's path.
_SAFE = "/:+,;=@!$&'()*~"
_ASC = ("aci.asc", "archive")
_SIG = ("sig", "tar")


@frozen
class Candidate:
    """Where an image may stand.

    :param image: the archive's address.
    :param signatures: addresses of its signature, and over what that is; in the order in which they are tried.
    :param simple: guessed from the name alone: a page that stands there is no image.
    """

    image: str
    signatures: tuple[tuple[str, str], ...]
    simple: bool = False


def candidates(tag: Tag, name: str, values: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The late reading, then the early one where it is another; a reading that leaves a variable unfilled is none.

    :param name: of the image; the tag's prefix is one of it.
    :param values: the variables but ``name`` and ``ext``: ``version``, ``os``, ``arch`` and any label.
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
    """Where simple discovery looks (D4)."""
    return Candidate(
        f"{scheme}://{name}.aci",
        ((f"{scheme}://{name}.sig", "tar"), (f"{scheme}://{name}.aci.asc", "archive")),
        simple=True,
    )


def _is_address(text: str) -> bool:
    """Whether it can be taken apart at all: ``https://[x/`` cannot."""
    try:
        urlsplit(text).port  # noqa: B018 - a port that is none raises only now
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
    except (ValueError, TypeError, LookupError):  # the library's way of saying that it is no template
        return None
    return None if _VARIABLE.search(image) or not _is_address(image) else Candidate(image, signatures)
