"""Checks a stager's call-ins: status, logs, run, attach (Kurma Stager Specification, Call Ins)."""

from __future__ import annotations

import datetime
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from kurma_core.linux.cgroups import CgroupTree
from kurma_core.pods.inside.logs import LogReader
from kurma_core.stager_check import probe_image
from kurma_core.stager_check.pods import app
from kurma_core.stager_check.report import NotDone, Wrong, equal, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.models.pod import AppStatus
    from kurma_core.stager_check.callin import Call
    from kurma_core.stager_check.pods import Lab, Pod, Probe
    from kurma_core.stager_check.report import Report

#: More bytes than a pipe, a socket or an argument holds.
_LONG = 300_000
_OUT = "out: 'quoted' ü"
_ERR = "err: a line"


def status_of(pods: Mapping[str, Pod], main: Probe, other: Probe, report: Report) -> None:
    """Checks ``status`` while two more apps end: ``seven`` with 7, ``killed`` by SIGKILL. If each app has a pod of
    its own, ``other`` is killed."""
    pod = pods["main"]
    with report.line("status.running"):
        for name in ("main", "other"):
            _runs(pods[name], name, pods[name].status().get(name))
    if pods["other"] is not pod:
        report.skip("status.exited", pod.lab.few_apps)
        report.skip("end.two-apps", pod.lab.few_apps)
        with report.line("status.killed"):
            os.kill(other.pid, signal.SIGKILL)
            (ended,) = pods["other"].ends().apps
            equal("exitCode and exitReason", (ended.exit_code, ended.reason), (137, "killed"))
        return
    with report.line("status.exited"):
        pod.probe("seven").tell("exit", 7)
        ended = pod.status_when("seven")
        equal("seven ended with 7; its exitCode", ended.exit_code, 7)
        if ended.reason not in ("exited", None):
            raise Wrong(f"its exitReason is {ended.reason}")
        _runs(pod, "main", pod.status().get("main"))
    with report.line("status.killed"):
        # From outside: the first process of a PID namespace cannot kill itself.
        os.kill(pod.probe("killed").pid, signal.SIGKILL)
        ended = pod.status_when("killed")
        equal("exitCode and exitReason", (ended.exit_code, ended.reason), (137, "killed"))
    with report.line("end.two-apps"):
        equal("file", main.must("file", "/marks/base"), "base")
        if not pod.owned.stager.alive():
            raise Wrong("the stager has ended")


def _runs(pod: Pod, name: str, status: AppStatus | None) -> None:
    if status is None or status.exited:
        raise Wrong(f"{name} runs; status: {shortened(status and status.to_json())}")
    if status.pid is None:
        raise Wrong(f"{name} has no pid")
    if status.pid not in CgroupTree(pod.cgroup).pids():
        raise Wrong(f"{name} is process {status.pid}, which is none of the pod's as the host numbers them")


def logs_of(pod: Pod, main: Probe, report: Report) -> None:
    with report.line("logs.output"):
        main.must("write", 1, f"{_OUT}\n")
        main.must("write", 2, f"{_ERR}\n")
        main.must("write", 1, "unfinished")
        _until_logged(pod, [_OUT, _ERR, "unfinished"])
    with report.line("logs.streams"):
        kept = _kept(pod)
        if kept is None:
            raise NotDone("no log under /pod/logs, and the call-in's output is one stream")
        for stream, text in (("stdout", _OUT), ("stderr", _ERR)):
            equal(f"stream of {text}", [line[0] for line in kept if text in line[1]], [stream])
    if not pod.has("logs"):
        report.skip("logs", "no logs call-in")
        return
    with report.line("logs.call-in"):
        call = pod.call("logs", "main")
        equal("exit code", call.code(), 0)
        for text in (_OUT, _ERR):
            if text not in call.out:
                raise Wrong(f"printed {shortened(call.out)}, without {text}")
        equal("exit code for an unknown app", pod.call("logs", "nobody").code(), 2)
    with report.line("logs.tail"):
        main.must("write", 1, "\nlast\n")
        _until_logged(pod, ["last"])
        equal("--tail 1 prints", _option(pod, "--tail", "1").strip(), "last")
    with report.line("logs.since"):
        printed = _option(pod, "--since", _in_an_hour())
        equal("--since a time to come prints", printed, "")
    with report.line("logs.stream"):
        printed = _option(pod, "--stream", "stderr")
        if _ERR not in printed or _OUT in printed:
            raise Wrong(f"--stream stderr prints {shortened(printed)}")
    with report.line("logs.follow"):
        following = pod.call("logs", "main", "--follow", "--tail", "1")
        following.prints("last")
        main.must("write", 1, "later\n")
        following.prints("later")


