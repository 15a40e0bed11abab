"""Takes the shell blocks of a page apart, and runs them in order in one shell.

A comment says what a page needs; the site does not show it. These apply to the page:

- ``<!-- run: registry NAME:TAG … -->`` a registry has small images of these names, and is the mirror of docker.io
- ``<!-- run: image NAME … -->`` the store has an App Container image of that name, with a shell
- ``<!-- run: daemon -->`` kurmad runs, with its socket in ``/run/kurma``
- ``<!-- run: crictl -->`` the shell has the stand-in for crictl (``crictl.py``)
- ``<!-- run: environment -->`` the page has a virtual environment of its own, in which Kurma is

These apply to the next block:

- ``<!-- run: skip: REASON -->`` the block is not run
- ``<!-- run: config -->`` the block is part of the configuration
- ``<!-- run: file NAME -->`` the block is the content of a file; a YAML block whose first line is ``# NAME.yml``
  needs no comment
- ``<!-- run: fails -->`` the last command of the block fails
- ``<!-- run: background -->`` the last command runs until the page's end

A block that begins with the path of one of the project's files is an excerpt of that file, and is not typed. The
directory in which the blocks run has a link to ``examples``.

Lines below a command in a ``console`` block are what it prints: ``…`` stands for any text of a line, and a line of
``…`` alone for any lines. A command without such lines may print anything.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.docs.pages import ROOT
from tests.integration import leftovers
from tests.kit.command import PROGRAM, Kurma
from tests.kit.images import archive, busybox_root, shell
from tests.kit.installed import make_above
from tests.kit.registry import Content, OciDir, layer_tar, running_registry
from tests.kit.waiting import until

#: Kinds of blocks that are typed into a shell.
TYPED = ("console", "sh", "shell", "bash")
_PART = re.compile(
    r"^<!-- run: (?P<words>[^>]*?) -->$|^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: A note about the registry of the tests: those of readers have TLS.
_PLAIN = "is spoken to over plain http (it is on this machine)"
_NAMED = re.compile(r"# (\S+\.(?:ya?ml|json|env))\n")
_EXCERPT = re.compile(r"# (?:examples|plugins|kurma_core)/\S+\n")
#: A document in the lines that follow, up to that word.
_HERE = re.compile(r"<<'?(\w+)'?$")
_IDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\bsha512-[0-9a-f]+\b|\b[0-9a-f]{8}\b")


@dataclass(frozen=True)
class Command:
    """:param shown: what it prints; "": anything. :param line: number of its line in the page."""

    words: str
    shown: str
    line: int


@dataclass
class Block:
    """A block of a page.

    :param file: name of the file whose content the block is; "": the block is typed.
    :param notes: words of the comments before the block.
    """

    kind: str
    body: str
    line: int
    file: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def skipped(self) -> str:
        """The reason for which the block is not run; "": it is run."""
        return next((note.removeprefix("skip: ") for note in self.notes if note.startswith("skip: ")), "")

    def commands(self) -> Iterator[Command]:
        """The commands in order."""
        line = self.line + 1
        lines = self.body.splitlines()
        while lines:
            words, begin = lines.pop(0), line
            line += 1
            if self.kind == "console":
                assert words[:2] in ("# ", "$ "), f"line {begin}: no prompt: {words}"
                words = words[2:]
            while words.endswith("\\"):
                words = f"{words}\n{lines.pop(0)}"
                line += 1
            here = _HERE.search(words)
            while here and not words.endswith(f"\n{here[1]}"):
                words = f"{words}\n{lines.pop(0)}"
                line += 1
            shown = []
            while self.kind == "console" and lines and lines[0][:2] not in ("# ", "$ "):
                shown.append(lines.pop(0))
                line += 1
            if words.strip():
                yield Command(words, "\n".join(shown), begin)


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are typed, or that are files."""
    found = []
    notes: list[str] = []
    for part in _PART.finditer(text):
        if part["words"] is not None:
            notes.append(part["words"])
            continue
        line = text.count("\n", 0, part.start()) + 1
        named = next((note.removeprefix("file ") for note in notes if note.startswith("file ")), "")
        if not named and part["kind"] not in TYPED:
            first = _NAMED.match(part["body"])
            named = first[1] if first else ""
        if "config" in notes:
            named = f"../config/kurma.d/{len(found):03}.yml"
        if named or (part["kind"] in TYPED and not _EXCERPT.match(part["body"])):
            found.append(Block(part["kind"], part["body"], line, named, notes))
        notes = []
    return found


