"""Every shell block of README and of the pages is run, in order (19.2)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kurma_core.pods.run import pod_restarts
from tests.docs.blocks import TYPED, Shell, as_shown, blocks, run_page
from tests.docs.pages import DOCS, ROOT

#: Reasons for which a block is not run.
REASONS = {
    "needs systemd as PID 1",
    "needs a disk",
    "needs another machine",
    "publishes something",
    "the parents stay on the host",
    "installs packages on the host",
    "takes minutes",
}
#: Pages whose blocks another test runs.
ELSEWHERE = {
    "README.md": "tests/packaging/test_root_installing.py",
    "install.md": "tests/packaging/test_root_installing.py",
    "metadata.md": "tests/integration/pods/test_metadata_pods.py",
    "publish_images.md": "tests/integration/fetching/test_discovery_document.py",
    "registries.md": "tests/integration/fetching/test_registry_images.py",
    "stage1.md": "tests/integration/stage1/test_root_stage1_guide.py",
    "trust.md": "tests/docs/test_docs_trust.py",
    "upgrade.md": "tests/upgrade/test_root_upgrade.py",
}
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if "decisions" not in path.parts and any(block.kind in TYPED for block in blocks(path.read_text()))
]
#: Pages that `./dev test` runs, too; and those of them that take too long for that.
FIRST, LONG = ("README.md", "tutorial"), ("web_shop.md",)


def _marks(path: Path) -> list[pytest.MarkDecorator]:
    name = path.relative_to(DOCS).parts[0] if path.is_relative_to(DOCS) else path.name
    return [] if name in FIRST and path.name not in LONG else [pytest.mark.full]


CASES = [
    pytest.param(path, marks=_marks(path), id=path.relative_to(ROOT).as_posix())
    for path in PAGES
    if path.name not in ELSEWHERE
]


@pytest.mark.root
@pytest.mark.parametrize("path", CASES)
def test_the_blocks_do_what_the_page_shows(path: Path, tmp_path: Path) -> None:
    run_page(path, tmp_path)


def test_readme_is_short_and_ends_in_a_clone() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 480
    last = blocks(text)[-1]
    assert [command.words.split()[:2] for command in last.commands()] == [["./dev", "demo"], ["./dev", "test"]]


def test_pauses_before_restarts_are_those_of_kurmad() -> None:
    assert (pod_restarts.FIRST, pod_restarts.LONGEST) == (1, 300)
    assert "from one second to five minutes" in (DOCS / "tutorial/database.md").read_text()
    assert "1 s at first and doubles each time, up to five minutes" in (DOCS / "howto/daemon.md").read_text()


def test_few_blocks_are_left_out() -> None:
    reasons = Counter(block.skipped for path in PAGES for block in blocks(path.read_text()) if block.skipped)
    assert reasons.keys() <= REASONS
    assert reasons.total() <= 13
    assert {path.name for path in PAGES} >= ELSEWHERE.keys()
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a", "a\n", True),
        ("a", "a\nb\n", False),
        ("a\n…", "a\nb\nc\n", True),
        ("a … c", "a bbb c\n", True),
        ("0123abcd web", "deadbeef web\n", True),
        ("0123abcd web", "deadbee web\n", False),
    ],
)
def test_output_is_compared(shown: str, printed: str, same: bool) -> None:
    assert as_shown(shown, printed) is same


def test_a_wrong_command_fails_its_page(tmp_path: Path) -> None:
    parts = ("console\n# x=3\n# echo $x\n3", "yaml\n# a.yml\nb: 1", "sh\ncat a.yml\nfalse")
    text = "# P\n\n" + "\n\n".join(f"```{part}\n```" for part in parts)
    (tmp_path / "here").mkdir()
    with Shell(tmp_path / "here", dict(os.environ)) as run:
        first, file, last = blocks(text)
        run.run_block(first)
        run.run_block(file)
        with pytest.raises(AssertionError, match="exit code 1: line 16: false"):
            run.run_block(last)
