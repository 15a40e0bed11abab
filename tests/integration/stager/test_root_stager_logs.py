"""Logs of real pods, by the ``logs`` call-in and as the core reads them; status; disks that fail (H7, G9)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kurma_core.formats import cri_log
from kurma_core.formats.timestamps import moment
from kurma_core.models.pod import MountSetup
from kurma_core.models.streams import LogText, Stdio
from kurma_core.pods.inside.logs import LogReader
from kurma_core.staging.callin import StagerTimes
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

#: Every kind of byte and line: NUL, CR, no UTF-8, empty lines, a line of a megabyte, no newline at the end.
_ODD = (
    r"printf 'plain\n\n\r\nnul\0in\n\377\376\n  spaces  \nstdout F fake\n'; head -c 1000000 /dev/zero | tr '\0' x;"
    r" printf '\nlast without end'"
)
ODD = b"plain\n\n\r\nnul\0in\n\xff\xfe\n  spaces  \nstdout F fake\n" + b"x" * 1_000_000 + b"\nlast without end"


def small(size: int = 4096, count: int = 3) -> StagerTimes:
    return StagerTimes(stop=3, log_size=size, log_count=count)


class Call:
    """A call-in that runs; its output goes to a file, or a pipe that is read later."""

    def __init__(self, pod, verb, *words, pipe=False):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self.output = None if pipe else tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        self.pipe = -1
        if pipe:
            self.pipe, out = os.pipe2(os.O_CLOEXEC)
        else:
            out = os.dup(self.output.fileno())
        null = os.open("/dev/null", os.O_RDWR)
        self.call = pod.stager.begin(
            pod.directory, pod.process, verb, words, Stdio(null, out, self.errors.fileno())
        )
        os.close(null)
        os.close(out)

    def end(self, timeout=20.0):
        """Exit status, output, errors."""
        code = self.call.wait(timeout)
        self.errors.seek(0)
        said = self.errors.read().decode()
        self.errors.close()
        if self.output is None:
            os.close(self.pipe)
            return code, b"", said
        self.output.seek(0)
        out = self.output.read()
        self.output.close()
        return code, out, said


def by_call_in(pod, *words):
    code, out, said = Call(pod, "logs", *words).end()
    assert (code, said) == (0, "")
    return out


def by_core(pod, app="main", name="main.log", tail=None, since=None, stream=None):
    with LogReader(pod.directory, [(app, name)]) as reader:
        wanted = cri_log.Filter(since, stream)
        found = list(cri_log.tail(filter(wanted, reader.rest()), tail, LogText))
    return b"".join(text.text + (b"" if text.partial else b"\n") for text in found)


def follow_by_core(pod, *, pause=0.0):
    found = []
    with LogReader(pod.directory, [("main", "main.log")]) as reader:
        for text in reader.follow(pod.process.fileno()):
            found.append(text.text + (b"" if text.partial else b"\n"))
            time.sleep(pause)
    return b"".join(found)


# --- what comes back -------------------------------------------------------------------------------------------


def test_every_byte_comes_back(pods):
    """Streams apart, each in order. What order two pipes have is nobody's to know: both who read tell the same."""
    pod = pods({"main": shell(f"({_ODD}) >&2; {_ODD}"), "other": shell("sleep 1000")}).started()
    until(lambda: pod.app()["exited"], "its end")
    assert by_call_in(pod, "main", "--stream", "stdout") == ODD
    assert by_call_in(pod, "main", "--stream=stderr") == ODD
    both = by_core(pod)
    assert by_call_in(pod, "main") == both
    assert sorted(both) == sorted(ODD + ODD)
    assert by_core(pod, stream="stdout") == by_core(pod, stream="stderr") == ODD
    pod.stop()
    assert by_core(pod) == both, "readable after the end"


