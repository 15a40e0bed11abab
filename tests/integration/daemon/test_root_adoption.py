"""A daemon that comes after another one, or after foreground commands that were killed: it owns what lives."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

import kurma_core
from kurma_core import VERSION
from kurma_core.client.remote.http import Connection
from kurma_core.errors import PodNotFoundError
from kurma_core.linux import process
from tests.integration.pods.test_pods_changing_crash import change
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.command import KURMA
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

TICKS = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
ENDS = "trap 'exit {}' USR1; echo up; while :; do sleep 0.02; done"
SIGNS = 'wget -q -O - --post-data="content=hello" "$AC_METADATA_URL/acMetadata/v1/pod/hmac/sign"'

STOPS_AND_DIES = """
import os, sys
from kurma_core.client import Settings, connect
from kurma_core.staging.aci_stager import AciStager
stop = AciStager.stop
def stop_and_die(*given, **options):
    stop(*given, **options)
    os.kill(os.getpid(), 9)
AciStager.stop = stop_and_die
connect(Settings(*sys.argv[1:3], host="local")).stop(sys.argv[3], force=True)
"""


def started(daemon, apps, **options):
    """A pod that the daemon owns."""
    record = daemon.house.client.prepare(daemon.house.request(apps, **options))
    connection = Connection.open(daemon.socket)
    answer = connection.request("POST", f"/v1/pods/{record.uuid}/start", b"")
    value = json.loads(answer.read())
    assert answer.status == 200, value
    connection.close()
    return record.uuid


def owner(house, uuid):
    return house.state_of(uuid).get("owner")


def test_a_living_pod_is_adopted(kurmad, ask):
    first = kurmad()
    house = first.house
    uuid = started(first, {"main": "trap 'echo bye; exit 4' TERM; " + TICKS}, net="default")
    until(lambda: "2\n" in house.log(house.client.pod(uuid)), "ticks")

    def sign():
        return house.enter(uuid, "sh", "-c", SIGNS)

    before = house.client.pod(uuid)
    token = house.enter(uuid, "sh", "-c", "echo $AC_METADATA_URL")
    signature = sign()
    assert signature[0] == 0
    first.end(signal.SIGKILL)
    assert owner(house, uuid) == first.process.pid
    assert house.client.pod(uuid).owner is None
    assert sign()[0] != 0, "nobody serves its metadata"
    seen = house.log(house.client.pod(uuid))
    second = kurmad(house=house)
    until(lambda: owner(house, uuid) == second.process.pid, "the adoption")
    now = ask(second).pod(uuid)
    assert (now.owner, now.stager_pid, now.apps[0].pid) == (
        second.process.pid,
        before.stager_pid,
        before.apps[0].pid,
    )
    assert house.enter(uuid, "sh", "-c", "echo $AC_METADATA_URL") == token
    assert sign() == signature, "the same key"
    until(lambda: len(house.log(now)) > len(seen) + 10, "more ticks")
    added = ask(second)
    house.client.app_add(uuid, house.request({"other": "sleep 1000"}, net=None), start=True)
    assert [app.name for app in added.pod(uuid).apps] == ["main", "other"]
    house.client.app_rm(uuid, "other", force=True)
    record = ask(second).stop(uuid)
    assert (record.state, record.exit_code) == ("stopped", 4)
    lines = house.log(record).split()
    assert lines == [*map(str, range(1, len(lines))), "bye"], "nothing is lost, nothing twice"
    assert_nothing_left(uuid)
    house.client.network_rm("default")


def test_ends_that_nobody_saw_are_known(kurmad, ask):
    first = kurmad()
    house = first.house
    ends = {code: started(first, ENDS.format(code)) for code in (0, 3, 77)}
    gone = started(first, ENDS.format(0), ephemeral=True)
    for uuid in (*ends.values(), gone):
        until(lambda uuid=uuid: "up" in house.log(house.client.pod(uuid)), "the trap")
    apps = [house.client.pod(uuid).apps[0].pid for uuid in (*ends.values(), gone)]
    first.end(signal.SIGKILL)
    for pid in apps:
        os.kill(pid, signal.SIGUSR1)
    stagers = [house.state_of(uuid)["stager"]["pid"] for uuid in (*ends.values(), gone)]
    until(lambda: not any(map(alive, stagers)), "their ends")
    # Nobody has come by since.
    assert {house.state_of(uuid)["state"] for uuid in ends.values()} == {"running"}
    second = kurmad(house=house)
    for code, uuid in ends.items():
        until(lambda uuid=uuid: house.state_of(uuid)["state"] == "stopped", "its being taken down")
        assert house.state_of(uuid)["exitCode"] == code
        assert_nothing_left(uuid)
    until(lambda: not os.path.exists(house.path(gone)), "the ephemeral one's removal")
    with pytest.raises(PodNotFoundError):
        ask(second).pod(gone)


@pytest.mark.full
def test_who_ends_a_pod_by_force_dies_of_it(kurmad):
    """It had said what it was about to do: whoever comes by knows how the stager ended, and did not see it."""
    first = kurmad()
    house = first.house
    uuid = started(first, "echo up; sleep 1000")
    until(lambda: "up" in house.log(house.client.pod(uuid)), "its start")
    first.end(signal.SIGKILL)
    dies = subprocess.run(
        [sys.executable, "-c", STOPS_AND_DIES, house.config_file, house.state, uuid], check=False
    )
    assert dies.returncode == -signal.SIGKILL
    record = house.client.wait(uuid)
    assert (record.state, record.exit_code, record.reason) == ("errored", 137, "the stager ended with status 137")
    assert_nothing_left(uuid)


@pytest.mark.full
def test_who_ends_an_adopted_pod_by_force_need_not_wait_for_init(make_house, monkeypatch):
    """Its stager is another's child, whose status init may hear late, and the kernel tells nobody before."""
    house = make_house()
    run = house.launch("echo up; sleep 1000")
    run.kill()
    pod = house.client.here.pods.adopt(run.uuid)
    monkeypatch.setattr(process, "wait_reaped", lambda *given: pytest.fail("it was waited for"))
    monkeypatch.setattr(process, "exit_status", lambda pidfd: None)  # init has not come to it
    pod.stop(force=True)
    record = pod.finish()
    pod.close()
    assert (record.state, record.exit_code, record.reason) == ("errored", 137, "the stager ended with status 137")
    assert_nothing_left(run.uuid)


