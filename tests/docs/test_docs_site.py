"""The site: it is built without a warning, its navigation has each page once, and links lead somewhere (19.2)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs import site_hooks
from tests.docs.pages import DOCS, ROOT


def places(entries: object) -> list[str]:
    """The pages in a part of the navigation."""
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries
    return [place for entry in values for place in places(entry)]


def test_each_page_is_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [page for page in DOCS.rglob("*.md") if "decisions" not in page.parts]
    made = [*site_hooks.PAGES.values(), "decisions/index.md"]
    assert sorted(places(nav)) == sorted([*made, *(page.relative_to(DOCS).as_posix() for page in pages)])


def test_pages_have_names_of_their_own() -> None:
    names = [page.name for page in DOCS.rglob("*.md")]
    assert len(names) == len(set(names))


def test_links_lead_to_files() -> None:
    """Of every Markdown file of the repository: the build sees the pages of the site alone."""
    pages = [ROOT / source for source in site_hooks.pages()] + list(DOCS.rglob("*.md"))
    broken = []
    for page in pages:
        for address in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path = address.partition("#")[0]
            if path and not re.match(r"[a-z]+:", address) and not (page.parent / path).exists():
                broken.append(f"{page.relative_to(ROOT)}: {address}")
    assert broken == []


@pytest.mark.full
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr + done.stdout
    assert (tmp_path / "search/search_index.json").stat().st_size > 100_000
    html = "".join(file.read_text() for file in (tmp_path / "howto").glob("*.html"))
    loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?://[^\" >]+)", html)
    assert loaded == [], "the browser asks another host"
