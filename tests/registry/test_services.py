"""Services of kurmad (C1): started, started again, reloaded, stopped; one that fails harms nothing else."""

import logging
import sys
import threading

import pytest
from kurma_testing.services import Answers

from kurma_core.api.operations import Api
from kurma_core.client import Settings
from kurma_core.client.local.managers import Managers
from kurma_core.config import load
from kurma_core.daemon import services as module
from kurma_core.daemon.services import Services
from kurma_core.errors import PluginError
from tests.kit.waiting import until

GROUP = module.GROUP
#: Seconds after the first failure.
PAUSE = 0.01
SOURCE = """
import threading
from kurma_core.cancellation import current
from kurma_core.errors import Cancelled
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, Option

class Service:
    def __init__(self, context):
        if context.config["word"] == "broken":
            raise ValueError("no such word")
        self.words = [context.config["word"]]
        self.served = 0
        self.fail = threading.Event()
        self.hosts = []

    @hookimpl
    def serve(self, host):
        self.served += 1
        self.hosts.append(host)
        if self.words[-1] == "fails":
            raise ValueError("two\\nlines")
        if self.words[-1] == "slow":
            self.fail.wait()
        host.log.info("hello")
        host.ready()
        if self.words[-1] == "stubborn":
            self.fail.wait()
        with current().waking(self.fail.set):
            self.fail.wait()
        if self.words[-1] == "ends":
            return
        if self.words[-1] == "cancels":
            raise Cancelled
        raise OSError("it broke")

@hookimpl
def kurma_service():
    return Driver(Service, options=(Option("word", str, "a", "any"),))
"""
RELOADS = SOURCE.replace(
    "    @hookimpl",
    """
    @hookimpl
    def reload(self, config):
        self.words.append(config["word"])
        if config["word"] == "raises":
            raise ValueError
        return config["word"] != "refused"

    @hookimpl""",
)


class Kurmad:
    """The services of a kurmad, and its configuration."""

    def __init__(self, directory):
        self._file = directory / "kurma.yml"
        self._state = directory / "state"
        self.recovered = threading.Event()
        self.services = Services(
            Api(Answers()),
            self.recovered,
            start_timeout=0.2,
            stop_timeout=0.3,
            pause=lambda failures: PAUSE * 2**failures,
        )

    def use(self, sections):
        """Loads that configuration, from YAML, and waits until its services are what it says."""
        self.read(sections)
        self.recovered.set()
        until(lambda: self.services._wanted is None, "all is started")

    def read(self, sections):
        self._file.write_text(f"plugins: {{services: {sections}}}")
        settings = Settings(str(self._file), str(self._state), host="local")
        self.managers = Managers(settings, load(settings.config_file, settings.state_dir))
        self.services.use(self.managers)

    def driver(self, name="one"):
        """The object of the plugin."""
        return self.managers.registry.driver(GROUP, name)._driver

    def state(self, name="one"):
        return {one.name: one for one in self.services.states()}[name]

    def wait(self, state, name="one"):
        until(lambda: self.state(name).state == state, lambda: f"{state}: {self.state(name)}")
        return self.state(name)


@pytest.fixture
def kurmad(tmp_path):
    made = Kurmad(tmp_path)
    yield made
    made.services.close()


@pytest.fixture
def log(caplog):
    """The log's lines, as they are now."""
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_service_that_is_not_enabled_is_not_imported(kurmad, install, monkeypatch):
    install("one", {"one": SOURCE}, group=GROUP)
    before = set(sys.modules)
    kurmad.use("{}")
    assert kurmad.services.states() == ()
    kurmad.use("{one: {enabled: false}}")
    assert kurmad.services.states() == ()
    assert not {name for name in set(sys.modules) - before if name.startswith("kurma_test_plugin")}


def test_it_is_listed_with_the_line_that_enables_it(kurmad, install):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.use("{}")
    (row,) = [row for row in kurmad.managers.registry.listing() if (row.kind, row.name) == ("services", "one")]
    assert (row.status, row.reason) == (
        "disabled",
        "not enabled in the configuration, as each of its kind has to be",
    )
    assert row.enable == "plugins: {services: {one: {enabled: true}}}"


def test_it_begins_once_pods_are_recovered(kurmad, install, log):
    install("one", {"one": SOURCE}, group=GROUP)
    before = set(sys.modules)
    kurmad.read("{one: {}}")
    assert kurmad.state().state == "starting"
    assert "kurma_test_plugin" not in str(set(sys.modules) - before)
    kurmad.recovered.set()
    assert kurmad.wait("running").reason == ""
    (host,) = kurmad.driver().hosts
    assert host.client.pods() == []
    assert "service one: running" in log()
    assert "hello" in log()


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("a", "service plugin 'one' of one 1.0 failed in serve: OSError: it broke"),
        ("ends", "it has ended"),
        ("cancels", "service plugin 'one' of one 1.0 failed in serve: Cancelled: given up"),
        ("fails", "service plugin 'one' of one 1.0 failed in serve: ValueError: two lines"),
    ],
)
def test_one_that_ends_is_started_again(kurmad, install, log, word, why):
    install("one", {"one": SOURCE, "two": SOURCE}, group=GROUP)
    kurmad.use(f"{{one: {{config: {{word: {word}}}}}, two: {{}}}}")
    driver = kurmad.driver()
    if word != "fails":
        kurmad.wait("running")
        driver.fail.set()
    for pause in (PAUSE, 2 * PAUSE):
        line = f"service one: waiting: {why}; started again after {pause:g} s"
        until(lambda: line in log(), "it is started again")  # noqa: B023
    assert driver.served >= 2
    assert kurmad.wait("running", "two").reason == ""
    assert kurmad.services.problems() == []


