"""A wall clock that jumps by hours while kurmad runs: nothing waits longer for it, and nothing is done sooner."""

import signal
import time

import pytest

from kurma_core.client.wire import Connection
from tests.integration.daemon.test_root_adoption import started
from tests.integration.daemon.test_root_restarts import over, policy
from tests.integration.pods.support import until

pytestmark = pytest.mark.root

_HOURS = 3600
#: The daemon's own clock: as many seconds ahead as a file says.
_STUB = """
import time

def stubbed(real, unit):
    def now():
        with open({path!r}) as file:
            return real() + unit(float(file.read() or 0))
    return now

time.time = stubbed(time.time, float)
time.time_ns = stubbed(time.time_ns, lambda seconds: int(seconds * 1e9))
"""


@pytest.fixture
def jump(tmp_path, monkeypatch):
    """Sets the clock of all daemons that are started from now on."""
    directory, ahead = tmp_path / "stub", tmp_path / "ahead"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_STUB.format(path=str(ahead)))
    monkeypatch.setenv("PYTHONPATH", str(directory))

    def to(hours):
        new = tmp_path / "new"
        new.write_text(str(hours * _HOURS))
        new.rename(ahead)

    to(0)
    return to


def test_pods_are_started_again_when_they_are_due(kurmad, jump):
    daemon = kurmad()
    house = daemon.house
    uuid = started(daemon, "exit 3", annotations=policy("always"))
    until(lambda: over(house, uuid, 1), "its second end")
    # Two seconds until the next start, which is another daemon's business.
    before = time.monotonic()
    daemon.end(signal.SIGKILL)
    jump(-20)
    daemon = kurmad(house=house)
    until(lambda: over(house, uuid, 2), "its third end")
    assert 1 < time.monotonic() - before < 15
    # Four; and not at once, since the day seems to be over.
    before = time.monotonic()
    daemon.end(signal.SIGKILL)
    jump(20)
    kurmad(house=house)
    until(lambda: over(house, uuid, 3), "its fourth end")
    assert 3 < time.monotonic() - before < 20
    house.client.stop(uuid)


def test_what_has_just_ended_is_not_old(kurmad, ask, jump):
    daemon = kurmad()
    client = ask(daemon)
    uuid = started(daemon, "exit 3")
    client.wait(uuid)
    jump(30)
    assert client.gc(grace=1800) == ()
    assert client.pod(uuid).exit_code == 3
    jump(-30)
    assert client.gc(grace=0) == (f"pod {uuid}: removed",)


def test_one_with_nothing_to_do_ends_in_its_time(kurmad, jump):
    daemon = kurmad("--idle-timeout", "2")
    before = time.monotonic()
    jump(5)
    time.sleep(1)
    with Connection.open(daemon.socket) as connection:
        assert connection.request("GET", "/v1/version").status == 200
    jump(-5)
    assert daemon.process.wait(20) == 0
    assert 2 < time.monotonic() - before < 12
