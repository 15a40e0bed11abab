"""Builds the default stager's image from the running Python interpreter: the interpreter, compiled modules and
shared libraries.

``/opt/stager`` is the interpreter's prefix. The interpreter finds it by its landmark files, so that neither an
environment variable nor an option has to name it. The modules are compiled and come without their source.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import kurma_core
import kurma_stager_default
from kurma_core.errors import StagerError
from kurma_core.formats import elf
from kurma_core.formats.small_json import decode
from kurma_stager_default.init_program import init_program

NAME = "kurma.io/stager/default"
PREFIX = "opt/stager"
#: The program that PID 1 of a pod executes.
INIT = f"{PREFIX}/bin/kurma-init"
#: Programs of the image, and the module whose ``main`` each calls.
PROGRAMS = {
    "start": "main",
    "status": "callins.status",
    "logs": "callins.logs",
    "run": "callins.run",
    "attach": "callins.attach",
}
#: Call-ins that the specification does not define; an annotation of the image declares them.
OPTIONAL = ("app-add", "app-start", "app-stop", "app-rm", "app-reopen-log", "app-update")
PROGRAMS.update(dict.fromkeys(OPTIONAL, "callins.apps"))
#: ``-I``: ignore the environment and the current directory; ``-S``: do not import ``site``.
_OPTIONS = "-IS"

_INSIDE = "kurma_stager_default.inside"
# The module by whose file an interpreter finds its library: "os" is frozen into it, but the file must exist.
_LANDMARK = "os"
_PACKAGES = ("kurma_cni", "kurma_core", "kurma_stager_default")
#: Packages of the core that programs of the image may import.
LIGHT = ("linux", "formats", "trees")

# Standard modules that are imported late, and so are not loaded in a fresh interpreter.
_LATE = (
    "fcntl",
    "resource",
    "gc",
    "time",
    "errno",
    "select",
    "stat",
    "os",
    "io",
    "encodings.ascii",
    "encodings.latin_1",
)

_LIST = """
import sys
for name in sys.argv[1:]:
    __import__(name)
found = {name: [getattr(module.__spec__, "origin", None), hasattr(module, "__path__")]
         for name, module in sorted(sys.modules.items())
         if name != "__main__" and getattr(module, "__spec__", None) is not None}
import json
print(json.dumps(found))
"""


def interpreter() -> str:
    """The path of the interpreter's real program, not that of a virtual environment, a shim or a link."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not base:
        raise StagerError("the running Python cannot tell where its program is")
    return os.path.realpath(base)


def fingerprint() -> str:
    """A hash of all inputs of the image: it changes whenever the image would. It costs some hundred ``stat`` calls
    and reads no file."""
    global _known
    if _known is not None and _known.seen == _seen(_known.paths):
        return _known.fingerprint
    program = interpreter()
    loader = _loader(program)
    named = [getattr(sys, "_base_executable", None) or sys.executable, loader, os.__file__]
    paths = [*named, *_directories("inside").values(), *_own_sources(), *_builders()]
    seen = _seen(paths)
    digest = hashlib.sha256(f"{sys.version}\0{sys.implementation.cache_tag}\0{_stdlib()}\0".encode())
    for path in [program, os.path.realpath(loader), *_own_sources(), *_builders()]:
        status = os.stat(path)
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    _known = _Known(paths, seen, digest.hexdigest())
    return _known.fingerprint


class _Known:
    """A cached fingerprint, with the paths and their ``stat`` results that show whether it still holds. A
    long-lived process needs the fingerprint at each start of a pod."""

    __slots__ = ("fingerprint", "paths", "seen")

    def __init__(self, paths: list[str], seen: list[tuple[int, ...]], fingerprint: str) -> None:
        self.paths = paths
        self.seen = seen
        self.fingerprint = fingerprint


_known: _Known | None = None


def _seen(paths: list[str]) -> list[tuple[int, ...]]:
    """``stat`` results of the paths, links followed; empty if one is missing. A directory's changes when an entry
    is added or removed."""
    found: list[tuple[int, ...]] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            return []
        found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def build(rootfs: str, sources: list[tuple[str, str]] | None = None) -> Mapping[str, Any]:
    """Fills the empty directory ``rootfs``; returns the image manifest.

    :param sources: as for :func:`fill`; None: the stager's own modules.
    :raises StagerError: something that the interpreter needs is missing.
    """
    fill(
        rootfs,
        {name: f"{_INSIDE}.{module}" for name, module in PROGRAMS.items()},
        sources or own_modules("inside"),
    )
    for name in PROGRAMS:
        launcher(rootfs, name)
    plain(rootfs)
    return {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": NAME,
        "labels": labels(),
        "app": {
            "exec": [f"/{PREFIX}/bin/python3", _OPTIONS, f"/{PREFIX}/start"],
            "user": "0",
            "group": "0",
            "workingDirectory": "/",
        },
        "annotations": [
            {"name": "kurma.io/stager/python", "value": sys.version.split()[0]},
            {"name": "kurma.io/stager/waits", "value": "true"},
            {"name": "kurma.io/stager/forks", "value": "true"},
            {"name": "kurma.io/stager/userns", "value": "true"},
            {"name": "kurma.io/stager/powers", "value": "true"},
            {"name": "kurma.io/stager/pid", "value": "true"},
            {"name": "kurma.io/stager/volumes", "value": "true"},
            {"name": "kurma.io/stager/secrets", "value": "true"},
            {"name": "kurma.io/stager/isolators", "value": "true"},
            {"name": "kurma.io/stager/logs", "value": "true"},
            {"name": "kurma.io/stager/roots", "value": "true"},
            {"name": "kurma.io/stager/callins", "value": ",".join((*OPTIONAL, "run-contained", "control"))},
        ],
    }


