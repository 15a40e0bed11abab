"""The plugin index: finds and loads installed plugins, and remembers them in ``plugins.json`` (state directory).

What is installed is looked up in each directory of ``sys.path`` with :mod:`importlib.metadata`. A plugin is loaded
for the first time with stevedore, and pluggy checks its hook. Importing these three takes longer than the rest of
a start, so the index remembers their results:

- for each directory of ``sys.path`` the plugins that are installed in it. This holds until the directory changes,
  as it does when a distribution is installed, upgraded or removed, or until the ``entry_points.txt`` of one of
  these plugins changes.
- for each plugin that was loaded what it declared, and the hooks of its driver's class with the arguments that
  they take. This holds until one of the modules changes that the plugin's package had loaded by then, or that has
  a base class of the driver, or until Kurma's own hooks change.

The index only saves work. If it is damaged or of another version, or if others than root and the caller may change
it, it is ignored and made anew. A process that may not write it works without it. stevedore is fed from
:mod:`importlib.metadata`: its own lookup keeps a cache below the user's home directory, which root must not trust.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from _collections_abc import Mapping  # without collections
from importlib import import_module, invalidate_caches

from kurma_core import VERSION, hookspecs
from kurma_core.json_text import dumps, loads
from kurma_core.linux.files import others_may_write, replace_file
from kurma_core.schema import fit
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from importlib.metadata import Distribution, EntryPoint
    from typing import Any

    from kurma_core.hookspecs.driver import Driver
    from kurma_core.plugins.calls import Taken

    Json = Any
    #: Inode number, and times of the last change of the content and of the inode, in nanoseconds.
    Stamp = list[int]

NAME = "plugins.json"
#: Of the format.
_VERSION = 2
_PREFIX = "kurma."
#: So end the names of directories in which importlib.metadata finds distributions.
_METADATA = (".dist-info", ".egg-info", ".egg")
#: Nanoseconds. Two changes within one tick of the kernel's clock leave the same stamp, so files that changed
#: within this time are not remembered yet.
_SETTLED = 100_000_000

#: By module, the plugin that this process has loaded from it first, and stamps of its files at that time.
_LOADED: dict[str, tuple[Plugin, dict[str, Stamp | None]]] = {}
#: By directory, the ``.pth`` files that this process has read.
_PATH_FILES: dict[str, dict[str, Stamp | None]] = {}

_STAMP = [int, int, int]
_PLUGIN = [str, str, str, str, str, str]
#: The remembered part of a plugin's :class:`.driver.Driver`: fields, and their shapes in JSON.
_DECLARED = {
    "aliases": [str],
    "runs_images": bool,
    "locators": str,
    "example": str,
    "help": str,
    "annotations": [str],
    "isolators": [str],
    "default_isolators": [str],
    "exclusive": [[str]],
    "gated": {str: (None, [str])},
}
_DECLARATION = {
    "plugin": _PLUGIN,
    "kurma": str,
    "files": {str: _STAMP},
    "module": str,
    "attribute": str,
    "declared": _DECLARED,
    "hooks": {str: {str: [str]}},
    "driver": str,
}
_INDEX = {
    "version": range(_VERSION, _VERSION + 1),
    "directories": {str: {"stamp": _STAMP, "entryPoints": {str: _STAMP}, "plugins": [_PLUGIN]}},
    "declarations": {str: _DECLARATION},
}


@frozen
class Plugin:
    """An installed plugin: one entry point of one distribution.

    :param group: ``kurma.networks``. :param value: of the entry point: ``MODULE`` or ``MODULE:ATTRIBUTE``.
    :param directory: of ``sys.path``, in which the distribution is installed.
    """

    group: str
    name: str
    value: str
    distribution: str
    version: str
    directory: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def key(self) -> str:
        """The key of its declaration: environments that share a state directory have one each."""
        return f"{self.directory}:{self.group}/{self.name}"

    def to_json(self) -> Json:
        return [self.group, self.name, self.value, self.distribution, self.version, self.directory]


@frozen
class Declaration:
    """The declaration of a plugin when it was loaded: fields of :class:`kurma_core.hookspecs.driver.Driver`."""

    aliases: tuple[str, ...]
    runs_images: bool
    locators: str
    example: str
    help: str
    annotations: tuple[str, ...]
    isolators: tuple[str, ...]
    default_isolators: tuple[str, ...]
    exclusive: tuple[frozenset[str], ...]
    gated: Mapping[str, Collection[str] | None]


class PluginIndex:
    """:param state_dir: where the index is kept. If it is not there, nothing is remembered."""

    def __init__(self, state_dir: str) -> None:
        self._path = f"{os.path.realpath(state_dir)}/{NAME}"
        #: As in the file: by directory, and by :attr:`Plugin.key`.
        self._directories: dict[str, Json] = {}
        self._declarations: dict[str, Json] = {}

    def find(self, *, anew: bool = False) -> Mapping[str, tuple[Plugin, ...]]:
        """Finds the plugins on ``sys.path`` by group; imports none of them.

        A distribution that is on the path twice counts once, by its first place: Python imports that one.

        :param anew: read every distribution, even if the index knows it.
        """
        self._read()
        found, changed = [], False
        for directory in _path():
            begun, stamp = time.time_ns(), _stamp(directory)
            if stamp is None:
                continue
            entry = self._directories.get(directory)
            if anew or entry is None or entry["stamp"] != stamp or not _unchanged(entry["entryPoints"]):
                scanned = {"stamp": stamp, **_scan(directory)}
                if scanned != entry and _settled((stamp, *scanned["entryPoints"].values()), begun):
                    self._directories[directory] = scanned
                    changed = True
                entry = scanned
            found.append(entry["plugins"])
        if changed:
            self._write()
        return _grouped(found)

    def loaded_version(self, plugin: Plugin) -> str | None:
        """The version of the plugin's distribution that this process has loaded; None: it has loaded none."""
        loaded = _LOADED.get(_module(plugin))
        return None if loaded is None else loaded[0].version or "?"

    def outdated(self, plugin: Plugin) -> str | None:
        """How an installed plugin differs from the one that this process has loaded, whatever configuration it was
        loaded for: Python imports a module once. None: it does not, or it was not loaded."""
        loaded = _LOADED.get(_module(plugin))
        if loaded is None:
            return None
        was, files = loaded
        if (was.distribution, was.version, was.directory) != (
            plugin.distribution,
            plugin.version,
            plugin.directory,
        ):
            same = was.distribution == plugin.distribution and was.version != plugin.version
            now, then = (plugin.version, was.version) if same else (str(plugin), str(was))
            if now == then:
                now, then = (f"{one} in {one.directory}" for one in (plugin, was))
            return f"{now} is installed, {then} is loaded"
        for file, stamp in _stamps(_package(_module(plugin))).items():
            files.setdefault(file, stamp)  # a module that the plugin has imported since
        return None if _unchanged(files) else "its files, or Kurma's hooks, have changed since it was loaded"

    def load(self, plugin: Plugin) -> tuple[object, Mapping[str, Taken] | None]:
        """Imports the object of the plugin's entry point.

        :returns: also its checked classes (see :meth:`remember_class`); None: its hook has not been checked since
            it changed.
        :raises Exception: whatever the import raised, unchanged.
        """
        entry, module = self._entry(plugin), _module(plugin)
        first = module not in sys.modules or module not in _LOADED
        if not first and self.outdated(plugin) is not None:
            entry = None  # it describes the module that is installed, and not the one that is loaded
        if entry is None:
            found = _by_stevedore(plugin)
        else:
            found = import_module(entry["module"])
            for attribute in filter(None, entry["attribute"].split(".")):
                found = getattr(found, attribute)
        if first:
            _LOADED[module] = plugin, dict(_stamps(_package(module)) if entry is None else entry["files"])
        return found, None if entry is None else entry["hooks"]

    def declaration(self, plugin: Plugin) -> Declaration | None:
        """The recorded declaration of a plugin; None: the plugin was not loaded since it changed."""
        entry = self._entry(plugin)
        if entry is None:
            return None
        return Declaration(**{name: _from_json(value) for name, value in entry["declared"].items()})

    def implements(self, plugin: Plugin, hooks: Iterable[str]) -> bool | None:
        """Whether the plugin's driver has one of these hooks, if its section of ``kurma.yml`` has no options.

        None: it is not known.
        """
        entry = self._entry(plugin)
        known = None if entry is None else entry["hooks"].get(entry["driver"])
        return None if known is None else any(hook in known for hook in hooks)

    def remember(self, plugin: Plugin, declared: Driver) -> None:
        """Keeps what a loaded plugin declared, once its hook has been checked."""
        if self.outdated(plugin) is not None:
            return
        point = _entry_point(plugin)
        entry = {
            "plugin": plugin.to_json(),
            "kurma": VERSION,
            "files": {},
            "module": point.module,
            "attribute": point.attr or "",
            "declared": {name: _to_json(getattr(declared, name)) for name in _DECLARED},
            "hooks": {},
            "driver": "",
        }
        self._keep(plugin, entry, _package(point.module))

    def remember_driver(self, plugin: Plugin, key: str) -> None:
        """Keeps which class the plugin's driver has without options, which may choose another one, if its
        declaration is kept.

        :param key: as in :meth:`remember_class`.
        """
        known = self._entry(plugin)
        if known is not None and known["driver"] != key:
            self._keep(plugin, {**known, "driver": key}, _package(known["module"]))

    def remember_class(self, plugin: Plugin, key: str, cls: type, kind: type, taken: Taken) -> None:
        """Keeps the result of checking a class of the plugin, if its declaration is kept.

        A class that its name does not find (one that a function made) is checked anew in each process.

        :param key: of the class and the specification. :param taken: by hook, the arguments that it takes.
        :param kind: the specification.
        """
        known = self._entry(plugin)
        if known is None or not _is_named(cls):
            return
        hooks = {**known["hooks"], key: {name: list(arguments) for name, arguments in taken.items()}}
        bases = {base.__module__ for one in (cls, kind) for base in one.__mro__}
        self._keep(
            plugin, {**known, "hooks": hooks}, {*_package(known["module"]), *bases - sys.stdlib_module_names}
        )

    def _keep(self, plugin: Plugin, entry: dict[str, Json], modules: Collection[str]) -> None:
        """Keeps a declaration as long as these modules, and those that it depended on so far, are unchanged."""
        begun = time.time_ns()
        entry = {**entry, "files": {**_stamps(modules), **entry["files"]}}
        try:
            fit(entry, _DECLARATION, "the declaration")
            dumps(entry)
        except (TypeError, ValueError):
            return  # its module is not a file, or it declares what JSON cannot hold
        if _settled(entry["files"].values(), begun):
            self._declarations[plugin.key] = entry
            self._write()

    def _entry(self, plugin: Plugin) -> Json | None:
        """The index entry of a plugin that was loaded and has not changed since."""
        entry = self._declarations.get(plugin.key)
        if entry is None or entry["plugin"] != plugin.to_json() or entry["kurma"] != VERSION:
            return None
        return entry if _unchanged(entry["files"]) else None

    def _read(self) -> None:
        try:
            with open(self._path, "rb", opener=_opened) as file:
                if others_may_write(os.fstat(file.fileno())) or not _is_guarded(self._path):
                    return
                value = loads(file.read(), own=True)
            fit(value, _INDEX, "the index")
        except (OSError, ValueError):
            return  # not there, not ours, damaged, or of another version
        self._directories, self._declarations = value["directories"], value["declarations"]

    def _write(self) -> None:
        """Replaces the file. What another process wrote meanwhile is lost, and is remembered at its next use."""
        directories = {
            directory: entry
            for directory, entry in self._directories.items()
            if _stamp(directory) == entry["stamp"]  # without those that were removed
        }
        declarations = {
            key: entry
            for key, entry in self._declarations.items()
            if Plugin(*entry["plugin"]).directory in directories
        }
        value = {"version": _VERSION, "directories": directories, "declarations": declarations}
        try:
            if _is_guarded(self._path):
                replace_file(self._path, dumps(value).encode())
        except (OSError, ValueError):
            return  # there is no state directory, or we may not write to it; or a path is not UTF-8


