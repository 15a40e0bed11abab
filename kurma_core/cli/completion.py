"""Completes a command line: ``kurma __complete WORD…``, which the scripts of ``kurma completion`` run at TAB.

The last WORD is the one at the cursor. This imports only the declaration of the command that the line names;
:mod:`kurma_core.cli.completion_names` finds the names of what is on this host.

The output is one line per candidate: the word, a tab, a description. A first line ``files`` or ``directories``
asks the shell for those, too; otherwise it is ``words``.
"""

from __future__ import annotations

import os

from kurma_core.cli.command_line import GLOBAL_OPTIONS, load, split_flags
from kurma_core.cli.commands import TABLE, Alias, Group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kurma_core.cli.command_line import Argument, Command, Option
    from kurma_core.cli.commands import Entry
    from kurma_core.cli.completion_names import Names

    #: Words and their descriptions.
    Candidates = Iterable[tuple[str, str]]

_SHELLS = ("bash", "zsh", "fish")
#: Commands that a pod must run for, and commands for pods that do not run.
_OF_RUNNING = frozenset(("wait", "stop", "kill", "enter", "exec", "attach", "top", "cp", "stats", "app"))
_OF_OTHERS = frozenset(("start", "run-prepared", "rm"))
_FILES = frozenset(("FILE", "KEYFILE", "SOURCE"))
_DIRECTORIES = frozenset(("DIR",))
_INSECURE = ("image", "tls", "http", "pubkey")
#: bash inserts candidates unquoted: others, such as ``$`` in an image's address, are left out.
_HARMLESS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,:/=@%+")


def main(words: Sequence[str]) -> int:
    """Prints the candidates."""
    try:
        out = complete(words).encode()
    except Exception:  # noqa: BLE001 (a shell has no place for an error at TAB; the command itself tells it)
        return 1
    while out:
        out = out[os.write(1, out) :]
    return 0


def complete(words: Sequence[str]) -> str:
    """The output. :raises Exception: any that reading the state or a plugin may raise."""
    line = _Line(words)
    found = {word: help for word, help in line.candidates() if word.startswith(words[-1])}
    harmless = [one for one in found.items() if _HARMLESS.issuperset(one[0])]
    text = "".join(f"{word}\t{help if help.isprintable() else ''}\n" for word, help in harmless)
    return f"{line.more(bool(harmless))}\n{text}"