def fill(rootfs: str, programs: Mapping[str, str], sources: list[tuple[str, str]]) -> tuple[str, str]:
    """Installs the interpreter, with programs for it, in an empty directory.

    :param programs: by program name, the module whose ``main`` the program calls.
    :param sources: modules outside of the standard library: ``(name, path)``.
    :returns: the path of the dynamic loader in the image, and the directory of the libraries.
    :raises StagerError: something that the interpreter needs is missing.
    """
    program = interpreter()
    loader = _loader(program)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = f"{rootfs}/{PREFIX}/lib/{version}"
    os.makedirs(f"{library}/lib-dynload")
    for directory in (f"{PREFIX}/bin", "run", "tmp", "etc", "pod", "layers", "volumes", "dev", "proc", "sys"):
        os.makedirs(f"{rootfs}/{directory}", exist_ok=True)
    _copy(program, f"{rootfs}/{PREFIX}/bin/python3")
    waiting = init_program()
    if waiting is not None:
        with open(f"{rootfs}/{INIT}", "wb") as file:
            file.write(waiting)
        os.chmod(f"{rootfs}/{INIT}", 0o755)  # noqa: S103 - a program
    extensions = _modules(program, rootfs, library, programs, sources)
    return loader, _libraries(rootfs, loader, [program, *extensions])


def _loader(program: str) -> str:
    try:
        found = elf.loader_of(program)
    except OSError as error:
        raise StagerError(f"cannot build the stager's image: {program}: {error.strerror}", path=program) from None
    if found is None:
        raise StagerError(f"{program} is linked statically; the stager's image needs a dynamic interpreter")
    return found


def labels() -> list[dict[str, str]]:
    """The image's ``os`` and ``arch`` labels."""
    machine = os.uname().machine
    arch = {"x86_64": "amd64", "i686": "i386"}.get(machine, machine)
    return [{"name": "os", "value": "linux"}, {"name": "arch", "value": arch}]


def _stdlib() -> str:
    return os.path.dirname(os.path.realpath(os.__file__))


def _own_sources() -> list[str]:
    """The source files of Kurma's modules in the image."""
    return [source for _, source in own_modules("inside")]


def own_modules(*parts: str) -> list[tuple[str, str]]:
    """``(module name, source)`` of all modules of Kurma that a program of these packages may import, sorted."""
    return modules_in(_directories(*parts))


def modules_in(packages: Mapping[str, str]) -> list[tuple[str, str]]:
    """``(module name, source)`` of all modules of these packages. :param packages: directories by name."""
    found = []
    for package, directory in packages.items():
        names = [name for name in sorted(os.listdir(directory)) if name.endswith(".py")]
        found += [
            (package if name == "__init__.py" else f"{package}.{name[:-3]}", f"{directory}/{name}")
            for name in names
        ]
    return found


def _directories(*parts: str) -> dict[str, str]:
    """By package name: the directories of these subpackages of the stager, and of the core's light packages."""
    ours = os.path.dirname(os.path.abspath(kurma_stager_default.__file__ or ""))
    core = os.path.dirname(os.path.abspath(kurma_core.__file__ or ""))
    tops = {f"kurma_stager_default.{part}": f"{ours}/{part}" for part in parts}
    tops.update({f"kurma_core.{part}": f"{core}/{part}" for part in LIGHT})
    found = {}
    for package, top in tops.items():
        for directory, below, names in os.walk(top):
            below.sort()
            if "__init__.py" in names:
                found[package + directory[len(top) :].replace("/", ".")] = directory
    return found


def _builders() -> list[str]:
    directory = os.path.dirname(os.path.abspath(kurma_stager_default.__file__ or ""))
    return [f"{directory}/{name}" for name in ("compiling.py", "image.py", "init_program.py", "plugin.py")]


def _copy(source: str, target: str, mode: int = 0o755) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    import shutil

    shutil.copyfile(source, target)
    os.chmod(target, mode)


