"""The plugin index: what it saves a start, when it is made anew, and when it is not believed."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kurma_isolators_linux import driver

from kurma_core.config import load
from kurma_core.hookspecs import GROUPS
from kurma_core.plugins import contract
from kurma_core.plugins.index import NAME
from kurma_core.plugins.registry import PluginRegistry
from tests.kit.installed import unpack
from tests.kit.waiting import until

NETWORKS = "kurma.networks"
#: Modules that find plugins and check them: most of the time that this takes is their import.
FINDING = {"importlib.metadata", "stevedore", "pluggy", "inspect", "difflib"}
PROGRAM = """
import json, sys
from kurma_core.config import load
from kurma_core.plugins.registry import PluginRegistry
plugins = PluginRegistry(load(*sys.argv[1:3]))
for name in sys.argv[3:]:
    plugins.driver("kurma.networks", name)
print(json.dumps([plugins.names("kurma.networks"), list(sys.modules)]))
"""


class Site:
    """A directory of distributions as on ``sys.path``, and processes that have it there."""

    def __init__(self, directory, network):
        self.directory = directory / "site"
        self.state = directory / "state"
        self.network = network
        for made in (self.directory, self.state):
            made.mkdir()

    @property
    def index(self):
        return self.state / NAME

    def install(self, name, source=None, version="1.0", group=NETWORKS):
        """A distribution ``kurma-NAME`` with one plugin ``NAME``."""
        module = f"kurma_test_{name}"
        sources = {module: textwrap.dedent(source or self.network)}
        return unpack(self.directory, f"kurma-{name}", f"[{group}]\n{name} = {module}", sources, version=version)

    def unrelated(self, count):
        for number in range(count):
            unpack(self.directory, f"other-{number}", f"[console_scripts]\nother{number} = other:main")

    def start(self, *drivers, **variables):
        """The names of network plugins as a new process finds them, and the modules that it imported; it makes
        these drivers."""
        command = [sys.executable, "-P", "-c", PROGRAM, self.directory.parent, self.state, *drivers]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.directory),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        names, modules = json.loads(done.stdout)
        return names, set(modules)

    def warm(self, *drivers):
        """Starts processes until one finds everything in the index: what has just changed is not remembered."""
        until(lambda: not FINDING & self.start(*drivers)[1], "a start from the index")

    def declared(self, name):
        return json.loads(self.index.read_text())["declarations"][f"{self.directory}:{NETWORKS}/{name}"]


@pytest.fixture
def site(tmp_path, network):
    (tmp_path / "kurma.json").write_text("{}")
    found = Site(tmp_path, network)
    found.install("one")
    return found


def test_a_start_that_finds_all_in_the_index_looks_for_nothing(site):
    names, modules = site.start("one")
    assert "one" in names
    assert {"importlib.metadata", "stevedore", "pluggy"} <= modules
    site.warm("one")
    assert "kurma_test_one" in site.start("one")[1]


def test_it_keeps_what_a_driver_declares(site):
    site.warm("one")
    declared = site.declared("one")["declared"]
    assert declared["aliases"] == ["example.com/one"]
    assert (declared["locators"], declared["example"], declared["annotations"]) == ("address", "", [])
    assert site.index.stat().st_mode & 0o777 == 0o600


def test_what_isolator_plugins_declare_is_kept(tmp_path):
    (tmp_path / "state").mkdir()

    def kept():
        registry = PluginRegistry(load(state_dir=str(tmp_path / "state")))
        registry.drivers("kurma.isolators")
        return registry._index.declaration(registry._plugin("kurma.isolators", "linux"))

    assert until(kept).isolators == driver.ISOLATORS
    assert kept().default_isolators == driver.DEFAULTS
    assert kept().exclusive == driver.EXCLUSIVE
    assert kept().gated.keys() == driver.GATED.keys()
    assert kept().gated["host/api-access"] == ["full", "read"]
    assert kept().gated["kurma.io/devices"] is None


IMPLEMENTING = """
import sys
from kurma_core.config import load
from kurma_core.plugins.registry import PluginRegistry
found = PluginRegistry(load(*sys.argv[1:3])).implementing("kurma.networks", "discover")
print(*found, "kurma_test_one" in sys.modules, "kurma_test_finds" in sys.modules)
"""


def test_the_plugins_that_have_a_hook_are_known_without_them(site, network):
    """18: networks are discovered by those plugins alone that can. Options may choose another class."""
    finds = network.replace(
        "    def remove(self, config): pass",
        "    def remove(self, config): pass\n    @hookimpl\n    def discover(self): return {}",
    )
    site.install("finds", finds)
    site.warm("one", "finds", "bridge", "lo")

    def implementing():
        command = [sys.executable, "-P", "-c", IMPLEMENTING, site.directory.parent, site.state]
        environment = {**os.environ, "PYTHONPATH": str(site.directory), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.check_output(command, env=environment, text=True).split()

    *names, one, other = implementing()
    assert "finds" in names
    assert {"one", "bridge", "lo"}.isdisjoint(names)
    assert (one, other) == ("False", "False")
    config = {"plugins": {"networks": {"one": {"config": {"size": 4}}}}}
    (site.directory.parent / "kurma.json").write_text(json.dumps(config))
    assert "one" in implementing()


@pytest.mark.parametrize("change", ["install", "remove", "upgrade", "entry points"])
def test_what_is_installed_changes(site, change):
    info = site.install("two")
    site.warm("one", "two")
    if change == "install":
        site.install("three")
        expected = {"one", "two", "three"}
    elif change == "remove":
        (info / "METADATA").unlink()
        (info / "entry_points.txt").unlink()
        info.rmdir()
        expected = {"one"}
    elif change == "upgrade":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kurma-two\nVersion: 2.0\n")
        (info / "entry_points.txt").write_text(f"[{NETWORKS}]\nagain = kurma_test_two\n")
        info.rename(info.with_name("kurma_two-2.0.dist-info"))
        expected = {"one", "again"}
    else:
        (info / "entry_points.txt").write_text(f"[{NETWORKS}]\nother = kurma_test_two\n")
        expected = {"one", "other"}
    assert {"one", "two", "three", "again", "other"} & set(site.start()[0]) == expected
    site.warm("one")
    assert {"one", "two", "three", "again", "other"} & set(site.start()[0]) == expected


def test_a_changed_module_is_checked_again(site):
    """As of an editable install: no distribution changes."""
    site.warm("one")
    module = site.directory / "kurma_test_one.py"
    module.write_text(module.read_text().replace("example.com/one", "example.com/other"))
    assert {"stevedore", "pluggy"} <= site.start("one")[1]
    site.warm("one")
    assert site.declared("one")["declared"]["aliases"] == ["example.com/other"]
    module.write_text(module.read_text().replace("def kurma_network()", "def kurma_network(unknown)"))
    with pytest.raises(subprocess.CalledProcessError):
        site.start("one")


@pytest.mark.parametrize("change", ["Kurma's version", "the specification", "Kurma's hooks"])
def test_what_another_kurma_checked_is_checked_again(site, change):
    site.warm("one")
    value = json.loads(site.index.read_text())
    (entry,) = [one for key, one in value["declarations"].items() if key.endswith("/one")]
    specification = f"hookspecs/{'network' if change == 'the specification' else '__init__'}.py"
    (file,) = [file for file in entry["files"] if file.endswith(specification)]
    if change == "Kurma's version":
        entry["kurma"] = "0.0.1"
    else:
        entry["files"][file][1] += 1
    site.index.write_text(json.dumps(value))
    assert {"stevedore", "pluggy"} <= site.start("one")[1]
    site.warm("one")


#: Members of a driver besides its hooks, by group.
MEMBERS = {"kurma.stagers": "name = 'one'"}
DECLARED = {"kurma.isolators": "isolators=('example.com/one',)"}
#: What hooks return that the test calls; others return None.
RETURNED = {
    "resolve": "RemoteArchive('a', 'b', 'file', Blob())",
    "start": "Running()",
    "compile": "Compiled(None)",
}
ALL_KINDS = """
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.fetcher import RemoteArchive
import io

