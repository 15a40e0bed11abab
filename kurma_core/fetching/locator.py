"""Parses locators: tells a path, an address and an image's name apart."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from kurma_core.appc.image_name import ImageName, parse_image_name
from kurma_core.errors import UsageError
from kurma_core.value import field, frozen

#: Scheme of a locator that is an image's name; discovery finds the image.
NAMED = "appc"
_SCHEME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789+-")


@frozen
class Locator:
    """A parsed locator of an image.

    :param text: the whole locator, scheme included; a path becomes ``file:///…``; a name stays as written.
    :param name: with ``version`` and ``labels``: the parts of a name; None for every other scheme.
    """

    scheme: str
    text: str
    name: str | None = None
    version: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path of a locator with the scheme ``file``."""
        from urllib.parse import unquote_to_bytes, urlsplit

        return os.fsdecode(unquote_to_bytes(urlsplit(self.text).path))


def parse_locator(text: str, schemes: Collection[str] = ()) -> Locator:
    """Tells a path, an address, and a name apart.

    A path begins with ``/``, ``./`` or ``../``, or is the name of an existing file that ends in ``.aci``. An
    address is ``SCHEME://…``, or ``SCHEME:…`` where the scheme is one of ``schemes`` or a path follows it.
    All else is ``NAME[:VERSION][,label=value…]`` (App Container Image Discovery).

    :param schemes: names of the installed fetchers.
    :raises UsageError: it is none of the three.
    """
    if not text or "\0" in text:
        raise UsageError("an image's locator is empty" if not text else "an image's locator holds a NUL")
    if (
        text in (".", "..")
        or text.startswith(("/", "./", "../"))
        or (text.endswith(".aci") and os.path.exists(text))
    ):
        from urllib.parse import quote_from_bytes

        return Locator("file", "file://" + quote_from_bytes(os.fsencode(os.path.abspath(text))))
    scheme, colon, rest = text.partition(":")
    lower = scheme.lower()
    if (
        colon
        and lower
        and _SCHEME.issuperset(lower)
        and (rest.startswith(("//", "/", "./", "../")) or lower in schemes)
    ):
        # The path is relative to the caller's directory; the fetcher may run in another process.
        return Locator(lower, f"{lower}:{rest}" if rest.startswith("//") else f"{lower}:{os.path.abspath(rest)}")
    return _parse_name(text)


def _parse_name(text: str) -> Locator:
    wanted = parse_image_name(text)
    return Locator(NAMED, text, wanted.name, wanted.version, wanted.labels)


def locator_of(name: ImageName) -> Locator:
    """The locator that looks for an image by its name. :raises UsageError: a label cannot be written."""
    return Locator(NAMED, name.text, name.name, name.version, name.labels)
