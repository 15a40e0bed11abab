"""Distributions as pip leaves them: a directory on ``sys.path`` with modules and ``dist-info``."""

import itertools
import sys
import textwrap

import pytest

from kurma_core.cli.main import main
from kurma_core.config import load
from kurma_core.plugins.registry import PluginRegistry
from tests.kit import installed

_numbers = itertools.count()

NETWORK = """
from kurma_core.hookspecs.driver import Driver, Option
from kurma_core.hookspecs import hookimpl

class Network:
    def __init__(self, context): self.context = context
    @hookimpl
    def setup(self, config): pass
    @hookimpl
    def add(self, context): pass
    @hookimpl
    def delete(self, context): pass
    @hookimpl
    def check(self, context): pass
    @hookimpl
    def remove(self, config): pass

@hookimpl
def kurma_network():
    return Driver(
        create=Network,
        options=(
            Option("size", int, 3, "how big", least=1, most=9),
            Option("rate", float, 1.0, "how fast"),
            Option("names", list, [], "which"),
        ),
        aliases=("example.com/one",),
    )
"""


@pytest.fixture
def network():
    """Source of a network plugin that does nothing."""
    return NETWORK


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install("name", {"entry": source}, group=…)``: a distribution, each entry a module of that source."""
    before = set(sys.modules)

    def install(name, entries, *, group="kurma.networks", version="1.0"):
        site = tmp_path / f"site{next(_numbers)}"
        modules = {entry: f"kurma_test_plugin_{next(_numbers)}" for entry in entries}
        lines = [f"[{group}]", *(f"{entry} = {module}" for entry, module in modules.items())]
        sources = {modules[entry]: textwrap.dedent(source) for entry, source in entries.items()}
        installed.unpack(site, name, "\n".join(lines), sources, version=version)
        monkeypatch.syspath_prepend(str(site))
        return site

    yield install
    for module in set(sys.modules) - before:
        if module.startswith("kurma_test_plugin_"):
            del sys.modules[module]


@pytest.fixture
def registry(tmp_path):
    """``registry("plugins: …")``: a registry over that ``kurma.yml``; what it told the user is in ``.told``."""

    def make(text=""):
        file = tmp_path / "kurma.yml"
        file.write_text(text)
        told = []
        made = PluginRegistry(load(str(file), str(tmp_path / "state")), told.append)
        made.told = told
        return made

    return make


@pytest.fixture
def config(tmp_path):
    """Writes ``kurma.yml``."""
    file = tmp_path / "kurma.yml"
    file.write_text("")
    return file.write_text


@pytest.fixture
def run_kurma(tmp_path, config, capsys, monkeypatch):
    """``run_kurma(words)``: exit code, standard output and standard error of a command line."""
    monkeypatch.setenv("KURMA_CONFIG", str(tmp_path / "kurma.yml"))
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "state").mkdir(mode=0o700)

    def run(line):
        code = main(["--host", "local", "--dir", str(tmp_path / "state"), *line.split()])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """A directory with wheels of the core and of its testing kit."""
    directory = tmp_path_factory.mktemp("wheels")
    installed.build(directory, installed.ROOT, installed.ROOT / "libs/testing")
    return directory


@pytest.fixture(scope="session")
def clean(tmp_path_factory, wheels):
    """A clean environment with the core, from its wheel, and no plugin at all."""
    directory = tmp_path_factory.mktemp("clean")
    installed.make_clean(directory)
    installed.install(directory, wheels, "kurma-core")
    return directory