class Blob:
    key = size = digest = None
    @hookimpl
    def open(self, offset): return io.BytesIO(b"bytes")

class Running:
    pid, identity = 1, {}
    @hookimpl
    def wait_running(self): return True
    @hookimpl
    def wait(self): return None
    @hookimpl
    def alive(self): return True
    @hookimpl
    def fileno(self): return 0
    @hookimpl
    def signal(self): pass
    @hookimpl
    def close(self): pass

class Every:
    def __init__(self, context): pass
"""
USES_ALL = """
import json, sys
from kurma_core.config import load
from kurma_core.hookspecs import GROUPS
from kurma_core.plugins.registry import PluginRegistry
plugins = PluginRegistry(load(*sys.argv[1:3]))
made = {group: plugins.driver(group, group.partition(".")[2]) for group in GROUPS}
blob = made["kurma.fetchers"].resolve("a", None).blob
assert blob.open(0).read(2) == b"by" and blob.signature() is None
assert made["kurma.stagers"].start(None, None).alive()
print(json.dumps(list(sys.modules)))
"""


def test_a_start_with_a_driver_of_each_kind_is_from_the_index(site):
    """Also if it calls objects that a driver returned: they are in the index, too."""
    for group, hook in GROUPS.items():
        source = [ALL_KINDS, f"    {MEMBERS.get(group, '')}"]
        source += [
            f"    @hookimpl\n    def {one.name}(self): return {RETURNED.get(one.name)}"
            for one in contract.kinds(group)[0].HOOKS.values()
            if one.required
        ]
        source.append(f"@hookimpl\ndef {hook}():\n    return Driver(Every, {DECLARED.get(group, '')})")
        site.install(group.partition(".")[2], "\n".join(source), group=group)
    (site.directory.parent / "kurma.json").write_text('{"plugins": {"services": {"services": {}}}}')
    command = [sys.executable, "-P", "-c", USES_ALL, site.directory.parent / "kurma.json", site.state]
    environment = {**os.environ, "PYTHONPATH": str(site.directory), "PYTHONDONTWRITEBYTECODE": "1"}

    def modules():
        return set(json.loads(subprocess.check_output(command, env=environment, text=True)))

    assert {"stevedore", "pluggy"} <= modules()
    until(lambda: not FINDING & modules(), "a start from the index")


def test_the_hooks_of_a_driver_are_kept_by_its_class(site):
    site.warm("one")
    checked = {"add": ["context"], "delete": ["context"], "check": ["context"]}
    checked |= {"setup": ["config"], "remove": ["config"]}
    assert site.declared("one")["hooks"] == {"kurma_test_one:Network NetworkHooks": checked}
    value = json.loads(site.index.read_text())
    for entry in value["declarations"].values():
        entry["hooks"] = {"kurma_test_one:Network NetworkHooks": 5}
    site.index.write_text(json.dumps(value))
    site.warm("one")
    assert site.declared("one")["hooks"]["kurma_test_one:Network NetworkHooks"] == checked


@pytest.mark.parametrize(
    "change", ["a base class of another package", "the driver that the configuration chooses"]
)
def test_a_changed_class_is_checked_again(site, change):
    """18: the class is what was checked, not the module of the entry point."""
    base = site.directory / "kurma_test_base.py"
    base.write_text(site.network.split("@hookimpl\ndef kurma_network")[0])
    source = """
        import os
        from kurma_core.hookspecs import hookimpl
        from kurma_core.hookspecs.driver import Driver
        from kurma_test_base import Network as Base

        class Network(Base): pass
        class Other(Base):
            @hookimpl
            def publishes(self, **any): return True

        @hookimpl
        def kurma_network():
            return Driver(create=Other if os.environ.get("KURMA_TEST_OTHER") else Network)
    """
    site.install("two", source)
    site.warm("two")
    if change == "a base class of another package":
        base.write_text(base.read_text().replace("def add(self, context)", "def add(self, contexts)"))
        environment = {}
    else:
        environment = {"KURMA_TEST_OTHER": "1"}
    with pytest.raises(subprocess.CalledProcessError) as caught:
        site.start("two", **environment)
    said = "add takes contexts, which its hook does not pass; the nearest is context"
    assert (said if not environment else "publishes takes **any") in caught.value.stderr


def test_a_class_that_a_function_makes_is_checked_at_each_start(site):
    source = site.network.replace(
        "def kurma_network():", "def kurma_network():\n    class Network(globals()['Network']): pass"
    )
    site.install("two", source)
    site.warm("one")
    found = None
    for _ in range(3):
        found = site.start("two")[1]
    assert "pluggy" in found


def test_processes_with_another_path_keep_the_index(site, tmp_path):
    """kurmad and the command have different directories first on ``sys.path``."""
    site.warm("one")
    (tmp_path / "other").mkdir()
    other = Site(tmp_path / "other", site.network)
    other.install("two")
    (tmp_path / "other/kurma.json").write_text("{}")
    other.state = site.state
    other.warm("two")
    assert not FINDING & site.start("one")[1]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1}', b"\xff", b"[" * 100_000])
def test_a_bad_one_is_made_anew(site, content):
    site.warm("one")
    site.index.write_bytes(content)
    assert "one" in site.start("one")[0]
    site.warm("one")


@pytest.mark.parametrize("key", ["version", "directories", "declarations"])
def test_one_of_another_form_is_made_anew(site, key):
    site.warm("one")
    value = json.loads(site.index.read_text())
    value[key] = 9 if key == "version" else {name: {} for name in value[key]}
    site.index.write_text(json.dumps(value))
    assert "one" in site.start("one")[0]
    site.warm("one")


def _lie(index):
    """A plugin that is not installed."""
    value = json.loads(index.read_text())
    for entry in value["directories"].values():
        entry["plugins"] = [[NETWORKS, "lie", "os", "kurma-lie", "1", "/nowhere"]]
    index.write_text(json.dumps(value))


def test_what_it_says_is_used(site):
    """The lie that the tests below must not find."""
    site.warm("one")
    _lie(site.index)
    assert "lie" in site.start()[0]


@pytest.mark.parametrize("which", ["file", "directory", "above", "link", "fifo"])
def test_it_is_not_believed_if_others_may_write_it(site, tmp_path, which):
    site.warm("one")
    _lie(site.index)
    if which == "link":
        site.index.rename(tmp_path / "elsewhere")
        site.index.symlink_to(tmp_path / "elsewhere")
    elif which == "fifo":
        site.index.unlink()
        os.mkfifo(site.index)
    else:
        place = {"file": site.index, "directory": site.state, "above": tmp_path}[which]
        place.chmod(place.stat().st_mode | 0o002)
    names, modules = site.start()
    assert "one" in names
    assert "lie" not in names
    assert "importlib.metadata" in modules
    if which in ("file", "link", "fifo"):  # its place is root's alone: another is made there
        site.warm("one")
        assert site.index.is_file()
        assert not site.index.is_symlink()
        assert site.index.stat().st_mode & 0o777 == 0o600


@pytest.mark.root
def test_it_is_not_believed_if_it_belongs_to_another_user(site):
    site.warm("one")
    _lie(site.index)
    os.chown(site.index, 12345, 12345)
    assert "lie" not in site.start()[0]
    os.chown(site.state, 12345, 12345)
    assert "lie" not in site.start()[0]


def test_a_sticky_directory_above_may_be_everybodys(site, tmp_path):
    tmp_path.chmod(0o1777)
    site.warm("one")


@pytest.mark.parametrize("why", ["no directory", "not writable"])
def test_a_process_that_cannot_write_it_works_without(site, why):
    if why == "no directory":
        site.state.rmdir()
    else:
        site.index.mkdir()
    for _ in range(2):
        names, modules = site.start("one")
        assert "one" in names
        assert "stevedore" in modules
    assert site.state.exists() == (why == "not writable")


def test_many_processes_at_once(site):
    site.install("two")
    command = [sys.executable, "-P", "-c", PROGRAM, site.state.parent, site.state, "one", "two"]
    environment = {**os.environ, "PYTHONPATH": str(site.directory)}
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(8)]
    found = [process.communicate()[0] for process in running]
    assert all({"one", "two"} <= set(json.loads(output)[0]) for output in found)
    site.warm("one", "two")
    assert os.listdir(site.state) == [NAME]


def test_environments_with_the_same_plugin_have_each_their_declaration(site, tmp_path):
    """Of one version, and by one name of a module: as of two checkouts."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other/kurma.json").write_text("{}")
    other = Site(tmp_path / "other", site.network.replace("example.com/one", "example.com/other"))
    other.state = site.state
    other.install("one")
    site.warm("one")
    assert {"stevedore", "pluggy"} <= other.start("one")[1]
    other.warm("one")
    assert not FINDING & site.start("one")[1]
    assert site.declared("one")["declared"]["aliases"] == ["example.com/one"]
    assert other.declared("one")["declared"]["aliases"] == ["example.com/other"]