def _to_json(value: Any) -> Json:
    """A declared value: text, a truth value, None, or a mapping or collection of such."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {name: _to_json(one) for name, one in value.items()}
    return [_to_json(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]


def _from_json(value: Json) -> Any:
    """A declared value: lists are tuples, and lists in them sets."""
    if not isinstance(value, list):
        return value
    return tuple(frozenset(one) if isinstance(one, list) else one for one in value)


def _opened(path: str, flags: int) -> int:
    """Opens no symbolic link, and waits for nothing if the path is a FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _is_guarded(path: str) -> bool:
    """Whether only root and the caller can replace the file: they own its directory, and every directory above it.

    A directory further above may be writable for other users if it is sticky, as ``/tmp`` is: they cannot rename
    ours in it.

    :param path: without symbolic links.
    :raises OSError: its directory does not exist.
    """
    directory, sticky = os.path.dirname(path), False
    while True:
        status = os.stat(directory)
        owner_is_trusted = status.st_uid in (0, os.geteuid())
        if others_may_write(status) and not (sticky and owner_is_trusted and status.st_mode & stat.S_ISVTX):
            return False
        if directory == "/":
            return True
        directory, sticky = os.path.dirname(directory), True


# --- installed plugins -----------------------------------------------------------------------------------------


def _path() -> Iterator[str]:
    """The directories and archives of ``sys.path``, absolute."""
    for entry in dict.fromkeys(sys.path):
        try:
            yield os.path.abspath(entry)
        except FileNotFoundError:  # relative, and the working directory was removed
            continue


