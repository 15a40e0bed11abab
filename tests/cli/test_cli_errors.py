"""What goes wrong is one line, a hint and an exit code; what comes out is what the apps wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kurma_core import VERSION, errors
from kurma_core.api.images import Removal
from kurma_core.api.pods import Collected, EnterRequest
from kurma_core.cli import values
from kurma_core.cli.main import main
from kurma_core.models.isolator import IsolatorReport
from kurma_core.models.pod import AppStatus, MetadataAddress
from kurma_core.models.streams import LogText, Stdio


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def run(fakes: ModuleType, words: str, **client: Any) -> tuple[int, Any]:
    fake = fakes.FakeClient(**client)
    return main(words.split(), connect=fake.connect), fake


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (errors.PodNotFoundError("no pod x", hint="kurma list"), 125, ["kurma: no pod x", "  hint: kurma list"]),
        (errors.UsageError("two\nlines"), 2, ["kurma: two lines"]),
        (errors.CommandNotFoundError("no /x"), 127, ["kurma: no /x"]),
        (errors.CommandNotExecutableError("no /x"), 126, ["kurma: no /x"]),
        (OSError(5, "Input/output error", "/a"), 125, ["kurma: input/output error: /a"]),
        (
            OSError(28, "No space left on device", "/a"),
            125,
            [
                "kurma: cannot write /a: No space left on device",
                "  hint: make room there",
            ],
        ),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_errors(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, lines: list[str]
) -> None:
    result, client = run(fakes, "show web", answers={"pod": error})
    assert result == code
    assert client.closed
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == lines


def test_a_mistake_of_ours_is_one_line_and_debug_shows_where(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"pod": ZeroDivisionError("by\nzero")}
    assert run(fakes, "show web", answers=answers)[0] == 125
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "kurma: internal error: ZeroDivisionError: by zero"
    assert "--debug" in err[1]
    assert len(err) == 2
    assert run(fakes, "--debug show web", answers=answers)[0] == 125
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("Traceback")
    assert err[-1] == "kurma: internal error: ZeroDivisionError: by zero"


def test_a_host_that_allows_no_more_threads(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(fakes, "show web", answers={"pod": RuntimeError("can't start new thread")})
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "kurma: cannot start a thread: the limit of processes and threads is reached"
    assert hint.startswith("  hint: raise pids.max ")


def test_debug_shows_the_trace_of_an_error(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(fakes, "--debug show web", answers={"pod": errors.PodError("broken")})
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("kurma: broken\n")


@pytest.mark.parametrize(
    "words",
    [
        "lst",
        "run --nope x",
        "logs",
        "logs a --tail x",
        "list extra",
        "run --pull maybe x",
        "image lst",
        "--dir",
        "list --format xml",
    ],
)
def test_usage_errors_are_one_line_too(fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str) -> None:
    result, client = run(fakes, words)
    assert result == 2
    assert client.calls == []
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("kurma: ")
    assert all(line.startswith("  hint: ") for line in err[1:])


def test_a_command_that_is_nearly_right_is_named(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fakes, "prepair x")[0] == 2
    assert capsys.readouterr().err.splitlines()[0] == "kurma: no command 'prepair'; did you mean 'prepare'?"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("push x", "kurma image push"),
        ("image tag a b", "cannot rename images"),
        ("pod ps", "kurma ps"),
        ("container ls", "kurma ps"),
    ],
)
def test_words_of_other_engines_have_a_hint(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, hint: str
) -> None:
    assert run(fakes, words)[0] == 2
    error, said = capsys.readouterr().err.splitlines()
    assert error.startswith("kurma: no command '")
    assert hint in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("prepare -d img", "kurma run -d"),
        ("app add web --detach img", "kurma run -d"),
        ("run --pids-limit 5 img", "kurma.io/pids-limit={"),
        ("run --privileged img", "os/linux/privileged=true"),
        ("run --cap-drop all img", "os/linux/capabilities-retain-set={"),
        ("run --entrypoint /bin/ls img", "--exec"),
        ("app add web --restart always img", "kurma.io/restart"),
        ("app add web --cap-add SYS_ADMIN img", "--caps-retain"),
    ],
)
def test_what_other_engines_can_do_is_told(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    code, client = run(fakes, words)
    assert (code, client.calls) == (2, [])
    err = capsys.readouterr().err.splitlines()
    assert "no such option: -" in err[0]
    assert said in err[1]


@pytest.mark.parametrize("option", ["--dir", "--config"])
def test_empty_paths_are_refused(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = fakes.FakeClient()
    assert main([option, "", "list"], connect=client.connect) == 2
    assert client.calls == []
    assert capsys.readouterr().err == f"kurma: {option}: the path is empty\n"


def test_options_of_the_program_are_told_where_they_belong(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fakes, "run img -x")[0] == 2
    assert "after the program or after --" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["run img", "prepare img", "start a", "stop a", "kill a", "rm a", "gc", "enter a", "image fetch x"]
)
def test_who_is_not_root_is_told_at_once(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result, client = run(fakes, words)
    assert result == 125
    assert client.calls == []
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("kurma: only root can ")
    assert err[1].startswith("  hint: run it as root")


def test_a_refused_file_hints_at_root(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (
        run(fakes, "list", answers={"summaries": PermissionError(13, "Permission denied", "/var/lib/kurma")})[0]
        == 125
    )
    err = capsys.readouterr().err.splitlines()
    assert err == ["kurma: permission denied: /var/lib/kurma", "  hint: run it as root, with sudo for instance"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(30, "Read-only file system", "/var/lib/kurma/locators"),
        errors.HostError("cannot remove an image: read-only file system", errno=30),
    ],
)
def test_what_cannot_be_written_hints_at_the_mount(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert run(fakes, "list", answers={"summaries": error})[0] == 125
    line, hint = capsys.readouterr().err.splitlines()
    assert "read-only file system" in line
    assert hint.startswith("  hint: it is mounted read-only; for another state directory: --dir, KURMA_DIR or ")


def test_global_options_and_environment(fakes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    client = run(fakes, "--dir /d --config /c --debug show web")[1]
    settings = client.settings
    assert (settings.state_dir, settings.state_dir_origin) == ("/d", "command line")
    assert (settings.config_file, settings.debug) == ("/c", True)
    monkeypatch.setenv("KURMA_DIR", "/e")
    monkeypatch.setenv("KURMA_CONFIG", "/f")
    settings = run(fakes, "show web")[1].settings
    assert (settings.state_dir, settings.state_dir_origin) == ("/e", "environment")
    assert (settings.config_file, settings.debug) == ("/f", False)
    assert run(fakes, "--dir /d show web")[1].settings.state_dir == "/d"


# --- exit codes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["run img", "run-prepared web", "start -a web", "restart -a web", "wait web"])
def test_the_exit_code_is_the_pods(fakes: ModuleType, words: str) -> None:
    assert run(fakes, words)[0] == 42


def test_an_errored_pod_without_a_code_is_125(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    broken = fakes.record(state="errored", reason="the stager died", exit_code=None)
    assert run(fakes, "run img", answers={"run": broken})[0] == 125
    assert "kurma: pod web: the stager died" in capsys.readouterr().err


def test_why_an_app_did_not_start_is_said(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    apps = (AppStatus("a", exited=True, exit_code=127, reason="start-failed", message="no /x"),)
    ended = fakes.record(state="stopped", exit_code=127, apps=apps)
    assert run(fakes, "run img", answers={"run": ended})[0] == 127
    assert "kurma: app a: no /x" in capsys.readouterr().err


def test_enters_exit_code_and_arguments(fakes: ModuleType) -> None:
    words = "enter web/nginx --user u --group g -e A=1 --workdir /w ls -l"
    code, client = run(fakes, words, answers={"enter": 3})
    assert code == 3
    name, args, _ = client.calls[0]
    asked = EnterRequest(("ls", "-l"), "nginx", "u", "g", (("A", "1"),), "/w")
    assert (name, args[:2]) == ("enter", ("web", asked))
    for words in ("enter -it web", "exec web --tty ls", "enter -ti web -- vi"):
        assert run(fakes, words, answers={"enter": 0})[1].calls[0][1][1].tty is True
    request = run(fakes, "enter web --user 1:2", answers={"enter": 0})[1].calls[0][1][1]
    assert (request.user, request.group) == ("1", "2")
    assert run(fakes, "enter web --workdir rel")[0] == 2
    assert run(fakes, "enter web", answers={"enter": 0})[1].calls[0][1][1] == EnterRequest(("/bin/sh",))
    assert run(fakes, "exec web")[0] == 2
    for words in ("exec web/db ls -l", "exec --app db web -- ls -l", "exec web/db --app db ls -l"):
        _, args, _ = run(fakes, words, answers={"enter": 0})[1].calls[0]
        assert args[:2] == ("web", EnterRequest(("ls", "-l"), "db"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("exec web/ ls", "malformed 'web/'"),
        ("logs /db", "malformed '/db'"),
        ("attach web/a/b", "malformed 'web/a/b'"),
        ("kill web/db --app api", "--app: api is not the app of web/db"),
        ("top --app db", "--app: the pod is missing"),
    ],
)
def test_a_pod_and_its_app_that_are_malformed(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    code, client = run(fakes, words)
    assert (code, client.calls) == (2, [])
    assert capsys.readouterr().err.splitlines()[0] == f"kurma: {said}"


def test_several_pods_one_failure(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    class Some(fakes.FakeClient):  # type: ignore[misc, name-defined]
        def rm(self, pod: str, *, force: bool, managed: bool) -> None:
            assert managed is force
            self.calls.append(("rm", (pod, force), {}))
            if pod == "b":
                raise errors.PodStateError("b runs", hint="stop it")

    client = Some()
    assert main(["rm", "-f", "a", "b", "c"], connect=client.connect) == 125
    assert [args for _, args, _ in client.calls] == [("a", True), ("b", True), ("c", True)]
    assert capsys.readouterr().err.splitlines() == ["kurma: b runs", "  hint: stop it"]


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("stop web -t 1m30s --force", ("stop", ("web",), {"timeout": 90.0, "force": False, "managed": True})),
        ("stop web", ("stop", ("web",), {"timeout": None, "force": False, "managed": False})),
        ("kill web", ("kill", ("web", 15, None), {"managed": False})),
        (
            "attach web/app --no-stdin --detach-keys ctrl-],x",
            ("attach", ("web", "app", Stdio(0, 1, 2)), {"stdin": False, "detach_keys": "ctrl-],x"}),
        ),
        ("kill -s sigusr1 web/app", ("kill", ("web", 10, "app"), {"managed": False})),
        ("kill -s 10 --app app web", ("kill", ("web", 10, "app"), {"managed": False})),
        ("stop -t 5 web", ("stop", ("web",), {"timeout": 5.0, "force": False, "managed": False})),
        ("rmi x", ("image_rm", ("x",), {"dry_run": False, "managed": False})),
        ("kill --signal 9 web", ("kill", ("web", 9, None), {"managed": False})),
        ("status web --wait", ("wait", ("web",), {})),
        ("network rm blue", ("network_rm", ("blue",), {})),
        ("image rm --force x", ("image_rm", ("x",), {"dry_run": False, "managed": True})),
    ],
)
def test_words_become_calls(fakes: ModuleType, words: str, call: Any) -> None:
    assert run(fakes, words)[1].calls == [call]


def test_gc(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    done = Collected((Removal("pod", "0123abcd-9", 5000, "a"),), ("pod b: taken down",))
    code, client = run(fakes, "gc --grace-period 2h --dry-run", answers={"gc": done})
    assert code == 0
    assert client.calls == [("gc", (), {"grace": 7200.0, "dry_run": True})]
    assert capsys.readouterr().out == "pod b: taken down\npod a (0123abcd): would be removed (5.0 kB)\n"
    assert run(fakes, "gc", answers={"gc": Collected()})[1].calls[0][2] == {
        "grace": 1800.0,
        "dry_run": False,
    }


def test_gc_that_had_to_leave_something(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    left = Collected(lines=("pod b: taken down",), left=("pod a: left: it is damaged",), failed=True)
    assert run(fakes, "gc", answers={"gc": left})[0] == 125
    assert capsys.readouterr().out == "pod b: taken down\npod a: left: it is damaged\n"


@pytest.mark.parametrize(
    "words", ["kill -s NOPE web", "kill -s 0 web", "stop web --timeout soon", "logs web --since x"]
)
def test_values_that_mean_nothing(fakes: ModuleType, words: str) -> None:
    code, client = run(fakes, words)
    assert code == 2
    assert client.calls == []


def test_the_checks_that_can_be_relaxed_are_those_of_the_policy() -> None:
    from kurma_core.images.trust_policy import RELAXATIONS

    assert set(values.INSECURE) == set(RELAXATIONS)


# --- what is printed -------------------------------------------------------------------------------------------


def test_list(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    never = {"started_at": None, "created_at": "then", "ports": (), "exit_code": 3}
    pods = [fakes.summary(), fakes.summary(name="host", networks=(), image_names={"a": "/tmp/a.aci"}, **never)]
    assert run(fakes, "list", answers={"summaries": pods})[0] == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "UUID",
        "NAME",
        "IMAGE",
        "STATE",
        "EXIT",
        "AGE",
        "RESTARTS",
        "PORTS",
        "NETWORKS",
        "APPS",
    ]
    assert lines[1].split()[:5] == [fakes.UUID[:8], "web", "registry://nginx:1.27", "running", "-"]
    assert lines[1].split()[-4:] == ["0", "8080:80", "default=10.1.0.2", "nginx"]
    assert lines[2].split() == [
        fakes.UUID[:8],
        *["host", "a.aci", "running", "3", "then", "0", "-", "host", "nginx"],
    ]
    run(fakes, "list --no-legend", answers={"summaries": pods})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_list_of_uuids_alone(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("-q", "--quiet"):
        assert run(fakes, f"list {flag}", answers={"summaries": [fakes.summary(), fakes.summary()]})[0] == 0
        assert capsys.readouterr().out == f"{fakes.UUID}\n" * 2


def test_list_as_json_is_the_records_own(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [fakes.record().to_json()]
    run(fakes, "list --format json", answers={"pods_json": pods})
    assert json.loads(capsys.readouterr().out) == pods


def test_the_keys_of_a_pods_json_stay(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(fakes, "show web --format json")
    value = json.loads(capsys.readouterr().out)
    keys = "uuid name state reason exitCode createdAt startedAt finishedAt owner stager stagerPid renderer"
    keys += " networkNamespace userNamespace apps images networks isolators notes manifest"
    assert set(keys.split()) <= set(value)
    assert {"pid", "exited", "exitCode", "exitReason", "message", "startedAt", "finishedAt", "log"} <= set(
        value["apps"]["nginx"]
    )


def test_show_has_values_as_they_were_given_and_in_base_units(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = (
        IsolatorReport(
            "resource/memory", "web", "enforced", value={"limit": "1.5Gi"}, amounts="limit 1610612736 bytes"
        ),
        IsolatorReport("a.b/c", None, "modified", "so", True, ["x" * 90]),
    )
    run(fakes, "show web", answers={"pod": fakes.record(isolators=reports)})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("resource/", "a.b/"))]
    assert lines[0].split("  ")[:1] == ["resource/memory"]
    assert '{"limit":"1.5Gi"} = limit 1610612736 bytes ' in lines[0]
    assert "modified, default" in lines[1]
    assert '["xxx' in lines[1]
    assert "x…" in lines[1]


def test_show_status_and_manifest_for_people(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(fakes, "show web")
    out = capsys.readouterr().out
    assert f"uuid      {fakes.UUID}" in out
    assert "10.1.0.2/16" in out
    run(fakes, "status web")
    assert capsys.readouterr().out.splitlines()[0] == "pod web: running"
    run(fakes, "cat-manifest web")
    assert json.loads(capsys.readouterr().out) == dict(fakes.record().manifest)


def test_show_tells_what_a_log_lacks(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(fakes, "show web", answers={"pod": fakes.record(apps=(AppStatus("a", log_dropped=4096),))})
    note = "note: app a: 4096 bytes of its output were dropped: its log could not be written"
    assert note in capsys.readouterr().out.splitlines()
    run(fakes, "show web", answers={"pod": fakes.record(notes=("of a stager:\x1b[2J\nstate  stopped",))})
    assert r"note: of a stager:\x1b[2J state  stopped" in capsys.readouterr().out.splitlines()


def test_show_tells_whose_the_files_below_etc_are(fakes: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """H10"""
    files = {"hosts": "image+name", "hostname": "kurma", "resolv.conf": "image"}
    apps = (AppStatus("a", files=files), AppStatus("new"))
    run(fakes, "show web", answers={"pod": fakes.record(apps=apps)})
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["APP", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] in lines
    assert ["a", "the image's, with the pod's name", "Kurma's", "the image's"] in lines


LINES = [
    LogText("a", "T1", "stdout", False, b"one"),
    LogText("a", "T2", "stderr", False, b"err\xff"),
    LogText("b", "T3", "stdout", True, b"par"),
    LogText("b", "T4", "stdout", False, b"tial"),
    LogText("a", "T5", "stdout", True, b"open"),
]


@pytest.mark.parametrize("words", ["run img", "run-prepared web", "logs web", "logs -f web"])
def test_output_is_the_apps_own_byte_for_byte(
    fakes: ModuleType, capfdbinary: pytest.CaptureFixture[bytes], words: str
) -> None:
    run(fakes, words, lines=LINES)
    out, err = capfdbinary.readouterr()
    assert out == b"one\npartial\nopen"
    assert err == b"err\xff\n"


def test_prefix_and_time_stand_before_whole_lines(
    fakes: ModuleType, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(fakes, "logs --prefix --timestamps web", lines=LINES)
    out, err = capfdbinary.readouterr()
    assert out == b"T1 a: one\nT3 b: partial\nT5 a: open"
    assert err == b"T2 a: err\xff\n"


def test_what_stands_before_lines_parts_none(fakes: ModuleType, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Lines in parts of two apps and streams that come at the same time; one too long to be held back."""
    lines = [
        LogText("a", "T1", "stdout", True, b"a"),
        LogText("b", "T2", "stdout", True, b"b"),
        LogText("a", "T3", "stderr", True, b"err"),
        LogText("a", "T4", "stdout", False, b"1"),
        LogText("b", "T5", "stdout", False, b"2\nb3"),
        LogText("a", "T6", "stderr", False, b"or"),
        LogText("a", "", "stdout", False, b"no time"),
        LogText("a", "T7", "stdout", True, b"x" * (1 << 20)),
        LogText("a", "T8", "stdout", False, b"y"),
    ]
    run(fakes, "logs --prefix --timestamps web", lines=lines)
    out, err = capfdbinary.readouterr()
    assert out == (b"T1 a: a1\nT2 b: b2\nT2 b: b3\na: no time\nT7 a: " + b"x" * (1 << 20) + b"\nT8 a: y\n")
    assert err == b"T3 a: error\n"