def test_an_alias_is_resolved_without_loading_plugins(site, tmp_path):
    site.install("two", site.network.replace("example.com/one", "example.com/two"))
    site.warm("one", "two")
    program = (
        "import sys; from kurma_core.config import load; from kurma_core.plugins.registry import PluginRegistry\n"
        "plugins = PluginRegistry(load(*sys.argv[1:3]))\n"
        "print(plugins.resolve_alias('kurma.networks', 'example.com/two'))\n"
        "print(*(name for name in sys.modules if name.startswith('kurma_test')))"
    )
    off = {name: {"enabled": False} for name in ("aci", "bridge", "cni", "lo")}
    (tmp_path / "kurma.json").write_text(json.dumps({"plugins": {"networks": off}}))
    command = [sys.executable, "-P", "-c", program, tmp_path / "kurma.json", site.state]
    environment = {**os.environ, "PYTHONPATH": str(site.directory)}
    output = subprocess.check_output(command, env=environment, text=True)
    assert output == "two\n\n"


def test_the_list_of_plugins_looks_at_every_distribution(site, tmp_path):
    """So that it shows what is installed whatever the index says, and mends the index."""
    site.warm("one")
    _lie(site.index)
    program = (
        "import sys; from kurma_core.config import load; from kurma_core.plugins.registry import PluginRegistry\n"
        "print(*(info.name for info in PluginRegistry(load(*sys.argv[1:3])).listing(load=False)))"
    )
    command = [sys.executable, "-P", "-c", program, tmp_path, site.state]
    environment = {**os.environ, "PYTHONPATH": str(site.directory)}
    names = subprocess.check_output(command, env=environment, text=True).split()
    assert "one" in names
    assert "lie" not in names
    assert "lie" not in site.start()[0]