@pytest.mark.full
def test_remains_of_a_pod_that_was_being_removed(kurmad, make_house):
    house = make_house()
    record = house.client.prepare(house.request("true"))
    half = f"{house.state}/pods/.half-{record.uuid}.1"
    os.rename(house.path(record.uuid), half)
    kurmad(house=house)
    until(lambda: not os.path.exists(half), "its removal")
    until(lambda: record.name not in house.names(), "its name being free")


@pytest.mark.full
@pytest.mark.parametrize("daemon", ["comes", "is there"])
def test_ephemeral_pods_that_nobody_has_removed(kurmad, make_house, daemon):
    """Their owner has recorded their end, and died before it removed them."""
    house = make_house()
    if daemon == "is there":
        kurmad(house=house)
    removes = "kurma_core.client.local.pods:LocalPods._remove_ended"
    run = house.launch("exit 3", ephemeral=True, wait=None, faults=[["entering", removes]])
    assert run.wait() == -signal.SIGKILL
    if daemon == "comes":
        assert house.state_of(run.uuid)["state"] == "stopped"
        kurmad(house=house)
    until(lambda: not os.path.exists(house.path(run.uuid)), "its removal")
    until(lambda: f"main-{run.uuid[:8]}" not in house.names(), "its name being free")


@pytest.mark.full
@pytest.mark.parametrize("wait", ["up", "not yet"])
def test_a_pod_that_was_starting(kurmad, foreign, wait):
    """Its starter dies before it has recorded that it runs: it is kept if it came up, and undone if not."""
    closes = "exec 4>&-; echo up > /pod/up;" if wait == "up" else ""
    house = foreign(f"trap 'exit 0' TERM; {closes} while :; do sleep 0.02; done")
    faults = (
        [] if wait == "not yet" else [["leaving", "kurma_core.staging.stager_process:StagerProcess.wait_running"]]
    )
    run = house.launch("true", wait=None, faults=faults)
    if wait == "up":
        assert run.wait() == -signal.SIGKILL
    else:
        until(lambda: house.state_of(run.uuid).get("stager"), "the stager")
        run.kill()
    state = house.state_of(run.uuid)
    assert state["state"] == "starting"
    daemon = kurmad(house=house)
    if wait == "up":
        until(lambda: owner(house, run.uuid) == daemon.process.pid, "the adoption")
        assert house.state_of(run.uuid)["state"] == "running"
        assert alive(state["stager"]["pid"])
        house.client.stop(run.uuid)
        assert house.state_of(run.uuid)["state"] == "stopped"
    else:
        until(lambda: house.state_of(run.uuid)["state"] == "errored", "its being undone")
        assert house.state_of(run.uuid)["reason"] == "its owner died while it started"
        assert not alive(state["stager"]["pid"])
    assert_nothing_left(run.uuid)