class _Line:
    """The words up to the cursor, read as far as they are known.

    :ivar current: the word at the cursor, or the part of it after ``--option=``.
    :ivar path: the command's words. :ivar command: None: the words do not name one yet.
    :ivar plain: the command's arguments so far. :ivar awaiting: the option whose value the next word is.
    :ivar ended: the words after ``--`` have begun.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.globals: dict[str, str | None] = {option.name: None for option in GLOBAL_OPTIONS}
        self.options: tuple[Option, ...] = GLOBAL_OPTIONS
        self.entries: Mapping[str, Entry | Alias | Group] = TABLE
        self.path: tuple[str, ...] = ()
        self.command: Command | None = None
        self.plain: list[str] = []
        #: Values of the command's options, by name.
        self.values: dict[str, str] = {}
        self.awaiting: Option | None = None
        self.ended = False
        #: Words of a command that is not of the table.
        self.foreign: list[str] | None = None
        self._files = "words"
        self.current = words[-1]
        for word in words[:-1]:
            self._read(word)

    def _read(self, word: str) -> None:
        if self.foreign is not None:
            self.foreign.append(word)
        elif self.awaiting is not None:
            self._set(self.awaiting, word)
            self.awaiting = None
        elif word == "--" or self.ended:
            self.ended = True
        elif word.startswith("-") and word != "-":
            option, value = split_flags(word, self.known())[-1]
            if option is None or option.is_flag:
                return
            if value is None:
                self.awaiting = option
            else:
                self._set(option, value)
        elif self.command is not None:
            if self._at_rest(self.command):
                self.ended = True
            else:
                self.plain.append(word)
        elif self.path or word != "help":  # `kurma help COMMAND`
            self.path += (word,)
            entry = self.entries.get(word)
            if isinstance(entry, Group):
                self.entries, self.options = entry.entries, ()
            elif entry is None:
                self.foreign = [word]
            else:
                if isinstance(entry, Alias):
                    self.values.update(entry.preset)
                    self.path, entry = entry.path, entry.entry
                self.command = load(entry)
                self.options = self.command.options

    @property
    def names(self) -> Names:
        """Imported when it is needed: commands and options have no names to find."""
        from kurma_core.cli.completion_names import Names

        return Names(self.globals)

    def _set(self, option: Option, value: str) -> None:
        if self.command is None:
            self.globals[option.name] = value
        else:
            self.values[option.name] = value

    def known(self) -> dict[str, Option]:
        """The options of the command, by flag."""
        return {flag: option for option in self.options for flag in option.flags}

    def _at_rest(self, command: Command) -> bool:
        """Whether the next plain word is the program's, for the pod."""
        return command.rest is not None and len(self.plain) == len(command.arguments)

    # --- candidates ----------------------------------------------------------------------------------------------

    def more(self, found: bool) -> str:
        """The kind of words that the shell adds. After a colon, it adds no files of this host."""
        if ":" in self.current or (self._files == "instead" and found):
            return "words"
        return "files" if self._files == "instead" else self._files

    def candidates(self) -> Candidates:
        """For the word at the cursor; those that begin otherwise may be among them."""
        current = self.current
        if self.foreign is not None:
            return self._of_plugin(self.foreign, current)
        if self.ended:
            return self._asked_for("FILE")
        if self.awaiting is not None:
            return self._of_option(self.awaiting, current)
        if current.startswith("--") and "=" in current:
            flag, _, self.current = current.partition("=")
            option = self.known().get(flag)
            found = () if option is None or option.is_flag else self._of_option(option, self.current)
            return ((f"{flag}={word}", help) for word, help in found)
        if current.startswith("-"):
            flags = ((flag, option.help) for option in self.options for flag in option.flags)
            return (*flags, ("--help", "Show this message and exit."))
        if self.command is None:
            own = ((name, entry.help) for name, entry in self.entries.items())
            return own if self.path else (*own, *self.names.of_client("commands"))
        argument = self._argument(self.command)
        if argument is not None:
            return (one for one in self._asked_for(argument.metavar) if one[0] not in self.plain)
        return self._asked_for("FILE" if self.command.rest is not None else "")

    def _argument(self, command: Command) -> Argument | None:
        if len(self.plain) < len(command.arguments):
            return command.arguments[len(self.plain)]
        last = command.arguments[-1] if command.arguments else None
        return last if last is not None and last.many else None

    def _of_option(self, option: Option, current: str) -> Candidates:
        if option.choices:
            return ((choice, "") for choice in option.choices)
        metavar = option.metavar or ""
        if not metavar.endswith(",…"):
            return self._asked_for(metavar)
        # A list: the last item is completed.
        before = current[: current.rfind(",") + 1]
        return ((before + word, help) for word, help in self._asked_for(metavar) if word not in before.split(","))

    def _asked_for(self, metavar: str) -> Candidates:
        """Candidates for an argument or for an option's value, by the name that help gives it."""
        if metavar.islower():
            return ((choice, "") for choice in metavar.split("|"))
        name = metavar[: next((at for at, one in enumerate(metavar) if not one.isupper()), None)]
        if name in _FILES or name in _DIRECTORIES:
            self._files = "files" if name in _FILES else "directories"
        elif name in ("IMAGE", "LOCATOR"):
            self._files = "instead"  # an archive, if no image of the store begins so
        elif name in ("SRC", "DST"):
            self._files = "files"
        find = _WORDS.get(metavar) or _WORDS.get(name)
        return () if find is None else find(self)

    def _of_plugin(self, words: Sequence[str], current: str) -> Candidates:
        """Candidates of typer, inside a plugin's command."""
        if len(self.path) > 1 or words[0] not in dict(self.names.of_client("commands")):
            return ()
        from kurma_core.cli import typer_app

        return typer_app.completions(words, current, typer_app.root(lambda _: self.names.session()))


# --- names -----------------------------------------------------------------------------------------------------


def _pods(line: _Line) -> Candidates:
    """Names of pods, of those that the command can work on if there are any."""
    word = line.path[0]
    live = word in _OF_RUNNING if word in _OF_RUNNING | _OF_OTHERS else None
    return _plain(line.names.pods(line.current, live))


