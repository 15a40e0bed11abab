"""The pytest plugin and the suites, as a plugin author runs them: on plugins with one mistake each (18)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

PLUGIN = """
import os
from kurma_core.errors import IsolatorError, PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option
from kurma_core.hookspecs.isolator import Compiled
from kurma_core.models.isolator import IsolatorPlan

class Mine:
    def __init__(self, context):
        self.most = context.config["most"]
        {made}

    @hookimpl
    def compile(self, name, value, scope):
        if type(value) is not int or not 0 <= value <= self.most:
            {refuse}
        {compiled}
        return Compiled({plan})

@hookimpl
def kurma_isolator():
    return Driver(Mine, options=(Option("most", int, 9, {help}),), isolators=("example.com/mine",))
"""
RIGHT = {
    "made": "pass",
    "refuse": 'raise IsolatorError("not a number")',
    "compiled": "pass",
    "plan": "IsolatorPlan(umask=value) if scope == 'app' else IsolatorPlan(), 'enforced'",
    "help": '"the most"',
}
SUITE = """
import mine, pytest
from kurma_testing.isolators import IsolatorContract

@pytest.mark.kurma_driver(mine)
class TestMine(IsolatorContract):
    good = (("example.com/mine", 3, "app"),)
    bad = (("example.com/mine", "x", "app"),)
"""


@pytest.fixture
def run(pytester):
    """``run(tests, **mistakes)``: the outcome of pytest on the plugin ``mine`` with these mistakes."""

    def run(tests=SUITE, *arguments, **mistakes):
        pytester.makepyfile(mine=PLUGIN.format(**RIGHT | mistakes), test_mine=tests)
        return pytester.runpytest_subprocess("-p", "no:schemathesis", "-p", "no:cacheprovider", "-q", *arguments)

    return run


def test_a_right_plugin_passes_by_one_mark(run):
    outcomes = run(SUITE, "--strict-markers").parseoutcomes()
    assert outcomes.keys() == {"passed"}


@pytest.mark.parametrize(
    ("mistakes", "test"),
    [
        ({"help": '""'}, "test_options_are_described"),
        ({"made": "assert self.most < 1 << 70"}, "test_wrong_options_are_refused"),
        ({"made": "self.kept = KEPT.append(os.dup(2))"}, "test_making_a_driver_keeps_nothing_open"),
        ({"refuse": "int(value)"}, "test_any_value_is_an_answer_or_a_refusal"),
        ({"refuse": 'raise IsolatorError("two\\nlines")'}, "test_bad_values_are_refused"),
        ({"compiled": "self.fd = os.dup(2)"}, "test_it_only_compiles"),
        ({"plan": "IsolatorPlan(umask=0o1000), 'enforced'"}, "test_the_plan_is_right_for_its_scope"),
        ({"plan": "IsolatorPlan(umask=value), 'ignored', 'why'"}, "test_the_outcome_is_honest"),
    ],
)
def test_each_mistake_fails_its_test(run, mistakes, test):
    found = run("import mine\nmine.KEPT = []\n" + SUITE, **mistakes)
    assert found.ret == 1
    failed = {
        line.split("::")[2].split("[")[0].split(" ")[0] for line in found.outlines if line.startswith("FAILED")
    }
    assert test in failed, failed


def test_a_failure_shows_the_compared_values(run):
    """pytest rewrites the suites' assertions, also where the distribution is installed as editable."""
    found = run(SUITE.replace('"example.com/mine", 3', '"example.com/other", 3'), "-k", "every_name")
    assert any("{'example.com/other'} == {'example.com/mine'}" in line for line in found.outlines), found.outlines


def test_the_plugin_loads_no_suite_and_nothing_of_kurma():
    """pytest loads it for every test run where it is installed."""
    program = "import sys, kurma_testing.plugin; print(*sorted(m for m in sys.modules if m.startswith('kurma')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kurma_testing", "kurma_testing.plugin"]


def test_the_fixtures_are_for_other_tests_too(run):
    tests = """
import mine, pytest
pytestmark = pytest.mark.kurma_driver(mine, {"most": 2})

def test_driver(driver, options, declaration, make_driver):
    assert driver.compile("example.com/mine", 2, "app", None).plan.umask == 2
    assert options == {"most": 2}
    assert declaration.options[0].name == "most"
    assert make_driver(most=5).compile("example.com/mine", 5, "app", None).plan.umask == 5
"""
    run(tests).assert_outcomes(passed=1)


