"""Calls into a running stager: status, run, what they are given and what comes back (G5)."""

import json
import os
import signal
import threading
import time

import pytest

from kurma_core.api.pods import EnterRequest
from kurma_core.errors import AppNotFoundError, PodEndedError, PodStateError, StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from kurma_core.value import replace
from tests.kit.house import both_ways
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

SERVE = "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done"


def driver_of(house):
    return house.client.here.services.stagers.get("shell")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('{"main": {"pid": %d, "exited": false}}', (True, False, None)),
        ('{"main": {"exited": true, "exitCode": 3, "exitReason": "killed"}}', (False, True, 3)),
        ('{"main": {"running": false, "exitCode": 0}}', (False, True, 0)),
        ("{}", (False, False, None)),
    ],
)
def test_status_in_its_shapes(foreign, said, expected):
    house = foreign(SERVE, {"status": f"printf '{said}' $PPID" if "%d" in said else f"echo '{said}'"})
    with house.running() as pod:
        (app,) = house.client.pod(pod.uuid).apps
        assert (app.pid is not None, app.exited, app.exit_code) == expected


def test_nothing_is_asked_before_the_pod_runs(foreign):
    """A call-in's cgroup is a child of the pod's, which a stager sets up until then: on v1, that has its order."""
    tells = "echo %s >> /pod/asked"
    house = foreign(
        f"while [ ! -e /pod/go ]; do sleep 0.02; done; {SERVE}",
        {"status": tells % "status" + "; echo '{}'", "logs": tells % "logs"},
    )
    run = house.launch("true", wait="starting")
    until(lambda: house.state_of(run.uuid).get("stager"), "a stager")
    assert [app.state for app in house.client.pod(run.uuid).apps] == ["created"]
    assert list(house.client.logs(run.uuid)) == []
    assert not CgroupTree(f"kurma/{run.uuid}/callins").exists()
    with open(house.path(run, "pod/go"), "w"):
        run.wait_state("running")
    house.client.pod(run.uuid)
    assert list(house.client.logs(run.uuid)) == []
    with open(house.path(run, "pod/asked")) as file:
        assert set(file.read().split()) == {"status", "logs"}
    run.signal(signal.SIGTERM)
    run.wait()


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo nonsense", "not JSON"),
        ("head -c 200000 /dev/zero | tr '\\0' '['", "expected at most 128 levels of nesting"),
        ("echo '[]'", "is not a JSON object"),
        ('echo \'{"main": {"pid": "1"}}\'', "main.pid: expected an integer from 1 to 4194304, found"),
        (
            'echo \'{"main": {"exited": true, "exitCode": 256}}\'',
            "exitCode: expected an integer from 0 to 255, found 256",
        ),
        ("yes | head -c 2000000", "more than 1048576 bytes"),
        ("exec yes", "more than 1048576 bytes"),
        ("exit 9", "its status call-in ended with status 9"),
        ("kill -9 $$", "its status call-in ended with status 137"),
        ("exec sleep 1000", "did not answer within 0.5 s"),
    ],
)
def test_a_wrong_status_is_an_error_and_hides_no_pod(foreign, script, said):
    house = foreign(SERVE, {"status": script})
    driver = driver_of(house)
    if "did not answer" in said:
        driver.times = replace(driver.times, status=0.5)
    with house.running() as pod:
        with pytest.raises(StagerError) as caught:
            driver.status(pod.directory, pod.stager)
        assert said in caught.value.message
        assert "\n" not in caught.value.message
        assert [record.state for record in house.client.pods()] == ["running"]
        with pytest.raises(StagerError) as caught:
            house.client.kill(pod.uuid, signal.SIGTERM)
        assert said in caught.value.message
        # What it has started itself ends once nobody reads it.
        until(lambda: not CgroupTree(f"kurma/{pod.uuid}/callins").pids(), "the end of the call-in")


def test_a_missing_call_in(foreign):
    house = foreign(SERVE)
    with house.running() as pod, pytest.raises(StagerError, match="has no call-in 'run'"):
        house.enter(pod.uuid, "true")


