"""A wall clock that jumps by hours while kurmad runs: nothing waits longer for it, and nothing is done sooner."""

import signal
import time

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.pods.record.state import seconds
from tests.integration.daemon.test_root_adoption import started
from tests.integration.daemon.test_root_restarts import policy
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

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

    def end(count):
        """When its app has ended, by the stager's clock, which is right."""

        def told():
            record = house.client.pod(uuid)
            ended = record.restart.count == count and record.restart.next is not None
            return ended and record.apps[0].finished_at

        return seconds(until(told, f"end {count}"))

    # Two seconds until the next start, which is another daemon's business.
    second = end(1)
    daemon.end(signal.SIGKILL)
    jump(-20)
    daemon = kurmad(house=house)
    third = end(2)
    assert 1.9 < third - second < 20
    # Four; and not at once, since the day seems to be over.
    daemon.end(signal.SIGKILL)
    jump(20)
    kurmad(house=house)
    assert 3.9 < end(3) - third < 20
    house.client.stop(uuid)


def test_what_has_just_ended_is_not_old(kurmad, ask, jump):
    daemon = kurmad()
    client = ask(daemon)
    uuid = started(daemon, "exit 3")
    client.wait(uuid)
    jump(30)
    assert client.gc(grace=1800).lines == ()
    assert client.pod(uuid).exit_code == 3
    jump(-30)
    assert [one.name for one in client.gc(grace=0).removed] == [uuid]


def test_one_with_nothing_to_do_ends_in_its_time(kurmad, jump):
    daemon = kurmad("--idle-timeout", "2")
    before = time.monotonic()
    jump(5)
    with Connection.open(daemon.socket) as connection:
        assert connection.request("GET", "/v1/version").status == 200
    jump(-5)
    assert daemon.process.wait(20) == 0
    assert time.monotonic() - before > 2