def follow_path_files() -> None:
    """Reads the ``.pth`` files that have come or changed since the first call, as Python reads all of them at its
    start. Editable installs make their modules known by such files."""
    import site

    invalidate_caches()
    for directory in (*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else ())):
        if directory not in sys.path or not os.path.isdir(directory):
            continue  # Python has not read those in it either
        stamps = {name: _stamp(f"{directory}/{name}") for name in os.listdir(directory) if name.endswith(".pth")}
        known = _PATH_FILES.get(directory, stamps)
        _PATH_FILES[directory] = stamps
        for name in sorted(stamps):
            if stamps[name] != known.get(name):
                site.addpackage(directory, name, None)


def _scan(directory: str) -> dict[str, Json]:
    """Looks for plugins in all distributions of a directory."""
    try:
        if not any(name.endswith(_METADATA) for name in os.listdir(directory)):
            return {"entryPoints": {}, "plugins": []}  # a directory of programs or modules
    except OSError:
        pass  # an archive
    from importlib.metadata import distributions

    plugins, files = [], {}
    for distribution in distributions(path=[directory]):
        if _PREFIX not in (distribution.read_text("entry_points.txt") or ""):
            continue
        found = [entry for entry in distribution.entry_points if entry.group.startswith(_PREFIX)]
        # importlib.metadata has no public name for the directory that a distribution's metadata is in.
        file = f"{getattr(distribution, '_path', directory)}/entry_points.txt"
        stamp = _stamp(file)
        if found and stamp is not None:
            files[file] = stamp
        name, version = _name(distribution), distribution.version or ""
        plugins += [
            Plugin(entry.group, entry.name, entry.value, name, version, directory).to_json() for entry in found
        ]
    return {"entryPoints": files, "plugins": plugins}


