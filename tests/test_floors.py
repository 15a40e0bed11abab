"""The house stands: imports go down only, rooms on floor 3 do not know each other, plugins see the public face.

Read from the source, so imports inside functions count as well.
"""

import ast
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from kurma_core.hookspecs import SPECS

ROOT = Path(__file__).parents[1]
CORE = ROOT / "kurma_core"
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
LIBRARIES = sorted(path.parent for path in (ROOT / "libs").glob("*/pyproject.toml"))
EXAMPLES = sorted(path.parent for path in (ROOT / "examples/plugins").glob("*/pyproject.toml"))

#: Rooms by floor; a package is one room.
FLOORS = {
    0: {
        *("appc", "cancellation", "errors", "formats", "json_text", "linux", "models", "schema", "shortage"),
        *("signals", "trees", "value"),
    },
    1: {"api", "hookspecs", "config", "named_files", "spawn_plan"},
    2: {"plugins"},
    3: {
        *("fetching", "trust", "image_store", "rendering", "isolation"),
        *("networking", "staging", "spawner", "metadata", "journal"),
        *("secret_store", "volume_store"),
    },
    4: {"images"},
    5: {"pods"},
    6: {"client", "daemon", "stager_check"},
    7: {"cli"},
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}

#: (room, room): why the one may look at the other, though it is above it or beside it on floor 3.
ALLOWED: dict[tuple[str, str], str] = {}

#: Modules of ``linux`` that any plugin may import.
LINUX = {
    *("beneath", "capabilities", "cgroups", "files", "inotify", "mounts", "namespaces", "netlink", "process"),
    "programs",
}
#: Modules that plugins may import. public_modules.md describes those of the hooks, of values and of ``linux``.
PUBLIC = {
    *("cancellation", "errors", "json_text", "named_files", "schema", "value"),
    *("hookspecs", *(f"hookspecs.{name}" for name in ("driver", "pod_setup"))),
    *(f"hookspecs.{name}" for name, *_ in SPECS.values()),
    *(f"models.{name}" for name in ("health", "image", "isolator", "network", "pod", "streams")),
    *(
        f"appc.{name}"
        for name in ("cni_result", "image", "image_name", "layering", "pod", "quantity", "reify", "types")
    ),
    *(f"linux.{name}" for name in LINUX),
    *(f"trees.{name}" for name in ("merging", "mount_targets", "overlay", "user_database")),
    *("formats.cri_log", "formats.timestamps"),
}
#: Packages of which plugins may import every module: the client's API and its values.
PUBLIC_PACKAGES = {"api"}
_IN_PODS = "its program inside pods contains the module, and changes with it"
_IN_ROOT = "its program enters the root of a network's image, and executes a script there"
#: Modules that only these plugins may import, each with the reason.
EXCEPTIONS = {
    "linux.bpf": {"stager_default": _IN_PODS},
    "linux.clone": {"stager_default": _IN_PODS},
    "linux.descriptor_passing": {"stager_default": _IN_PODS},
    "linux.exec_errors": {"stager_default": _IN_PODS, "net_aci": _IN_ROOT},
    "linux.execute": {"stager_default": _IN_PODS, "net_aci": _IN_ROOT},
    "linux.libc": {"stager_default": _IN_PODS},
    "linux.terminal": {
        "stager_default": _IN_PODS,
        "stager_rkt": "it sets the line mode of the terminal that the core opens for an entrypoint",
    },
    "formats.detach_keys": {"stager_default": _IN_PODS},
    "formats.elf": {"stager_default": "it looks for the libraries that its image must contain"},
    "formats.small_json": {"stager_default": _IN_PODS},
}

#: Packages of the core that run inside stagers, too.
LIGHT = ("linux", "formats", "trees")
#: Modules that take long to import: none of them in what also runs inside the stager.
HEAVY = {"dataclasses", "enum", "typing", "re", "contextlib", "subprocess", "pathlib", "logging"}