def test_interleaved_parts(pods):
    parts = ("printf 'o1 '", "printf 'e1 ' >&2", "echo o2", "echo e2 >&2")
    script = "mkfifo /tmp/go; " + "; read x </tmp/go; ".join(parts) + "; sleep 1000"
    pod = pods({"main": shell(script)}).started()
    for count in (1, 2, 3):
        until(lambda count=count: pod.raw_log().count(b"\n") == count, "the next part")
        assert pod.run("sh", "-c", "echo >/tmp/go")[0] == 0
    until(lambda: pod.raw_log().count(b"\n") == 4, "all of it")
    assert by_call_in(pod, "main", "--stream", "stdout") == b"o1 o2\n" == by_core(pod, stream="stdout")
    assert by_call_in(pod, "main", "--stream", "stderr") == b"e1 e2\n" == by_core(pod, stream="stderr")
    assert by_call_in(pod, "main", "--tail", "1") == b"e1 e2\n" == by_core(pod, tail=1)
    stamped = by_call_in(pod, "main", "--stream", "stdout", "--timestamps").decode()
    at, text = stamped.split(" ", 1)
    assert text == "o1 o2\n"
    assert abs(moment(at) - time.time_ns()) < 60_000_000_000


@pytest.fixture
def long_log(pods):
    """A log in several files; its lines are of different times, thanks to the pauses."""
    script = "seq 1 300; sleep .1; seq 301 600 >&2; sleep .1; seq 601 900; echo ready; sleep 1000"
    pod = pods({"main": shell(script)}, times=small(count=50)).started()
    pod.wait_log("ready")
    until(lambda: len(by_core(pod).split()) == 901, "what was said on standard error before that")
    assert len(os.listdir(f"{pod.directory}/pod/logs")) > 5
    return pod


@pytest.mark.parametrize("tail", [None, 0, 1, 2, 150, 5000])
@pytest.mark.parametrize("stream", [None, "stdout", "stderr"])
def test_tails_across_files(long_log, tail, stream):
    streams = {"stdout": [*range(1, 301), *range(601, 901), "ready"], "stderr": [*range(301, 601)]}
    every = streams[stream] if stream else by_core(long_log).decode().split()
    assert len(every) == {"stdout": 601, "stderr": 300, None: 901}[stream]
    expected = every if tail is None else every[max(0, len(every) - tail) :]
    words = [] if tail is None else [f"--tail={tail}"]
    words += [] if stream is None else ["--stream", stream]
    text = "".join(f"{each}\n" for each in expected).encode()
    assert by_call_in(long_log, "main", *words) == text
    assert by_core(long_log, tail=tail, stream=stream) == text


def test_since(long_log):
    raw = b"".join(long_log.raw_log(name) for name in os.listdir(f"{long_log.directory}/pod/logs"))
    at = next(line.split(b" ")[0].decode() for line in raw.splitlines() if line.endswith(b" F 601"))
    text = "".join(f"{each}\n" for each in [*range(601, 901), "ready"]).encode()
    seconds = f"{moment(at) // 10**9}.{moment(at) % 10**9:09}"
    for since in (at, seconds):
        assert by_call_in(long_log, "main", "--stream=stdout", "--since", since) == text
    assert by_core(long_log, since=moment(at), stream="stdout") == text
    assert by_call_in(long_log, "main", "--since", "10m") == by_core(long_log) == by_call_in(long_log, "main")
    assert by_call_in(long_log, "main", "--since", "1ns") == b""
    assert by_call_in(long_log, "main", "--since", "2999-01-01") == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody",), "the pod has no app 'nobody'"),
        ((), "usage: logs APP"),
        (("main", "other"), "one app at a time"),
        (("main", "--since", "yesterday"), "--since yesterday: is not a time"),
        (("main", "--tail", "-1"), "--tail -1: not a number"),
        (("main", "--stream", "stdin"), "neither stdout nor stderr"),
        (("main", "--nonsense", "1"), "no option --nonsense"),
    ],
)
def test_wrong_questions_exit_with_two(pods, words, said):
    pod = pods({"main": shell("echo x; sleep 1000")}).started()
    code, out, errors = Call(pod, "logs", *words).end()
    assert (code, out) == (2, b"")
    assert errors.startswith("logs: ")
    assert said in errors
    assert errors.count("\n") == 1


