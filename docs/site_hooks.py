"""A hook of mkdocs: adds the READMEs outside of ``docs`` to the site, and mends links between them and the pages.

A link that works in the repository also works on the site. A link to a file that is not a page, such as source
code, becomes plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Pages of the site that are not in ``docs``, by their path in the repository.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "explanation/contributing.md",
    "CHANGELOG.md": "reference/changelog.md",
}
_READMES = {"plugins": "reference/plugins", "libs": "reference/libraries", "examples": "reference/examples"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    """The path on the site of each page outside of ``docs``, by its path in the repository."""
    found = dict(PAGES)
    for folder, place in _READMES.items():
        for file in sorted((ROOT / folder).rglob("README.md")):
            inner = file.parent.relative_to(ROOT / folder).as_posix()
            found[file.relative_to(ROOT).as_posix()] = f"{place}/{'index' if inner == '.' else inner}.md"
    return found


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages outside of ``docs``, and the list of decisions."""
    for source, place in pages().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    return files


def decisions() -> str:
    """A page that lists the decisions by number."""
    rows = []
    for file in sorted((ROOT / "docs/decisions").glob("*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        rows.append(f"- [{title}]({file.name})")
    return "# Decisions\n\nWhy Kurma is as it is, one page for each decision.\n\n" + "\n".join(rows) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mends the links of a page."""
    here = page.file.src_uri
    outside = {place: source for source, place in pages().items()}
    source = outside.get(here, f"docs/{here}")
    parts = _BLOCK.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: _mended(found, source, here), part) for part in parts[::2]]
    return "".join(parts)


def _mended(found: re.Match[str], source: str, here: str) -> str:
    mark, text, address = found.groups()
    path, hash_, anchor = address.partition("#")
    if not path or re.match(r"[a-z]+:", address) or here == "decisions/index.md":
        return found[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    place = _on_site(target)
    if place is None:
        return text
    return f"{mark}[{text}]({os.path.relpath(place, posixpath.dirname(here) or '.')}{hash_}{anchor})"


def _on_site(target: str) -> str | None:
    """The path on the site of a file or folder of the repository; None: the site does not have it."""
    if target == "docs/decisions":
        return "decisions/index.md"
    if target == "docs/reference/hooks":
        return "reference/plugin_hooks.md"
    if target.startswith("docs/") and (ROOT / target).is_file():
        return target.removeprefix("docs/")
    return pages().get(target) or pages().get(f"{target}/README.md")
