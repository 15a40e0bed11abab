"""Stagers that a daemon keeps started for pods to come: who gets them, who does not, and what becomes of them."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kurma_core.client.remote.http import Connection
from kurma_core.daemon.pods.prestarted import PrestartedPods
from kurma_core.errors import KurmaError, PodNotFoundError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.namespaces import in_netns
from kurma_core.models.network import NetworkRequest
from kurma_core.models.streams import Stdio
from kurma_core.pods.daemon_interface import DaemonInterface
from kurma_core.value import replace
from tests.kit.command import KURMA
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root


def waiting(house):
    """By UUID, the processes of those that wait."""
    found = {}
    for uuid, directory in house.client.here.services.store.reserved().items():
        try:
            if directory.read_state().stager_image is not None:
                found[uuid] = CgroupTree(f"kurma/{uuid}").pids()
        except (KurmaError, OSError):
            continue  # it becomes a pod just now, or goes
    return found


def full(house, count=2):
    """Those that wait, once there are so many."""
    until(lambda: len([1 for pids in waiting(house).values() if pids]) == count, f"{count} stagers that wait", 20)
    return waiting(house)


def left(house, uuid):
    found = [path for path in CgroupTree(f"kurma/{uuid}").directories() if os.path.exists(path)]
    places = (f"/run/netns/kurma-{uuid}", f"{house.state}/networks/pods/{uuid}")
    found += [path for path in places if os.path.lexists(path)]
    return found + [name for name in os.listdir(f"{house.state}/pods") if uuid in name]


def flags_of(interface):
    """In this thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, 0x8913, struct.pack("16s24x", interface.encode()))  # SIOCGIFFLAGS
    return struct.unpack_from("H", answer, 16)[0]


def begin(daemon, apps="exec sleep 1000", **options):
    """A pod that was made and started by one request."""
    body = json.dumps(daemon.house.request(apps, **options).to_json(), default=dict).encode()
    with Connection.open(daemon.socket) as connection:
        headers = {"Content-Type": "application/json"}
        answer = connection.request("POST", "/v1/pods?start=true", body, headers)
        pod = json.loads(answer.read())
    assert answer.status == 200, pod
    return pod


def stager_of(house, pod):
    return house.client.here.services.store.directory(pod["uuid"]).read_state().stager["pid"]


@pytest.fixture
def filled(kurmad, make_house):
    """A daemon whose first pod has been started and has gone: stagers wait."""

    def make(config=None, count=2):
        daemon = kurmad(house=make_house({"stop_timeout": 3, **(config or {})}))
        begin(daemon, "true", ephemeral=True)
        full(daemon.house, count)
        return daemon

    return make


def test_pods_take_those_that_wait_and_others_take_their_places(filled, ask):
    """Both ways: on its own, and in the foreground."""
    daemon = filled()
    house, there = daemon.house, full(daemon.house)
    before = time.monotonic()
    pod = begin(daemon)
    assert pod["uuid"] in there
    stager = stager_of(house, pod)
    assert stager in there[pod["uuid"]]
    ticks = os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{stager}/stat") as file:
        assert int(file.read().rpartition(")")[2].split()[19]) / ticks < before
    there = full(house)
    assert pod["uuid"] not in there
    null, lines = os.open("/dev/null", os.O_RDWR), []
    record = ask(daemon).run(house.request("echo here; exit 4"), Stdio(null, null, null), lines.append)
    os.close(null)
    assert record.uuid in there
    assert (record.exit_code, [line.text for line in lines]) == (4, [b"here"])
    assert record.uuid not in full(house)
    there = full(house)
    on = ask(daemon).prepare(house.request("sleep 1000"), start=True)
    assert (on.state, on.uuid in there) == ("running", True)
    ask(daemon).stop(on.uuid, force=True)
    ask(daemon).stop(pod["uuid"], force=True)
    assert stager not in [pid for pids in waiting(house).values() for pid in pids]


