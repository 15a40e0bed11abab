"""Writes the manual pages: ``python -m docs.man DIR``.

- ``kurma(1)``, ``kurmad(8)`` and a page for each command, such as ``kurma-image-fetch(1)``: from the table of
  commands and their declarations. The page of another word for a command includes the command's page.
- ``kurma.yml(5)`` and ``kurma-pod(5)``: from the pages ``configuration.md`` and ``pod_file.md`` of the reference.

``./dev build`` puts the pages into the distribution ``kurma``, ``./dev deb`` into the Debian package.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from docs.generated import configuration_rows
from kurma_core import VERSION
from kurma_core.cli.command_line import GLOBAL_OPTIONS, Command, Option, load
from kurma_core.cli.commands import SECTIONS, TABLE, Alias, Entry, Group
from kurma_core.cli.typer_app import root
from kurma_core.config.schema import SCHEMA

_REFERENCE = Path(__file__).parent / "reference"
#: Pages of section 5: name, page of the documentation, and line of the index.
_FILES = (
    ("kurma.yml", "configuration.md", "configuration of kurma and kurmad"),
    ("kurma-pod", "pod_file.md", "a file that describes a pod, for kurma run --pod"),
)


def pages() -> dict[str, str]:
    """The text of each page, by its path below the directory ``man``."""
    found = {"man1/kurma.1": _of_kurma(), "man8/kurmad.8": _of_kurmad()}
    for path, entry, others in _walk():
        name = _name(path)
        found[f"man1/{name}.1"] = _of_group(path, entry) if isinstance(entry, Group) else _of_command(path, others)
        for other in others:
            found[f"man1/{_name(other)}.1"] = f".so man1/{name}.1\n"
    for name, file, line in _FILES:
        text = (_REFERENCE / file).read_text(encoding="utf-8")
        found[f"man5/{name}.5"] = _page(name, 5, line, from_markdown(text))
    return found


# --- pages of commands -----------------------------------------------------------------------------------------


def _walk() -> Iterator[tuple[tuple[str, ...], Entry | Group, list[tuple[str, ...]]]]:
    """The words of each command and group, and other words for the command."""
    entries: dict[tuple[str, ...], Entry | Alias | Group] = {}
    for word, entry in TABLE.items():
        entries[(word,)] = entry
        if isinstance(entry, Group):
            entries.update({(word, below): one for below, one in entry.entries.items()})
    for path, entry in entries.items():
        if not isinstance(entry, Alias):
            aliases = [other for other, one in entries.items() if isinstance(one, Alias) and one.path == path]
            yield path, entry, aliases


def _name(path: Iterable[str]) -> str:
    return "-".join(("kurma", *path))


def _of_kurma() -> str:
    first, _, rest = (root().help or "").partition("\n\n")
    body = [
        *_section(
            "SYNOPSIS", f"{_bold('kurma')} [{_italic('OPTIONS')}] {_italic('COMMAND')} [{_italic('ARGS')}]..."
        ),
        *_section("DESCRIPTION", escape(" ".join(first.split())), *_paragraphs(rest)),
        *_options(GLOBAL_OPTIONS),
        ".SH COMMANDS",
    ]
    for heading, entries in SECTIONS.items():
        body += [f".SS {_quoted(heading)}", *_listing((), entries)]
    paths = [
        (str(default), f"{meaning} ({path})")
        for path, shape, default, meaning in configuration_rows(SCHEMA)
        if shape == "path"
    ]
    body.append(".SH FILES")
    for path, meaning in [("/etc/kurma/kurma.yml", "the configuration: see kurma.yml(5)"), *paths]:
        body += _item(_italic(path), escape(meaning))
    return _page("kurma", 1, first, body, ["kurmad(8)", *_of_files()])


def _of_group(path: tuple[str, ...], group: Group) -> str:
    words = " ".join(("kurma", *path))
    body = [
        *_section("SYNOPSIS", f"{_bold(words)} {_italic('COMMAND')} [{_italic('ARGS')}]..."),
        *_section("DESCRIPTION", escape(group.help)),
        ".SH COMMANDS",
        *_listing(path, group.entries),
    ]
    return _page(_name(path), 1, group.help, body, ["kurma(1)"])


def _listing(path: tuple[str, ...], entries: Mapping[str, Entry | Alias | Group]) -> Iterator[str]:
    for word, entry in entries.items():
        if isinstance(entry, Alias):
            preset = [f"--{name} {value}" for name, value in entry.preset.items()]
            meaning = f"The same as {' '.join(('kurma', *entry.path, *preset))}."
        else:
            meaning = entry.help
        yield from _item(f"{_bold(_name((*path, word)))}(1)", escape(meaning))


def _of_command(path: tuple[str, ...], others: list[tuple[str, ...]]) -> str:
    command = _loaded(path)
    first, rest = _documentation(command)
    body = [
        *_section("SYNOPSIS", _synopsis(" ".join(("kurma", *path)), command)),
        *_section("DESCRIPTION", escape(first), *_paragraphs(rest)),
    ]
    if command.arguments:
        body.append(".SH ARGUMENTS")
        for argument in command.arguments:
            body += _item(_italic(argument.metavar), escape(argument.help))
    body += _options(command.options)
    body += [".SH EXAMPLE", ".EX", escape(command.example), ".EE"]
    group = [f"{_name(path[:-1])}(1)"] if len(path) > 1 else []
    return _page(", ".join(map(_name, (path, *others))), 1, first, body, ["kurma(1)", *group])


def _of_kurmad() -> str:
    command = _loaded(("daemon", "run"))
    first, rest = _documentation(command)
    options = [*command.options, *(one for one in GLOBAL_OPTIONS if one.name not in ("host", "version"))]
    body = [
        *_section("SYNOPSIS", _synopsis("kurmad", command)),
        *_section("DESCRIPTION", escape(first), *_paragraphs(rest)),
        *_options(options),
    ]
    return _page("kurmad", 8, "daemon of kurma", body, ["kurma(1)", "kurma-daemon-reload(1)", *_of_files()])


def _of_files() -> list[str]:
    return [f"{name}(5)" for name, *_ in _FILES]


def _loaded(path: tuple[str, ...]) -> Command:
    entry = TABLE[path[0]]
    for word in path[1:]:
        assert isinstance(entry, Group)
        entry = entry.entries[word]
    assert isinstance(entry, Entry)
    return load(entry)


def _documentation(command: Command) -> tuple[str, str]:
    """The first line of the command's help, and the rest."""
    first, _, rest = (command.function.__doc__ or "").strip().partition("\n")
    return first, rest