def test_one_that_cannot_be_loaded_harms_no_other(kurmad, install, log):
    install("one", {"one": "1/0", "two": SOURCE}, group=GROUP)
    kurmad.use("{one: {}, two: {}, three: {required: true}}")
    assert "ZeroDivisionError" in kurmad.wait("failed").reason
    assert "no service plugin 'three' is installed" in kurmad.wait("failed", "three").reason
    kurmad.wait("running", "two")
    (problem,) = kurmad.services.problems()
    assert problem.startswith("service 'three' is required and failed: no service plugin")


def test_one_that_cannot_be_made_is_tried_again(kurmad, install, tmp_path, log):
    """Such as one that lacks something that comes later."""
    (tmp_path / "gone").mkdir()
    needs = f"""import os
from kurma_core.errors import PluginSkipped
def made(context):
    if os.path.isdir({str(tmp_path / "gone")!r}):
        raise PluginSkipped("the port is taken")
    return Service(context)
"""
    install("one", {"one": needs + SOURCE.replace("Driver(Service,", "Driver(made,"), "two": SOURCE}, group=GROUP)
    kurmad.use("{one: {}, two: {}}")
    why = "service plugin 'one' of one 1.0 cannot work on this host: the port is taken; started again after"
    for pause in (PAUSE, 2 * PAUSE):
        until(lambda: f"service one: waiting: {why} {pause:g} s" in log(), "the pause grows")  # noqa: B023
    kurmad.wait("running", "two")
    (tmp_path / "gone").rmdir()
    kurmad.wait("running")
    assert kurmad.driver().served == 1


def test_a_changed_configuration_is_passed_on(kurmad, install):
    install("one", {"one": RELOADS, "two": RELOADS}, group=GROUP)
    kurmad.use("{one: {}, two: {}}")
    first, second = kurmad.driver(), kurmad.driver("two")
    kurmad.wait("running")
    kurmad.wait("running", "two")
    kurmad.use("{one: {config: {word: b}}, two: {required: true}}")
    assert (first.words, first.served) == (["a", "b"], 1)
    assert (second.words, second.served) == (["a"], 1)
    assert kurmad.state("two").required


@pytest.mark.parametrize(("source", "word"), [(SOURCE, "b"), (RELOADS, "refused"), (RELOADS, "raises")])
def test_one_that_does_not_take_it_is_started_with_it(kurmad, install, source, word):
    install("one", {"one": source}, group=GROUP)
    kurmad.use("{one: {}}")
    first = kurmad.driver()
    kurmad.wait("running")
    kurmad.use(f"{{one: {{config: {{word: {word}}}}}}}")
    kurmad.wait("running")
    second = kurmad.driver()
    assert second is not first
    assert second.words == [word]
    assert (first.served, second.served) == (1, 1)


def test_one_that_is_disabled_is_stopped(kurmad, install, log):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.use("{one: {}}")
    kurmad.wait("running")
    kurmad.use("{one: {enabled: false}}")
    until(lambda: kurmad.services.states() == (), "it is stopped")
    assert "service one: stopped" in log()


def test_a_wrong_configuration_stops_it(kurmad, install):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.use("{one: {}}")
    kurmad.wait("running")
    kurmad.use("{one: {config: {wort: b}}}")
    assert "'wort'" in kurmad.wait("failed").reason or "nearest known one is 'word'" in kurmad.state().reason


def test_the_end_does_not_wait_for_one_that_hangs(kurmad, install, log):
    install("one", {"one": SOURCE, "two": SOURCE}, group=GROUP)
    kurmad.use("{one: {config: {word: stubborn}}, two: {}}")
    kurmad.wait("running")
    kurmad.wait("running", "two")
    kurmad.services.close()
    assert kurmad.state("two").state == "stopped"
    assert kurmad.state().reason == "it does not end; restart kurmad"
    assert "service one: failed: it does not end; restart kurmad" in log()
    kurmad.driver().fail.set()


def test_a_required_service_is_waited_for(kurmad, install):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.read("{one: {required: true}}")
    assert kurmad.services.is_starting()
    kurmad.recovered.set()
    assert kurmad.services.wait_for_required()
    assert not kurmad.services.is_starting()


def test_the_end_ends_the_wait_for_a_required_service(kurmad, install):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.read("{one: {required: true}}")
    answers = []
    waits = threading.Thread(target=lambda: answers.append(kurmad.services.wait_for_required()))
    waits.start()
    kurmad.services.close()
    waits.join()
    assert answers == [False]


@pytest.mark.parametrize(
    ("word", "why"), [("slow", "not ready within 0.2 seconds"), ("fails", "two lines"), ("broken", "no such word")]
)
def test_a_required_service_that_does_not_start(kurmad, install, word, why):
    install("one", {"one": SOURCE}, group=GROUP)
    kurmad.read(f"{{one: {{required: true, config: {{word: {word}}}}}}}")
    kurmad.recovered.set()
    with pytest.raises(PluginError, match=why):
        kurmad.services.wait_for_required()
    if word == "slow":
        kurmad.driver().fail.set()
