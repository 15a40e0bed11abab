"""Pages and templates as they come: odd, malformed, hostile (D2, D3)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_fetch_http.discovery_templates import candidates
from kurma_fetch_http.meta_tags import PAGE_LIMIT, Tag, tags_of

ONE = Tag("ac-discovery", "example.com", "https://example.com/{name}.{ext}")
META = '<meta name="ac-discovery" content="example.com https://example.com/{name}.{ext}">'
VALUES = {"version": "1", "os": "linux", "arch": "amd64"}


@pytest.mark.parametrize(
    "page",
    [
        META,
        f"<html><head><title>x</title>{META}</head></html>",
        META.replace('"', "'"),
        META.replace(">", "/>"),
        '<META CONTENT="example.com https://example.com/{name}.{ext}" NAME="AC-Discovery">',
        "<meta\n\tname = ac-discovery\n content\n=\n'\n example.com\n\thttps://example.com/{name}.{ext} '\n>",
        '<meta name="ac-discovery" content="example.com/ https&#58;//example.com/&lbrace;name}.{ext}">',
        META.replace("<meta", '<meta id=x data-y="<b>"'),
        META.replace("content", 'name="other" content'),
        f"<p></div></b>text & more < than > that{META}",
        f"<!-- {META.replace('ac-', 'no-')} --><!DOCTYPE x>{META}",
        f"<script>var x = '{META.replace('example', 'wrong')}';</script>{META}",
        f"{META}<meta name=ac-discovery content='example.com",
        f"{META}<![if x",
    ],
)
def test_ways_to_write_it(page: str) -> None:
    assert tags_of(page.encode()) == (ONE,)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "no html at all",
        "<meta name=ac-discovery>",
        "<meta content='example.com https://example.com'>",
        META.replace(" https", " more https"),
        META.replace("https://example.com/{name}.{ext}", ""),
        META.replace("ac-discovery", "ac-discovery-more"),
        f"<!-- {META} -->",
        f"<body>{META}",
        f"<head></head>{META}",
        f"<textarea x='{META}'>",
    ],
)
def test_what_is_no_tag(page: str) -> None:
    """What a visitor of the site may have written, in its body, does not count either."""
    assert tags_of(page.encode()) == ()


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        ("utf-8-sig", ""),
        ("latin-1", "text/html; charset=ISO-8859-1"),
        ("utf-16", "text/html"),
        ("utf-16-le", "text/html; charset=UTF-16LE"),
        ("utf-32", ""),
        ("shift_jis", 'text/html;charset="Shift_JIS"; x=y'),
        ("utf-8", "text/html; charset=no-such-thing"),
        ("utf-8", "text/html; charset=punycode"),
        ("utf-8", "text/html; charset=utf-16nonsense"),
    ],
)
def test_charsets(encoding: str, kind: str) -> None:
    assert tags_of(f"<head>{META}".encode(encoding), kind) == (ONE,)
    assert tags_of(b"<title>\xff\xfe\x81</title>" + META.encode(), "text/html; charset=ascii") == (ONE,)


def test_only_the_beginning_of_a_page_is_read() -> None:
    assert tags_of(b" " * PAGE_LIMIT + META.encode()) == ()


@pytest.mark.parametrize(
    "piece", ["<!--", "<![", "<!", "<a ", "<a b=", "</", "<?", "<meta a='", "&", "<script>", "<"]
)
def test_hostile_pages_cost_no_time(piece: str) -> None:
    page = (piece * PAGE_LIMIT)[:PAGE_LIMIT].encode()
    started = time.process_time()
    tags_of(META.encode() + page)
    assert time.process_time() - started < 5


@given(st.binary(max_size=400), st.text(max_size=30))
def test_no_bytes_raise(page: bytes, kind: str) -> None:
    tags_of(page, f"text/html; charset={kind}")


_html = st.lists(
    st.sampled_from(
        ["<meta ", "<", ">", "<!", "<![", "[", "]]>", "--", "<!--", "/", "name=", "'", '"', "x", "&#", "&"]
    ),
    max_size=25,
).map("".join)


@given(_html)
def test_no_markup_raises(page: str) -> None:
    tags_of(META.encode() + page.encode())


_template = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.sampled_from(
            ["{", "}", "{name}", "{version}", "{ext}", "{:", "*}", "{+", "{?", "=", ",", "{os:", "{|"]
        ),
    ),
    max_size=8,
).map("".join)


@given(_template)
def test_no_template_raises(template: str) -> None:
    """Whatever comes of it has no braces of a variable left, and begins as the template does."""
    for found in candidates(
        Tag("ac-discovery", "example.com", f"https://example.com/{template}"), "example.com/a", VALUES
    ):
        assert "{" not in found.image
        assert found.image.startswith("https://example.com/")


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (
            "https://h/{name}-{version}-{os}-{arch}.{ext}",
            ["https://h/example.com/a/b-1-linux-amd64.aci", "https://h/a%2Fb-1-linux-amd64.aci"],
        ),
        ("https://h/{+name}.{ext}", ["https://h/a/b.aci"]),
        ("https://h/{version}.{ext}", ["https://h/1.aci"]),
        ("https://h/{unknown}.{ext}", []),
        ("https://h/{name.{ext}", []),
        ("https://h/{}", []),
        ("https://h/{ext:x}", []),
    ],
)
def test_two_readings(template: str, wanted: list[str]) -> None:
    found = candidates(Tag("ac-discovery", "example.com", template), "example.com/a/b", VALUES)
    assert [one.image for one in found] == wanted


def test_nothing_follows_a_prefix_that_is_the_whole_name() -> None:
    tag = Tag("ac-discovery", "example.com/a", "https://h/{name}.{ext}")
    assert [one.image for one in candidates(tag, "example.com/a", VALUES)] == ["https://h/example.com/a.aci"]