def test_run_gets_its_document_and_its_end(foreign):
    house = foreign(SERVE, {"run": "echo app $1; cat <&3 > /pod/document; echo told >&2; exit 42"})
    with house.running({"main": {"exec": ["/bin/true"], "user": "alice", "group": "users"}}) as pod:
        code, out, err = house.enter(
            pod.uuid, "a", "b c", environment=(("K", "v"),), working_directory="/tmp", user="5"
        )
        assert (code, out, err) == (42, "app main\n", "told\n")
        with open(house.path(pod, "pod/document")) as file:
            assert json.load(file) == {
                "exec": ["a", "b c"],
                # Another user than the app's brings its own groups.
                "user": "5",
                "group": "0",
                "supplementaryGIDs": [],
                "workingDirectory": "/tmp",
                "environment": [{"name": "K", "value": "v"}],
            }


@both_ways
def test_run_ended_by_a_signal(foreign):
    house = foreign(SERVE, {"run": "cat <&3 > /dev/null; kill -TERM $$"})
    with house.running() as pod:
        assert house.enter(pod.uuid, "true")[0] == 143


def test_run_that_refuses_its_document_says_so_by_its_exit_code(foreign):
    house = foreign(SERVE, {"run": "exec 3<&-; exit 7"})
    with house.running() as pod:
        assert house.enter(pod.uuid, "x" * 1_000_000)[0] == 7


@pytest.mark.full
@pytest.mark.parametrize("size", [1, 1_000_000])
def test_run_that_does_not_read_is_torn_down(foreign, size):
    house = foreign(SERVE, {"run": "echo $$ > /pod/reader; exec sleep 1000"})
    driver = driver_of(house)
    driver.times = replace(driver.times, document=1.5)
    with house.running() as pod:
        started = time.monotonic()
        with pytest.raises(StagerError, match=r"'run' did not read its document within 1\.5 s"):
            house.enter(pod.uuid, "x" * size)
        assert 1.4 < time.monotonic() - started < 20
        with open(house.path(pod, "pod/reader")) as file:
            assert not alive(int(file.read()))
        assert house.client.pod(pod.uuid).state == "running"


@pytest.mark.vm
def test_a_call_in_is_in_the_pods_cgroup_and_namespaces_and_ends_with_it(foreign):
    house = foreign(
        SERVE,
        {"run": "cat <&3 > /dev/null; echo $$ > /pod/caller; exec sleep 1000"},
    )
    with house.running() as pod:
        ended = []
        with house.connect() as other:

            def call():
                null = os.open("/dev/null", os.O_RDWR)
                try:
                    other.enter(pod.uuid, EnterRequest(exec=("true",)), Stdio(null, null, null))
                except PodEndedError as error:
                    ended.append((str(error), error.exit_code))
                os.close(null)

            caller = threading.Thread(target=call)
            caller.start()
            path = house.path(pod, "pod/caller")
            until(lambda: os.path.exists(path) and os.path.getsize(path), "the call-in")
            with open(path) as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/cgroup") as file:
                assert {line.strip().rpartition(":")[2] for line in file} == {f"/kurma/{pod.uuid}/callins"}
            for namespace in ("mnt", "net"):
                assert os.readlink(f"/proc/{pid}/ns/{namespace}") == os.readlink(
                    f"/proc/{pod.stager.pid}/ns/{namespace}"
                )
            assert os.stat(f"/proc/{pid}/root").st_dev == os.stat(f"/proc/{pod.stager.pid}/root").st_dev
            pod.stop(force=False)
            pod.finish()
            caller.join(10)
            assert ended == [(f"pod {house.client.pod(pod.uuid).name} has ended", 137)]
            assert not alive(pid)


@pytest.mark.vm
def test_a_command_does_not_outlive_who_entered(house):
    with house.running() as pod:
        entering = os.fork()
        if entering == 0:
            try:
                null = os.open("/dev/null", os.O_RDWR)
                request = EnterRequest(exec=("sleep", "1234"))
                house.connect().enter(pod.uuid, request, Stdio(null, null, null))
            finally:
                os._exit(0)

        def there():
            return "sleep 1234" in house.enter(pod.uuid, "ps")[1]

        try:
            until(there, "the command")
        finally:
            os.kill(entering, signal.SIGKILL)
            os.waitpid(entering, 0)
        until(lambda: not there(), "the command's end")


def test_a_command_has_the_groups_of_its_app(house):
    """All of them, unless it is another user's; whatever group is asked for."""
    main = {"exec": ["/bin/sleep", "1000"], "user": "alice", "group": "users", "supplementaryGIDs": [7, 8]}
    with house.running({"main": main}) as pod:
        assert house.enter(pod.uuid, "id", "-G")[1] == "100 7 8\n"
        assert house.enter(pod.uuid, "id", "-G", group="5")[1] == "5 7 8\n"
        assert house.enter(pod.uuid, "id", "-G", user="5", group="6")[1] == "6\n"


