"""A pod in the foreground of a command: signals, a closed terminal, nobody who reads, standard input."""

import errno
import os
import signal
import socket
import time

import pytest

from kurma_core.models.streams import Stdio
from tests.kit.house import both_ways
from tests.kit.waiting import until

pytestmark = pytest.mark.root

POLITE = "trap 'echo asked; exit 4' TERM; echo ready; while :; do sleep 0.02; done"
DEAF = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done"


@both_ways
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_pod(house, number):
    run = house.launch(POLITE)
    run.wait_output("ready")
    run.signal(number)
    assert run.wait() == 4
    assert run.output == "ready\nasked\n"
    assert run.errors == ""
    assert house.client.pod(run.uuid).state == "stopped"


@both_ways
def test_a_second_one_ends_it_at_once(make_house, served):
    house = served(make_house({"stop_timeout": 60}))
    run = house.launch(DEAF)
    run.wait_output("ready")
    run.signal(signal.SIGINT)
    run.wait_output("asked")
    started = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait() == 137
    assert time.monotonic() - started < 3
    assert house.client.pod(run.uuid).state == "errored"


@both_ways
def test_ctrl_c_goes_to_the_whole_group_of_processes(house):
    """As a terminal sends it: the spawner and the stager must not mind."""
    run = house.launch(POLITE)
    run.wait_output("ready")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait() == 4
    assert run.output == "ready\nasked\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "where",
    [
        "kurma_core.pods.prepare.prepare_pod:reify",
        "kurma_core.pods.run.launch:Cgroup.do",
        "kurma_core.pods.run.launch:Networks.do",
        "kurma_core.staging.aci_stager:AciStager.start",
        "kurma_core.staging.stager_process:StagerProcess.wait_running",
    ],
)
@pytest.mark.parametrize("when", ["entering", "leaving"])
def test_a_signal_while_it_starts_leaves_nothing(house, when, where):
    run = house.launch("sleep 1000", faults=[[f"{when} with {int(signal.SIGINT)}", where]], wait=None)
    code = run.wait()
    assert run.errors.splitlines()[-1:] == ["interrupted by SIGINT"]
    assert code == 130
    records = house.client.pods()
    if "prepare" in where:
        assert records == []
    else:
        assert [(record.state, record.reason) for record in records] == [("errored", "interrupted by SIGINT")]
        assert house.state_of(records[0])["steps"] == []


def test_two_signals_while_it_starts_do_not_interrupt_the_teardown(house):
    run = house.launch(
        "sleep 1000",
        faults=[
            ["leaving with 2", "kurma_core.pods.run.launch:NetworkNamespace.do"],
            ["entering with 2", "kurma_core.pods.run.launch:NetworkNamespace.undo"],
            ["leaving with 15", "kurma_core.pods.run.launch:Cgroup.undo"],
        ],
        wait=None,
    )
    assert run.wait() == 130
    (record,) = house.client.pods()
    assert (record.state, house.state_of(record)["steps"]) == ("errored", [])


def test_a_signal_while_a_failed_start_is_undone_does_not_interrupt_it(house, tmp_path):
    """The first one, too."""
    run = house.launch(
        {"main": {"exec": ["/bin/true"], "user": "nobody-there", "group": "0"}},
        faults=[["entering with 2", "kurma_core.pods.run.launch:Cgroup.undo"]],
        wait=None,
    )
    run.wait()
    (record,) = house.client.pods()
    assert house.state_of(record)["steps"] == []
    assert "interrupted" not in run.errors


@both_ways
def test_a_signal_that_was_ignored_stays_ignored(house):
    """As under nohup."""
    run = house.launch("echo ready; sleep 0.6; exit 5", prelude="ignore-hup")
    run.wait_output("ready")
    run.signal(signal.SIGHUP)
    assert run.wait() == 5


@both_ways
def test_nobody_reads_any_more(house):
    """As with ``| head -1``: the pod is stopped."""
    read, write = os.pipe()
    run = house.launch("trap 'exit 4' TERM; while :; do echo line; sleep 0.02; done", stdout=write)
    os.close(write)
    assert os.read(read, 5) == b"line\n"
    os.close(read)
    assert run.wait() == 4
    assert house.client.pod(run.uuid).state == "stopped"
    assert "Traceback" not in run.errors


@both_ways
def test_a_reader_that_is_gone_is_noticed_without_a_write(house):
    """As with ``| head -1``, and an app that has no more to say."""
    read, write = os.pipe()
    run = house.launch("trap 'exit 4' TERM; echo one; while :; do sleep 0.02; done", stdout=write)
    os.close(write)
    assert os.read(read, 4) == b"one\n"
    os.close(read)
    assert run.wait() == 4
    assert house.client.pod(run.uuid).state == "stopped"


@both_ways
def test_a_socket_whose_reader_is_gone(house):
    ours, theirs = socket.socketpair()
    run = house.launch("trap 'exit 4' TERM; echo one; while :; do sleep 0.02; done", stdout=theirs)
    theirs.close()
    assert ours.recv(4) == b"one\n"
    ours.close()
    assert run.wait() == 4


@both_ways
def test_output_that_fails_ends_the_pod(house):
    """Its disk is full, for instance: nobody is left with a pod that runs on behind a failed command."""

    def fail(line):
        raise OSError(errno.ENOSPC, "No space left on device")

    null = os.open("/dev/null", os.O_RDWR)
    with pytest.raises(OSError, match="No space left"):
        house.client.run(house.request("echo line; sleep 1000"), Stdio(null, null, null), fail)
    os.close(null)
    (record,) = house.client.pods()
    assert record.state == "errored"
    assert house.state_of(record)["steps"] == []


@both_ways
def test_slow_readers_hold_up_no_app(house):
    """The apps write to the logs, never to the terminal."""
    read, write = os.pipe()
    run = house.launch("yes 0123456789 | head -200000; echo done > /tmp/done; exit 6", stdout=write)
    os.close(write)
    until(lambda: house.client.pod(run.uuid).apps[0].exited, "the app's end")
    with open(read, "rb") as stream:
        assert stream.read().count(b"\n") == 200000
    assert run.wait() == 6


@both_ways
def test_standard_input_goes_to_the_interactive_app(house):
    read, write = os.pipe()
    run = house.launch(
        {"main": "echo ready; cat; echo end", "other": "cat; echo nothing"}, interactive="main", stdin=read
    )
    os.close(read)
    run.wait_output("ready")
    run.wait_output("nothing")  # of the other one, whose lines stand in no order to these
    os.write(write, b"first\n")
    run.wait_output("first")
    os.write(write, b"second\n")
    os.close(write)
    assert run.wait() == 0
    assert run.output.splitlines()[-3:] == ["first", "second", "end"]
    assert "nothing" in run.output


@both_ways
def test_output_comes_at_once_and_whole(house):
    run = house.launch("echo one; sleep 0.5; printf half; sleep 0.3; echo ' line'; printf last")
    run.wait_output("one")
    assert "half" not in run.output
    assert run.wait() == 0
    assert run.output in ("one\nhalf line\nlast", "one\nhalf line\nlast\n")


@both_ways
def test_what_it_prints_is_what_the_log_holds(house):
    """Binary, too, and the newline that is missing at the end stays missing."""
    run = house.launch(r"printf 'a\0b\377c\n\nlast'", wait=None)
    assert run.wait() == 0
    with open(f"{run._files}.out", "rb") as file:
        assert file.read() == b"a\0b\377c\n\nlast"