def _synopsis(words: str, command: Command) -> str:
    parts = [_bold(words), *([f"[{_italic('OPTIONS')}]"] if command.options else [])]
    for argument in command.arguments:
        part = _italic(argument.metavar) + ("..." if argument.many else "")
        parts.append(part if argument.required else f"[{part}]")
    if command.rest is not None:
        part = _italic(command.rest.metavar)
        parts.append(part if command.rest.required else f"[{part}]")
    return " ".join(parts)


def _options(options: Iterable[Option]) -> list[str]:
    found = [".SH OPTIONS"]
    for option in options:
        flags = ", ".join(map(_bold, option.flags))
        text = option.help
        if not (option.is_flag or option.many or option.default is None):
            text += f" Default: {option.default}."
        found += _item(f"{flags} {_italic(option.metavar)}" if option.metavar else flags, escape(text))
    return found if len(found) > 1 else []


# --- Markdown --------------------------------------------------------------------------------------------------


def from_markdown(text: str) -> list[str]:
    """The lines of a page of the documentation, without its title."""
    tree = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(text))
    lines = [line for node in tree.children for line in _block(node)]
    return lines if lines[0].startswith(".SH") else [".SH DESCRIPTION", *lines]


def _block(node: SyntaxTreeNode) -> Iterator[str]:
    if node.type == "heading":
        if node.tag != "h1":
            title = _plain(node)
            yield f".SH {_quoted(title.upper())}" if node.tag == "h2" else f".SS {_quoted(title)}"
    elif node.type == "paragraph":
        yield from (".PP", _inline(node))
    elif node.type == "fence":
        yield from (".PP", ".RS 4", ".EX", *map(escape, node.content.splitlines()), ".EE", ".RE")
    elif node.type in ("bullet_list", "ordered_list"):
        for number, item in enumerate(node.children, 1):
            mark = r"\(bu 2" if node.type == "bullet_list" else f"{number}. 4"
            first, *rest = item.children
            yield from (f".IP {mark}", _inline(first))
            for child in rest:
                yield from (".RS 4", *_block(child), ".RE")
    elif node.type == "table":
        yield from _table(node)
    elif node.type != "html_block":
        raise ValueError(f"no form in a manual page: {node.type}")