# --- following -------------------------------------------------------------------------------------------------

LINES = 100_000
#: An app does nothing more until it is told to: who follows has come up by then, however slow the machine is.
WAITS = "while [ ! -e /v/on ]; do sleep .01; done"


def come_up(*calls):
    """They have shown what was there: the one line ``up``. From now on they miss nothing."""
    for call in calls:
        until(lambda call=call: os.fstat(call.output.fileno()).st_size == 3, "what is there already")


COUNTED = "".join(f"{number}\n" for number in range(1, LINES + 1)).encode()


def test_followers_of_a_log_that_turns(pods, elsewhere):
    """A writer at full speed, files of 16 KiB: each of several readers, of both kinds, has every line once."""
    script = f"echo up; {WAITS}; seq 1 {LINES}; sleep 1000"
    apps = {"main": shell(script), "other": shell("sleep 1000")}
    pod = pods(apps, times=small(16384, 2), **beside(elsewhere)).started()
    calls = [Call(pod, "logs", "main", "--follow") for _ in range(3)]
    reader = LogReader(pod.directory, [("main", "main.log")])
    ended, end = os.pipe()
    follow = reader.follow(ended)
    expected = b"up\n" + COUNTED
    assert next(follow).text == b"up"
    come_up(*calls)
    open(f"{elsewhere}/on", "w").close()
    found, size = [b"up\n"], 3
    while size < len(expected):
        text = next(follow)
        found.append(text.text + (b"" if text.partial else b"\n"))
        size += len(found[-1])
    os.close(end)
    assert list(follow) == []
    os.close(ended)
    reader.__exit__()
    assert b"".join(found) == expected
    os.kill(pod.app()["pid"], 9)
    for call in calls:
        assert call.end() == (0, expected, "")


def test_a_follower_sees_the_end(pods):
    """It ends with its app, all read, though the pod goes on; and one that asks later ends at once."""
    pod = pods(
        {"main": shell("echo up; sleep .5; seq 1 20000"), "other": shell("sleep 1000")}, times=small()
    ).started()
    call = Call(pod, "logs", "main", "--follow", "--tail", "1")
    assert call.end()[1].endswith(b"19999\n20000\n")
    code, out, said = Call(pod, "logs", "main", "--follow", "--tail", "1").end()
    assert (code, out, said) == (0, b"20000\n", "")


def test_a_follower_sees_the_pods_end(pods, elsewhere):
    """The pod's end is its end, but not before it has read all."""
    script = f"echo up; {WAITS}; seq 1 {LINES}"
    pod = pods({"main": shell(script)}, times=small(16384, 2), **beside(elsewhere)).started()
    pod.wait_log("up")
    calls = [Call(pod, "logs", "main", "--follow") for _ in range(2)]
    come_up(*calls)
    open(f"{elsewhere}/on", "w").close()
    assert pod.ended() == 0
    pod.stager.cleanup(pod.directory, pod.setup.cgroup)
    for call in calls:
        assert call.end() == (0, b"up\n" + COUNTED, "")


@pytest.mark.full
def test_the_pods_end_waits_for_who_reads_on_and_not_for_who_stands_still(pods, elsewhere):
    pod = pods({"main": shell(f"echo up; {WAITS}; seq 1 {LINES}")}, **beside(elsewhere)).started()
    pod.wait_log("up")
    slow, stuck = [Call(pod, "logs", "main", "--follow", pipe=True) for _ in range(2)]
    for call in (slow, stuck):
        assert os.read(call.pipe, 3) == b"up\n"
    open(f"{elsewhere}/on", "w").close()
    pieces = []

    def read_slowly():
        while piece := os.read(slow.pipe, 32768):
            pieces.append(piece)
            time.sleep(0.1)

    reading = threading.Thread(target=read_slowly)
    reading.start()
    assert pod.ended() == 0
    assert 1 < (time.time_ns() - moment(pod.app()["finishedAt"])) / 1e9 < 9
    pod.stager.cleanup(pod.directory, pod.setup.cgroup)
    reading.join()
    assert b"".join(pieces) == COUNTED
    assert slow.end()[0] == 0
    assert stuck.end()[0] == 137


