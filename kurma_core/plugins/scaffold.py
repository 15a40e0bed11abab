"""Makes a package for a new plugin (``kurma plugins new``), from the files of ``templates``.

Those below ``templates/all`` belong to every kind, the others to one. Their paths and their texts have
placeholders: ``@NAME@``, ``@MODULE@``.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from importlib.metadata import distributions, entry_points, version
from importlib.util import find_spec

from kurma_core.errors import HostError, UsageError
from kurma_core.hookspecs import CONTRACT
from kurma_core.plugins.claims import reserved
from kurma_core.value import frozen

_TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
#: Words that YAML reads as values: each administrator would have to put them in quotes.
_YAML_VALUES = ("on", "off", "yes", "no", "true", "false", "null")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@frozen
class _Kind:
    """:param summary: what the plugin of the template does. :param use: a command that uses it.

    :param test: the command that runs its tests. :param requires: distributions besides kurma-core.
    """

    summary: str
    use: str
    test: str = "python -m pytest"
    requires: tuple[str, ...] = ()


_KINDS = {
    "fetchers": _Kind("Fetches images from one directory", "kurma run @NAME@:IMAGE"),
    "renderers": _Kind("Renders each image as one tree of hard links", "kurma run IMAGE"),
    "stagers": _Kind("Runs the app of a pod in namespaces of its own", "kurma run --stager @NAME@ IMAGE"),
    "networks": _Kind(
        "Connects each pod to the host by a cable",
        "kurma run --net @NAME@ IMAGE",
        test="sudo python -m pytest --kurma-host",
    ),
    "isolators": _Kind(
        "Limits the number of files that an app may have open",
        """kurma run --isolator 'example.com/@NAME@={"limit": 1024}' IMAGE""",
    ),
    "observers": _Kind("Writes each event of a pod to a file", "kurma plugins show observers/@NAME@"),
    "services": _Kind("Writes new events of pods to kurmad's log", "kurma daemon reload"),
    "commands": _Kind(
        "Prints the names of the pods in one state", "kurma @NAME@ --help", requires=("typer>=0.24",)
    ),
}


@frozen
class Package:
    """A package that was made.

    :param directory: where it is. :param files: paths in it. :param test: the command that runs its tests.
    """

    directory: str
    files: tuple[str, ...]
    test: str


def make_package(kind: str, name: str, directory: str | None = None, distribution: str | None = None) -> Package:
    """Writes the package of a plugin that builds, installs, and passes the contract suite of its kind.

    :param kind: in the plural: ``fetchers``. :param name: of its entry point.
    :param directory: the directory to make; None: the distribution's name.
    :param distribution: None: ``kurma-KIND-NAME``.
    :raises UsageError: the plugin, or the distribution, cannot have that name.
    :raises HostError: the directory exists, or a file cannot be written. Then the directory is removed again.
    """
    _check_name(kind, name)
    one = kind.removesuffix("s")
    distribution = distribution or f"kurma-{one}-{name.replace('+', '-')}"
    module = _module(distribution)
    about = _KINDS[kind]
    requires = (f"kurma-core>={version('kurma-core')}", *about.requires)
    words = {
        "KIND": kind,
        "ONE": one,
        "NAME": name,
        "WORD": _word(name),
        "PREFIX": name[:5],
        "CLASS": "".join(part.capitalize() for part in re.split("[^a-z0-9]", name)),
        "DISTRIBUTION": distribution,
        "MODULE": module,
        "SUMMARY": about.summary,
        "TEST": about.test,
        "REQUIREMENTS": ", ".join(f'"{text}"' for text in requires),
        "CONTRACT": str(CONTRACT),
    }
    words["USE"] = _filled(about.use, words)
    words["CONFIG"] = _filled(_read(f"{_TEMPLATES}/{kind}/kurma.yml.in"), words)
    files = {
        _filled(path.removesuffix(".in"), words): _filled(_read(f"{_TEMPLATES}/{part}/{path}"), words)
        for part in ("all", kind)
        for path in _templates(part)
    }
    directory = directory or distribution
    _write(directory, files)
    return Package(directory, tuple(sorted(files)), about.test)


def _check_name(kind: str, name: str) -> None:
    """:raises UsageError: no plugin of that kind can have the name, or an installed one has it."""
    what = f"cannot make {kind.removesuffix('s')} plugin {name!r}"
    letters = "a-z0-9+-" if kind == "fetchers" else "a-z0-9-"  # as of a scheme
    if not re.fullmatch(f"[a-z]([{letters}]*[a-z0-9])?", name) or len(name) > 64:
        marks = "- and +" if kind == "fetchers" else "-"
        raise UsageError(
            f"{what}: wrong name",
            hint=f"a name has the letters a to z, digits, and {marks} between them; it begins with a letter",
        )
    why = f"YAML reads {name} as a value" if name in _YAML_VALUES else reserved(f"kurma.{kind}", name)
    if why:
        raise UsageError(f"{what}: {why}", hint="choose another name")
    for entry in entry_points(group=f"kurma.{kind}", name=name):
        owner = entry.dist.name if entry.dist is not None else entry.value
        raise UsageError(f"{what}: {owner}, which is installed, has that name", hint="choose another name")


def _module(distribution: str) -> str:
    """The name of the distribution's module. :raises UsageError: it cannot be a distribution's."""
    module = _word(distribution)
    if not _DISTRIBUTION.fullmatch(distribution) or not module.isidentifier() or keyword.iskeyword(module):
        raise UsageError(f"cannot make distribution {distribution!r}: wrong name", hint="for example: kurma-cable")
    why = ""
    if module in sys.stdlib_module_names or find_spec(module) is not None:
        why = f"there is a module {module}"
    elif any(distributions(name=distribution)):
        why = "it is installed"
    if why:
        raise UsageError(f"cannot make distribution {distribution!r}: {why}", hint="choose another name")
    return module


def _word(text: str) -> str:
    return re.sub("[^a-z0-9]", "_", text.lower())


def _templates(part: str) -> list[str]:
    top = f"{_TEMPLATES}/{part}"
    return [
        os.path.relpath(os.path.join(directory, name), top)
        for directory, _, names in os.walk(top)
        for name in names
        if name.endswith(".in")
    ]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub("@([A-Z]+)@", lambda found: words[found[1]], text)


def _write(directory: str, files: dict[str, str]) -> None:
    """Makes the directory with these files; if one cannot be written, removes it again."""
    try:
        os.mkdir(directory)
    except OSError as error:
        hint = "name another directory: --directory DIR" if isinstance(error, FileExistsError) else None
        what = f"cannot make {directory}: {error.strerror}"
        raise HostError(what, hint=hint, path=directory, errno=error.errno) from None
    whole = directory
    try:
        for path, text in files.items():
            whole = os.path.join(directory, path)
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            with open(whole, "x", encoding="utf-8") as stream:
                stream.write(text)
    except BaseException as error:
        from shutil import rmtree

        rmtree(directory, ignore_errors=True)
        if isinstance(error, OSError):
            raise HostError(f"cannot write {whole}: {error.strerror}", path=whole, errno=error.errno) from None
        raise