def needs(text: str, word: str) -> list[str]:
    """What a page needs: the words of its comments ``<!-- run: WORD … -->``."""
    found = [part["words"].split() for part in _PART.finditer(text) if part["words"] is not None]
    return [name for words in found if words[0] == word for name in words[1:]]


def has(text: str, word: str) -> bool:
    """Whether a page has the comment ``<!-- run: WORD -->``."""
    return f"<!-- run: {word} -->" in text


def as_shown(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    lines = []
    for line in shown.rstrip("\n").splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        parts = [_with_ids(part) for part in line.rstrip().split("…")]
        # Columns of a table are as wide as what is in them.
        lines.append(re.sub(r"(?:\\ ){2,}", r" {2,}", ".*".join(parts)) + r"[ \t]*\n")
    return re.fullmatch("".join(lines), printed.rstrip("\n") + "\n") is not None


def _with_ids(text: str) -> str:
    """A pattern for a text, in which each ID stands for any ID of its form."""
    found, last = "", 0
    for one in _IDS.finditer(text):
        found += re.escape(text[last : one.start()]) + re.sub(
            r"[0-9a-f]+", _digits, one[0].replace("sha512-", "\0")
        )
        last = one.end()
    return found.replace("\0", "sha512-") + re.escape(text[last:])


def _digits(found: re.Match[str]) -> str:
    return f"[0-9a-f]{{{len(found[0])}}}"


class Shell:
    """A shell that runs one command after the other.

    :param place: the directory in which it starts, and in which blocks become files.
    """

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self.output = place.with_name("output")
        self.done = place.with_name("done")
        os.mkfifo(self.done)
        self.process = subprocess.Popen(
            ["bash", "--norc", "-s"], cwd=place, env=environment, stdin=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._input.close()
        self.process.wait(60)

    @property
    def _input(self) -> IO[str]:
        assert self.process.stdin is not None
        return self.process.stdin

    def run(self, words: str) -> tuple[int, str]:
        """The exit code and the output of a command; it has two minutes."""
        self._input.write(f"{{ {words}\n}} >{self.output} 2>&1 </dev/null; echo $? >{self.done}\n")
        self._input.flush()
        try:
            code = subprocess.run(
                ["cat", self.done], capture_output=True, text=True, timeout=120, check=True
            ).stdout
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it runs on: {words}\n{self.output.read_text()}") from None
        lines = self.output.read_text(errors="replace").splitlines(keepends=True)
        return int(code), "".join([line for line in lines if _PLAIN not in line])

    def run_block(self, block: Block) -> None:
        """Runs a block, or writes it as a file; :raises AssertionError: it does other than the page shows."""
        if block.skipped:
            return
        if block.file:
            target = self.place / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body)
            return
        commands = list(block.commands())
        for command in commands:
            last = command is commands[-1]
            if last and "background" in block.notes:
                self._input.write(f"{{ {command.words}\n}} >{self.output}.background 2>&1 </dev/null &\n")
                self._input.flush()
                continue
            code, printed = self.run(command.words)
            where = f"line {command.line}: {command.words}\n{printed}"
            may_fail = (last and "fails" in block.notes) or "kurma: " in command.shown
            assert code == 0 or may_fail, f"exit code {code}: {where}"
            if command.shown:
                assert as_shown(command.shown, printed), f"shown:\n{command.shown}\nprinted: {where}"


def run_page(path: Path, place: Path, dist: Path | None = None, **environment: Any) -> None:
    """Runs the blocks of a page in order, as root, in a directory of its own; takes down what they leave.

    :param dist: the directory ``dist`` of built packages. :param environment: further variables.
    :raises AssertionError: a block does other than the page shows.
    """
    text = path.read_text()
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        config: dict[str, Any] = {}
        names = needs(text, "registry")
        if names:
            registry = stack.enter_context(running_registry(place / "registry"))
            source = stand_in(place / "oci")
            for name in names:
                registry.push(f"oci:{source}:it", name)
            config["registries"] = {"mirrors": {"docker.io": [registry.host]}}
        program = Path(PROGRAM)
        if has(text, "environment"):
            program, _ = make_above(place / "venv")
            (program.with_name("pip")).write_text(f'#!/bin/sh\nexec {program.with_name("python")} -m pip "$@"\n')
            program.with_name("pip").chmod(0o755)
            environment |= {"PIP_NO_INDEX": 1, "PIP_NO_BUILD_ISOLATION": 0, "PIP_QUIET": 1}
        kurma = Kurma(place / "state", place / "config", "", str(program))
        kurma.config.mkdir()
        kurma.state.mkdir()
        (kurma.config / "kurma.yml").write_text(json.dumps(config))
        for name in needs(text, "image"):
            image = archive(busybox_root(str(place / "root")), str(place / "it.aci"), name, app=shell("true"))
            kurma.out("image", "fetch", "--insecure-options", "image", image)
        (place / "here").mkdir()
        (place / "here/examples").symlink_to(ROOT / "examples")
        if dist is not None:
            (place / "here/dist").symlink_to(dist)
        for block in blocks(text):
            if os.path.isabs(block.file) and not os.path.exists(block.file):
                # Such as a network of the host: other tests list those.
                stack.callback(Path(block.file).unlink, missing_ok=True)
        stack.callback(remove_links, leftovers.links())
        stack.callback(clean_up, kurma)
        tools = place / "tools"
        tools.mkdir()
        if has(text, "crictl"):
            stand_in_for = ROOT / "tests/docs/crictl.py"
            (tools / "crictl").write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in_for} "$@"\n')
            (tools / "crictl").chmod(0o755)
        variables = {
            **kurma.environment,
            "PATH": f"{program.parent}:{tools}:{os.environ['PATH']}",
            **{name: str(value) for name, value in environment.items()},
        }
        run = stack.enter_context(Shell(place / "here", variables))
        if has(text, "daemon"):
            socket = Path("/run/kurma/kurmad.sock")
            socket.parent.mkdir(exist_ok=True)
            socket.symlink_to(kurma.state / "run/kurmad.sock")
            stack.callback(socket.unlink)
            run.run_block(Block("sh", "kurmad\n", 0, notes=["background"]))
            until(socket.exists, "kurmad listens")
        for block in blocks(text):
            run.run_block(block)