@both_ways
@pytest.mark.vm
def test_enter_of_the_default_stager(house):
    with house.running({"main": {"exec": ["/bin/sleep", "1000"], "user": "alice", "group": "users"}}) as pod:
        assert house.enter(pod.uuid, "sh", "-c", "cat; echo err >&2; exit 5", stdin=b"through\n") == (
            5,
            "through\n",
            "err\n",
        )
        assert house.enter(pod.uuid, "id", "-u")[1] == "1000\n"
        assert house.enter(pod.uuid, "id", "-u", user="0", group="0")[1] == "0\n"
        assert house.enter(pod.uuid, "sh", "-c", "kill -9 $$")[0] == 137
        assert house.enter(pod.uuid, "no-such-command")[0] == 127
        assert house.enter(pod.uuid, "/etc/passwd")[0] == 126
        assert "sleep" in house.enter(pod.uuid, "ps")[1]


@both_ways
def test_enter_needs_an_app_and_a_running_pod(house):
    with house.running({"one": "sleep 1000", "two": "sleep 1000"}) as pod:
        with pytest.raises(AppNotFoundError, match="has several apps"):
            house.enter(pod.uuid, "true")
        with pytest.raises(AppNotFoundError, match="has no app three"):
            house.enter(pod.uuid, "true", app="three")
        assert house.enter(pod.uuid, "hostname", app="two")[0] == 0
    with pytest.raises(PodStateError, match=r"it is (stopped|errored)"):
        house.enter(pod.uuid, "true", app="one")


LOGS = """
echo "asked: $@"; printf 'a part'; sleep .1; echo ' and its end'
[ "$1" = main ] || { echo "logs: no app $1" >&2; exit 2; }
[ "$2" != --follow ] || while :; do sleep .05; echo again; done
"""


@both_ways
def test_logs_are_asked_of_a_stager_that_keeps_none(foreign):
    """G8, G9: in the words of the contract, while it lives; what it printed itself, once it has ended."""
    house = foreign("echo own words; " + SERVE, {"logs": LOGS})
    with house.running() as pod:
        found = list(house.client.logs(pod.uuid, "main", tail=3, since=1_500_000_000_500_000_000, stream="stdout"))
        assert b"".join(text.text + (b"" if text.partial else b"\n") for text in found) == (
            b"asked: main --tail 3 --since 2017-07-14T02:40:00.500000000Z --stream stdout\na part and its end\n"
        )
        followed = house.client.logs(pod.uuid, follow=True)
        text = b""
        while text.count(b"again") < 3:
            text += next(followed).text
        followed.close()
        until(lambda: not CgroupTree(f"kurma/{pod.uuid}/callins").pids(), "the call-in's end")
    assert b"".join(text.text for text in house.client.logs(pod.uuid)) == b"own words"


def test_call_ins_are_found_as_the_stager_would_find_them(foreign):
    """By a link that leads to nowhere as the host sees it."""
    house = foreign("echo own words; " + SERVE, {"logs": "echo 'from the call-in'"}, linked=True)
    with house.running("true") as pod:
        assert b"".join(text.text for text in house.client.logs(pod.uuid)) == b"from the call-in"


@both_ways
def test_a_logs_call_in_that_fails(foreign):
    house = foreign(SERVE, {"logs": "echo some; echo 'logs: the disk is gone' >&2; exit 3"})
    with house.running() as pod:
        found = house.client.logs(pod.uuid)
        assert next(found).text == b"some"
        with pytest.raises(StagerError, match="'logs' ended with status 3: logs: the disk is gone"):
            next(found)


def test_a_logs_call_in_whose_output_somebody_holds(foreign):
    """It is over when it has ended, whatever it has left behind."""
    house = foreign(SERVE, {"logs": "sleep 1000 & echo some; exit 0"})
    with house.running() as pod:
        started = time.monotonic()
        assert [text.text for text in house.client.logs(pod.uuid)] == [b"some"]
        assert time.monotonic() - started < 5


def test_no_logs_call_in(foreign):
    """There is what it prints itself."""
    house = foreign("echo own words; " + SERVE)
    with house.running() as pod:
        assert b"".join(text.text for text in house.client.logs(pod.uuid)) == b"own words"