# --- the command -----------------------------------------------------------------------------------------------

#: What a warm command has no need of, and would wait for.
NEEDLESS = {"dataclasses", "inspect", "email", "zipfile", "uuid", "ipaddress", "urllib.parse"}
NEEDLESS |= {"ast", "shutil", "subprocess", "kurma_core.plugins.claims"}
COMMAND = """
import sys
from kurma_core.cli.main import main
code = main(sys.argv[1:])
print("MODULES", *sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.root
@pytest.mark.parametrize("command", ["list", "run"])
def test_a_warm_command_loads_nothing_that_finds_plugins(kurma, site, tmp_path, command):
    """Nor commands of plugins."""
    site.install("guests", "raise SystemExit('imported')", group="kurma.commands")
    image = kurma.out("image", "fetch", kurma.image).strip()
    words = ["list"] if command == "list" else ["run", "--rm", "--net", "none", image, "--exec", "/bin/true"]

    def modules():
        done = subprocess.run(
            [sys.executable, "-P", "-c", COMMAND, *words],
            capture_output=True,
            text=True,
            env={**kurma.environment, "PYTHONPATH": str(site.directory)},
            check=True,
            timeout=60,
        )
        return set(done.stderr.rpartition("MODULES ")[2].split())

    until(lambda: not FINDING & modules(), f"kurma {command} without {FINDING}", patience=60)
    assert not {*NEEDLESS, "kurma_test_guests"} & modules()


@pytest.mark.root
def test_a_warm_command_opens_nothing_of_other_distributions(kurma, site, tmp_path):
    """However many there are."""
    site.unrelated(300)
    environment = {**kurma.environment, "PYTHONPATH": str(site.directory)}
    words = ["run", "--rm", "--net", "none", kurma.image, "--exec", "/bin/true"]
    trace = tmp_path / "trace"

    def touched():
        traced = ["strace", "-e", "trace=%file", "-o", trace, sys.executable, "-P", "-c", COMMAND]
        subprocess.run([*traced, *words], capture_output=True, env=environment, check=True, timeout=60)
        return [line for line in Path(trace).read_text().splitlines() if "/other_" in line]

    assert len(touched()) >= 300  # the first one looks at each
    until(lambda: not touched(), "a start that touches no other distribution", patience=60)