@dataclass(frozen=True)
class Import:
    """``typing``: only for the type checker."""

    file: Path
    line: int
    module: str
    typing: bool

    def __str__(self):
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports(file):
    """Every import of a file; ``from a import b`` counts as ``a`` and as ``a.b``: b may be a module."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    typing = {
        node
        for block in nodes
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = file.relative_to(ROOT).with_suffix("").parts[: -node.level]
                base = ".".join([*package, base] if base else package)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            yield Import(file, node.lineno, name, node in typing)


def sources(directory):
    return sorted(path for path in directory.rglob("*.py") if "tests" not in path.relative_to(directory).parts)


def room_of(file):
    return file.relative_to(CORE).parts[0].removesuffix(".py")


def room_named(module):
    """The room that a dotted name lies in; None: not in the core."""
    parts = module.split(".")
    return parts[1] if parts[0] == "kurma_core" and len(parts) > 1 else None


@cache
def core_imports():
    """Every import of the core. Read once, when a test asks for it: it takes a second."""
    return [item for file in sources(CORE) for item in imports(file)]


def test_every_room_has_a_floor():
    rooms = {room_of(file) for file in sources(CORE)} - {"__init__", "__main__"}
    assert rooms <= set(FLOOR)


def test_the_core_stays_small():
    """A reader finds a module by its folder: a new module takes the place of another."""
    files = sources(CORE)
    assert len(files) <= 340
    folders = [file.parent for file in files if file.name != "__init__.py"]
    assert {folder for folder in folders if folders.count(folder) > 20} == set()


def test_imports_go_down_only():
    wrong = []
    for item in core_imports():
        here, there = room_of(item.file), room_named(item.module)
        if here == there or there not in FLOOR or here not in FLOOR or (here, there) in ALLOWED:
            continue
        up = FLOOR[there] > FLOOR[here]
        sideways = FLOOR[here] == FLOOR[there] == 3
        if up or sideways:
            wrong.append(str(item))
    assert not wrong, "\n".join(wrong)


def test_what_is_allowed_is_needed():
    used = {(room_of(item.file), room_named(item.module)) for item in core_imports()}
    assert set(ALLOWED) <= used


def test_appc_is_pure():
    """The vocabulary of the specification knows no system calls, no files and no configuration."""
    wrong = [
        str(item)
        for item in core_imports()
        if room_of(item.file) == "appc"
        and room_named(item.module)
        not in ("appc", "errors", "formats", "json_text", "models", "schema", "value", None)
    ]
    assert not wrong, "\n".join(wrong)


#: Rooms that the daemon does not reach into past the client and the daemon's interface to the pods.
BELOW = {
    *("fetching", "image_store", "images", "isolation", "metadata", "networking", "pods"),
    *("rendering", "spawner", "staging", "trust"),
}
#: (module of the daemon, module below the client) that are still to go.
PAST_THE_CLIENT = {
    ("http.calls", "pods.daemon_interface"),
    ("http.handlers", "pods.inside.enter_and_attach"),
    ("http.streams", "staging.relay"),
    ("metrics", "fetching.download"),
    ("metrics", "pods.inside.usage"),
    ("operations", "pods.inside.usage"),
}


def reach(*, pods):
    """(module of the daemon, module below the client) of the daemon's imports.

    :param pods: of its pods side and of what puts the daemon together; else of all others.
    """
    found = {}
    for item in core_imports():
        here = ".".join(item.file.relative_to(CORE).with_suffix("").parts)
        if room_of(item.file) == "daemon" and room_named(item.module) in BELOW:
            here = here.removeprefix("daemon.")
            if (here == "kurmad" or here.startswith("pods.")) == pods:
                path = item.module.replace(".", "/")
                if (ROOT / f"{path}.py").exists() or (ROOT / path / "__init__.py").exists():
                    # The longest name of each line: a package, or a module of it.
                    key = here, item.line
                    found[key] = max(found.get(key, ""), item.module.removeprefix("kurma_core."), key=len)
    return {(here, there) for (here, _), there in found.items()}


def test_the_pods_side_of_the_daemon_has_one_interface():
    assert {there for _, there in reach(pods=True)} == {"pods.daemon_interface"}


def test_the_http_side_of_the_daemon_uses_the_client():
    """Equal, so that what is no longer needed leaves the list."""
    assert reach(pods=False) == PAST_THE_CLIENT


def circles(modules):
    """Sets of modules each of which imports itself by way of the others. :param modules: what each imports."""
    reached = {}
    for start in modules:
        pending, seen = [start], set()
        while pending:
            new = modules[pending.pop()] - seen
            seen |= new
            pending += new
        reached[start] = seen
    return {frozenset(b for b in reached[a] if a in reached[b]) for a in modules if a in reached[a]}


def test_no_circle_of_imports():
    """For the type checker alone, too. A module and the package that it lies in are none."""
    named = {file: module_name(file) for file in sources(CORE)}
    modules = {name: set() for name in named.values()}
    for item in core_imports():
        name = named[item.file]
        if item.module in modules and item.module != name and not name.startswith(f"{item.module}."):
            modules[name].add(item.module)
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {frozenset("bc")}
    assert circles(modules) == set()


@pytest.mark.parametrize("directory", [*LIBRARIES, *PLUGINS], ids=lambda path: path.name)
def test_no_circle_of_imports_in_plugins_and_libraries(directory):
    named = {file: ".".join(file.relative_to(directory).with_suffix("").parts) for file in sources(directory)}
    modules = {name: set() for name in named.values()}
    for file, name in named.items():
        modules[name] |= {item.module for item in imports(file) if item.module in modules} - {name}
    # Inside of its pods, the default stager still has some.
    assert {each for each in circles(modules) if not all(".inside." in name for name in each)} == set()


def module_name(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_nothing_of_the_core_needs_the_testing_kit():
    wrong = [
        str(item)
        for item in core_imports()
        if item.module.split(".")[0] in ("kurma_testing", "pytest", "hypothesis")
    ]
    assert not wrong, "\n".join(wrong)


def inside_stagers():
    """What runs inside stager images: the core's light packages, and the plugins' own halves."""
    light = [file for room in LIGHT for file in sources(CORE / room)]
    return light + [file for plugin in PLUGINS for file in plugin.glob("*/inside/**/*.py")]


@pytest.mark.parametrize("file", inside_stagers(), ids=lambda file: str(file.relative_to(ROOT)))
def test_what_runs_inside_a_stager_is_light(file):
    own = (
        file.relative_to(ROOT / "plugins").parts[1] if "plugins" in file.relative_to(ROOT).parts else "kurma_core"
    )
    for item in imports(file):
        top = item.module.split(".")[0]
        if item.typing:
            continue
        assert top not in HEAVY, str(item)
        if top == "kurma_core":
            assert item.module == "kurma_core" or room_named(item.module) in LIGHT, str(item)
        elif top == own:
            assert item.module == own or item.module.split(".")[1] == "inside", str(item)
        else:
            assert top in sys.stdlib_module_names, str(item)


def module_of_core(item):
    """The module of the core that an import names, or has a name of, without ``kurma_core.``; None: it names a
    package."""
    parts = item.module.split(".")[1:]
    if CORE.joinpath(*parts).is_dir():
        return None
    while parts and not CORE.joinpath(*parts).is_dir() and not CORE.joinpath(*parts).with_suffix(".py").exists():
        parts.pop()
    return ".".join(parts) or None


@pytest.mark.parametrize("plugin", [*PLUGINS, *EXAMPLES], ids=lambda path: path.name)
def test_plugins_import_public_modules(plugin):
    allowed = {name.split(";")[0].split(">")[0].split("=")[0].strip() for name in project(plugin)["dependencies"]}
    own = {path.stem for path in plugin.glob("kurma_*")}
    for file in sources(plugin):
        is_test = file.name.startswith(("test_", "conftest"))
        if is_test and plugin not in EXAMPLES:
            continue
        for item in imports(file):
            top = item.module.split(".")[0]
            if top == "kurma_core":
                module = module_of_core(item)
                public = module is None or module in PUBLIC or room_named(item.module) in PUBLIC_PACKAGES
                assert public or plugin.name in EXCEPTIONS.get(module, ()), str(item)
            elif top.startswith("kurma_") and not (is_test and top == "kurma_testing"):
                assert top in own or top.replace("_", "-") in allowed, f"{item}, which it does not depend on"


def test_public_modules_exist_and_the_exceptions_are_needed():
    used = {
        (module_of_core(item), plugin.name)
        for plugin in PLUGINS
        for file in sources(plugin)
        for item in imports(file)
        if item.module.startswith("kurma_core.")
    }
    assert {(module, plugin) for module, plugins in EXCEPTIONS.items() for plugin in plugins} <= used
    assert {module_name(file).removeprefix("kurma_core.") for file in sources(CORE)} >= PUBLIC


@pytest.mark.parametrize("directory", [CORE, *PLUGINS, *EXAMPLES], ids=lambda path: path.name)
def test_no_private_name_of_another_distribution_is_imported(directory):
    """Such a name may change in any version of that distribution. The standard library comes with the interpreter,
    and ``_typeshed`` with every type checker."""
    own = {directory.name, *(path.stem for path in directory.glob("kurma_*"))}
    wrong = []
    for file in sources(directory):
        for item in imports(file):
            top, *rest = item.module.split(".")
            if file.stem.endswith(("_pb2", "_pb2_grpc")):  # generated for these versions of the library
                continue
            if top not in own and top not in sys.stdlib_module_names | {"_typeshed"}:
                wrong += [str(item) for name in (top, *rest) if name.startswith("_") and not name.endswith("__")]
    assert not wrong, "\n".join(wrong)


def project(plugin):
    return tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
