"""Stops of apps of one pod (C9): at the same time, sooner than asked before, given up; by which signal."""

import threading
import time

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

STUBBORN = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done"
LONG = 1000.0


def added(house, pod, name, script=STUBBORN, **notes):
    annotations = [{"name": f"kurma.io/{key.replace('_', '-')}", "value": value} for key, value in notes.items()]
    request = house.request({name: {"app": shell(script), "annotations": annotations}})
    with house.connect() as client:
        client.app_add(pod.uuid, request, start=True)
    until(lambda: "up" in house.log(pod, name), f"output of {name}")


def code_of(house, pod, name):
    return next(app.exit_code for app in house.client.pod(pod.uuid).apps if app.name == name)


def stopping(house, pod, name, timeout, operation=None):
    """A stop in a thread of its own, once the app has got its signal."""
    ended = []

    def stop():
        with governing(operation or Cancellation()), house.connect() as client:
            try:
                client.app_stop(pod.uuid, name, timeout=timeout)
                ended.append("stopped")
            except Cancelled:
                ended.append("cancelled")

    thread = threading.Thread(target=stop)
    thread.start()
    until(lambda: "asked" in house.log(pod, name), "its stop signal")
    return thread, ended


def test_stops_do_not_wait_for_each_other(house):
    """A stop that waits hinders no other change of the pod; a shorter one of the same app ends both; one that is
    given up goes on."""
    with house.running({}) as pod:
        for name in ("one", "two"):
            added(house, pod, name)
        first, told = stopping(house, pod, "one", LONG)
        operation = Cancellation()
        second, given_up = stopping(house, pod, "two", LONG, operation)
        added(house, pod, "three", "echo up; exec sleep 1000", stop_signal="SIGKILL")
        house.client.app_stop(pod.uuid, "three", timeout=LONG)
        assert code_of(house, pod, "three") == 137, "its own stop signal"
        assert first.is_alive()
        began = time.monotonic()
        house.client.app_stop(pod.uuid, "one", timeout=0)
        first.join(20)
        assert (told, time.monotonic() - began < LONG / 10) == (["stopped"], True)
        assert code_of(house, pod, "one") == 137
        # A later, longer one does not put the end off.
        assert second.is_alive()
        operation.cancel()
        second.join(20)
        assert given_up == ["cancelled"]
        assert code_of(house, pod, "two") is None
        house.client.app_stop(pod.uuid, "two", timeout=0)
        assert code_of(house, pod, "two") == 137


@pytest.mark.full
def test_a_longer_stop_does_not_put_the_end_off(house):
    with house.running({}) as pod:
        added(house, pod, "one")
        thread, told = stopping(house, pod, "one", 1.0)
        house.client.app_stop(pod.uuid, "one", timeout=LONG)
        thread.join(20)
        assert told == ["stopped"]
