"""Completion in shells: which words, in which shell, and what that imports."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kurma_core.cli.command_line import Argument, Option, load
from kurma_core.cli.commands import TABLE, Alias, Entry, Group
from kurma_core.cli.completion import _WORDS
from kurma_core.linux.capabilities import NAMES
from kurma_core.models.isolator import RLIMITS
from tests.kit.command import PROGRAM
from tests.kit.waiting import until

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty state directory, a configuration, and files."""
    for name in ("state", "etc/kurma.d", "home", "files"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "files/archive.aci").touch()
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "KURMA_"))},
        "PATH": f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}",
        "KURMA_DIR": str(place / "state"),
        "KURMA_CONFIG": str(place / "etc"),
        "HOME": str(place / "home"),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def completed(place: Path, *words: str, **variables: str) -> tuple[str, list[str]]:
    """What the shell adds, and the candidates."""
    done = subprocess.run(
        [PROGRAM, "__complete", *words],
        env=environment(place) | variables,
        cwd=place / "files",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    more, *lines = done.stdout.splitlines()
    return more, [line.partition("\t")[0] for line in lines]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("image li", ["list"]),
        ("imag", ["images", "image"]),
        ("help imag", ["images", "image"]),
        ("rm", ["rm", "rmi"]),
        ("images --format ", ["table", "json", "yaml"]),
        ("exec --work", ["--workdir"]),
        ("ps --al", ["--all"]),
        ("create --pull ", ["new", "always", "never"]),
        ("exec -itu ", []),
        ("exec --app ", []),
        ("re", ["restart"]),
        ("app ", ["list", "ls", "add", "start", "stop", "reopen-log", "update", "rm"]),
        ("run --pull ", ["new", "always", "never"]),
        ("run --pull=n", ["--pull=new", "--pull=never"]),
        ("run --pu", ["--publish", "--pull"]),
        ("list --format ", ["table", "json", "yaml"]),
        ("--debug --dir /nowhere vers", ["version"]),
        ("--dir=/nowhere vers", ["version"]),
        ("kill web --signal USR", ["USR1", "USR2"]),
        ("run --caps-retain CAP_KILL,CAP_MKN", ["CAP_KILL,CAP_MKNOD"]),
        ("run --insecure-options image,", ["image,tls", "image,http", "image,pubkey"]),
        ("completion ", [*SHELLS]),
        ("plugins new st", ["stagers"]),
        ("plugins enable netw", ["networks"]),
        ("plugins enable networks b", ["bridge"]),
        ("plugins show stagers/d", ["stagers/default"]),
        ("network show de", ["default"]),
        ("network check default h", ["host"]),
        ("network check default de", []),
        ("run --net de", ["default"]),
        ("stager build r", ["rkt"]),
        ("run --stager=r", ["--stager=rkt"]),
        ("run --renderer ", ["copy", "overlay"]),
        ("run --isolator os/linux/oom", ["os/linux/oom-score-adj="]),
        ("run --name ", []),
        ("run --no-such-option", []),
        ("version ", []),
        ("nonsense ", []),
        ("image nonsense ", []),
    ],
)
def test_words(place: Path, line: str, words: list[str]) -> None:
    assert completed(place, *line.split(" ")) == ("words", words)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("run ", "files"),
        ("run arch", "files"),
        ("run docker://", "words"),
        ("image validate a", "files"),
        ("run --env-file=", "files"),
        ("--dir ", "directories"),
        ("image extract example.com/a ", "directories"),
        ("run example.com/a -- ", "files"),
        ("run example.com/a ls ", "files"),
        ("run example.com/a ls --pul", "files"),
        ("exec web ", "files"),
        ("exec -ti web ls -", "files"),
        ("exec --app main web ls -", "files"),
        ("cp a", "files"),
        ("cp web:/a", "words"),
        ("stop a", "words"),
    ],
)
def test_files(place: Path, line: str, more: str) -> None:
    assert completed(place, *line.split(" ")) == (more, [])


def test_each_name_in_help_is_completed_or_needs_no_completion() -> None:
    """A new argument either has words, or is a free text that this list names."""
    free = re.compile(
        r"^(ADDRESS|ADDR\|local|USER|FPR|NAME|BYTES|CORES|COMMAND|COUNT|DESTINATION|DOMAIN|FORMAT|GID|GROUP|HOST|IP|KEY|KEYS|"
        r"MODE|NUMBER|OPTION|PATH|PORT|POWER|SCHEME|TARGET|TIME|UID|URL|VERSION|volume|none|\[IP|\w+\|)"
    )
    files = {"FILE", "KEYFILE", "SOURCE", "DIR"}
    for part in _parts(TABLE.values()):
        name = re.match(r"[A-Z]*", part.metavar or "")[0]  # type: ignore[index]
        known = name in files or {name, part.metavar} & _WORDS.keys() or free.match(part.metavar or "")
        assert known or (isinstance(part, Option) and (part.is_flag or part.choices)), part.metavar