def _in_an_hour() -> str:
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    return then.isoformat().replace("+00:00", "Z")


def _option(pod: Pod, *words: str) -> str:
    """Returns the output of ``logs`` with an option. :raises NotDone: the call-in refuses the option."""
    call = pod.call("logs", "main", *words)
    if call.code() != 0:
        raise NotDone(f"refused: {shortened(call.err.strip())}")
    return call.out


def _kept(pod: Pod) -> list[tuple[str, str]] | None:
    """Returns (stream, text) of the log file of the app "main"; None: the stager writes none for the core."""
    directory = pod.owned.directory
    if not os.path.isdir(f"{directory}/pod/logs"):
        return None
    status = pod.status().get("main")
    file = (status.log if status is not None else None) or "main.log"
    with LogReader(directory, [("main", file)]) as reader:
        found = [(line.stream, line.text.decode(errors="replace")) for line in reader.present()]
        return found + [(line.stream, line.text.decode(errors="replace")) for line in reader.rest()]


def _until_logged(pod: Pod, texts: list[str]) -> None:
    until = time.monotonic() + pod.lab.patience.answer
    while True:
        kept = _kept(pod)
        if kept is not None:
            found = "\n".join(text for _, text in kept)
        elif pod.has("logs"):
            call = pod.call("logs", "main")
            call.code()
            found = call.out
        else:
            raise Wrong("there is neither a log under /pod/logs nor a logs call-in")
        missing = [text for text in texts if text not in found]
        if not missing:
            return
        if time.monotonic() > until:
            raise Wrong(f"the log has {shortened(found[-200:])}, without {shortened(missing[0])}")
        time.sleep(0.05)


def run_in(pod: Pod, main: Probe, report: Report) -> None:
    if not pod.has("run"):
        report.skip("run", "no run call-in")
        return
    with report.line("run.document"):
        call = pod.run("run-one", "exit", "0", environment=[{"name": "LONG", "value": "x" * 100_000}, *_padding()])
        # Read before the exit code: the probe's report is longer than its socket's buffer.
        facts = _begun(pod, call, "run-one").facts
        equal("exit code", call.code(), 0)
        equal("length of a variable", len(facts["environment"].get("LONG", "")), 100_000)
    if report.lines["run.document"].outcome == "fail":
        report.skip("run", "it does not read what is to be run")
        return
    with report.line("run.where"):
        _where(pod, main)
    with report.line("run.streams"):
        _streams(pod)
    with report.line("run.exit-code"):
        equal("exit code", pod.run("run-four", "exit", "42").code(), 42)
    with report.line("run.signal"):
        equal("exit code", pod.run("run-five", "kill", "9").code(), 137)
    with report.line("run.user"):
        asked = pod.run("run-six", "exit", "0", user="5", group="6")
        facts = _facts(pod, asked, "run-six")
        equal("user and group", (facts["uid"], facts["gid"]), (5, 6))
    with report.line("run.supplementary-gids"):
        facts = _facts(pod, pod.run("run-groups", "exit", "0", group="6", supplementaryGIDs=[7, 8]), "run-groups")
        equal("groups", sorted({*facts["groups"]} - {6}), [7, 8])
    with report.line("run.environment"):
        asked = pod.run("run-seven", "exit", "0", environment=[{"name": "ODD", "value": "a\nb 'c' \"d\" $e"}])
        equal("ODD", _facts(pod, asked, "run-seven")["environment"].get("ODD"), "a\nb 'c' \"d\" $e")
    with report.line("run.working-directory"):
        equal(
            "directory",
            _facts(pod, pod.run("run-eight", "exit", "0", workingDirectory="/work"), "run-eight")["cwd"],
            "/work",
        )
    with report.line("run.descriptors"):
        equal("open", _facts(pod, pod.run("run-nine", "exit", "0"), "run-nine")["descriptors"], [0, 1, 2])
    with report.line("run.terminal"):
        _terminal(pod)
    with report.line("run.not-found"):
        if pod.call("run", "main", document={"exec": ["/no/such"], "user": "0", "group": "0"}).code() == 0:
            raise Wrong("exit code 0")
    with report.line("run.unknown-app"):
        if pod.run("run-ten", "exit", "0", app="nobody").code() == 0:
            raise Wrong("exit code 0")


def _begun(pod: Pod, call: Call, name: str) -> Probe:
    """Returns the command's probe. :raises KurmaError: there is none, since the call-in failed."""
    try:
        return pod.probe(name)
    except Wrong:
        call.code()
        raise