DRIVER = """
    @pytest.fixture
    def driver(self, tmp_path):
        return None
"""


def test_without_a_mark_it_says_what_to_do(run):
    found = run("def test_driver(driver): pass")
    assert any("@pytest.mark.kurma_driver(MODULE)" in line for line in found.outlines + found.errlines)
    # A suite that makes its own driver needs the mark, too: its tests of the options would test nothing.
    own = SUITE.replace("@pytest.mark.kurma_driver(mine)\n", "") + DRIVER
    found = run(own, "-k", "options_are_described")
    found.assert_outcomes(errors=1)
    assert any("@pytest.mark.kurma_driver(MODULE)" in line for line in found.outlines)


def test_a_plugin_that_skips_this_host(run):
    skips = 'raise PluginSkipped("needs more")'
    outcomes = run(SUITE.replace("(mine)", "(mine, skips=True)"), made=skips).parseoutcomes()
    assert outcomes.keys() == {"passed", "skipped"}  # the declaration can be looked at all the same
    assert run(made=skips).ret == 1


HOST = """
import os, pytest, socket, subprocess

@pytest.mark.kurma_root
def test_host():
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    with socket.create_server(("127.0.0.1", 0)):
        pass
    assert os.listdir("/run") == []
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
"""


@pytest.mark.root
def test_a_host_of_namespaces(run, monkeypatch):
    monkeypatch.delenv("KURMA_TEST_HOST", raising=False)
    before = sorted(os.listdir("/run"))
    run(HOST).assert_outcomes(skipped=1)
    run(HOST, "--kurma-host").assert_outcomes(passed=1)
    assert sorted(os.listdir("/run")) == before


FETCHER = """
import io, os, pytest, threading
from kurma_core.cancellation import check, current
from kurma_core.errors import FetchNotFoundError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.fetcher import RemoteArchive
from kurma_testing.fetchers import FetcherContract

class Stream:
    def __init__(self, stalls, gate):
        self.stalls, self.gate, self.left = stalls, gate, 2
    def read(self, size):
        self.left -= 1
        if self.stalls and not self.left:
            self.gate.wait()
            return b""
        return b"x" if self.left >= 0 else b""
    def close(self):
        {closed}
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.close()

class Blob:
    size, digest = None, None
    def __init__(self, key):
        self.key = key
    @hookimpl
    def open(self, offset):
        stream = Stream(self.key == "mine:stalls", threading.Event())
        stream.left -= min(offset, 2)
        return stream

class Mine:
    def __init__(self, context):
        pass
    @hookimpl
    def resolve(self, locator):
        check()
        if locator == "mine:hangs":
            gate = threading.Event()
            {waited}
        if locator == "mine:none":
            raise FetchNotFoundError("no such image")
        if locator not in ("mine:good", "mine:stalls"):
            raise UsageError("not a locator of mine")
        {made}
        check()
        return RemoteArchive(locator, locator, "https", Blob(locator))

@hookimpl
def kurma_fetcher():
    return Driver(Mine)

import sys

@pytest.mark.kurma_driver(sys.modules[__name__])
class TestMine(FetcherContract):
    good = pytest.fixture(lambda self: "mine:good")
    missing = pytest.fixture(lambda self: "mine:none")
    malformed = pytest.fixture(lambda self: "mine:?")
    hanging = pytest.fixture(lambda self: "mine:hangs")
    stalling = pytest.fixture(lambda self: "mine:stalls")
"""
RIGHT_FETCHER = {
    "closed": "self.gate.set()",
    "waited": "with current().waking(gate.set): gate.wait()",
    "made": "pass",
}


@pytest.mark.parametrize(
    ("mistakes", "test"),
    [
        ({}, ""),
        ({"closed": "pass"}, "test_a_read_that_waits_ends_when_the_stream_is_closed"),
        ({"waited": "gate.wait(20)"}, "test_a_wait_for_the_server_ends_when_it_is_cancelled"),
        ({"made": "self.kept = os.dup(2)"}, "test_it_can_be_cancelled_at_any_point"),
    ],
)
def test_a_fetcher_that_waits(run, mistakes, test):
    found = run(FETCHER.format(**RIGHT_FETCHER | mistakes), "-k", "wait or any_point")
    failed = {line.split("::")[2].split(" ")[0] for line in found.outlines if line.startswith("FAILED")}
    assert failed == {test} - {""}, found.outlines
    assert found.parseoutcomes()["passed"] == (2 if test else 3)


