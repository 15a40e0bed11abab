"""Observers: each has a queue and a thread of its own; pods and other observers do not wait for it."""

import sys
import threading

import pytest

from kurma_core.cancellation import current
from kurma_core.errors import ConfigError, KurmaError
from kurma_core.hookspecs.observer import ObserverHooks
from kurma_core.models.pod import AppEvent, PodEvent
from kurma_core.plugins.observing import Observing, close
from tests.kit.waiting import until
from tests.registry.test_hostile_plugins import RAISED

EVENTS = [PodEvent("running", f"pod-{number}", "pod", "2024-01-01T00:00:00Z") for number in range(3)]
EVENT = EVENTS[0]
OBSERVER = """
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
seen = []
class Observer:
    def __init__(self, context): self.context = context
    @hookimpl
    def pod_event(self, event):
        seen.append(event)
@hookimpl
def kurma_observer():
    return Driver(Observer)
"""
BROKEN = "import nothing_of_this_name"


def raising(body):
    """Source of an observer that does that at each event."""
    return OBSERVER.replace("seen.append(event)", body.replace("\n", "\n        "))


APP_HOOK = """
    @hookimpl
    def app_event(self, event):
        seen.append(event)
@hookimpl
def kurma_observer"""


def test_events_of_apps_go_to_observers_that_want_them(install, registry):
    """In one queue with those of pods; an observer without the hook misses nothing else."""
    both = OBSERVER.replace("\n@hookimpl\ndef kurma_observer", APP_HOOK)
    site = install("kurma-test", {"a": OBSERVER, "b": both}, group="kurma.observers")
    plugins = registry()
    of_app = AppEvent("started", "main", "pod-0", "pod", "2024-01-01T00:00:00Z", {"instance": 1})
    for event in (EVENT, of_app, EVENTS[1]):
        plugins.emit(event)
    plugins.close()
    modules = {p.stem: sys.modules[p.stem] for p in site.glob("*.py") if p.stem in sys.modules}
    seen = sorted((one.seen for one in modules.values() if hasattr(one, "seen")), key=len)
    assert seen == [EVENTS[:2], [EVENT, of_app, EVENTS[1]]]
    assert not any("observer" in text for text in plugins.told)


def test_observers_get_all_events_in_order_whatever_one_does(install, registry):
    site = install(
        "kurma-test",
        {"a": raising("raise ValueError('no\\nway')"), "b": BROKEN, "c": OBSERVER},
        group="kurma.observers",
    )
    plugins = registry()
    for event in EVENTS:
        plugins.emit(event)
    plugins.close()
    (module,) = [sys.modules[p.stem] for p in site.glob("*.py") if getattr(sys.modules.get(p.stem), "seen", None)]
    assert module.seen == EVENTS
    said = (
        "observer 'a' failed at 'running' of pod pod-0: observer plugin 'a' of kurma-test 1.0 failed in pod_event"
    )
    assert any(text.startswith(said) and text.endswith("ValueError: no way") for text in plugins.told)
    assert "observer 'a' failed at 1 more event of pods" in plugins.told
    assert sum("'b'" in text for text in plugins.told) == 1, "told once"
    status = {info.name: info.status for info in plugins.listing() if info.kind == "observers"}
    assert {name: status[name] for name in "abc"} == {"a": "ok", "b": "failed", "c": "ok"}


@pytest.mark.parametrize("trick", RAISED)
def test_an_observer_breaks_no_pod(trick, install, registry):
    install("kurma-hostile", {"bad": raising(RAISED[trick])}, group="kurma.observers")
    plugins = registry()
    plugins.emit(EVENT)
    plugins.close()
    assert [text for text in plugins.told if "bad" in text]


def test_an_observer_has_options_and_a_directory(install, registry, tmp_path):
    install("kurma-test", {"d": OBSERVER}, group="kurma.observers")
    context = registry().driver("kurma.observers", "d")._driver.context
    assert context.state_dir == str(tmp_path / "state/plugins/kurma.observers/d")
    wrong = registry("plugins: {observers: {d: {config: {a: 1}}}}")
    with pytest.raises(ConfigError, match=r"plugins\.observers\.d\.config\.a: unknown key; there is none"):
        wrong.driver("kurma.observers", "d")


def test_the_thread_of_a_slow_import_holds_up_no_other_plugin(install, registry, network):
    install("kurma-slow", {"slow": "import sys\nsys.kurma_test_gate.wait()\n" + OBSERVER}, group="kurma.observers")
    install("kurma-test", {"one": network})
    plugins = registry()
    sys.kurma_test_gate = threading.Event()
    try:
        plugins.emit(EVENT)
        until(lambda: ("kurma.observers", "slow") in plugins._loaded, "the import of the observer")
        assert plugins.driver("kurma.networks", "one")
    finally:
        sys.kurma_test_gate.set()
    plugins.close()
    del sys.kurma_test_gate


class Gated(ObserverHooks):
    """Waits at each event until the gate opens, or its operation is cancelled."""

    def __init__(self, heeds=True):
        self.gate = threading.Event()
        self.began = threading.Event()
        self.heeds = heeds
        self.seen = []

    def pod_event(self, event):
        self.began.set()
        if self.heeds:
            with current().waking(self.gate.set):
                self.gate.wait()
        else:
            self.gate.wait()
        self.seen.append(event)