def test_an_app_that_never_ran_can_be_removed(filled, ask):
    """The stager that waited has made the directory of the apps' roots, and the start of the pod leaves it."""
    daemon = filled(count=2)
    house, client = daemon.house, ask(daemon)
    for options in ({}, {"annotations": [{"name": "kurma.io/keep-root", "value": "true"}]}):
        there = full(house)
        pod = begin(daemon, {}, **options)
        assert pod["uuid"] in there
        client.app_add(pod["uuid"], house.request({"one": "true"}), start=False)
        client.app_rm(pod["uuid"], "one")
        client.stop(pod["uuid"], force=True)


def test_commands_take_them_unless_something_is_written_before_the_pod_runs(filled, tmp_path):
    daemon = filled()
    file = tmp_path / "uuid"

    def run(*options):
        words = ["--dir", daemon.house.state, "--config", daemon.house.config_file, "run", "-d", "--net", "none"]
        script = "wget -q -O - $AC_METADATA_URL/acMetadata/v1/pod/uuid; sleep 1000"
        words += [*options, daemon.house.image, "--exec", "/bin/sh", "--", "-c", script]
        command = [*KURMA, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    there = full(daemon.house)
    (uuid,) = {run()} & set(there)
    another = run("--uuid-file", str(file))
    assert file.read_text() == f"{another}\n"
    assert another not in full(daemon.house).keys() | there.keys()
    for pod in (uuid, another):
        (said,) = until(lambda pod=pod: list(daemon.house.client.logs(pod)), "what the metadata service says")
        assert said.text.decode() == pod
        daemon.house.client.stop(pod, force=True)


def test_their_namespaces_are_ready(filled):
    """So that no start waits for the kernel's lock of all interfaces; nothing of it is left when they go."""
    daemon = filled()
    there = full(daemon.house)
    for uuid in there:
        with in_netns(f"/run/netns/kurma-{uuid}"):
            lo = flags_of("lo")
            sockets = Path("/proc/thread-self/net/tcp").read_text().split("\n")[1:-1]
        assert lo & 1, "lo is down"
        assert [line.split()[1:4:2] for line in sockets] == [["FFA9FEA9:EEF1", "0A"]]
    assert daemon.end() == 0
    assert [left(daemon.house, uuid) for uuid in there] == [[], []]


@pytest.mark.full
def test_none_is_shared(filled):
    daemon = filled({"daemon": {"prestarted_stagers": 3}}, 3)
    pods, failed = [], []

    def one():
        try:
            pods.append(begin(daemon))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    stagers = {stager_of(daemon.house, pod) for pod in pods}
    assert len(stagers) == len({pod["uuid"] for pod in pods}) == 20
    there = full(daemon.house, 3)
    assert not set(there) & {pod["uuid"] for pod in pods}
    assert not stagers & {pid for pids in there.values() for pid in pids}
    for pod in pods:
        daemon.house.client.stop(pod["uuid"], force=True)


def test_what_does_not_fit_leaves_them_alone(filled):
    daemon = filled()
    there = full(daemon.house)
    for options in (
        {"networks": (NetworkRequest("host"),)},
        {"interactive": "main"},
        {"userns": "auto"},
        {"uuid": "12345678-1234-4234-8234-123456789abc"},
    ):
        pod = begin(daemon, "true", ephemeral=True, **options)
        assert pod["uuid"] not in there
        assert set(waiting(daemon.house)) == set(there)
    body = json.dumps({**daemon.house.request("true").to_json(), "name": "no Name"}, default=dict)
    with Connection.open(daemon.socket) as connection:
        headers = {"Content-Type": "application/json"}
        assert connection.request("POST", "/v1/pods?start=true", body.encode(), headers).status >= 400
    assert set(waiting(daemon.house)) == set(there)
    assert begin(daemon, "true")["uuid"] in there


def test_nobody_sees_them(filled, ask):
    daemon = filled()
    there, client = full(daemon.house), ask(daemon)
    with Connection.open(daemon.socket) as connection:
        figures = connection.request("GET", "/metrics").read().decode()
    # The one that was there has gone; it was the only one that was started.
    assert re.findall(r"^kurma_pods\{.*\} ([1-9].*)$", figures, re.MULTILINE) == []
    assert re.findall(r"^kurma_pod_start_seconds_count (.*)$", figures, re.MULTILINE) == ["1"]
    assert "\nkurma_pod_pids{" not in figures
    with daemon.house.connect() as local:
        shown = [str(local.network_check()), *local.gc(grace=0, dry_run=True).lines, *local.gc(grace=0).lines]
        shown += [record.uuid for one in (local, client) for record in one.pods()]
        shown += [str(event.to_json()) for one in (local, client) for event in one.events(0)]
        shown += [str(usage) for one in (local, client) for usage in one.usage()]
        shown += [str(client.info()), figures]
        for uuid in there:
            assert not [text for text in shown if uuid in text]
            for ask_for in (client.pod, client.processes, local.pod, local.processes):
                with pytest.raises(PodNotFoundError):
                    ask_for(uuid)
        image = local.stager_build("default").id
        assert image in local.here.pods.finder.used_images()
    assert set(waiting(daemon.house)) == set(there)


@pytest.mark.full
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL and the next one", "SIGKILL and gc"])
def test_a_daemon_that_ends_leaves_none(filled, kurmad, how):
    daemon = filled()
    there = full(daemon.house)
    if how == "SIGTERM":
        assert daemon.end() == 0
    else:
        daemon.end(signal.SIGKILL)
        assert [uuid for uuid in there if left(daemon.house, uuid)] == list(there)
        until(lambda: not [pid for pids in there.values() for pid in pids if alive(pid)], "the stagers' ends")
        if how.endswith("gc"):
            daemon.house.client.gc(grace=0)
        else:
            kurmad(house=daemon.house)
            until(lambda: not [uuid for uuid in there if left(daemon.house, uuid)], "what they have left to go")
    assert [uuid for uuid in there if left(daemon.house, uuid)] == []
    # Who has left its cgroup to end may not have come to that yet.
    until(lambda: not [pid for pids in there.values() for pid in pids if alive(pid)], "the stagers' ends")


@pytest.mark.full
def test_one_that_dies_is_replaced(filled):
    daemon = filled()
    there = full(daemon.house)
    uuid = next(iter(there))
    for pid in there[uuid]:
        with contextlib.suppress(ProcessLookupError):  # the others may end with the first
            os.kill(pid, signal.SIGKILL)
    until(lambda: not left(daemon.house, uuid), "what it has left to go")
    now = full(daemon.house)
    assert uuid not in now
    assert len(set(now) & set(there)) == 1
    daemon.wait_said("no stager waits for a pod: one that waited has ended by itself")
    assert begin(daemon, "true")["uuid"] in now


#: Makes a prestarted pod and leaves it without an owner, as a making does that cannot undo what it made.
_MAKER = """
import os, sys
from kurma_core.client import Settings, connect
from kurma_core.pods.run.prestarted import prestart

with connect(Settings(sys.argv[1], sys.argv[2], note=print)) as client:
    print(prestart(client.here.services, "default").uuid, flush=True)
    os._exit(0)
"""


@pytest.mark.full
def test_what_a_failed_making_left_goes_while_the_daemon_runs(make_house):
    """It is removed after the next failure, such as the death of a stager that waits."""
    house = make_house({"stop_timeout": 3})
    prestarted = PrestartedPods(DaemonInterface(house.client.here.pods))
    prestarted.start()
    try:
        with prestarted.begin(house.request("true")):
            pass
        own = next(iter(full(house)))
        maker = [sys.executable, "-c", _MAKER, house.config_file, house.state]
        uuid = subprocess.run(maker, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        assert left(house, uuid)
        CgroupTree(f"kurma/{own}").kill()
        until(lambda: not left(house, uuid), "what it has left to go")
    finally:
        prestarted.close()
    assert waiting(house) == {}


@pytest.mark.full
@pytest.mark.parametrize("change", [{"stop_timeout": 4}, {"daemon": {"prestarted_stagers": 0}}, None])
def test_what_was_made_by_another_configuration_goes(filled, change):
    daemon = filled()
    there = full(daemon.house)
    if change is not None:
        with open(daemon.house.config_file) as file:
            config = json.load(file)
        with open(daemon.house.config_file, "w") as file:
            json.dump({**config, **change}, file)
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "the configuration was read again" in daemon.log.read_text(), "the reload")
    if change is None:
        time.sleep(0.3)
        assert set(waiting(daemon.house)) == set(there)
        return
    until(lambda: not [uuid for uuid in there if left(daemon.house, uuid)], "the old ones to go")
    count = 0 if "daemon" in change else 2
    now = full(daemon.house, count)
    assert (begin(daemon, "true")["uuid"] in now) == bool(count)


def test_those_of_another_image_go(make_house, monkeypatch):
    """The first pod after the change starts by the new image all the same."""
    house = make_house({"stop_timeout": 3})
    client = house.client
    prestarted = PrestartedPods(DaemonInterface(client.here.pods))
    prestarted.start()
    null = os.open("/dev/null", os.O_RDWR)

    def run():
        with prestarted.begin(house.request("exec sleep 1000")) as begun:
            pod = client.here.pods.start_prepared(begun.take(), Stdio(null, null, null))
        state = client.here.services.store.directory(pod.uuid).read_state()
        pod.stop(force=True)
        pod.finish()
        pod.close()
        return pod.uuid, state.stager

    try:
        run()
        there = full(house)
        real, new = client.here.services.stagers.image, "sha512-" + "1" * 128
        monkeypatch.setattr(client.here.services.stagers, "image", lambda *a, **o: replace(real(*a, **o), id=new))
        uuid, stager = run()
        assert stager["image"] == new
        assert stager["pid"] not in [pid for pids in there.values() for pid in pids]
        until(lambda: not [one for one in there if one != uuid and left(house, one)], "the old ones to go")
        now = full(house)
        assert not set(now) & set(there)
        uuid, stager = run()
        assert stager["pid"] in now[uuid]
    finally:
        prestarted.close()
        os.close(null)
    assert waiting(house) == {}


_LOOK = """
exec 2>&1
for name in mnt uts ipc pid net user cgroup; do readlink /proc/self/ns/$name | sed 's/[0-9]*//g'; done
for one in 1 self; do readlink /proc/$one/ns/net; done | sort -u | wc -l
grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups)' /proc/self/status
cat /proc/self/limits /proc/self/oom_score_adj
cut -d' ' -f4- /proc/self/mountinfo | sed -E 's/(lower|upper|work)dir=[^, ]*//g; s/[0-9a-f-]{36}/UUID/g' | sort
sed -E 's/[0-9a-f-]{36}/UUID/g' /proc/self/cgroup
ls -l /proc/self/fd | wc -l
set -- /proc/[0-9]*
echo $#
ip -o link | cut -d: -f2
env | sort | grep -v -e AC_METADATA_URL -e HOSTNAME
echo over
"""


def test_a_pod_is_as_isolated_as_any_other(filled, kurmad, make_house):
    """What an app sees of itself: its namespaces, mounts, cgroups, capabilities, limits, descriptors."""
    seen = []
    for ordinary in (False, True):
        config = {"stop_timeout": 3, "daemon": {"prestarted_stagers": 0}}
        daemon = kurmad(house=make_house(config)) if ordinary else filled()
        there = waiting(daemon.house)
        pod = begin(daemon, _LOOK + "exec sleep 1000")
        assert (pod["uuid"] in there) == (not ordinary)
        log = Path(daemon.house.client.here.services.store.directory(pod["uuid"]).file("pod/logs/main.log"))
        until(lambda log=log: log.exists() and "F over" in log.read_text(), "its output")
        lines = [line.split(" ", 3)[3] for line in log.read_text().splitlines()]
        kinds = ("mnt", "uts", "ipc", "pid", "net")
        pids = CgroupTree(f"kurma/{pod['uuid']}").pids()
        app = next(pid for pid in pids if os.readlink(f"/proc/{pid}/exe").endswith("/busybox"))
        assert not {os.readlink(f"/proc/{app}/ns/{kind}") for kind in kinds} & {
            os.readlink(f"/proc/self/ns/{kind}") for kind in kinds
        }
        # And which programs run in its cgroup.
        seen.append((lines, sorted(os.path.basename(os.readlink(f"/proc/{pid}/exe")) for pid in pids)))
        daemon.house.client.stop(pod["uuid"], force=True)
        assert daemon.end() == 0
    assert seen[0] == seen[1]
    assert "over" in seen[0][0]