def _modules(
    program: str, rootfs: str, library: str, programs: Mapping[str, str], sources: list[tuple[str, str]]
) -> list[str]:
    """Compiles the standard modules that are used, Kurma's modules and the programs. A fresh interpreter does it,
    so that the same source gives the same bytes whatever modules this process has loaded.

    :returns: the files of the extension modules.
    """
    from kurma_stager_default import compiling

    listed = _run(program, ["-c", _LIST, *_standard_names(sources)])
    stdlib = _stdlib()
    standard: list[tuple[str, str, str]] = []
    extensions = []
    for name, (origin, package) in decode(listed).items():
        if origin == "built-in" or (origin == "frozen" and name != _LANDMARK):
            continue  # part of the interpreter's program
        if origin is not None and origin.endswith(".so"):
            extensions.append(origin)
            _copy(origin, f"{library}/lib-dynload/{os.path.basename(origin)}")
            continue
        path = name.replace(".", "/") + ("/__init__" if package else "")
        source = f"{stdlib}/{path}.py"
        if os.path.exists(source):
            standard.append((source, f"{library}/{path}.pyc", f"{path}.py"))
    # In the image the top packages are empty: their modules for the host are not needed.
    ours: dict[str, str | None] = {**dict.fromkeys(_PACKAGES), **dict(sources)}
    job = {
        "standard": standard,
        "sources": ours,
        "programs": [(module, f"{rootfs}/{code_of(name)}") for name, module in programs.items()],
        "library": library[len(f"{rootfs}/{PREFIX}") :],
        "directory": library,
    }
    # no_debug_ranges: omits each instruction's columns, which cost memory and serve tracebacks only
    _run(program, ["-X", "no_debug_ranges", compiling.__file__], json.dumps(job))
    return extensions


def code_of(name: str) -> str:
    """The path of a program's code in the image."""
    return f"{PREFIX}/lib/{name}.pyc"


def _standard_names(sources: list[tuple[str, str]]) -> list[str]:
    """The standard modules that Kurma's modules import, read from their sources without importing them."""
    import ast

    names = set(_LATE)
    for _, source in sources:
        with open(source, "rb") as file:
            tree = ast.parse(file.read(), source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return sorted(name for name in names if _wanted(name))


def _wanted(name: str) -> bool:
    top = name.split(".")[0]
    # These are imported under TYPE_CHECKING only, or compiled away.
    return top not in (*_PACKAGES, "__future__", "collections", "typing")


def _run(program: str, arguments: list[str], stdin: str = "") -> str:
    return _output([program, "-ISB", *arguments], stdin)


def _output(command: list[str], stdin: str = "") -> str:
    import subprocess

    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:]
        raise StagerError(f"cannot build the stager's image: {command[0]}: {''.join(said) or 'it failed'}")
    return done.stdout


def _libraries(rootfs: str, loader: str, objects: list[str]) -> str:
    """Copies the loader and the shared libraries. :returns: the libraries' directory in the image."""
    _copy(loader, f"{rootfs}{loader}")
    try:
        found = elf.libraries(loader, objects, _output)
    except OSError as error:
        raise StagerError(
            f"cannot build the stager's image: {error.filename} {error.strerror}", path=error.filename
        ) from None
    for place, path in sorted(found.items()):
        _copy(path, f"{rootfs}{place}")
    return os.path.dirname(next(iter(found), loader))


def plain(rootfs: str) -> None:
    """Sets fixed modes and times, so that the same interpreter makes the same image under any umask and at any
    time. Only root may write to the files."""
    for directory, _, names in os.walk(rootfs):
        os.chmod(directory, 0o755)  # noqa: S103 - as directories are
        for name in names:
            path = f"{directory}/{name}"
            # PID 1 may execute its program, and not read it: see ``inside/pod/pid1.py``.
            program = 0o711 if path.endswith(f"/{INIT}") else 0o755
            os.chmod(path, program if os.stat(path).st_mode & 0o100 else 0o644)
            os.utime(path, (0, 0))
        os.utime(directory, (0, 0))


def launcher(rootfs: str, name: str) -> None:
    """Writes a program's start script: compiled code cannot begin with ``#!``. The script reads the code itself,
    since the interpreter would read a large file in small pieces."""
    from kurma_stager_default import compiling

    path = f"{rootfs}/{PREFIX}/{name}"
    with open(path, "w") as file:
        file.write(
            f"#!/{PREFIX}/bin/python3 {_OPTIONS}\n"
            f"import marshal\n"
            f'with open("/{code_of(name)}", "rb", 0) as file:\n'
            f"    code = memoryview(file.readall())[{compiling.HEADER}:]\n"
            f"code = marshal.loads(code)\n"
            f"exec(code)\n"
        )
    os.chmod(path, 0o755)  # noqa: S103 - a program