NAMES = """
import os, pytest, sys
from kurma_core.errors import FetchError, UsageError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_testing.fetchers import FetcherContract

class Mine:
    def __init__(self, context):
        self.file = os.path.join(context.auth_dir, "mine")
    @hookimpl
    def resolve(self, locator):
        raise UsageError("not a locator of mine")
    @hookimpl
    def expand_name(self, name, registry):
        if not name.isascii() or not name.startswith(("name", "other")) or {left}:
            return ()
        return ({scheme} + {host} + "/" + name,)
    @hookimpl
    def log_in(self, locator, user, secret):
        if {refused}:
            raise FetchError("refused", url=locator)
        os.makedirs(os.path.dirname(self.file), exist_ok=True)
        with open(os.open(self.file, os.O_CREAT | os.O_WRONLY, {mode}), "w") as file:
            file.write(secret)
        return self.file
    @hookimpl
    def log_out(self, locator):
        if not (locator == "mine://host.example" and os.path.exists(self.file)):
            raise FetchError("not logged in", url=locator)
        {removed}
        return self.file

@hookimpl
def kurma_fetcher():
    return Driver(Mine)

@pytest.mark.kurma_driver(sys.modules[__name__])
class TestMine(FetcherContract):
    good = pytest.fixture(lambda self: "mine:good")
    login = pytest.fixture(lambda self: ("mine://host.example", "user", "secret"))
    short_name = pytest.fixture(lambda self: "name:tag")
"""
RIGHT_NAMES = {
    "left": "name.startswith('other') and registry",
    "scheme": "'mine://'",
    "host": "(registry or 'hub.example')",
    "refused": "secret != 'secret'",
    "mode": "0o600",
    "removed": "os.unlink(self.file)",
}


@pytest.mark.parametrize(
    ("mistakes", "test"),
    [
        ({}, ""),
        ({"left": "False"}, "test_names_with_another_host_are_left_to_discovery"),
        ({"scheme": "''"}, "test_names_are_expanded_to_whole_locators"),
        ({"left": "True"}, "test_a_short_name_is_expanded_with_the_host"),
        ({"host": "'hub.example'"}, "test_a_short_name_is_expanded_with_the_host"),
        ({"refused": "False"}, "test_credentials_are_checked_and_kept"),
        ({"mode": "0o644"}, "test_credentials_are_checked_and_kept"),
        ({"removed": "pass"}, "test_credentials_are_checked_and_kept"),
    ],
)
def test_a_fetcher_of_names_and_credentials(run, mistakes, test):
    found = run(NAMES.format(**RIGHT_NAMES | mistakes), "-k", "expanded or discovery or kept or logged_out")
    lines = [line for line in found.outlines if line.startswith("FAILED")]
    assert {line.split("::")[2].split(" ")[0].split("[")[0] for line in lines} == {test} - {""}, found.outlines


SERVICE = """
import json, os, pytest, sys
from kurma_core.cancellation import current
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_testing.services import ServiceContract

class Mine:
    def __init__(self, context):
        self.path = context.state_dir + "-seen"
    @hookimpl
    def serve(self, host):
        host.ready()
        for event in host.client.events(follow=True):
            with open(self.path, "a") as file:
                file.write({line})

@hookimpl
def kurma_service():
    return Driver(Mine)

@pytest.mark.kurma_driver(sys.modules[__name__])
class TestMine(ServiceContract):
    @pytest.fixture(autouse=True)
    def place(self, state_dir):
        state_dir.parent.mkdir()
"""


@pytest.mark.parametrize(("line", "failed"), [("json.dumps(event.name)", 0), ("event.name", 1)])
def test_a_service_that_chokes_on_text(run, line, failed):
    found = run(SERVICE.format(line=line), "-k", "hostile")
    found.assert_outcomes(passed=1 - failed, failed=failed)


def test_a_hook_is_cancelled_at_every_second_power_and_while_it_waits():
    """Of its looks at the operation."""
    from kurma_testing.contract import cancelled_midway

    from kurma_core.cancellation import check, pause

    came: list[int] = []
    ended: list[bool] = []

    def hook():
        came.append(0)
        for _ in range(2):
            check()
            came[-1] += 1
        pause(60 if len(came) in (3, 7) else 0)
        came[-1] += 1

    def then():
        ended.append(came[-1] == 3)

    cancelled_midway(hook, then)
    assert came == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ended == [False, False, False, True] * 2
