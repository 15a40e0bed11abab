"""What the programs of the image are made of: all that they start with, and nothing else (H1)."""

import hashlib
import importlib.util
import marshal
import os
import subprocess
import sys

import kurma_stager_default
import pytest
from kurma_stager_default import compiling, image

import kurma_core

#: What the supervisor and PID 1 of every pod hold of the standard library, besides what each interpreter has by
#: itself. Every module more costs the memory of every idle pod and the start of every pod: where a child or a
#: call-in needs one, it is to be imported there, in a function.
OF_THE_LIBRARY = {"_ctypes", "_json", "_socket", "errno", "fcntl", "gc", "select"}
#: What ``os`` brings along; all of it is frozen into the interpreter.
WITH_OS = {"_collections_abc", "_stat", "genericpath", "os", "os.path", "posixpath", "stat"}
#: Ours, that only children, call-ins and the host need.
NOT_OURS = {
    "kurma_core.linux.inotify",
    "kurma_core.linux.netlink",
    "kurma_core.trees.copying",
    "kurma_core.trees.merging",
    "kurma_stager_default.inside.app.volumes",
    "kurma_stager_default.inside.callins.control_client",
    "kurma_stager_default.inside.callins.logs",
    "kurma_stager_default.inside.callins.run",
    "kurma_stager_default.inside.callins.status",
    "kurma_stager_default.inside.pod.prestarted_root",
}


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory):
    path = tmp_path_factory.mktemp("image")
    image.build(str(path))
    return path


def program(rootfs, name):
    data = (rootfs / image.code_of(name)).read_bytes()
    assert data[:4] == importlib.util.MAGIC_NUMBER
    return marshal.loads(data[compiling.HEADER :])


def modules(code):
    """Name, whether it is a package, and code, in the order in which they are executed."""
    (found,) = [one for one in code.co_consts if isinstance(one, list)]
    return list(reversed(found))


def loaded(names):
    """Modules that a fresh interpreter has in memory once it has loaded these, and did not have before."""
    script = "import sys; before = set(sys.modules)\n"
    script += "for name in sys.argv[1:]: __import__(name)\nprint(*set(sys.modules) - before)"
    packages = [os.path.dirname(module.__path__[0]) for module in (kurma_core, kurma_stager_default)]
    argv = [image.interpreter(), "-SB", "-c", script, *names]
    environment = {"PYTHONPATH": ":".join(packages)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split()) - {"__future__"}  # the image's are compiled without


def test_the_supervisor_imports_this_and_nothing_else(rootfs):
    """Private memory and start-up time of every pod: see the names above for what to do if this fails."""
    names = [name for name, _, _ in modules(program(rootfs, "start"))]
    found = {name for name in loaded(names) if not name.startswith("kurma_")}
    assert found - WITH_OS == OF_THE_LIBRARY, "import it in a function, where it is needed, or say here why not"
    assert NOT_OURS & set(names) == set()
    assert all(importlib.util.find_spec(name) for name in NOT_OURS), "a name above is nobody's"


def test_a_program_brings_all_that_it_starts_with(rootfs):
    """Nothing of ours is looked for on the disk when a program is loaded; each module comes after its imports."""
    for name, main in image.PROGRAMS.items():
        brought = [module for module, _, _ in modules(program(rootfs, name))]
        assert brought[-1] == f"kurma_stager_default.inside.{main}"
        assert len(brought) == len(set(brought))
        assert set(brought) == {one for one in loaded(brought) if one.startswith("kurma_")}


def test_programs_are_lean(rootfs):
    """No words for people in it; and what was executed once is not kept."""
    code = program(rootfs, "start")
    size = (rootfs / image.code_of("start")).stat().st_size
    assert size < 370_000, "every pod's supervisor and PID 1 hold it: import late what only some pods need"
    text = (rootfs / image.code_of("start")).read_bytes()
    for word in (b":param", b"collections.abc", b"__annotations__", b"dict[str, Any]"):
        assert word not in text, word
    columns = [position[2] for _, _, one in modules(code) for position in one.co_positions()]
    assert set(columns) == {None}


