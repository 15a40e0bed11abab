"""Many watches of one process on one inotify instance."""

import contextlib
import os
import select
import subprocess
import sys
import threading

import pytest

from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_TO, SharedWatch
from tests.kit.waiting import until


def readable(watch, seconds=10.0):
    return bool(select.select([watch], [], [], seconds)[0])


def instances():
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:inotify"
    return found


@pytest.fixture(autouse=True)
def nothing_stays():
    before = len(os.listdir("/proc/self/fd"))
    yield
    until(lambda: not [one for one in threading.enumerate() if one.name == "watches"], "the end of the thread")
    assert len(os.listdir("/proc/self/fd")) == before


def test_any_number_takes_one_instance(tmp_path):
    places = [tmp_path / str(number) for number in range(200)]
    for place in places:
        place.mkdir()
    before = instances()
    watches = [SharedWatch(str(place)) for place in places]
    assert instances() == before + 1
    (places[77] / "new").touch()
    assert readable(watches[77])
    assert watches[77].drain() & IN_CREATE
    assert not readable(watches[77], 0)
    assert not [number for number, watch in enumerate(watches) if number != 77 and readable(watch, 0)]
    for watch in watches:
        watch.close()


def test_each_on_one_directory_hears_of_what_it_wants(tmp_path):
    moves, all_of_it = SharedWatch(str(tmp_path), IN_MOVED_TO), SharedWatch(str(tmp_path))
    (tmp_path / "new").touch()
    assert readable(all_of_it)
    assert not readable(moves, 0)
    all_of_it.close()
    (tmp_path / "new").rename(tmp_path / "other")
    assert readable(moves)
    assert moves.drain() == IN_MOVED_TO
    moves.forget()
    moves.forget()
    moves.close()


def test_a_directory_that_is_gone_and_comes_again(tmp_path):
    place = tmp_path / "place"
    with pytest.raises(FileNotFoundError):
        SharedWatch(str(place))
    place.mkdir()
    old = SharedWatch(str(place))
    place.rmdir()
    assert readable(old)
    assert old.drain()
    place.mkdir()
    new = SharedWatch(str(place))
    (place / "file").touch()
    assert readable(new)
    old.close()
    new.drain()
    (place / "another").touch()
    assert readable(new)
    new.close()


def test_where_others_have_used_up_all_instances(tmp_path):
    """A user namespace has a limit of its own."""
    program = (
        "import os, select, sys\n"
        "from kurma_core.linux.inotify import SharedWatch\n"
        "watches = [SharedWatch(sys.argv[1]) for _ in range(3)]\n"
        "for watch in watches:\n"
        "    select.select([watch], [], [], 20)[0][0]\n"
        "    assert watch.drain()\n"
        "    watch.close()\n"
        "try:\n"
        "    SharedWatch(sys.argv[1] + '/none')\n"
        "except FileNotFoundError:\n"
        "    print('done')\n"
    )
    none = 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", none, "sh", sys.executable, "-c", program]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_one_watch_of_several_directories(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    watch = SharedWatch(str(tmp_path / "one"))
    try:
        watch.also(str(tmp_path / "two"))
        watch.also(str(tmp_path / "two"))
        (tmp_path / "two" / "file").touch()
        until(lambda: watch.drain() & IN_CREATE, "the event of the second directory")
        with pytest.raises(FileNotFoundError):
            watch.also(str(tmp_path / "three"))
        (tmp_path / "one" / "file").touch()
        until(lambda: watch.drain() & IN_CREATE, "that of the first")
    finally:
        watch.close()