def stand_in(place: Path) -> Path:
    """A small image of busybox as an OCI layout, in place of the images that pages name.

    It is a web server whose pages are where nginx has them. ``redis-cli`` keeps values in files of ``/data``.
    """
    root = Path(busybox_root(str(place.with_name("oci-root"))))
    entries: dict[str, Content] = {
        "tmp": None,
        "usr/share/nginx/html/index.html": b"<h1>Welcome</h1>\n",
        "bin/redis-server": b"#!/bin/sh\nexec sleep 1000\n",
        "bin/redis-cli": b"""#!/bin/sh
case $1 in
ping) echo PONG ;;
set) echo "$3" >/data/"$2" && echo OK ;;
get) cat /data/"$2" ;;
esac
""",
    }
    for file in sorted(root.rglob("*")):
        if file.is_symlink():
            entries[file.relative_to(root).as_posix()] = (os.readlink(file),)
        elif file.is_file():
            entries[file.relative_to(root).as_posix()] = file.read_bytes()
    layout = OciDir(place)
    config = {"Cmd": ["httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html"], "Env": ["PATH=/bin"]}
    layout.image("it", [layer_tar(entries)], {**config, "ExposedPorts": {"80/tcp": {}}})
    return place


def clean_up(kurma: Kurma) -> None:
    """Removes the pods and the bridges, and ends the daemon that a page started."""
    for line in kurma("list", "--no-legend").stdout.splitlines():
        kurma("rm", "--force", line.split()[0])
    for line in kurma("network", "list", "--format", "{{.name}} {{.driver}}").stdout.splitlines():
        if line.endswith(" bridge"):
            kurma("network", "rm", line.split()[0])
    for process in processes(kurma):
        os.kill(process, signal.SIGTERM)
    until(lambda: not list(processes(kurma)), "the processes of the page end")


def remove_links(kept: set[str]) -> None:
    """Removes the links that a page has added: networks of CNI and of images keep their bridges."""
    for link in leftovers.links() - kept:
        subprocess.run(["ip", "link", "del", link], check=True)


def processes(kurma: Kurma) -> Iterator[int]:
    for one in kurma.traces():
        word, _, number = one.partition(" ")
        if word == "process" and number.isdecimal():
            yield int(number)