def test_logs_arguments(fakes: ModuleType) -> None:
    client = run(fakes, "logs web/a -f -n 5 --since 2024-01-01T00:00:00Z --stream stderr")[1]
    assert client.calls == [
        (
            "logs",
            ("web", "a"),
            {"follow": True, "tail": 5, "since": 1704067200_000_000_000, "stream": "stderr", "instance": None},
        )
    ]
    for words, instance in (("--instance 3", 3), ("--previous", -1)):
        assert run(fakes, f"logs web/a {words}")[1].calls[0][2]["instance"] == instance


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--instance 0", "--instance: must be 1 or more"),
        ("--instance -1", "--instance: must be 1 or more"),
        ("--previous --instance 2", "--previous cannot be combined with --instance"),
        ("--previous -f", "--previous cannot be combined with --follow"),
    ],
)
def test_logs_of_which_execution(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert run(fakes, f"logs web/a {words}")[0] == 2
    assert said in capsys.readouterr().err


# --- as a program ----------------------------------------------------------------------------------------------


def kurma(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kurma_core.cli.main", *words], capture_output=True, text=True, check=False, **more
    )


def test_version() -> None:
    done = kurma("version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kurma {VERSION}\n", "")


def test_version_as_an_option(tmp_path: Path) -> None:
    for words in (["--version"], ["--dir", str(tmp_path), "--version"], ["--version", "list", "--nope"]):
        done = kurma(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"kurma {VERSION}\n", "")


@pytest.mark.parametrize(
    ("closed", "words", "code", "out", "err"),
    [
        (">&-", "version", 0, "", ""),
        (">&-", "run --help", 0, "", ""),
        ("2>&-", "version", 0, f"kurma {VERSION}\n", ""),
        ("2>&-", "nope", 2, "", ""),
        ("<&- >&- 2>&-", "version", 0, "", ""),
        ("<&- >&- 2>&-", "nope", 2, "", ""),
    ],
)
def test_closed_streams_swallow_what_is_written(closed: str, words: str, code: int, out: str, err: str) -> None:
    line = f'exec "$0" -m kurma_core.cli.main {words} {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_a_pods_exit_code_and_logs_survive_closed_streams() -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
os.geteuid = lambda: 0
import cli_fakes
from kurma_core.cli.main import main
from kurma_core.models.streams import LogText
client = cli_fakes.FakeClient(lines=[LogText("a", "T", stream, False, b"x") for stream in ("stdout", "stderr")])
sys.argv = ["kurma", "run", "img"]
sys.exit(main(connect=client.connect))
"""
    line = 'exec "$0" -c "$1" >&- 2>&-'
    done = subprocess.run(["sh", "-c", line, sys.executable, program], check=False)
    assert done.returncode == 42


def test_nobody_reads() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kurma_core.cli.main", "config", "show"],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kurma_core.cli.main", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 125
    assert done.stderr == "kurma: no space left on device\n"


def test_config_show_tells_where_values_come_from(tmp_path: Path) -> None:
    file = tmp_path / "kurma.yml"
    file.write_text("stop_timeout: 7\n")
    done = kurma("--config", str(file), "--dir", "/d", "config", "show")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["stop_timeout"] == [str(file), "7.0"]
    assert rows["state_dir"] == ["command", "line", '"/d"']
    assert rows["renderer"][0] == "default"
    value = json.loads(kurma("--config", str(file), "config", "show", "--format", "json").stdout)
    assert value["stop_timeout"] == 7


def test_config_check(tmp_path: Path) -> None:
    file = tmp_path / "kurma.yml"
    file.write_text("stop_timeot: 7\n")
    done = kurma("--config", str(file), "config", "check")
    assert done.returncode == 125
    assert "stop_timeot" in done.stderr
    assert "stop_timeout" in done.stderr
    file.write_text("stop_timeout: 7\n")
    done = kurma("--config", str(file), "config", "check")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(file) in done.stdout


def test_config_check_names_isolators_that_nobody_can_be_granted(tmp_path: Path) -> None:
    file = tmp_path / "kurma.yml"
    grants = {
        "tool": {
            "digests": [f"sha512-{'0' * 128}"],
            "isolators": [
                "os/linux/privilegd",
                "kurma.io/devices",
                "os/linux/capabilities-retain-set=CAP_SYSADMIN",
            ],
        }
    }
    file.write_text(json.dumps({"grants": grants}))
    done = kurma("--config", str(file), "config", "check")
    assert (done.returncode, done.stderr) == (
        125,
        (
            f"kurma: {file}: grants.tool.isolators: there is no power 'os/linux/privilegd'\n"
            "  hint: did you mean os/linux/privileged?\n"
            f"kurma: {file}: grants.tool.isolators: there is no power "
            "'os/linux/capabilities-retain-set=CAP_SYSADMIN'\n"
            "  hint: did you mean os/linux/capabilities-retain-set=CAP_SYS_ADMIN?\n"
        ),
    )
    grants["tool"]["isolators"] = ["os/linux/namespaces=pid", "os/linux/privileged"]
    file.write_text(json.dumps({"grants": grants}))
    assert kurma("--config", str(file), "config", "check").returncode == 0


def test_config_check_looks_at_networks(tmp_path: Path) -> None:
    """As far as a configuration tells by itself: nothing is asked of the host, nothing made."""
    file = tmp_path / "kurma.yml"
    bridge = {"plugin": "bridge", "bridge": "b0", "subnets": ["10.1.0.0/24"]}
    good = [{"name": "good", **bridge}, {"name": "cni", "plugin": "cni", "type": "no-such-program"}]
    wrong = [
        {"name": "a", **bridge, "subnet": "10.1.0.0/24"},
        {"name": "b", **bridge, "mtu": 10},
        {"name": "c", "plugin": "cni"},
        {"name": "d", "aci": "apcera.com/kurma/cni-netplugin", "type": "bridge", "cniVersion": "7"},
        {"name": "e", **bridge, "containerInterface": "eth{{nmu}}"},
        {"name": "f", "aci": "file:///f.aci", "containerInterface": "much-too-long-a-name"},
    ]
    file.write_text(json.dumps({"container_networks": [*good, *wrong]}))
    done = kurma("--config", str(file), "--dir", str(tmp_path / "state"), "config", "check")
    said = [line for line in done.stderr.splitlines() if not line.startswith("  hint: ")]
    assert done.returncode == 125
    assert [line.split(": ")[:4] for line in said] == [
        ["kurma", str(file), f"container_networks.{name}", line.split(": ")[3]]
        for name, line in zip("abcdef", said, strict=True)
    ]
    told = ("subnet: unknown key", "mtu", "either type", "cniVersion '7'", "eth{{nmu}}", "impossible interface")
    assert all(words in line for words, line in zip(told, said, strict=True)), said
    assert not (tmp_path / "state").exists()
    file.write_text(json.dumps({"container_networks": good}))
    assert kurma("--config", str(file), "config", "check").returncode == 0


def test_config_check_names_file_and_key_of_plugins_that_are_not_there(tmp_path: Path) -> None:
    file = tmp_path / "kurma.yml"
    network = {"name": "blue", "plugin": "no-net", "container_interface": "eth0"}
    stagers = {"mine": {"driver": "no-driver"}}
    file.write_text(
        json.dumps(
            {"renderer": "no-rend", "stager": "no-stag", "stagers": stagers, "container_networks": [network]}
        )
    )
    done = kurma("--config", str(file), "config", "check")
    assert done.returncode == 125
    lines = done.stderr.splitlines()
    heads = {line.split(": no ")[0] for line in lines if not line.startswith("  hint: ")}
    keys = ("renderer", "stager", "stagers.mine.driver", "container_networks.blue.plugin")
    assert heads == {f"kurma: {file}: {key}" for key in keys}
    assert any(line.startswith("  hint: installed: ") for line in lines)


def test_image_validate_says_which_file_is_bad(tmp_path: Path) -> None:
    bad = [tmp_path / "a", tmp_path / "b"]
    for file in bad:
        file.write_bytes(b"no archive")
    done = kurma("image", "validate", "a", "b", "nowhere", cwd=tmp_path)
    assert done.returncode == 125
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  hint: ")]
    assert [line.split(": ")[:2] for line in lines] == [["kurma", "a"], ["kurma", "b"], ["kurma", "nowhere"]]
    assert kurma("image", "validate", "a", cwd=tmp_path).stderr.startswith("kurma: a: ")


def test_plugins_show() -> None:
    done = kurma("plugins", "show", "networks/cni", "--format", "json")
    value = json.loads(done.stdout)
    assert (value["kind"], value["name"], value["distribution"]) == ("networks", "cni", "kurma-net-cni")
    assert value["settings"]["enabled"] is True
    options = {option["name"]: option for option in value["options"]}
    assert options["timeout"]["type"] == "float"
    assert options["timeout"]["default"] == 60.0
    assert options["timeout"]["help"]
    rows = [line.split() for line in kurma("plugins", "show", "networks/cni").stdout.splitlines()]
    assert ["OPTION", "TYPE", "DEFAULT", "HELP"] in rows
    assert {row[0] for row in rows if row} >= set(options)
    assert kurma("plugins", "show", "network/cni").stdout == kurma("plugins", "show", "networks/cni").stdout
    done = kurma("plugins", "show", "networks/cny")
    assert done.returncode == 125
    assert "networks/cni" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("image", "validate", ""), "FILE"),
        (("image", "fetch", "example.com/a", ""), "LOCATOR"),
        (("image", "show", ""), "IMAGE"),
        (("trust", "rm", "", "--root"), "FPR"),
    ],
)
def test_an_empty_word_is_told(words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable that a script has not set."""
    assert main(list(words)) == 2
    assert capsys.readouterr().err == f"kurma: {named} is empty\n  hint: see: kurma {' '.join(words[:2])} --help\n"


def test_show_has_what_is_mounted_and_no_service_that_is_gone(
    fakes: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"volume": "conf", "path": "/conf", "appVolume": {"name": "conf", "kind": "host", "source": "/srv/conf"}}
    apps = [
        {"name": "one", "mounts": [{"volume": "data", "path": "/in"}, own]},
        {"name": "two", "mounts": [{"volume": "data", "path": "/out"}]},
        {"name": "three", "mounts": [{"volume": "tmp", "path": "/tmp"}, {"volume": "big", "path": "/big"}]},
        {"name": "four"},
    ]
    memory = {"kind": "empty", "kurma.io/memory": True}
    volumes = [{"name": "data", "kind": "empty"}, {"name": "tmp", **memory}]
    volumes.append({"name": "big", **memory, "kurma.io/size": "64Mi"})
    manifest = {"apps": apps, "volumes": volumes}
    service = MetadataAddress("169.254.169.255", 61169, "/t")
    run(fakes, "show web", answers={"pod": fakes.record(manifest=manifest, metadata=service, owner=7)})
    text = capsys.readouterr().out
    rows = text[text.index("VOLUME") :].split("\n\n")[0].splitlines()
    assert [row.split() for row in rows] == [
        ["VOLUME", "APP", "PATH", "SOURCE"],
        ["data", "one", "/in", "empty"],
        ["conf", "one", "/conf", "/srv/conf"],
        ["data", "two", "/out", "empty"],
        ["tmp", "three", "/tmp", "tmpfs"],
        ["big", "three", "/big", "tmpfs", "(64Mi)"],
    ]
    assert "169.254.169.255:61169 (token in /t)" in text
    run(fakes, "show web", answers={"pod": fakes.record(metadata=service)})
    text = capsys.readouterr().out
    assert "61169" not in text
    assert "metadata service  none: the process that owned the pod, and served it, is gone" in text
    assert "VOLUME" not in text