def test_who_emits_does_not_wait_and_what_is_missed_is_told():
    told = []
    slow, quick = Gated(heeds=False), Gated()
    quick.gate.set()
    observers = [
        Observing(name, lambda one=one: one, told.append) for name, one in (("slow", slow), ("quick", quick))
    ]
    for event in EVENTS:
        for observer in observers:
            observer.tell(event)
    slow.began.wait()
    until(lambda: quick.seen == EVENTS, "the other observer")
    close(observers, 0.0)
    assert "observer 'slow' missed 3 events of pods" in told
    slow.gate.set()


def test_a_call_that_takes_too_long_is_cancelled_and_told_once():
    told, cancelled = [], []

    class Slow(ObserverHooks):
        def pod_event(self, event):
            never = threading.Event()
            try:
                with current().waking(never.set):
                    never.wait()
            finally:
                cancelled.append(event)

    observer = Observing("slow", Slow, told.append, timeout=0.01)
    for event in EVENTS:
        observer.tell(event)
    close([observer], 60)
    assert cancelled == EVENTS, "each is cancelled"
    assert told == ["observer 'slow': 'running' of pod pod-0 takes longer than 0.01 s"]


def test_an_import_and_a_factory_have_the_same_time():
    """They are cancelled if they heed it, and told in any case."""
    told, gate = [], threading.Event()

    def hangs():
        gate.wait()

    def heeds():
        with current().waking(gate.set):
            gate.wait()

    observer = Observing("hangs", hangs, told.append, timeout=0.01)
    observer.tell(EVENT)
    problem = "'running' of pod pod-0 takes longer than 0.01 s"
    until(lambda: observer.problem() == problem, "the end of its time")
    assert told == [f"observer 'hangs': {problem}"]
    other = Observing("heeds", heeds, told.append, timeout=0.01)
    other.tell(EVENT)
    close([other], 60)
    assert told[1:] == [f"observer 'heeds': {problem}"]
    gate.set()
    close([observer], 60)


def test_failures_are_noted_ever_more_rarely_and_none_is_lost():
    """18.3: no line repeats without back-off, also with another pod in each."""
    told = []

    class Fails(ObserverHooks):
        def pod_event(self, event):
            raise KurmaError(f"no room for {event.pod}")

    observer = Observing("full", Fails, told.append)
    for number in range(100):
        observer.tell(PodEvent("running", f"pod-{number}", "pod", "2024-01-01T00:00:00Z"))
    close([observer], 60)
    assert told[:3] == [
        "observer 'full' failed at 'running' of pod pod-0: no room for pod-0",
        "observer 'full' failed at 'running' of pod pod-1, 2 failures so far: no room for pod-1",
        "observer 'full' failed at 'running' of pod pod-3, 4 failures so far: no room for pod-3",
    ]
    assert told[6:] == [
        "observer 'full' failed at 'running' of pod pod-63, 64 failures so far: no room for pod-63",
        "observer 'full' failed at 36 more events of pods",
    ]


def test_an_observer_that_is_behind_is_told_in_the_listing(install, registry):
    """18.1: as long as it is."""
    waits = raising("import sys\nsys.kurma_test_began.set()\nsys.kurma_test_gate.wait()")
    install("kurma-test", {"slow": waits}, group="kurma.observers")
    plugins = registry()
    sys.kurma_test_gate, sys.kurma_test_began = threading.Event(), threading.Event()

    def row():
        (found,) = [info for info in plugins.listing() if info.name == "slow"]
        return found.status, found.reason

    try:
        plugins.emit(EVENT)
        sys.kurma_test_began.wait()
        assert row() == ("ok", "")
        for _ in range(12):
            plugins.emit(EVENT)
        assert row() == ("behind", "12 events wait")
    finally:
        sys.kurma_test_gate.set()
    until(lambda: row() == ("ok", ""), "the rest of the events")
    plugins.close()
    del sys.kurma_test_gate, sys.kurma_test_began


def test_a_call_that_hangs_is_told_as_long_as_it_does():
    slow = Gated(heeds=False)
    observer = Observing("slow", lambda: slow, lambda text: None, timeout=0.01)
    observer.tell(EVENT)
    until(lambda: observer.problem() == "'running' of pod pod-0 takes longer than 0.01 s", "the end of its time")
    slow.gate.set()
    until(lambda: observer.problem() == "", "its end")
    close([observer], 60)


def test_of_too_many_events_the_oldest_are_dropped():
    told = []
    slow = Gated(heeds=False)
    observer = Observing("slow", lambda: slow, told.append)
    observer.tell(EVENT)
    slow.began.wait()
    for _ in range(1003):
        observer.tell(EVENT)
    assert observer.problem() == "1000 events wait; it missed 3 events"
    slow.gate.set()
    close([observer], 60)
    assert told == ["observer 'slow' missed 3 events of pods"]
    assert len(slow.seen) == 1001


def test_an_observer_that_does_not_work_is_asked_for_nothing():
    told = []
    observer = Observing("gone", lambda: None, told.append)
    observer.tell(EVENT)
    close([observer], 60)
    assert told == []


def test_the_threads_of_observers_take_no_signals():
    import signal

    masks = []

    class Looks(ObserverHooks):
        def pod_event(self, event):
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    observer = Observing("looks", Looks, print)
    observer.tell(EVENT)
    close([observer], 60)
    assert signal.SIGINT in masks[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_the_error_of_an_observer_is_one_of_kurma(install, registry):
    install("kurma-test", {"d": OBSERVER.replace("pod_event", "pod_evnt")}, group="kurma.observers")
    with pytest.raises(KurmaError, match="pod_evnt is not a hook of ObserverHooks; the nearest is pod_event"):
        registry().driver("kurma.observers", "d")