def _name(distribution: Distribution) -> str:
    """The distribution's name as its author writes it; something to show if it has none."""
    return str(distribution.metadata["Name"] or "an unnamed distribution")


def _grouped(directories: Iterable[Iterable[Json]]) -> Mapping[str, tuple[Plugin, ...]]:
    groups: dict[str, list[Plugin]] = {}
    seen: set[str] = set()
    for plugins in directories:
        here = set()
        for item in plugins:
            plugin = Plugin(*item)
            name = plugin.distribution.lower().replace("_", "-").replace(".", "-")
            here.add(name)
            if name not in seen:
                groups.setdefault(plugin.group, []).append(plugin)
        seen |= here
    return {group: tuple(sorted(found, key=lambda plugin: plugin.name)) for group, found in groups.items()}


# --- loading ---------------------------------------------------------------------------------------------------


def _module(plugin: Plugin) -> str:
    """The module of the plugin's entry point, without importing importlib.metadata."""
    return plugin.value.partition(":")[0].partition("[")[0].strip()


def _entry_point(plugin: Plugin) -> EntryPoint:
    from importlib.metadata import EntryPoint

    return EntryPoint(plugin.name, plugin.value, plugin.group)


def _by_stevedore(plugin: Plugin) -> object:
    from stevedore.driver import DriverManager

    entry = _entry_point(plugin)

    class OneEntryPoint(DriverManager[object]):
        """Sees this one entry point, and no others."""

        def list_entry_points(self) -> list[EntryPoint]:
            return [entry]

    def fail(manager: object, entry_point: EntryPoint, error: BaseException) -> None:
        raise error

    manager = OneEntryPoint(
        entry.group, entry.name, on_load_failure_callback=fail, on_missing_entrypoints_callback=None
    )
    return manager.driver


# --- stamps ----------------------------------------------------------------------------------------------------


def _stamp(path: str) -> Stamp | None:
    """Changes whenever the file or directory does; None: it is not there.

    The time of the inode's change is in it because tools that install reproducibly set the other time.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _unchanged(files: Mapping[str, Stamp | None]) -> bool:
    return all(_stamp(file) == stamp for file, stamp in files.items())


def _settled(stamps: Iterable[Stamp], when: int) -> bool:
    """Whether these files last changed long enough before a moment (nanoseconds).

    Only the kernel sets the time of the inode's change; the other may lie in the future.
    """
    return all(stamp[2] < when - _SETTLED for stamp in stamps)


def _package(module: str) -> set[str]:
    """The modules on which a loaded plugin's declaration depends: those of its package that are loaded, and
    Kurma's own hooks."""
    package = module.partition(".")[0]
    # A copy: another thread may import.
    return {module, hookspecs.__name__, *(name for name in tuple(sys.modules) if name.startswith(f"{package}."))}


def _stamps(modules: Iterable[str]) -> dict[str, Stamp | None]:
    files = (str(getattr(sys.modules.get(module), "__file__", None)) for module in modules)
    return {file: _stamp(file) for file in files}


def _is_named(cls: type) -> bool:
    """Whether a class is found by its module and its qualified name."""
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls
