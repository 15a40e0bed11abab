"""Pods made of what was there before anybody asked for them: UUID, cgroup, network namespace, a stager that waits
(G10)."""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from kurma_core.api.pods import AppOverrides
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ImageError, NetworkError, StagerError, VolumeError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.network import NetworkRequest
from kurma_core.models.streams import Stdio
from kurma_core.pods.daemon_interface import DaemonInterface
from kurma_core.pods.run.prestarted import fits_request, prestart
from tests.kit.images import shell
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

#: Holds one, says which, and stays; or dies when it calls the function that the last word names.
_HOLDER = """
import os, sys, time
from kurma_core.client import Settings, connect
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.networking.network_records import JoinRecords
from kurma_core.pods.run.prestarted import prestart
from kurma_core.api.pods import AppOverrides
from kurma_core.spawner.client import Spawner
from kurma_core.staging.aci_stager import AciStager

with connect(Settings(sys.argv[1], sys.argv[2], note=print)) as client:
    for place in (CgroupTree, JoinRecords, Spawner, AciStager):
        name = sys.argv[3].partition(" ")[0]
        if name in vars(place) and (place is not AciStager or name == "prestart"):
            function = getattr(place, name)
            def die(*words, **named):
                if sys.argv[3].endswith(" done"):
                    function(*words, **named)
                os._exit(9)
            setattr(place, name, die)
    found = prestart(client.here.services, "default")
    print(found.uuid, found.waiting.pid, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def make(house):
    """``make()``: one that is held here; what no pod has taken over is discarded."""
    made = []

    def make():
        made.append(prestart(house.client.here.services, "default"))
        return made[-1]

    yield make
    for one in made:
        one.discard()


def left(house, uuid):
    """What there is of it on the host."""
    found = [path for path in CgroupTree(f"kurma/{uuid}").directories() if os.path.exists(path)]
    places = (f"/run/netns/kurma-{uuid}", f"{house.state}/networks/pods/{uuid}")
    found += [path for path in places if os.path.lexists(path)]
    return found + [name for name in os.listdir(f"{house.state}/pods") if uuid in name]


@pytest.fixture
def begin(house):
    """``begin(prestarted, apps, …)``: the pod made of it, and the record of it as it was prepared. Pods that a
    test leaves are ended: this process holds their owner locks, so no other process can end them."""
    begun = []

    def start(prestarted, apps="sleep 1000", **options):
        pods = house.client.here.pods
        record, pod = pods.prepare_to_start(house.request(apps, **options), new=prestarted)
        begun.append(pod)
        null = os.open("/dev/null", os.O_RDWR)
        try:
            return pods.start_prepared(pod, Stdio(null, null, null)), record
        finally:
            os.close(null)

    yield start
    for pod in begun:
        if os.path.isdir(pod.directory):
            pod.abandon()
        pod.close()


def finish(pod):
    pod.stop(force=True)
    pod.finish()
    pod.close()


def test_a_pod_takes_over_what_there_is(house, make, begin):
    """The stager, the namespace and the cgroup are those that were there; it runs, and goes as any other."""
    prestarted = make()
    stager, namespace = prestarted.waiting.pid, os.stat(f"/run/netns/kurma-{prestarted.uuid}").st_ino
    pod, record = begin(prestarted, "cat /proc/self/cgroup; readlink /proc/self/ns/net; exec sleep 1000")
    assert (record.uuid, pod.stager.pid) == (prestarted.uuid, stager)
    until(lambda: "net:[" in house.log(record), "its output")
    log = house.log(record)
    assert f"net:[{namespace}]" in log
    members = CgroupTree(f"kurma/{record.uuid}").pids()
    assert stager in members
    assert len(members) >= 3
    assert house.client.pod(record.uuid).state == "running"
    prestarted.discard()  # the pod's by now: nothing
    assert alive(stager)
    finish(pod)
    house.client.rm(record.uuid)
    assert left(house, record.uuid) == []


def test_a_pod_whose_cgroup_has_a_parent_takes_it_over(house, make, begin):
    """The stager moves there with all its processes, and sees that cgroup as its own; the other one goes."""
    prestarted = make()
    parent = f"kurmatest-{prestarted.uuid[:8]}"
    place = [{"name": "kurma.io/cgroup-parent", "value": f"/{parent}/pods"}]
    pod, record = begin(prestarted, "echo up; exec sleep 1000", annotations=place)
    try:
        assert (record.uuid, pod.stager.pid) == (prestarted.uuid, prestarted.waiting.pid)
        until(lambda: "up" in house.log(record), lambda: house.log(record))
        assert not CgroupTree(f"kurma/{record.uuid}").exists()
        tree = CgroupTree(f"{parent}/pods/kurma-{record.uuid}")
        app = house.client.pod(record.uuid).apps[0].pid
        assert {pod.stager.pid, app} < set(tree.pids())
        assert app in CgroupTree(f"{tree.name}/app-main").pids()
        if tree.layout.versions().get("devices") == 1:
            assert not tree.read("devices", "devices.list").startswith("a "), "its devices are limited"
        assert house.enter(record.uuid, "echo", "well")[:2] == (0, "well\n")
        finish(pod)
        house.client.rm(record.uuid)
        assert (left(house, record.uuid), tree.exists()) == ([], False)
    finally:
        CgroupTree(parent).kill()
        CgroupTree(parent).remove()


def test_children_that_end_while_the_stager_moves(house, make):
    """The kernel may name a process that has ended by the time it is moved: the move goes on."""
    prestarted = make()
    home, other = CgroupTree(prestarted.waiting.place.cgroup), CgroupTree(f"kurmatest-{prestarted.uuid[:8]}/pod")
    other.create()
    forking = subprocess.Popen(["sh", "-c", "while :; do true & /bin/true; done"])
    try:
        for _ in range(50):
            for directory in home.leaf("stager"):
                with open(f"{directory}/cgroup.procs", "w") as file:
                    file.write(str(forking.pid))
            prestarted.waiting.move_to(other.name)
            assert {prestarted.waiting.pid, forking.pid} <= set(other.pids())
    finally:
        forking.kill()
        forking.wait()
        prestarted.discard()
        other.kill()
        other.remove()


def mounts_in(text):
    """What an app sees mounted, without what differs from pod to pod. :param text: its ``mountinfo``."""
    found = set()
    for line in text.splitlines():
        words, _, kind = line.partition(" - ")
        root, target, options = words.split()[3:6]
        fstype, _, more = kind.split(" ", 2)
        found.add((root, target, options, fstype, "" if fstype == "overlay" else more))
    return found


def test_an_app_sees_what_it_sees_in_any_pod(house, make, begin):
    """The kernel's file systems that were made before are as those made for an app, and one app's alone."""
    ordinary = mounts_in(house.run("cat /proc/self/mountinfo")[1])
    pod, record = begin(make(), {"main": "exec sleep 1000", "other": "exec sleep 1000"})
    assert pod.stager.pid
    seen, terminals = {}, set()
    for app in ("main", "other"):
        code, output, errors = house.enter(record.uuid, "cat", "/proc/self/mountinfo", app=app)
        assert code == 0, errors
        seen[app] = mounts_in(output)
        terminals.add(house.enter(record.uuid, "stat", "-c", "%d", "/dev/pts/ptmx", app=app)[1])
        assert house.enter(record.uuid, "cat", "/proc/1/comm", app=app)[1] == "kurma-init\n"
    assert seen == {"main": ordinary, "other": ordinary}
    assert len(terminals) == 2
    with open(f"/proc/{pod.stager.pid}/mountinfo") as file:
        assert "/run/ahead/" not in file.read()
    finish(pod)


@pytest.mark.parametrize("first", ["privileged", "plain"])
def test_a_privileged_app_gets_what_is_its_own(make_house, first, begin):
    """What was made before is for others: nothing is masked for it, and every device is alive."""
    house = make_house({"stop_timeout": 3})
    prestarted = prestart(house.client.here.services, "default")
    look = "mknod /dev/k c 1 11; (: </dev/k) 2>/dev/null && echo alive; echo looked; exec sleep 1000"
    apps = {"main": look, "other": look}
    if first == "plain":
        apps = dict(reversed(apps.items()))
    power = AppOverrides(isolators=(("os/linux/privileged", True),))
    pod, record = begin(prestarted, apps, overrides={"main": power})
    assert pod.stager.pid == prestarted.waiting.pid
    until(lambda: all("looked" in house.log(record, app) for app in apps), "their output")
    assert {app: house.log(record, app) for app in apps} == {"main": "alive\nlooked\n", "other": "looked\n"}
    finish(pod)


def test_it_can_be_started_again(house, make, begin):
    pod, record = begin(make(), "echo once")
    pod.finish()
    pod.close()
    again, output = house.start(record.uuid)
    assert (again.exit_code, output) == (0, "once\n")


def test_nobody_sees_it(house, make, begin):
    """No listing, no look for leaks, and no collection of garbage, while its holder lives."""
    prestarted = make()
    assert prestarted.uuid not in house.uuids()
    assert prestarted.uuid not in [record.uuid for record in house.client.pods()]
    other = house.connect()
    with other:
        assert not [one for one in other.network_check() if one.pod == prestarted.uuid]
        said = other.gc(grace=0).lines
        assert not [line for line in said if prestarted.uuid in line]
    assert prestarted.alive()
    pod = begin(prestarted)[0]
    with house.connect() as other:
        assert not [line for line in other.gc(grace=0).lines if prestarted.uuid in line]
    assert pod.stager.alive()
    finish(pod)


def test_a_pod_that_was_prepared_of_it_is_left_alone_until_it_is_started(house, make):
    prestarted = make()
    record, prepared = house.client.here.pods.prepare_to_start(house.request("exec sleep 1000"), new=prestarted)
    with house.connect() as other:
        assert other.pod(record.uuid).state == "preparing", "it is about to be started"
        prepared.settle()
        assert other.pod(record.uuid).state == "prepared"
        assert not [line for line in other.gc(grace=3600).lines if prestarted.uuid in line]
        assert not [one for one in other.network_check() if one.pod == prestarted.uuid]
    assert prestarted.alive()
    null = os.open("/dev/null", os.O_RDWR)
    pod = house.client.here.pods.start_prepared(prepared, Stdio(null, null, null))
    os.close(null)
    assert pod.stager.pid == prestarted.waiting.pid
    finish(pod)


def test_of_pods_that_want_one_port_at_once_one_gets_it(house, make):
    """W9, 19: neither has its port before it starts, though parts of both are there."""
    port = {"name": "web", "hostPort": 8048}
    app = {"main": {"app": shell("sleep 1000", ports=[{"name": "web", "port": 80, "protocol": "tcp"}])}}
    pods = house.client.here.pods
    prepared = [
        pods.prepare_to_start(house.request(app, net="default", name=name, ports=[port]), new=make())
        for name in ("first", "second")
    ]
    (first, winner), (second, loser) = prepared
    with contextlib.ExitStack() as undo:
        null = os.open("/dev/null", os.O_RDWR)
        undo.callback(os.close, null)
        undo.callback(loser.close)
        pods.start_prepared(winner, Stdio(null, null, null))
        undo.callback(finish, winner)
        with pytest.raises(NetworkError, match="leads to pod first already"):
            pods.start_prepared(loser, Stdio(null, null, null))
        state = house.state_of(second)
        assert (state["state"], state["exitCode"]) == ("errored", 125)
        assert not state.get("steps")
        assert "leads to pod first already" in state["reason"]
        assert len(left(house, second.uuid)) == 1, "its directory"
        assert [one.key for one in house.client.gc(grace=0).removed] == [f"pod/{second.uuid}"]
        assert house.client.pod(first.uuid).state == "running"
    house.client.rm(first.uuid)
    house.client.network_rm("default")


@pytest.mark.parametrize("why", ["host network", "standard input", "user namespace"])
def test_a_pod_that_it_does_not_fit_is_made_without(house, make, why, begin):
    prestarted = make()
    options = {
        "host network": {"networks": (NetworkRequest("host"),)},
        "standard input": {"interactive": "main"},
        "user namespace": {"userns": "auto"},
    }[why]
    pod, record = begin(prestarted, "exec sleep 1000", **options)
    assert pod.stager.pid != prestarted.waiting.pid
    assert not alive(prestarted.waiting.pid)
    assert record.uuid == prestarted.uuid
    finish(pod)
    house.client.rm(record.uuid)
    assert left(house, record.uuid) == []


def test_a_pod_with_a_uuid_of_its_own_gets_none(house):
    config = house.client.here.services.config
    assert fits_request(house.request("true"), config)
    assert not fits_request(house.request("true", uuid="12345678-1234-4234-8234-123456789abc"), config)


def test_a_pod_that_is_not_started_after_all_stays_prepared(house, make):
    """As any prepared pod, without an owner; it can be started later."""
    prestarted = make()
    record, prepared = house.client.here.pods.prepare_to_start(house.request("true"), new=prestarted)
    prepared.close()
    prepared.close()
    assert not alive(prestarted.waiting.pid)
    assert house.state_of(record)["state"] == "prepared"
    assert house.state_of(record)["steps"] == []
    assert len(left(house, record.uuid)) == 1, "its directory"
    null = os.open("/dev/null", os.O_RDWR)
    pod = house.client.here.pods.start(record.uuid, Stdio(null, null, null))
    os.close(null)
    assert pod.finish().state == "stopped"
    pod.close()


def test_a_stager_that_dies_in_between_is_replaced(house, make):
    """After the pod was prepared of it: it gets another one, in the namespace and the cgroup that are there."""
    prestarted = make()
    _, prepared = house.client.here.pods.prepare_to_start(house.request("exec sleep 1000"), new=prestarted)
    namespace = os.stat(f"/run/netns/kurma-{prestarted.uuid}").st_ino
    os.kill(prestarted.waiting.pid, signal.SIGKILL)
    until(lambda: not prestarted.alive(), "its end")
    null = os.open("/dev/null", os.O_RDWR)
    pod = house.client.here.pods.start_prepared(prepared, Stdio(null, null, null))
    os.close(null)
    assert pod.stager.pid != prestarted.waiting.pid
    assert os.stat(f"/proc/{pod.stager.pid}/ns/net").st_ino == namespace
    finish(pod)


def test_a_pod_that_cannot_be_made_leaves_nothing(house, make):
    prestarted = make()
    missing = PodTemplate.parse({"apps": [{"name": "main", "image": "sha512-" + "0" * 128}]})
    with pytest.raises(ImageError):
        house.client.here.pods.prepare_to_start(house.request(None, template=missing.to_json()), new=prestarted)
    assert left(house, prestarted.uuid) == []
    assert not alive(prestarted.waiting.pid)


def test_a_pod_that_does_not_come_up_is_taken_down(house, make, tmp_path):
    """Its volume's source goes after it was prepared: as with any pod, the record of it stays."""
    prestarted = make()
    source = tmp_path / "source"
    source.mkdir()
    volumes = [{"name": "v", "kind": "host", "source": str(source)}]
    app = {"exec": ["/bin/true"], "user": "0", "group": "0"}
    request = house.request({"main": {"app": app, "mounts": [{"volume": "v", "path": "/v"}]}}, volumes=volumes)
    record, prepared = house.client.here.pods.prepare_to_start(request, new=prestarted)
    source.rmdir()
    with pytest.raises(VolumeError):
        house.client.here.pods.start_prepared(prepared, Stdio(0, 1, 2))
    assert not alive(prestarted.waiting.pid)
    assert house.state_of(record)["state"] == "errored"
    assert house.state_of(record)["steps"] == []
    house.client.rm(record.uuid)
    assert left(house, record.uuid) == []


def test_one_that_is_discarded_leaves_nothing(house):
    prestarted = prestart(house.client.here.services, "default")
    assert len(left(house, prestarted.uuid)) > 3
    prestarted.discard()
    prestarted.discard()
    assert left(house, prestarted.uuid) == []
    assert not alive(prestarted.waiting.pid)


def test_a_stager_that_does_not_wait_is_not_prestarted(make_house, tmp_path):
    house = make_house({"stagers": {"other": {"driver": "nobody"}}})
    with pytest.raises(StagerError):
        prestart(house.client.here.services, "other")


def _hold(house, word="-"):
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, house.config_file, house.state, word], stdout=subprocess.PIPE, text=True
    )


def test_one_whose_holder_was_killed_goes(house):
    """The stager by itself; the rest with the next collection of garbage."""
    with _hold(house) as holder:
        uuid, pid = holder.stdout.readline().split()
        assert len(left(house, uuid)) > 3
        with house.connect() as other:
            other.gc(grace=0)
        assert len(left(house, uuid)) > 3, "its holder lives"
        holder.kill()
    until(lambda: not alive(int(pid)), "the stager's end")
    house.client.gc(grace=0)
    assert left(house, uuid) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "where",
    [
        f"{name}{when}"
        for name in ("begin", "create", "make_namespace", "made", "prestart")
        for when in ("", " done")
    ],
)
def test_one_whose_making_was_killed_goes(house, where):
    before = set(os.listdir(f"{house.state}/pods"))
    with _hold(house, where) as holder:
        assert holder.wait(20) == 9
    (name,) = set(os.listdir(f"{house.state}/pods")) - before
    uuid = name.removeprefix(".half-").partition(".")[0]
    with contextlib.suppress(FileNotFoundError):
        until(lambda: CgroupTree(f"kurma/{uuid}").pids() == [], "the stager's end")
    house.client.gc(grace=0)
    assert left(house, uuid) == []


@pytest.mark.parametrize("where", ["make_namespace done", "prestart done"])
def test_kurmad_frees_what_it_has_before_its_directory_goes(house, where):
    """The directory is the only record of the cgroup."""
    before = set(os.listdir(f"{house.state}/pods"))
    with _hold(house, where) as holder:
        assert holder.wait(20) == 9
    (name,) = set(os.listdir(f"{house.state}/pods")) - before
    uuid = name.removeprefix(".half-").partition(".")[0]
    until(lambda: CgroupTree(f"kurma/{uuid}").pids() == [], "the stager's end")
    house.client.here.store.sweep(0)
    assert name in os.listdir(f"{house.state}/pods")
    DaemonInterface(house.client.here.pods).sweep(0)
    assert left(house, uuid) == []


def test_one_that_can_be_neither_made_nor_undone_stays_on_record(house, monkeypatch):
    before = set(os.listdir(f"{house.state}/pods"))

    def busy(*_):
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as faults:
        faults.setattr(house.client.here.services.stagers.engine("default"), "prestart", busy)
        faults.setattr(CgroupTree, "remove", busy)
        with pytest.raises(OSError, match="busy"):
            prestart(house.client.here.services, "default")
    (name,) = set(os.listdir(f"{house.state}/pods")) - before
    uuid = name.removeprefix(".half-").partition(".")[0]
    assert CgroupTree(f"kurma/{uuid}").exists()
    house.client.gc(grace=0)
    assert left(house, uuid) == []


