"""What pods use, and of which processes they are, as the host's own tools have it; on cgroup v1 and on v2."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from kurma_core.errors import AppNotFoundError, PodStateError
from tests.integration.pods.test_pods_resources import BUSY, HOLDS_40M, isolator
from tests.kit.house import received, text_of
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

SERVES = "dd if=/dev/zero of=/data/x bs=1M count=4 oflag=direct; exec nc -ll -p 9000 -e cat /dev/zero"


def interface(record, name="eth0"):
    """Bytes received and sent, as a program in the pod's network namespace reads them."""
    command = ["nsenter", f"--net={record.network_namespace}", "cat", "/proc/net/dev"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (words,) = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == name]
    return int(words[0]), int(words[8])


@pytest.mark.vm
def test_what_a_pod_and_its_apps_use(house):
    limits = [isolator("resource/memory", limit="128Mi"), isolator("kurma.io/pids-limit", limit=50)]
    apps = {"holds": shell(HOLDS_40M, isolators=limits), "serves": SERVES}
    with house.running(apps, net="default", isolators=[isolator("resource/memory", limit="256Mi")]) as pod:
        until(lambda: house.client.usage([pod.uuid])[0].apps["holds"].memory > 40 << 20, "its memory")
        assert received(house, pod) > 0
        (found,) = house.client.usage()
        assert (found.uuid, found.name) == (pod.uuid, house.client.pod(pod.uuid).name)
        assert set(found.apps) == {"holds", "serves"}
        holds, serves, total = found.apps["holds"], found.apps["serves"], found.total
        assert (holds.memory_limit, serves.memory_limit, total.memory_limit) == (128 << 20, None, 256 << 20)
        assert 40 << 20 < holds.memory < 60 << 20
        assert holds.memory + serves.memory <= total.memory < 256 << 20
        assert 0 <= holds.memory_reclaimable < 20 << 20
        assert (holds.pids_limit, serves.pids_limit) == (50, 2048)
        assert holds.pids == 1
        assert total.pids >= holds.pids + serves.pids + 2, "and the stager's two"
        assert 4 << 20 <= serves.block_written <= total.block_written < 100 << 20
        assert 0 < holds.cpu < total.cpu < 60
        now = interface(house.client.pod(pod.uuid))
        assert found.network_received <= now[0] < found.network_received + 100_000
        assert 1 << 16 < found.network_sent <= now[1]
        assert (found.interfaces, total.details) == ((), None)


def test_details(house):
    """They are measured only where the caller wants them."""
    apps = {"holds": HOLDS_40M, "serves": SERVES.replace("/data/x", "/x")}
    with house.running(apps, net="default") as pod:

        def measured():
            (found,) = house.client.usage([pod.uuid], details=True)
            holds, serves = found.apps["holds"].details, found.apps["serves"].details
            return holds.memory_anonymous > 40 << 20 and serves.sockets == 1 and found

        found = until(measured, "its memory, and its socket")
        (interface,) = found.interfaces
        assert (interface.name, interface.received) == ("eth0", found.network_received)
        total, holds, serves = found.total.details, found.apps["holds"].details, found.apps["serves"].details
        assert (holds.processes, holds.threads, holds.sockets, serves.processes) == (1, 1, 0, 1)
        assert holds.processes + serves.processes <= total.processes
        assert holds.descriptors + serves.descriptors < total.descriptors
        assert (total.open_files_limit, total.written) == (None, None)
        assert holds.open_files_limit > 100
        assert holds.memory_peak >= holds.memory_anonymous
        assert 0 < holds.cpu_user + holds.cpu_system <= found.apps["holds"].cpu + 0.1
        assert 4 << 20 <= serves.written < 6 << 20
        assert serves.written_files >= 1
        assert holds.written < 1 << 20
        assert (holds.page_faults > 1000, holds.oom_kills) == (True, 0)
        on_devices = sum(device.written for device in serves.devices)
        assert on_devices == found.apps["serves"].block_written