def _parts(entries: object) -> Iterator[Argument | Option]:
    for entry in entries:  # type: ignore[attr-defined]
        if isinstance(entry, Group):
            yield from _parts(entry.entries.values())
        else:
            assert isinstance(entry, Entry | Alias)
            command = load(entry.entry if isinstance(entry, Alias) else entry)
            yield from (*command.arguments, *command.options)


def test_every_capability(place: Path) -> None:
    assert completed(place, "run", "--caps-remove", "")[1] == list(NAMES)


def test_every_resource_limit(place: Path) -> None:
    assert completed(place, "run", "--ulimit", "")[1] == [f"{name}=" for name in RLIMITS]
    assert completed(place, "run", "--ulimit", "nof")[1] == ["nofile="]


def test_networks_of_a_changed_configuration(place: Path) -> None:
    """Kept until a file of the configuration changes."""
    words = ("network", "show", "back")
    assert completed(place, *words)[1] == []
    kept = place / "state/completion"
    before = kept.stat().st_mtime_ns
    assert completed(place, *words)[1] == []
    assert kept.stat().st_mtime_ns == before
    file = place / "etc/kurma.d/50-networks.yml"
    file.write_text("container_networks: [{name: backend, plugin: bridge}]\n")
    assert completed(place, *words)[1] == ["backend"]
    file.unlink()
    assert completed(place, *words)[1] == []


@pytest.mark.parametrize("text", ["state_dir: {state}\n", "# state_dir: /x\nstate_dir: '{state}'  # mine\n"])
def test_the_state_directory_of_the_configuration(place: Path, text: str) -> None:
    (place / "etc/kurma.yml").write_text(text.format(state=place / "state"))
    assert completed(place, "stager", "build", "d", KURMA_DIR="")[1] == ["default"]
    assert (place / "state/completion").exists()


@pytest.mark.parametrize("damage", [b"", b"networks\tdefault\n", b"a\tb\tc\td\n", b"\xff\t\t"])
def test_kept_names_that_are_damaged(place: Path, damage: bytes) -> None:
    """Found anew, and kept."""
    words = ("stager", "build", "d")
    assert completed(place, *words)[1] == ["default"]
    kept = place / "state/completion"
    whole = kept.read_bytes()
    stamp, _, _ = whole.partition(b"\n")
    kept.write_bytes(stamp + b"\n" + damage)
    assert completed(place, *words)[1] == ["default"]
    assert kept.read_bytes() == whole


@pytest.mark.root
@pytest.mark.parametrize("uid", [0, 1000])
def test_a_state_directory_that_may_not_be_written(place: Path, uid: int) -> None:
    """A user's names are kept in the user's cache; root's, whose HOME may be that of another user, nowhere."""
    state, script = str(place / "state"), 'mount --bind "$KURMA_DIR" "$KURMA_DIR" && mount -o remount,bind,ro '
    script += f'"$KURMA_DIR" && exec unshare --user --map-user={uid} "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", PROGRAM, "__complete", "stager", "build", "d"],
        env=environment(place),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "words\ndefault\t\n"
    assert os.listdir(state) == []
    assert (place / "home/.cache/kurma/completion").exists() == (uid != 0)


@pytest.mark.root
def test_root_makes_no_directory(place: Path) -> None:
    (place / "state").rmdir()
    (place / "etc/kurma.yml").write_text(f"state_dir: {place}/state\n")
    assert completed(place, "stager", "build", "d", KURMA_DIR="")[1] == ["default"]
    assert os.listdir(place / "home") == []
    assert not (place / "state").exists()


def test_images_beside_a_damaged_record(place: Path) -> None:
    records = {
        "good": '{\n "name": "example.com/web",\n "locator": "docker://example.com/web"\n}',
        "empty": "",
        "half": '{\n "name": "example.com/ha',
        "escaped": '{\n "name": "example.com/\\u0061"\n}',
        "binary": '{\n "name": "\udcff"\n}',
    }
    for image, text in records.items():
        directory = place / "state/images/images" / image
        directory.mkdir(parents=True)
        (directory / "image.json").write_bytes(text.encode(errors="surrogateescape"))
    (place / "state/images/images/none").mkdir()
    assert completed(place, "image", "show", "")[1] == ["docker://example.com/web", "example.com/web"]


def test_pods_beside_a_damaged_record(place: Path) -> None:
    for name, state in (("web", b'{"state": "running"}'), ("wet", b'{"state": "\xff"}'), ("wed", b"")):
        pod = place / "state/pods" / name
        pod.mkdir(parents=True)
        (pod / "state.json").write_bytes(state)
        (place / "state/pods/names").mkdir(exist_ok=True)
        (place / "state/pods/names" / name).symlink_to(f"../{name}")
    assert completed(place, "stop", "we")[1] == ["web"]


def test_a_wrong_configuration_prints_nothing(place: Path) -> None:
    (place / "etc/kurma.yml").write_text("container_networks: 7\n")
    assert completed(place, "network", "show", "") == ("words", [])


