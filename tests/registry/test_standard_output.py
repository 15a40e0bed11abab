"""What plugins print is not output of a command; ``--debug`` traces their calls."""

import json

import pytest

PRINTS = """
import threading
print("printed at import")
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver

class Network:
    def __init__(self, context):
        print("printed by the factory")
        thread = threading.Thread(target=print, args=("printed by a thread",))
        thread.start()
        thread.join()

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
    def check_config(self, config):
        print("printed by a hook")

@hookimpl
def kurma_network():
    return Driver(Network)
"""
CONFIG = "container_networks: [{name: wire, plugin: one, password: hushhush}]"


@pytest.fixture
def prints(install, config):
    def make():
        install("kurma-prints", {"one": PRINTS})
        config(CONFIG)

    return make


def test_what_a_plugin_prints_goes_to_standard_error(prints, run_kurma):
    prints()
    code, out, told = run_kurma("network list --format json")
    assert code == 0
    assert [one["name"] for one in json.loads(out) if one["name"] == "wire"] == ["wire"]
    for place in ("at import", "by the factory", "by a thread", "by a hook"):
        assert f"printed {place}\n" in told


def test_debug_traces_calls(prints, run_kurma):
    prints()
    code, out, told = run_kurma("--debug network list --format json")
    assert (code, bool(json.loads(out))) == (0, True)
    (line,) = [line for line in told.splitlines() if "networks/one check_config" in line]
    assert line.startswith("kurma: debug: kurma.networks/one check_config: ")
    assert line.endswith(" ms, NoneType")
    assert "hushhush" not in told
    assert "debug:" not in run_kurma("network list")[2]


FAILS = """
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option

class Fetcher:
    def __init__(self, context):
        self._password = context.config["password"]

    @hookimpl
    def resolve(self, locator):
        table = {self._password: 1}
        return table[locator.partition(":")[2]]

@hookimpl
def kurma_fetcher():
    return Driver(Fetcher, options=(Option("password", str, "", "of the server"),), locators="name")
"""


def test_debug_shows_where_a_plugin_failed(install, config, run_kurma):
    """Its file and line, and no value: the arguments and attributes of the call may be secrets."""
    site = install("kurma-fails", {"fails": FAILS}, group="kurma.fetchers")
    config("plugins: {fetchers: {fails: {config: {password: hushhush}}}}")
    code, out, told = run_kurma("image fetch fails:box")
    message = "kurma: fails:box: fetcher plugin 'fails' of kurma-fails 1.0 failed in resolve: KeyError: 'box'\n"
    assert (code, out) == (125, "")
    assert told.startswith(message)
    assert "kurma --debug" in told
    (file,) = site.glob("kurma_test_plugin_*.py")
    code, out, told = run_kurma("--debug image fetch fails:box")
    assert (code, out) == (125, "")
    line = FAILS.splitlines().index('        return table[locator.partition(":")[2]]') + 1
    assert f'File "{file}", line {line}, in resolve' in told
    assert "kurma: debug: kurma.fetchers/fails resolve: " in told
    assert message in told
    assert "hushhush" not in told
