"""Parses the ``ac-discovery`` meta tags of a web page. Pages are untrusted, and often odd."""

from __future__ import annotations

import codecs
import contextlib
from html.parser import HTMLParser

from kurma_core.value import frozen

#: Bytes of a page that are parsed: the tags are in its head.
PAGE_LIMIT = 1 << 18
IMAGES = frozenset(("ac-discovery",))
#: The second is a mistake in an example of the early draft, which real pages copied.
KEYS = frozenset(("ac-discovery-pubkeys", "ac-discovery-keys"))


@frozen
class Tag:
    """``<meta name="KIND" content="PREFIX TARGET">``.

    :param target: the template of an image's address, or the address of keys.
    """

    kind: str
    prefix: str
    target: str

    def covers(self, name: str) -> bool:
        """Whether the prefix matches whole components of the name: ``example.com/a`` does not match
        ``example.com/ab``."""
        return name == self.prefix or name.startswith(f"{self.prefix}/")


def tags_of(page: bytes, content_type: str = "") -> tuple[Tag, ...]:
    """Returns the tags in a page's head, in order. It raises no error, also for malformed pages.

    :param content_type: the server's ``Content-Type``.
    """
    reader = _Head()
    # The parser raises on some malformed declarations; the tags before them count.
    with contextlib.suppress(AssertionError, ValueError):
        # The parser is not closed: the rest is an unfinished tag, and parsing it can take quadratic time.
        reader.feed(_text(page[:PAGE_LIMIT], content_type))
    return tuple(reader.tags)


class _Head(HTMLParser):
    """Collects the tags of the head only: the body may contain text by the site's visitors."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []
        self._over = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._over = True
        if tag != "meta" or self._over:
            return
        # If an attribute is repeated, the first counts, as in browsers.
        values = {name: value or "" for name, value in reversed(attrs)}
        kind = values.get("name", "").strip().lower()
        words = values.get("content", "").split()
        if kind in IMAGES | KEYS and len(words) == 2:
            self.tags.append(Tag(kind, words[0].rstrip("/"), words[1]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "head":
            self._over = True


def _text(page: bytes, content_type: str) -> str:
    """Decodes a page. The tags are ASCII, with the same bytes in nearly every encoding; only UTF-16 and UTF-32
    need their own decoder."""
    declared = content_type.lower().partition("charset=")[2].strip(" \"'").partition(";")[0].strip(" \"'")
    wide = declared if declared.startswith(("utf-16", "utf-32", "utf16", "utf32")) else "utf-8"
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if page.startswith(mark):
            wide = encoding
            break
    try:
        return page.decode(wide, "replace").removeprefix("\ufeff")
    except LookupError:
        return page.decode("utf-8", "replace")