def _padding() -> list[dict[str, str]]:
    """Returns variables that make the document longer than the buffers of pipes and sockets."""
    return [{"name": f"PAD{number}", "value": "x" * 1000} for number in range(_LONG // 1000)]


def _facts(pod: Pod, call: Call, name: str) -> dict[str, Any]:
    """Returns the report of a command that exits with 0. :raises NotDone: the call-in refuses it with a
    message."""
    code = call.code()
    if code != 0:
        if call.err.strip():
            raise NotDone(f"refused: {shortened(call.err.strip())}")
        raise Wrong(f"exit code {code}")
    return pod.probe(name).facts


def _where(pod: Pod, main: Probe) -> None:
    call = pod.run("run-two", "serve")
    command = pod.probe("run-two")
    if command.pid not in CgroupTree(pod.cgroup).pids():
        raise Wrong(f"the command (process {command.pid}) is outside of the pod's cgroup")
    main.must("make", "/tmp/of-main", "main's")  # noqa: S108 - inside the app
    equal("a file of the app", command.must("file", "/tmp/of-main"), "main's")  # noqa: S108
    for name in ("net", "pid", "ipc", "uts"):
        mine, its = (os.stat(f"/proc/{one.pid}/ns/{name}").st_ino for one in (main, command))
        equal(f"its {name} namespace", its, mine)
    command.tell("exit", 0)
    equal("exit code", call.code(), 0)


def _streams(pod: Pod) -> None:
    call = pod.run("run-three", "serve", stdin=b"from the caller")
    command = pod.probe("run-three")
    equal("read from standard input", command.must("read", 0), "from the caller")
    equal("read at its end", command.must("read", 0), "")
    command.must("write", 1, "x" * _LONG)
    command.must("write", 2, "to the caller")
    command.tell("exit", 0)
    equal("exit code", call.code(), 0)
    equal("bytes of standard output", len(call.out), _LONG)
    equal("standard error", call.err, "to the caller")


def _terminal(pod: Pod) -> None:
    """Checks a command with a terminal, from the other side of a pseudo-terminal."""
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
        document = {"exec": [probe_image.PROGRAM, "run-terminal", "serve"], "user": "0", "group": "0", "tty": True}
        call = pod.call("run", "main", document=document, terminal=theirs)
        if call.ended(0.3):
            raise NotDone(f"refused: {shortened(_read_terminal(ours).strip())}")
        command = pod.probe("run-terminal")
        equal("terminals", command.facts["terminals"], [0, 1, 2])
        equal("columns and lines", command.must("window"), [97, 31])
        command.must("write", 1, "on a terminal")
        _until_read(ours, "on a terminal", pod.lab.patience.answer)
        command.tell("exit", 3)
        equal("exit code", call.code(), 3)
    finally:
        os.close(ours)
        os.close(theirs)


def _read_terminal(fd: int) -> str:
    import select

    if not select.select([fd], [], [], 0)[0]:
        return ""
    try:
        return os.read(fd, 1 << 16).decode(errors="replace")
    except OSError:
        return ""


def _until_read(fd: int, text: str, seconds: float) -> None:
    until, found = time.monotonic() + seconds, ""
    while text not in found:
        if time.monotonic() > until:
            raise Wrong(f"the terminal shows {shortened(found)}, without {text}")
        found += _read_terminal(fd)
        time.sleep(0.01)


def attach(lab: Lab, report: Report) -> None:
    """Checks ``attach`` in a pod of its own, whose app gets its standard input from the stager."""
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        with lab.pod({"main": app("main", "serve")}, interactive="main", stdin=read) as pod:
            main = pod.probe("main")
            if not pod.has("attach"):
                report.skip("attach", "no attach call-in")
                return
            _attached(pod, main, report)
    finally:
        os.close(read)
        os.close(write)


def _attached(pod: Pod, main: Probe, report: Report) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        call = pod.call("attach", "main", fd=read)
    finally:
        os.close(read)
    try:
        with report.line("attach.output"):
            _until_attached(call, main)
        with report.line("attach.input"):
            os.write(write, b"typed\n")
            if "typed" not in main.must("read", 0):
                raise Wrong("what was typed did not come")
        with report.line("attach.end"):
            main.tell("exit", 0)
            equal("exit code", call.code(), 0)
    finally:
        os.close(write)


def _until_attached(call: Call, main: Probe) -> None:
    """Waits until the call-in is attached. It does not report that, so the app writes until output arrives."""
    for number in range(40):
        main.must("write", 1, f"line {number}\n")
        if "line" in call.out:
            return
        if call.ended(0.1):
            raise Wrong(f"it ended with {call.code()}: {shortened(call.err)}")
    raise Wrong("what the app writes does not come")