def test_a_program_is_read_at_once(rootfs):
    """``marshal.load``, and the interpreter with a large file, read it in pieces: milliseconds of every start."""
    for name in image.PROGRAMS:
        launcher = rootfs / image.PREFIX / name
        code = compile(launcher.read_text(), name, "exec")
        assert {"readall", "loads"} <= set(code.co_names)
        assert "load" not in code.co_names
        assert f"/{image.code_of(name)}" in code.co_consts
        assert launcher.stat().st_mode & 0o777 == 0o755


def test_what_is_compiled_is_what_was_written(tmp_path):
    """Annotations go, values stay; a class, a call-back and a default are as they were."""
    source = tmp_path / "module.py"
    source.write_text(
        "from __future__ import annotations\n"
        "TYPE_CHECKING = False\n"
        "if TYPE_CHECKING:\n    from nowhere import Thing\nelse:\n    OTHER = 1\n"
        "first: int = 1\n"
        "second: Thing\n"
        "class A:\n    __slots__ = ('x',)\n    x: Thing\n"
        "    def f(self, a: Thing = 2, *b: Thing, **c: Thing) -> Thing:\n"
        "        d: Thing = a\n        e: Thing\n        return d\n"
    )
    space = {}
    exec(compile(compiling.lean(str(source)), "shown.py", "exec"), space)
    assert (space["first"], space["OTHER"], space["A"]().f()) == (1, 1, 2)
    assert "second" not in space
    assert not space.get("__annotations__")
    assert space["A"].f.__annotations__ == {}


def test_what_is_imported_late_is_there(rootfs, tmp_path):
    """And nothing else of ours: each file is looked at before each start of a pod."""
    library = next((rootfs / image.PREFIX / "lib").glob("python3.*"))
    there = {
        str(path.relative_to(library).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for package in ("kurma_core", "kurma_stager_default")
        for path in library.glob(f"{package}/**/*.pyc")
    }
    sources = {**dict.fromkeys(("kurma_core", "kurma_stager_default")), **dict(image.own_modules("inside"))}
    assert {"kurma_core.trees.merging", "kurma_core.trees.copying"} <= there <= set(sources)
    assert not there & {"kurma_stager_default.inside.main", "kurma_core.linux.netlink"}
    one, two, three = (tmp_path / f"{name}.py" for name in ("one", "two", "three"))
    one.write_text("def f():\n    from two import g\n    import p.q\n")
    two.write_text("if 1:\n    import three\n")
    three.write_text("TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import four\n")
    names = {"one": str(one), "two": str(two), "three": str(three), "four": str(one), "p": None, "p.q": str(three)}
    modules = compiling.Modules(names)
    assert modules.first("one") == ["one"]
    assert modules.late(["one"]) == {"two", "three", "p", "p.q"}


def test_what_cannot_be_compiled_is_told(tmp_path):
    """H1: one line."""
    from kurma_core.errors import StagerError

    broken = tmp_path / "broken.py"
    broken.write_text("return\n")
    sources = image.own_modules("inside")
    broken_one = [(name, str(broken) if name.endswith(".sandbox") else source) for name, source in sources]
    with pytest.raises(StagerError, match=r"cannot build the stager's image: .*SyntaxError") as caught:
        image.build(str(tmp_path / "rootfs"), broken_one)
    assert "\n" not in str(caught.value)


def test_the_same_source_gives_the_same_bytes(tmp_path):
    """Whatever this process has loaded, whenever it runs, and however its strings are hashed: the same image."""

    def look(path):
        found = {}
        for directory, _, names in os.walk(path):
            for name in (".", *names):
                file = os.path.join(directory, name)
                status = os.stat(file)
                with open(os.devnull if name == "." else file, "rb") as opened:
                    content = hashlib.file_digest(opened, "sha256").hexdigest()
                found[os.path.relpath(file, path)] = (status.st_mode, status.st_mtime_ns, content)
        return found

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        image.build(str(tmp_path / name))
    assert look(tmp_path / "one") == look(tmp_path / "two")
    assert sys.flags.hash_randomization
