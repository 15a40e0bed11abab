"""How a stager says that its pod runs, fails, and ends; what is torn down then (G3, G6, G8)."""

import os
import re
import signal

import pytest

from kurma_core.errors import StagerError
from tests.kit.waiting import alive, until

pytestmark = pytest.mark.root

SERVE = "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done"


def test_closing_descriptor_4_is_running(foreign):
    house = foreign(SERVE)
    with house.running() as pod:
        assert house.client.pod(pod.uuid).state == "running"
        pod.stop(force=False)
        record = pod.finish()
        assert (record.state, record.exit_code) == ("stopped", 0)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, "overlay"),
        ({"plugins": {"stagers": {"default": {"config": {"graphStorage": "copy"}}}}}, "a copy"),
        pytest.param(
            {"stager": "x", "stagers": {"x": {"driver": "default", "config": {"graphStorage": "copy"}}}},
            "a copy",
            marks=pytest.mark.full,
        ),
    ],
    ids=["none", "plugin", "section"],
)
def test_what_the_admin_says_reaches_a_stager_that_a_plugin_brings(make_house, config, kind):
    """G4: by the plugin's options, or by a section of `stagers` that names it."""
    house = make_house(config)
    with house.running("echo up; sleep 1000") as pod:
        mounts = [line.split() for line in house.enter(pod.uuid, "cat", "/proc/mounts")[1].splitlines()]
        (root,) = [fields[2] for fields in mounts if fields[1] == "/"]
        assert ("overlay" if root == "overlay" else "a copy") == kind


def test_exit_0_before_closing_it_is_a_pod_that_ran(foreign):
    house = foreign("echo ran; exit 0")
    record, output = house.run("true")
    assert (record.state, record.exit_code, output) == ("stopped", 0, "ran\n")


def test_another_exit_is_a_failed_start_told_with_its_last_words(foreign):
    house = foreign("for n in 1 2 3 4 5 6; do echo line $n; done; echo the reason >&2; exit 3")
    with pytest.raises(StagerError) as caught:
        house.run("true")
    assert caught.value.message == (
        "the stager failed to start its pod: it ended with status 3; "
        "it said: line 3 / line 4 / line 5 / line 6 / the reason"
    )
    (record,) = house.client.pods()
    assert (record.state, record.reason, record.exit_code) == ("errored", caught.value.message, 125)


def test_ended_by_a_signal_is_a_failed_start(foreign):
    house = foreign("kill -9 $$")
    with pytest.raises(StagerError, match="it ended with status 137"):
        house.run("true")


@pytest.mark.full
@pytest.mark.parametrize(
    ("init", "held", "hint"),
    [
        pytest.param("exec sleep 1000", r"\d+ \(the stager\)", "start_timeout in kurma.yml", id="never-closed"),
        pytest.param(
            "sleep 1000 & exec 4>&-; trap 'exit 0' TERM; wait",
            r"\d+ \(sleep 1000\)",
            "the stager has closed it",
            id="held-by-an-app",
        ),
        pytest.param(
            "sh -c 'exec sleep 1000 6>&4 4>&-' & trap 'exit 0' TERM; wait",
            r"\d+ \(the stager\), process \d+ \(sleep 1000\) as descriptor 6",
            "the stager must close it once its apps run, and what it starts must not inherit it",
            id="held-by-both",
        ),
    ],
)
def test_a_descriptor_that_stays_open_times_out(foreign, init, held, hint):
    """G3: the message names who holds it, and whose error that is."""
    house = foreign(init, kurma={"start_timeout": 0.5})
    with pytest.raises(StagerError) as caught:
        house.run("true")
    assert re.fullmatch(
        r"the stager did not report its pod as running within 0\.5 s: descriptor 4 is held open by "
        rf"process {held}",
        caught.value.message,
    )
    assert hint in caught.value.hint
    (record,) = house.client.pods()
    assert (record.state, record.reason) == ("errored", caught.value.message)


def test_held_by_an_app_beyond_the_stagers_end(foreign):
    """What it started does not make it live on."""
    house = foreign("sleep 1000 & exit 0")
    record, _ = house.run("true")
    assert record.state == "stopped"


def test_a_killed_stager_takes_the_pod_along(house):
    with house.running({"one": "sleep 1000", "two": "sleep 1000"}) as pod:
        pids = [app.pid for app in house.client.pod(pod.uuid).apps]
        assert all(alive(pid) for pid in pids)
        os.kill(pod.stager.pid, signal.SIGKILL)
        record = pod.finish()
        assert record.state == "errored"
        assert record.reason.startswith("the stager ended with status 137")
        assert record.exit_code == 137
        assert not any(alive(pid) for pid in pids)
        assert not os.path.exists(f"/run/netns/kurma-{pod.uuid}")


