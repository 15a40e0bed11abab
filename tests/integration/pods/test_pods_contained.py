"""Commands in apps that are killed with all that they have started (C17): after a time, or with their caller."""

import os
import threading
import time
from pathlib import Path

import pytest

from kurma_core.api.pods import EnterRequest
from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, CommandTimeoutError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from tests.kit.waiting import until

pytestmark = pytest.mark.root

# A child in a session of its own, whose parent has ended, ignores what it can.
OFFSPRING = "(setsid sh -c 'trap \"\" TERM HUP INT; exec sleep 1007' &) & sleep 1009"


def sleeping(pod):
    """The sleeps of the pod that commands have started."""
    found = []
    for pid in CgroupTree(f"kurma/{pod.uuid}").pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [word for word in words if word in (b"1007", b"1009")]
    return sorted(found)


def groups(pod):
    """Names of the groups of commands."""
    return {
        name
        for directory in CgroupTree(f"kurma/{pod.uuid}/app-main").directories()
        for name in os.listdir(directory)
        if name.startswith("command-")
    }


def test_a_command_is_killed_with_all_that_it_has_started(house):
    with house.running("exec sleep 1000") as pod:
        with pytest.raises(CommandTimeoutError, match=r"within 0\.5 s"):
            house.enter(pod.uuid, "sh", "-c", OFFSPRING, timeout=0.5)
        assert sleeping(pod) == []
        # The app itself lives on, and a quick command has its own exit code.
        assert house.enter(pod.uuid, "sh", "-c", "echo out; exit 9", timeout=20) == (9, "out\n", "")
        assert groups(pod) == set()
        # What a command has left behind stays, if it is in time.
        assert house.enter(pod.uuid, "sh", "-c", "sleep 1007 & echo $!", timeout=20)[0] == 0
        until(lambda: sleeping(pod) == [b"1007"], "what it has left")
        assert len(groups(pod)) == 1


def test_a_command_ends_with_its_caller(house):
    with house.running("exec sleep 1000") as pod:
        operation, ended = Cancellation(), []

        def run():
            null = os.open("/dev/null", os.O_RDWR)
            request = EnterRequest(exec=("sh", "-c", OFFSPRING), contained=True)
            try:
                with governing(operation), house.connect() as client:
                    client.enter(pod.uuid, request, Stdio(null, null, null))
            except Cancelled:
                ended.append("cancelled")
            finally:
                os.close(null)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: sleeping(pod) == [b"1007", b"1009"], "the command")
        operation.cancel()
        thread.join(20)
        assert ended == ["cancelled"]
        assert sleeping(pod) == []


@pytest.mark.full
def test_on_a_terminal(house):
    with house.running("exec sleep 1000") as pod:
        with pytest.raises(CommandTimeoutError):
            house.enter(pod.uuid, "sh", "-c", OFFSPRING, timeout=0.5, tty=True)
        assert sleeping(pod) == []
        began = time.monotonic()
        # A child that keeps the output open delays no answer.
        code, out, _ = house.enter(pod.uuid, "sh", "-c", "echo out; sleep 1007 &", timeout=500)
        assert (code, out, time.monotonic() - began < 100) == (0, "out\n", True)
