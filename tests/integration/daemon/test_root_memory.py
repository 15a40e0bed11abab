"""What kurmad keeps of pods that have gone: nothing. It is counted in objects: pages tell more of allocators."""

import json
import os

import pytest

from tests.integration.daemon.test_root_prestarted import full
from tests.kit.house import text_of
from tests.kit.waiting import until
from tests.linux.test_linux_memory import heaps

pytestmark = [pytest.mark.root, pytest.mark.full]

#: Pods that bring what the daemon needs once, and those that are to bring nothing.
_WARM, _PODS = 40, 100
#: In the daemon: writes to ``PLACE/told`` what it has, whenever somebody writes to ``PLACE/asked``. No garbage is
#: collected but by who counts, and by the daemon itself when it rests: all of it is counted.
_COUNTING = """
import gc, json, os, sys, threading

def count():
    gc.collect()
    return {{
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "garbage": sum(number for _, number in collected),
        "rests": sum(thread == "trim" for thread, _ in collected),
    }}

def note(phase, info):
    if phase == "stop":
        collected.append((threading.current_thread().name, info["collected"]))

def serve():
    while True:
        with open({place!r} + "/asked") as asked:
            asked.read()
        with open({place!r} + "/new", "w") as file:
            file.write(json.dumps(count()))  # dump() would make garbage
        os.rename({place!r} + "/new", {place!r} + "/told")

if "daemon" in sys.orig_argv:
    collected = []
    gc.disable()
    gc.callbacks.append(note)
    threading.Thread(target=serve, daemon=True).start()
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """What a daemon has that was started since."""
    place = tmp_path / "counting"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_COUNTING.format(place=str(place)))
    os.mkfifo(place / "asked")
    monkeypatch.setenv("PYTHONPATH", str(place))
    told = place / "told"

    def asked():
        (place / "asked").write_text("now")
        until(told.exists, "an answer")
        said = json.loads(told.read_text())
        told.unlink()
        return said

    return asked


def settled(house, ask):
    """What the daemon has, once that does not change: what a pod's end leaves to do is done, and what is made
    ready for others is there."""
    full(house)
    seen = []

    def still():
        seen.append(ask())
        return len(seen) > 5 and len({one["objects"] for one in seen[-6:]}) == 1 and seen[-1]

    return until(still, "an end of what the daemon does")


def _lives(house, client, number):
    """A pod made, run, read and removed: in two steps, or in one, of a stager that waits."""
    request = house.request("echo here; exit 3", name=f"memory-{number}")
    if number % 2:
        uuid = client.prepare(request).uuid
        client.launch(uuid)
    else:
        uuid = client.prepare(request, start=True).uuid
    assert client.wait(uuid).exit_code == 3
    assert text_of(client.logs(uuid)) == "here\n"
    client.rm(uuid)


def test_pods_that_have_gone_leave_nothing(kurmad, ask):
    house = kurmad().house
    with house.connect() as client:
        for number in range(_WARM):
            _lives(house, client, number)
        before = settled(house, ask)
        for number in range(_PODS):
            _lives(house, client, number)
        after = settled(house, ask)
    grown = {what: after[what] - before[what] for what in before}
    # Some come and go, and the interpreter keeps blocks for the next ones that it needs; not so many for each pod.
    assert grown["objects"] < 0.2 * _PODS, grown
    assert grown["blocks"] < 5 * _PODS, grown
    # All that stood for a pod has gone with it: there was nothing that held itself.
    assert grown["garbage"] < _PODS, grown


def test_threads_of_kurmad_have_one_heap(kurmad):
    daemon = kurmad()
    with daemon.house.connect() as client:
        assert client.info()
    with open(f"/proc/{daemon.process.pid}/maps") as file:
        assert heaps(file.read()) == 0


def test_kurmad_rests_after_work(kurmad, ask):
    """After the end of a pod, and after requests that have to do with no pod."""
    house = kurmad().house

    def rested(after):
        return until(lambda: (rests := ask()["rests"]) > after and rests, "a rest", 60)

    rests = rested(0)  # from its start
    with house.connect() as client:
        _lives(house, client, 0)
        rests = rested(rests)
    with house.connect() as client:
        assert client.info()
    rested(rests)