def _pods_or_apps(line: _Line) -> Candidates:
    """Pods; the apps of one behind ``POD/``."""
    pod, slash, _ = line.current.partition("/")
    return _plain(f"{pod}/{app}" for app in line.names.apps(pod)) if slash else _pods(line)


def _apps(line: _Line) -> Candidates:
    """The apps of the pod that the line names."""
    return _plain(line.names.apps(line.plain[0])) if line.plain else ()


def _images(line: _Line) -> Candidates:
    return _plain(line.names.images())


def _copied(line: _Line) -> Candidates:
    """Pods and ``POD/APP``, for paths in their apps."""
    return ((f"{name}:", "") for name, _ in _pods_or_apps(line))


def _networks(line: _Line) -> Candidates:
    return line.names.of_client("networks")


def _secrets(line: _Line) -> Candidates:
    return _plain(line.names.secrets())


def _volumes(line: _Line) -> Candidates:
    return _plain(line.names.volumes())


def _inspected(line: _Line) -> Candidates:
    """Names of pods, images, networks and volumes; with --type of one kind."""
    of: dict[str, Callable[[_Line], Candidates]] = {
        "pod": _pods,
        "image": _images,
        "network": _networks,
        "volume": _volumes,
    }
    kinds = [line.values["type"]] if "type" in line.values else of
    return (one for kind in kinds for one in of[kind](line))


def _plugins(line: _Line) -> Candidates:
    """Names of the plugins of the kind that the line names."""
    return _of_kind(line, line.plain[0])


def _of_kind(line: _Line, kind: str) -> Candidates:
    found = (word.partition("/") for word, _ in line.names.of_client("plugins"))
    return _plain(name for of, _, name in found if of == kind)


def _kinds(_: _Line) -> Candidates:
    from kurma_core.config.schema import KINDS

    return _plain(KINDS)


def _signals(_: _Line) -> Candidates:
    import _signal  # type: ignore[import-not-found]

    names = sorted(name[3:] for name in dir(_signal) if name.startswith("SIG") and name[3].isalpha())
    return _plain(names)


def _capabilities(_: _Line) -> Candidates:
    from kurma_core.linux.capabilities import NAMES

    return _plain(NAMES)


def _resource_limits(_: _Line) -> Candidates:
    from kurma_core.models.isolator import RLIMITS

    return _plain(f"{name}=" for name in RLIMITS)


def _plain(words: Iterable[str]) -> Candidates:
    """Words without descriptions."""
    return ((word, "") for word in words)


#: Candidates by the name that help gives an argument, or an option's value.
_WORDS: dict[str, Callable[[_Line], Candidates]] = {
    "APP": _apps,
    "CAP": _capabilities,
    "DST": _copied,
    "IMAGE": _images,
    "NAME=JSON": lambda line: ((f"{name}=", help) for name, help in line.names.of_client("isolators")),
    "NAME=SOFT[:HARD]": _resource_limits,
    "KIND": _kinds,
    "KIND/NAME": lambda line: line.names.of_client("plugins"),
    "LOCATOR": _images,
    "NETWORK": _networks,
    "PLUGIN": _plugins,
    "POD": _pods,
    "POD[/APP]": _pods_or_apps,
    "SECRET": _secrets,
    "POD|IMAGE|NETWORK|VOLUME": _inspected,
    "RENDERER": lambda line: _of_kind(line, "renderers"),
    "SIGNAL": _signals,
    "SRC": _copied,
    "STAGER": lambda line: line.names.of_client("stagers"),
    "VOLUME": _volumes,
    "WORD": lambda _: _plain(_INSECURE),
}


# --- scripts ---------------------------------------------------------------------------------------------------


def script(shell: str) -> str:
    """The script that a shell evaluates to complete ``kurma``.

    :raises UsageError: there is none for that shell.
    """
    if shell not in _SHELLS:
        from kurma_core.errors import UsageError

        raise UsageError(f"no completion for {shell!r}", hint=f"there is one for {', '.join(_SHELLS)}")
    with open(f"{os.path.dirname(__file__)}/completion.{shell}", encoding="utf-8") as file:
        return file.read().rstrip("\n")