def test_what_a_stager_left_running_is_ended(foreign):
    """Daemons, twice forked, in sessions of their own, some in cgroups below."""
    house = foreign(
        "into() { for each in $(find /sys/fs/cgroup -name cgroup.procs); do\n"
        "    mkdir ${each%/*}/below && echo 0 > ${each%/*}/below/cgroup.procs; done; } 2> /dev/null\n"
        "(into; exec setsid sleep 1001) 4>&- &\n"
        "(setsid sh -c 'trap \"\" TERM HUP; (sleep 1002 & echo $! > /pod/daemon) &') 4>&- & wait $!\n"
        "while ! [ -s /pod/daemon ]; do sleep 0.01; done\n"
        "exec 4>&-; sleep 0.1; exit 5"
    )
    record, _ = house.run("true")
    assert (record.state, record.exit_code) == ("errored", 5)
    with open(house.path(record, "pod/daemon")) as file:
        assert not alive(int(file.read()))


def test_an_apps_daemon_is_ended_with_its_pod(house):
    with house.running("(setsid sh -c 'sleep 1003 & echo $! > /tmp/x') & wait; sleep 1000") as pod:
        until(lambda: _sleeping(house, pod.uuid, "1003"), "the daemon")
        daemons = _sleeping(house, pod.uuid, "1003")
        pod.stop(force=False)
        pod.finish()
        assert daemons
        assert not any(alive(pid) for pid in daemons)


def _sleeping(house, uuid, seconds):
    """PIDs of the pod's processes that sleep so long."""
    from kurma_core.linux.cgroups import CgroupTree

    found = []
    for pid in CgroupTree(f"kurma/{uuid}").pids():
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                if file.read().split("\0")[:2] == ["sleep", seconds]:
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_without_a_status_file_the_exit_code_and_the_last_status_count(foreign):
    house = foreign(
        "trap 'exit 0' TERM; exec 4>&-; while ! [ -e /pod/end ]; do sleep 0.02; done; exit 6",
        {"status": """echo '{"main": {"pid": '$PPID', "exited": false}}'"""},
    )
    with house.running() as pod:
        (app,) = house.client.pod(pod.uuid).apps
        assert (app.name, app.exited) == ("main", False)
        assert app.pid is not None
        with open(house.path(pod, "pod/end"), "w"):
            pass
        record = pod.finish()
        assert (record.state, record.exit_code) == ("errored", 6)
        assert record.apps[0].pid is None
    assert not os.path.exists(house.path(pod, "pod/status.json"))


def test_the_exit_code_comes_from_what_status_said_last(foreign):
    house = foreign(
        "trap 'exit 0' TERM; exec 4>&-; while :; do sleep 0.02; done",
        {"status": """echo '{"main": {"exited": true, "exitCode": 9, "exitReason": "exited"}}'"""},
    )
    with house.running() as pod:
        assert house.client.pod(pod.uuid).apps[0].exit_code == 9
        pod.stop(force=False)
        record = pod.finish()
        assert (record.state, record.exit_code) == ("stopped", 9)
        assert record.apps[0].exit_code == 9


WRITES = """exec 4>&-; while ! [ -e /pod/end ]; do sleep 0.02; done; %s; exit 0"""
RUNS = """echo '{"version": 1, "apps": {"main": {"pid": 1, "startedAt": "T"}}}' > /pod/status.json"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (RUNS, "it ended, and its status.json says that app main runs"),
        ("mkdir /pod/status.json", "its status.json cannot be read: not a regular file"),
        ("ln -s /manifest /pod/status.json", "its status.json cannot be read: Too many levels of symbolic links"),
    ],
)
def test_an_end_of_which_the_stager_tells_nonsense_is_no_good_one(foreign, script, reason):
    house = foreign(WRITES % script)
    with house.running() as pod:
        with open(house.path(pod, "pod/end"), "w"):
            pass
        record = pod.finish()
        assert (record.state, record.exit_code) == ("errored", 125)
        assert record.reason == f"the stager is wrong: {reason}"
    assert [each.state for each in house.client.pods()] == ["errored"]


def test_a_stager_whose_program_is_not_there(foreign):
    """127 would be the app's own command."""
    house = foreign("exit 0", app={"exec": ["/nope"], "user": "0", "group": "0"})
    with pytest.raises(StagerError, match="stager shell: cannot start /nope: not found") as caught:
        with house.running():
            pass
    assert caught.value.exit_code == 125