def _table(node: SyntaxTreeNode) -> Iterator[str]:
    """A row is an item: its first cell is the tag, the last one the text; the others follow, with their titles."""
    head, *rows = (row.children for part in node.children for row in part.children)
    for first, *others in rows:
        cells = zip(head[1:-1], others[:-1], strict=True)
        more = [f"{escape(_plain(title))}: {text}" for title, cell in cells if (text := _inline(cell))]
        yield from _item(_inline(first), _inline(others[-1]), *([".br", f"({'; '.join(more)})"] if more else []))


def _inline(node: SyntaxTreeNode) -> str:
    """The text of a block, in one line."""
    return "".join(map(_span, node.children[0].children if node.children else ())).strip()


def _span(node: SyntaxTreeNode) -> str:
    if node.type == "text":
        return escape(node.content)
    if node.type == "code_inline":
        return _bold(node.content)
    if node.type in ("softbreak", "hardbreak"):
        return " "
    inner = "".join(map(_span, node.children))
    if node.type in ("em", "strong"):
        return rf"\fI{inner}\fR"
    if node.type == "link":
        return inner
    raise ValueError(f"no form in a manual page: {node.type}")


def _plain(node: SyntaxTreeNode) -> str:
    return "".join(one.content for one in node.walk() if one.type in ("text", "code_inline"))


# --- troff -----------------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """A text in which troff finds no command, and leaves each character as it is."""
    for character, written in (
        ("\\", r"\e"),
        ("-", r"\-"),
        ("'", r"\(aq"),
        ("`", r"\(ga"),
        ("^", r"\(ha"),
        ("~", r"\(ti"),
    ):
        text = text.replace(character, written)
    text = re.sub(r"[^\x00-\x7f]", lambda found: rf"\[u{ord(found[0]):04X}]", text)
    return rf"\&{text}" if text.startswith(".") else text


def _bold(text: str) -> str:
    return rf"\fB{escape(text)}\fR"


def _italic(text: str) -> str:
    return rf"\fI{escape(text)}\fR"


def _quoted(text: str) -> str:
    return '"{}"'.format(escape(text).replace('"', r"\(dq"))


def _section(title: str, *lines: str) -> list[str]:
    return [f".SH {title}", *lines]


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph:
            yield from (".PP", escape(" ".join(paragraph.split())))


def _item(tag: str, *lines: str) -> list[str]:
    return [".TP", tag, *lines]


def _page(name: str, section: int, line: str, body: Iterable[str], see: Iterable[str] = ("kurma(1)",)) -> str:
    """A page. :param name: its name, and others. :param line: of the index. :param see: related pages."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    date = f"{datetime.datetime.fromtimestamp(int(seconds), datetime.UTC):%Y-%m-%d}" if seconds else ""
    title = name.partition(",")[0].upper()
    return "\n".join(
        [
            f'.TH {_quoted(title)} {section} "{date}" "Kurma {VERSION}" "Kurma"',
            ".SH NAME",
            rf"{escape(name)} \- {escape(line.rstrip('.'))}",
            *body,
            ".SH SEE ALSO",
            ", ".join(rf"{_bold(one.partition('(')[0])}({one.partition('(')[2]}" for one in see),
            "",
        ]
    )


def write(to: Path) -> None:
    """Writes the pages below a directory."""
    for path, text in pages().items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