def test_no_word_that_a_shell_would_interpret(place: Path) -> None:
    names = place / "state/pods/names"
    names.mkdir(parents=True)
    for name in ("web", "web$(reboot)", "web;reboot", "web\n"):
        (names / name).symlink_to("nowhere")
    assert completed(place, "stop", "w")[1] == ["web"]


@pytest.mark.parametrize(
    "line",
    [
        ["stop", ""],
        ["exec", "web/"],
        ["ps", "--"],
        ["run", ""],
        ["image", "show", ""],
        ["network", "show", ""],
        [""],
        ["run", "--"],
    ],
)
def test_nothing_heavy_is_imported(place: Path, line: list[str]) -> None:
    """Completion has half the time of `kurma list`."""
    completed(place, *line)  # the names are kept
    program = "import sys; from kurma_core.cli.completion import main; main(sys.argv[1:]); "
    program += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program, *line], env=environment(place), capture_output=True, text=True, check=True
    )
    heavy = {"typer", "click", "json", "re", "enum", "shlex", "typing", "socket", "importlib.metadata", "yaml"}
    heavy |= {"kurma_core.cli.main", "kurma_core.cli.session", "kurma_core.config", "kurma_core.client"}
    assert not heavy & set(done.stderr.split())


# -- in shells --

#: Ctrl-G inserts all candidates. The function in place of the command writes its words.
SETUP = {
    "bash": r"""PS1=; bind 'set enable-bracketed-paste off'; bind '"\C-g": insert-completions'
eval "$(command kurma completion bash)"
""",
    "zsh": r"""PS1=; unset zle_bracketed_paste; autoload -U compinit; compinit -u -D
eval "$(command kurma completion zsh)"
""",
    # As distributions install it: a function that zsh loads when it is first needed.
    "zsh, installed": r"""PS1=; unset zle_bracketed_paste; mkdir ~/functions
command kurma completion zsh > ~/functions/_kurma; fpath=(~/functions $fpath); autoload -U compinit; compinit -u -D
""",
}
_ZSH_INSERTS_ALL = r"""bindkey '^G' all-matches; zle -C all-matches complete-word _generic
zstyle ':completion:all-matches::::' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert true
"""
RECORD = """kurma() { printf '%s\\n' "$@" > said.new; mv said.new said; }
kurma ready
"""
PROGRAMS = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}
LINES = {
    "kurma image sho": ["image", "show"],
    "kurma completion ": ["completion", "bash", "fish", "zsh"],
    "kurma list --format=y": ["list", "--format=yaml"],
    "kurma list --format y": ["list", "--format", "yaml"],
    "kurma network show de": ["network", "show", "default"],
    "kurma run --isolator os/linux/oom": ["run", "--isolator", "os/linux/oom-score-adj="],
    "kurma run arch": ["run", "archive.aci"],
    "kurma run docker://": ["run", "docker://"],
    "kurma image validate --passphrase-file=arch": ["image", "validate", "--passphrase-file=archive.aci"],
    "kurma plugins show stagers/d": ["plugins", "show", "stagers/default"],
}


class Typist:
    """A shell at a terminal."""

    def __init__(self, shell: str, place: Path) -> None:
        self._said = place / "files/said"
        pid, self._fd = pty.fork()
        if pid == 0:
            os.chdir(place / "files")
            name = shell.partition(",")[0]
            os.execvpe(name, PROGRAMS[name], environment(place))
        self._pid = pid
        os.set_blocking(self._fd, False)
        self._shown = b""
        self.type(SETUP[shell] + (_ZSH_INSERTS_ALL if "zsh" in shell else "") + RECORD)
        assert self.said() == ["ready"]

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def said(self) -> list[str]:
        """The words of the command that was entered."""
        until(lambda: self._drained() and self._said.exists(), f"the command, after {self._shown[-500:]!r}")
        words = self._said.read_text().splitlines()
        self._said.unlink()
        return words

    def _drained(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._shown += os.read(self._fd, 65536)
        return True

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)


@pytest.mark.parametrize("shell", SETUP)
def test_at_a_terminal(shell: str, place: Path) -> None:
    if shutil.which(shell.partition(",")[0]) is None:
        pytest.skip(f"no {shell}")
    typist = Typist(shell, place)
    try:
        for line, words in LINES.items():
            typist.type(f"{line}\a\n")
            assert typist.said() == words, line
    finally:
        typist.close()


@pytest.mark.parametrize("line", LINES)
def test_in_fish(line: str, place: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    program = f"kurma completion fish | source; complete -C {line!r}"
    done = subprocess.run(
        ["fish", "-c", program],
        env=environment(place),
        cwd=place / "files",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    typed = line.split(" ")[1:]
    candidates = LINES[line][len(typed) - 1 :]
    found = [one.partition("\t")[0] for one in done.stdout.splitlines()]
    assert found == ([] if candidates == typed[-1:] else candidates)


def test_no_other_shell() -> None:
    done = subprocess.run([PROGRAM, "completion", "tcsh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kurma: no completion for 'tcsh'",
        "  hint: there is one for bash, zsh, fish",
    ]