def test_a_follower_goes_on_with_the_next_execution(pods):
    script = "echo run; sleep .3; exit 1"
    pod = pods(
        {"main": shell(script), "other": shell("sleep 1000")}, app_annotations={"kurma.io/restart": "on-failure"}
    ).started()
    call = Call(pod, "logs", "main", "--follow")
    until(lambda: pod.app().get("restarts", 0) >= 2, "two restarts")
    pod.stop()
    code, out, said = call.end()
    assert out.count(b"run\n") >= 2, (code, out, said)


def test_the_core_follows_to_the_pods_end(pods):
    pod = pods({"main": shell(f"sleep .2; seq 1 {LINES}; printf end")}, times=small(65536, 2)).started()
    assert follow_by_core(pod) == COUNTED + b"end"


def rss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) * 1024


@pytest.mark.full
def test_a_reader_that_stops_reading_harms_nobody(pods, elsewhere):
    """Neither the app, nor another reader, nor the stager's memory; the disk holds what it may yet ask for."""
    script = f"seq 1 100000; echo up; {WAITS}; seq 1 1000000; echo done >&2; sleep 1000"
    everything = b"".join(b"%d\n" % number for number in range(1, 1_000_001))
    pod = pods({"main": shell(script)}, times=small(65536, 2), **beside(elsewhere)).started()
    pod.wait_log("up")
    stuck = Call(pod, "logs", "main", "--follow", "--tail", "1", pipe=True)
    assert os.read(stuck.pipe, 100) == b"up\n"  # it has come up, and waits
    before = rss(pod.process.pid)
    other = LogReader(pod.directory, [("main", "main.log")])
    ended, end = os.pipe()
    found = []
    follow = other.follow(ended, lambda old: cri_log.tail(old, 1, LogText))
    assert next(follow).text == b"up"
    open(f"{elsewhere}/on", "w").close()
    for text in follow:
        if text.stream == "stderr":
            break
        found.append(text.text + (b"" if text.partial else b"\n"))
    assert b"".join(found) == everything
    other.__exit__()
    os.close(ended)
    os.close(end)
    assert rss(pod.process.pid) < before + (4 << 20)  # of 45 MB that one of them has not read
    assert len(os.listdir(f"{pod.directory}/pod/logs")) < 80
    text = b""
    with open(stuck.pipe, "rb", closefd=False) as pipe:
        while not text.endswith(b"done\n"):
            text += os.read(pipe.fileno(), 1 << 20)
    assert text == everything + b"done\n"
    pod.stop()
    stuck.end()


def test_a_reader_that_goes_away_ends_its_call_in(pods):
    pod = pods({"main": shell("echo up; sleep 1000")}).started()
    pod.wait_log("up")
    call = Call(pod, "logs", "main", "--follow", pipe=True)
    assert os.read(call.pipe, 100) == b"up\n"
    os.close(call.pipe)
    call.pipe = os.open("/dev/null", os.O_RDONLY)
    assert call.end()[0] == 0


# --- disks that fail -------------------------------------------------------------------------------------------


@contextmanager
def mounted(tmp_path, kind, size) -> Iterator[str]:
    """The pods' directory is a file system of its own."""
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", tmp_path], check=True)
    else:
        image = f"{tmp_path}.img"
        with open(image, "wb") as out:
            out.truncate(size << 20)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, tmp_path], check=True)
    try:
        yield str(tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request, tmp_path) -> Iterator[str]:
    with mounted(tmp_path, request.param, 16) as place:
        yield place