def maker_of(prestarted):
    """The process that waits beside the stager, to make the first app's root."""

    def found():
        with open(f"/proc/{prestarted.waiting.pid}/task/{prestarted.waiting.pid}/children") as file:
            return [int(word) for word in file.read().split()]

    def waits():
        # For the word, which comes on descriptor 5.
        words = pathlib.Path(f"/proc/{prestarted.waiting.pid}/syscall").read_text().split()
        return words[1:2] == ["0x5"] and sorted(comm(pid) for pid in found()) == ["kurma-init", "python3"]

    until(waits, "it and the pod's PID 1")
    maker = next(pid for pid in found() if comm(pid) == "python3")
    # Until it closes its copy of the stager's descriptor 4, a maker that is stopped holds the pod's start up.
    until(lambda: not os.path.lexists(f"/proc/{maker}/fd/4"), "its copies to be closed")
    return maker


def comm(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_the_first_apps_root_is_made_beside_the_stager(house, make, begin):
    """No app without it; and it has gone before the app's program runs."""
    prestarted = make()
    maker = maker_of(prestarted)
    os.kill(maker, signal.SIGSTOP)
    # A process without memory has ended, although the kernel may still be at work on it.
    script = (
        'for each in /proc/[0-9]*; do [ -z "$(cat $each/cmdline)" ] || cat $each/comm; done 2>/dev/null;'
        "cat /proc/self/mountinfo; echo made >/made; exec sleep 1000"
    )
    pod = CgroupTree(f"kurma/{prestarted.uuid}")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        coming = pool.submit(begin, prestarted, {"main": script, "other": "exec sleep 1000"})
        sleeps = lambda: "sleep" in [comm(pid) for pid in pod.pids()]  # noqa: E731
        until(lambda: coming.done() or sleeps(), "the other app, which makes its own")
        if coming.done():
            pytest.fail(f"the pod did not wait for its maker: {coming.result()}")
        assert [comm(pid) for pid in CgroupTree(f"{pod.name}/app-main").pids()] == ["python3"]
        assert not coming.done()
        os.kill(maker, signal.SIGCONT)
        owned, record = coming.result()
    until(lambda: not alive(maker), "its end")
    changes = f"{owned.directory}/pod/apps/main/0/upper/made"
    until(lambda: os.path.exists(changes), "its file")
    log = house.log(record, "main")
    commands, _, mounts = log.partition("\n1")
    assert "kurma-init" in commands
    assert "python3" not in commands
    assert not [line for line in mounts.splitlines() if " /layers" in line or " /pod" in line]
    finish(owned)


def test_one_that_was_killed_is_not_needed(house, make, begin):
    """The app's own process makes its root, then."""
    prestarted = make()
    os.kill(maker_of(prestarted), signal.SIGKILL)
    pod, record = begin(prestarted, "echo x >/made; cat /made; exec sleep 1000")
    assert pod.stager.pid == prestarted.waiting.pid
    until(lambda: house.log(record) == "x\n", "its file")
    finish(pod)


def test_what_it_cannot_make_is_told_as_of_any_root(house, make, tmp_path, begin):
    prestarted = make()
    (tmp_path / "file").touch()
    volume = {"name": "v", "kind": "host", "source": f"{tmp_path}/file"}
    app = {"app": shell("true"), "mounts": [{"volume": "v", "path": "/etc"}]}
    with pytest.raises(StagerError, match="v: cannot be mounted at /etc: a directory stands where a file is"):
        begin(prestarted, {"main": app}, volumes=[volume])
    assert not alive(prestarted.waiting.pid)


def test_an_app_with_a_handler_does_not_wait_for_it(house, make, begin):
    """Its root is made before its handler runs, by who always does that; the other one goes unused."""
    prestarted = make()
    maker = maker_of(prestarted)
    os.kill(maker, signal.SIGSTOP)
    handler = {"name": "pre-start", "exec": ["/bin/sh", "-c", "echo before >/made"]}
    pod, record = begin(prestarted, {"main": {**shell("cat /made; exec sleep 1000"), "eventHandlers": [handler]}})
    assert pod.stager.pid == prestarted.waiting.pid
    until(lambda: "before" in house.log(record), "its file")
    with contextlib.suppress(ProcessLookupError):  # the kernel lets go of it once it is nobody's child
        os.kill(maker, signal.SIGCONT)
    until(lambda: not alive(maker), "its end")
    finish(pod)