@pytest.mark.full
def test_pods_of_other_processes(kurmad, ask):
    """They are watched, without asking: the daemon takes over when their owner dies."""
    daemon = kurmad()
    house = daemon.house
    run = house.launch(TICKS)
    time.sleep(0.5)
    assert owner(house, run.uuid) == run.process.pid, "its owner lives"
    assert ask(daemon).pod(run.uuid).state == "running"
    run.kill()
    until(lambda: owner(house, run.uuid) == daemon.process.pid, "the adoption")
    assert ask(daemon).stop(run.uuid).state == "stopped"
    # It was the daemon's, and is somebody else's by now.
    again = house.launch(start=run.uuid)
    assert owner(house, run.uuid) == again.process.pid
    again.kill()
    until(lambda: owner(house, run.uuid) == daemon.process.pid, "the adoption")
    assert ask(daemon).stop(run.uuid).state == "stopped"
    # One whose owner lives is stopped by way of the daemon, too, and taken down by its owner.
    other = house.launch("trap 'exit 5' TERM; echo up; while :; do sleep 0.02; done")
    other.wait_output("up")
    assert ask(daemon).stop(other.uuid).exit_code == 5
    assert other.wait() == 5
    # Killed while it starts, and dead with its owner.
    third = house.launch("sleep 1000")
    pid = house.state_of(third.uuid)["stager"]["pid"]
    third.signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    third.kill()
    until(lambda: house.state_of(third.uuid)["state"] == "errored", "its being taken down")
    for uuid in (run.uuid, other.uuid, third.uuid):
        assert_nothing_left(uuid)
    prepared = house.client.prepare(house.request("true"))
    assert ask(daemon).pod(prepared.uuid).state == "prepared"
    again = house.launch(start=prepared.uuid, wait=None, faults=[["before", "stager"]])
    again.wait()
    until(lambda: house.state_of(prepared)["state"] == "errored", "the half-made one's being undone")
    assert_nothing_left(prepared.uuid)


@pytest.mark.full
def test_an_upgrade_keeps_the_pods(kurmad, ask, tmp_path):
    """A daemon of an earlier version, from another place, and then this one."""
    shutil.copytree(os.path.dirname(kurma_core.__file__), tmp_path / "kurma_core")
    version = tmp_path / "kurma_core/__init__.py"
    version.write_text(version.read_text().replace(VERSION, "0.0.9"))
    old = kurmad(code=tmp_path)
    house = old.house
    client = ask(old)
    assert client.info().version == "0.0.9"
    client.close()
    uuid = started(old, {"main": "trap 'exit 4' TERM; " + TICKS}, net="default")
    before, signature = house.client.pod(uuid), house.enter(uuid, "sh", "-c", SIGNS)
    assert old.end() == 0
    new = kurmad(house=house)
    until(lambda: owner(house, uuid) == new.process.pid, "the adoption")
    assert ask(new).info().version == VERSION
    now = house.client.pod(uuid)
    assert (now.stager_pid, now.apps[0].pid) == (before.stager_pid, before.apps[0].pid)
    assert house.enter(uuid, "sh", "-c", SIGNS) == signature
    house.client.app_add(uuid, house.request({"other": "sleep 1000"}, net=None), start=True)
    assert [app.state for app in house.client.pod(uuid).apps] == ["running", "running"]
    house.client.app_rm(uuid, "other", force=True)
    assert house.client.stop(uuid).exit_code == 4
    assert_nothing_left(uuid)
    again = house.launch(start=uuid, host=None)
    assert owner(house, uuid) == new.process.pid
    house.client.stop(uuid)
    again.wait()
    house.client.rm(uuid)
    house.client.network_rm("default")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_records_of_a_newer_version_are_left_alone(kurmad):
    first = kurmad()
    house = first.house
    new, old = started(first, "sleep 1000"), started(first, "sleep 1000")
    first.end(signal.SIGKILL)
    state = house.state_of(new)
    with open(house.path(new, "state.json"), "w") as file:
        json.dump({**state, "version": 99}, file)
    second = kurmad(house=house)
    until(lambda: owner(house, old) == second.process.pid, "the adoption of the other")
    until(lambda: "state.json was written by a newer version of kurma" in second.log.read_text(), "the log")
    assert house.state_of(new)["owner"] == first.process.pid
    assert alive(state["stager"]["pid"])
    with open(house.path(new, "state.json"), "w") as file:
        json.dump(state, file)


