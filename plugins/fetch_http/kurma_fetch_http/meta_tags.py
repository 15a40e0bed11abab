"""Parses the ``ac-discovery`` meta tags of a web page. Pages are untrusted, and often odd."""

from __future__ import annotations

import codecs
import contextlib
from html.parser import HTMLParser

from kurma_core.value import frozen

#: Bytes of a page that are looked at: the tags stand in its head.
PAGE_LIMIT = 1 << 18
IMAGES = frozenset(("ac-discovery",))
#: The second is a slip of the early draft's example, which real pages copied.
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
        """Whether the prefix is the name's, by whole components: ``example.com/a`` is not ``example.com/ab``'s."""
        return name == self.prefix or name.startswith(f"{self.prefix}/")


def tags_of(page: bytes, content_type: str = "") -> tuple[Tag, ...]:
    """The tags in a page's head, in order; nothing raises, whatever the page is.

    :param content_type: as the server gave it.
    """
    reader = _Head()
    # The parser gives up on some malformed declarations; what came before them counts.
    with contextlib.suppress(AssertionError, ValueError):
        # Not closed: what is left over then is an unfinished tag, and looking into it can take quadratic time.
        reader.feed(_text(page[:PAGE_LIMIT], content_type))
    return tuple(reader.tags)


class _Head(HTMLParser):
    """Only the head: what stands in the body may have been written by the site's visitors."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []
        self._over = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._over = True
        if tag != "meta" or self._over:
            return
        # Of an attribute given twice the first counts, as in browsers.
        values = {name: value or "" for name, value in reversed(attrs)}
        kind = values.get("name", "").strip().lower()
        words = values.get("content", "").split()
        if kind in IMAGES | KEYS and len(words) == 2:
            self.tags.append(Tag(kind, words[0].rstrip("/"), words[1]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "head":
            self._over = True


def _text(page: bytes, content_type: str) -> str:
    """The tags are ASCII, and so are their bytes in nearly every encoding: only the wide ones must be known."""
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