def test_processors_are_counted_by_time(house):
    """One that is busy has a whole one, or what the machine has left for it; the one beside it has none."""
    with house.running({"busy": BUSY, "idle": "sleep 1000"}) as pod:
        begin, before = time.monotonic(), house.client.usage([pod.uuid])[0]

        def worked():
            found = house.client.usage([pod.uuid])[0]
            return found.apps["busy"].cpu - before.apps["busy"].cpu > 0.2 and found

        after, end = until(worked, "its work"), time.monotonic()
        assert 0.15 < after.clock - before.clock <= end - begin
        used = after.apps["busy"].cpu - before.apps["busy"].cpu
        assert used <= (after.clock - before.clock) * 1.2 + 0.02
        assert after.apps["idle"].cpu - before.apps["idle"].cpu < 0.02
        assert used <= after.total.cpu - before.total.cpu + 0.1, "which is read a moment before"


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_its_processes(house, userns):
    """By numbers of both sides, by the names that the app's own root has for its users."""
    script = "echo $$; sleep 1001 & wait"
    apps = {"main": shell(script, user="alice", group="100"), "other": "exec sleep 1002"}
    with house.running(apps, userns=userns) as pod:

        def asleep():
            found = house.client.processes(pod.uuid, "main")
            return [one.name for one in found if one.state == "S"] == ["sh", "sleep"] and found

        main, child = until(asleep, "it and its child")
        (said,) = until(lambda: text_of(house.client.logs(pod.uuid, "main")).split(), "its output")
        statuses = {app.name: app.pid for app in house.client.pod(pod.uuid).apps}
        assert (main.pid, main.inner_pid) == (statuses["main"], int(said))
        assert (main.uid, main.user, main.command) == (1000, "alice", ("/bin/sh", "-c", script))
        assert (child.parent, child.command, child.name, child.state) == (
            main.pid,
            ("sleep", "1001"),
            "sleep",
            "S",
        )
        assert (child.app, child.user) == ("main", "alice")
        assert 0 < child.memory < 10 << 20
        assert 0 <= child.cpu <= child.elapsed + 0.02 < 600
        every = house.client.processes(pod.uuid)
        order = [one.pid for one in every]
        assert all(order.index(one.parent) < order.index(one.pid) for one in every if one.parent in order)
        assert {one.app for one in every} == {None, "main", "other"}
        (other,) = [one for one in every if one.app == "other"]
        assert (other.pid, other.uid, other.user, other.threads) == (statuses["other"], 0, "root", 1)
        assert house.client.pod(pod.uuid).stager_pid in [one.pid for one in every if one.app is None]
        with pytest.raises(AppNotFoundError):
            house.client.processes(pod.uuid, "nobody")
    for ask in (house.client.processes, lambda pod: house.client.usage([pod])):
        with pytest.raises(PodStateError, match="it is errored"):
            ask(pod.uuid)
    assert house.client.usage() == []


def test_its_oldest_processes_come_first(house):
    """Whatever their PIDs: after the highest, the kernel gives low ones again."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    last.write_text("20000")
    script = "trap 'sleep 1002 &' USR1; sleep 1001 & echo up; while :; do wait; done"
    with house.running({"main": script}) as pod:
        until(lambda: text_of(house.client.logs(pod.uuid, "main")) == "up\n", "the trap")

        def sleeps():
            return [one for one in house.client.processes(pod.uuid, "main") if one.name == "sleep"]

        # The kernel counts starts in hundredths of a second.
        until(lambda: any(one.elapsed > 0.02 for one in sleeps()), "another tick of the clock")
        last.write_text("10000")
        house.client.kill(pod.uuid, signal.SIGUSR1, "main")
        first, second = until(lambda: len(sleeps()) == 2 and sleeps(), "both")
        assert [one.command[1] for one in (first, second)] == ["1001", "1002"]
        assert second.pid < first.pid