@pytest.fixture
def failing_disk(tmp_path) -> Iterator[str]:
    with mounted(tmp_path, "ext4", 32) as place:
        yield place


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A directory on another disk, where apps say how they are."""
    with tempfile.TemporaryDirectory(dir="/run") as path:
        yield path


def fill(place):
    with open(f"{place}/filler", "ab", buffering=0) as out:
        for piece in (1 << 16, 4096, 1):
            with suppress(OSError):
                while True:
                    out.write(bytes(piece))


def beside(path):
    """A volume of the app ``main`` at ``/v``."""
    return {"volumes": {"v": path}, "mounts": {"main": [MountSetup("v", "/v", False, False)]}}


def told(path, name):
    return lambda: os.path.exists(f"{path}/{name}")


_PHASES = """
echo before; touch /v/up
while [ ! -e /v/full ]; do sleep .01; done
printf 'a part '; seq 1 20000; touch /v/written
while [ ! -e /v/free ]; do sleep .01; done
echo 'has room'; echo after; exit 7
"""


def test_a_full_disk_blocks_and_kills_nobody(small_disk, pods, elsewhere):
    """What is dropped is counted, and said as soon as there is room; every line that is there is whole."""
    pod = pods({"main": shell(_PHASES), "other": shell("sleep 1000")}, **beside(elsewhere)).started()
    until(told(elsewhere, "up"), "its start")
    pod.wait_log("before")
    fill(small_disk)
    open(f"{elsewhere}/full", "w").close()
    until(told(elsewhere, "written"), "the app goes on")
    until(lambda: pod.app().get("logDropped", 0) > 0, "told of on the disk that is full, too")

    def told_by_call_in():
        status = json.loads(Call(pod, "status").end()[1])["main"]
        assert status["exited"] is False
        return status["logDropped"]

    until(lambda: told_by_call_in() > 50_000, "what was dropped is counted")
    os.unlink(f"{small_disk}/filler")
    open(f"{elsewhere}/free", "w").close()
    until(lambda: pod.app()["exited"], "its end")
    app = pod.app()
    assert (app["exitCode"], app["exitReason"]) == (7, "exited")
    lines = by_core(pod, stream="stdout").splitlines()
    assert lines[0] == b"before"
    assert lines[-2:] == [b"has room", b"after"]
    words = by_core(pod, stream="stderr").decode()
    assert words.count("were dropped, the log could not be written]") >= 1
    dropped = sum(int(line.split()[1]) for line in words.splitlines())
    assert dropped == app["logDropped"]
    written = len(b"before\na part has room\nafter\n") + sum(len(f"{each}\n") for each in range(1, 20001))
    assert abs(dropped + len(by_core(pod, stream="stdout")) - written) <= 1, "no byte is neither there nor counted"


@pytest.mark.full
def test_who_is_attached_sees_what_a_full_disk_keeps_from_the_log(small_disk, pods, elsewhere):
    script = (
        "echo before; touch /v/up; while [ ! -e /v/full ]; do sleep .01; done;"
        "while [ ! -e /v/end ]; do echo seen; echo wrong >&2; sleep .005; done; exit 6"
    )
    pod = pods({"main": shell(script)}, **beside(elsewhere)).started()
    until(told(elsewhere, "up"), "its start")
    pod.wait_log("before")
    fill(small_disk)
    null = os.open("/dev/null", os.O_RDWR)
    with open(f"{elsewhere}/out", "wb") as out, open(f"{elsewhere}/err", "wb") as err:
        stdio = Stdio(null, out.fileno(), err.fileno())
        call = pod.stager.begin(pod.directory, pod.process, "attach", ("main", "--no-stdin"), stdio)
    os.close(null)
    open(f"{elsewhere}/full", "w").close()

    def lines(name):
        with open(f"{elsewhere}/{name}") as file:
            return [line for line in file.read().splitlines() if not line.startswith("[kurma: ")]

    until(lambda: pod.app().get("logDropped", 0) > 0, "what was lost is counted")
    seen = len(lines("out")), len(lines("err"))
    until(lambda: len(lines("out")) > seen[0] + 9 and len(lines("err")) > seen[1] + 9, "its output")
    open(f"{elsewhere}/end", "w").close()
    assert call.wait(20) == 6
    assert set(lines("out")) == {"seen"}
    assert set(lines("err")) == {"wrong"}


def test_an_end_on_a_full_disk_is_recorded(small_disk, pods):
    """The space for status.json was put aside."""
    script = "trap 'exit 9' TERM; echo up; while :; do sleep .02; done"
    pod = pods({"main": shell(script), "other": shell("sleep 1000")}).started()
    pod.wait_log("up")
    fill(small_disk)
    assert pod.stop() == 0, pod.output()
    assert (pod.app()["exitCode"], pod.app("other")["exitReason"]) == (9, "killed")


def test_a_disk_that_breaks_while_the_pod_runs(failing_disk, pods, elsewhere):
    """Reading and writing fail, or the file system is read-only: apps go on, and their end is told."""
    pod = pods({"main": shell(_PHASES)}, **beside(elsewhere)).started()
    until(told(elsewhere, "up"), "its start")
    pod.wait_log("before")
    subprocess.run(["mount", "-o", "remount,abort", failing_disk], check=True)
    with pytest.raises(OSError, match="Read-only"):
        os.mkdir(f"{failing_disk}/x")
    open(f"{elsewhere}/full", "w").close()
    until(told(elsewhere, "written"), "the app goes on")
    status = json.loads(Call(pod, "status").end()[1])
    assert status["main"]["logDropped"] > 50_000
    assert by_call_in(pod, "main") == b"before\n"
    open(f"{elsewhere}/free", "w").close()
    # Nobody can record it: the stager's own exit status has to do.
    assert pod.ended() == 7
    assert by_core(pod) == b"before\n"


# --- status ----------------------------------------------------------------------------------------------------


def status_of(pod):
    code, out, said = Call(pod, "status").end()
    assert (code, said) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b'{"apps": {"main": {}}}'])
def test_status_does_not_need_its_file(pods, content):
    pod = pods({"main": shell("sleep 1000"), "bad": {"exec": ["/no"], "user": "0", "group": "0"}}).started()
    path = f"{pod.directory}/pod/status.json"
    os.unlink(path)
    if content is not None:
        with open(path, "wb") as file:
            file.write(content)
    found = status_of(pod)
    assert found["main"]["pid"] > 1
    assert found["main"]["exited"] is False
    assert {key: found["bad"][key] for key in ("exited", "exitCode", "exitReason")} == {
        "exited": True,
        "exitCode": 127,
        "exitReason": "start-failed",
    }
    assert by_call_in(pod, "main") == b""


def test_status_of_an_app_between_two_executions(pods):
    pod = pods({"main": shell("exit 3")}, app_annotations={"kurma.io/restart": "always"}).started()
    until(lambda: pod.app().get("restarts", 0) >= 3 and pod.app().get("restarting"), "a pause")
    found = status_of(pod)["main"]
    assert found["exited"] is False
    assert "pid" not in found


@pytest.mark.full
def test_status_of_a_stager_that_stands_still(pods):
    """What it wrote last is better than nothing; without that, one line says what is wrong."""
    pod = pods({"main": shell("sleep 1000")}).started()
    os.kill(pod.process.pid, signal.SIGSTOP)
    try:
        assert status_of(pod)["main"]["exited"] is False
        with open(f"{pod.directory}/pod/status.json", "w") as file:
            file.write("nonsense")
        code, out, said = Call(pod, "status").end()
        assert (code, out) == (1, b"")
        assert said == (
            "status: the pod's supervisor does not answer; /pod/status.json: is damaged: not a JSON document\n"
        )
    finally:
        os.kill(pod.process.pid, signal.SIGCONT)


def test_no_lock_is_left_on_a_log(pods):
    """A call-in that has ended keeps no file."""
    pod = pods({"main": shell("echo up; sleep 1000")}).started()
    pod.wait_log("up")
    assert by_call_in(pod, "main") == b"up\n"
    fd = os.open(f"{pod.directory}/pod/logs/main.log", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
