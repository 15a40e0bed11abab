"""Commands, kurmad, the configuration and the pod file have manual pages, from the one source of each (19.1)."""

from __future__ import annotations

import re
import subprocess

import pytest

from docs import man
from docs.generated import configuration_rows
from kurma_core.cli.command_line import GLOBAL_OPTIONS, load
from kurma_core.cli.commands import TABLE, Alias, Entry, Group
from kurma_core.config.schema import KINDS, SCHEMA

PAGES = man.pages()
WORDS = {
    path: entry
    for word, above in TABLE.items()
    for path, entry in {
        (word,): above,
        **({(word, below): one for below, one in above.entries.items()} if isinstance(above, Group) else {}),
    }.items()
}


def shown(path: str) -> str:
    """The page as a reader sees it, in one line. :raises AssertionError: troff warns of something."""
    text = PAGES[path].removeprefix(".so ").strip()
    while text in PAGES:
        text = PAGES[text]
    # Wide lines, without hyphenation; and no escape codes.
    groff = ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", "-rHY=0", "-rLL=5000n"]
    done = subprocess.run(groff, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == "", path
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("path", WORDS, ids=" ".join)
def test_a_command_has_a_page(path):
    entry = WORDS[path]
    name = "-".join(("kurma", *path))
    text = shown(f"man1/{name}.1")
    if isinstance(entry, Group):
        assert all(f"{name}-{word}(1)" in text for word in entry.entries)
        return
    # whatis and apropos take the names from this section.
    names, _, line = re.findall(r"NAME (.*?) SYNOPSIS", text)[0].partition(" - ")
    declared = load(entry.entry if isinstance(entry, Alias) else entry)
    assert name in names.split(", ")
    assert line == " ".join(entry.help.rstrip(".").split())
    for part in (*declared.arguments, *declared.options):
        for word in (part.metavar, " ".join(part.help.split()), *getattr(part, "flags", ())):
            assert word is None or word in text
    assert f"EXAMPLE {declared.example} SEE ALSO" in text


def test_the_page_of_kurma_names_every_command():
    text = shown("man1/kurma.1")
    assert all(f"kurma-{word}(1)" in text for word in TABLE)
    assert all(flag in text for option in GLOBAL_OPTIONS for flag in option.flags)
    assert "/etc/kurma/kurma.yml" in text
    assert "/var/lib/kurma" in text


def test_the_page_of_kurmad():
    text = shown("man8/kurmad.8")
    entry = WORDS["daemon", "run"]
    assert isinstance(entry, Entry)
    assert all(flag in text for option in load(entry).options for flag in option.flags)
    assert "SIGTERM ends kurmad" in text


def test_the_pages_of_files_say_what_the_reference_says():
    text = shown("man5/kurma.yml.5")
    for path, *_, meaning in configuration_rows(SCHEMA):
        if path.split(".")[:1] != ["plugins"] or path.split(".")[1] not in KINDS:
            assert path in text
            assert " ".join(meaning.replace("`", "").replace("*", "").split()) in text, path
    text = shown("man5/kurma-pod.5")
    assert "kurma run -d --name shop --pod pod.yml" in text
    for path in ("man5/kurma.yml.5", "man5/kurma-pod.5"):
        # Nothing of Markdown is left.
        assert re.findall(r"`|\]\(|\*\*|\|--|<!--|```", shown(path)) == []


def test_other_words_for_a_command_lead_to_its_page():
    assert PAGES["man1/kurma-image-pull.1"] == PAGES["man1/kurma-pull.1"] == ".so man1/kurma-image-fetch.1\n"


def test_text_cannot_be_a_command_of_troff():
    assert man.escape(".so x") == r"\&.so x"
    assert man.escape(r"--a\n 'b' …") == r"\-\-a\en \(aqb\(aq \[u2026]"