@pytest.mark.full
def test_descriptors_do_not_grow(kurmad):
    """Of the daemon, over pods of its own and of others that come and go."""
    daemon = kurmad()
    house = daemon.house

    def life():
        uuid = started(daemon, "sleep 0.1")
        run = house.launch("trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done")
        run.wait_output("up")
        run.kill()
        until(lambda: owner(house, run.uuid) == daemon.process.pid, "the adoption")
        house.client.stop(run.uuid)
        house.client.rm(run.uuid)
        until(lambda: house.state_of(uuid)["state"] == "stopped", "its end")
        house.client.rm(uuid)

    life()
    time.sleep(0.5)
    before = descriptors(daemon.process.pid)
    for _ in range(3):
        life()
    until(lambda: descriptors(daemon.process.pid) <= before, "descriptors being let go of")


@pytest.mark.full
def test_a_half_made_change_of_its_apps(kurmad, ask):
    """Of a pod whose daemon dies as well: the next one clears it away."""
    first = kurmad()
    house = first.house
    uuid = started(first, {"other": "sleep 1000"})
    fault = ["leaving", "kurma_core.staging.app_callins:LiveRoot.bind"]
    code, said = change(house, house.client.pod(uuid), "add", fault=fault)
    assert code == -signal.SIGKILL, said
    assert house.state_of(uuid)["change"]["app"] == "one"
    first.end(signal.SIGKILL)
    second = kurmad(house=house)
    until(lambda: owner(house, uuid) == second.process.pid and house.state_of(uuid)["change"] is None, "it")
    assert [app.name for app in house.client.pod(uuid).apps] == ["other"]
    house.client.app_add(uuid, house.request({"one": "sleep 1000"}, net=None), start=True)
    house.client.rm(uuid, force=True)


def test_many_wait(kurmad, ask):
    """More than there are watches; and who goes away waits no more."""
    daemon = kurmad()
    house = daemon.house
    uuid = started(daemon, ENDS.format(5))
    until(lambda: "up" in house.log(house.client.pod(uuid)), "the trap")
    threads = len(os.listdir(f"/proc/{daemon.process.pid}/task"))
    waiting = []
    for _ in range(150):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(daemon.socket)
        sock.sendall(f"GET /v1/pods/{uuid}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        waiting.append(sock)

    def serving():
        return len(os.listdir(f"/proc/{daemon.process.pid}/task")) - threads

    until(lambda: serving() >= 145, "all being served")
    for sock in waiting[75:]:
        sock.close()
    until(lambda: serving() <= 80, "their threads' ends")
    os.kill(house.client.pod(uuid).apps[0].pid, signal.SIGUSR1)
    for sock in waiting[:75]:
        sock.settimeout(20)
        answer = sock.recv(65536)
        assert b'"exitCode": 5' in answer
        sock.close()


def test_who_waits_for_a_pod_of_another_process_and_goes_away(kurmad):
    daemon = kurmad()
    run = daemon.house.launch("sleep 1000")

    def threads():
        return len(os.listdir(f"/proc/{daemon.process.pid}/task"))

    before = threads()
    waiting = []
    for _ in range(20):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(daemon.socket)
        sock.sendall(f"GET /v1/pods/{run.uuid}/wait HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        waiting.append(sock)
    until(lambda: threads() >= before + 20, "all being served")
    for sock in waiting:
        sock.close()
    until(lambda: threads() <= before + 1, "their threads' ends")
    run.kill()
    until(lambda: owner(daemon.house, run.uuid) == daemon.process.pid, "the adoption")
    daemon.house.client.rm(run.uuid, force=True)


@pytest.mark.full
def test_waiting_and_following_where_others_have_used_up_all_watches(kurmad):
    daemon = kurmad()
    house = daemon.house
    uuid = started(daemon, ENDS.format(5))
    until(lambda: "up" in house.log(house.client.pod(uuid)), "the trap")
    # A user namespace has a limit of its own.
    none = 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"'
    kurma = [*KURMA, "--dir", house.state, "--config", house.config_file]
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", none, "sh", *kurma, "--host", "local"]
    with (
        subprocess.Popen([*command, "logs", "--follow", uuid], stdout=subprocess.PIPE) as following,
        subprocess.Popen([*command, "wait", uuid], stdout=subprocess.DEVNULL) as waiting,
    ):

        def waits():
            links = []
            for fd in os.listdir(f"/proc/{waiting.pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    links.append(os.readlink(f"/proc/{waiting.pid}/fd/{fd}"))
            return waiting.poll() is not None or "anon_inode:[pidfd]" in links

        try:
            assert following.stdout.readline() == b"up\n"
            until(waits, "its waiting for the stager")
            os.kill(house.client.pod(uuid).apps[0].pid, signal.SIGUSR1)
            assert waiting.wait(30) == 5
            assert following.stdout.read() == b""
            assert following.wait(30) == 0
        finally:
            waiting.kill()
            following.kill()
