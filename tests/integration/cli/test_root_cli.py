"""Pods by command line, start to finish."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import KURMA

pytestmark = pytest.mark.root

NONE = ("--net", "none")


def test_run_prints_what_the_app_says_and_ends_as_it_does(kurma: Any) -> None:
    done = kurma("run", "--rm", *NONE, kurma.image)
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello\n", "sorry\n")
    assert kurma.out("list", "--no-legend") == ""


def test_arguments_environment_directory_user_and_hosts(kurma: Any) -> None:
    script = 'echo "$A $(pwd) $(id -u):$(id -g) $1"; cat /etc/hosts; hostname; touch /x 2>&1'
    done = kurma(
        *("run", "--rm", *NONE, "-e", "A=a b", "--workdir", "/tmp", "--user", "alice", "--group", "100"),
        *("--hosts-entry", "10.9.8.7=db,db.local", "--hostname", "host-name", "--exec", "/bin/sh"),
        *("--read-only", kurma.image, "--", "-c", script, "zero", "one"),
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "a b /tmp 1000:100 one", done.stderr
    assert any(line.split()[:3] == ["10.9.8.7", "db", "db.local"] for line in lines)
    assert "host-name" in lines
    assert "Read-only file system" in lines[-1]


def test_standard_input_goes_to_the_app(kurma: Any) -> None:
    done = kurma("run", "--rm", "-i", *NONE, "--exec", "/bin/cat", kurma.image, input="some\nwords")
    assert (done.returncode, done.stdout) == (0, "some\nwords")


def test_volumes(kurma: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("from the host\n")
    (tmp_path / "out").mkdir()
    done = kurma(
        *("run", "--rm", *NONE, "-v", f"{tmp_path}/in:/in:ro", "-v", f"{tmp_path}/out:/out"),
        *("--volume", "name=t,kind=empty,mode=1777", "--mount", "volume=t,target=/t", "--exec", "/bin/sh"),
        *(kurma.image, "--", "-c", "cp /in/file /out/copy && stat -c %a /t && touch /in/x"),
    )
    assert (tmp_path / "out" / "copy").read_text() == "from the host\n"
    assert done.stdout == "1777\n"
    assert done.returncode == 1
    assert not (tmp_path / "in" / "x").exists()


def pod_file(kurma: Any, directory: Path) -> str:
    """A pod of two apps, which end with 0 and 42."""

    def app(name: str, script: str) -> dict[str, Any]:
        body = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}
        return {"name": name, "image": kurma.image, "app": body}

    file = directory / "pod.json"
    apps = [app("first", "echo one"), app("second", "echo two >&2; exit 42")]
    file.write_text(json.dumps({"apps": apps, "networks": ["none"]}))
    return str(file)


def test_a_pod_of_two_apps_ends_as_the_first_that_failed(kurma: Any, tmp_path: Path) -> None:
    done = kurma("run", "--name", "two", "--pod", pod_file(kurma, tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (42, "one\n", "two\n")
    (pod,) = json.loads(kurma.out("list", "--format", "json"))
    assert (pod["name"], pod["state"], pod["exitCode"]) == ("two", "stopped", 42)
    assert {name: app["exitCode"] for name, app in pod["apps"].items()} == {"first": 0, "second": 42}
    assert json.loads(kurma.out("show", "two", "--format", "json")) == pod
    assert json.loads(kurma.out("cat-manifest", "two"))["apps"][1]["name"] == "second"
    assert "two" in kurma.out("show", "two")
    assert kurma.out("logs", "two/first") == "one\n"
    logs = kurma("logs", "--prefix", pod["uuid"][:8])
    assert (logs.stdout, logs.stderr) == ("first: one\n", "second: two\n")
    assert kurma.out("logs", "--timestamps", "--stream", "stdout", "two").split()[1:] == ["one"]
    assert kurma("wait", "two").returncode == 42
    assert kurma.out("rm", "two") == ""
    assert kurma("show", "two").returncode == 125


def test_prepare_run_and_start_again(kurma: Any, tmp_path: Path) -> None:
    file = tmp_path / "uuid"
    uuid = kurma.out("prepare", *NONE, "--name", "again", "--uuid-file", str(file), kurma.image).strip()
    assert file.read_text().strip() == uuid
    shown = [uuid[:8], "again", os.path.basename(kurma.image), "prepared"]
    assert kurma.out("list", "--no-legend").split()[:4] == shown
    for words in (("run-prepared", uuid), ("start", "-a", "again"), ("restart", "-ai", "again")):
        done = kurma(*words)
        assert (done.returncode, done.stdout) == (3, "hello\n"), done.stderr
    assert kurma.out("logs", "--stream", "stdout", "again") == "hello\n"


def test_enter_kill_and_stop(kurma: Any, sleeping: Any) -> None:
    process = sleeping("busy", script="trap 'echo usr1' USR1; echo up; while :; do sleep 0.1; done")
    done = kurma("enter", "busy", "--", "/bin/sh", "-c", "echo $0 inside; exit 7")
    assert (done.returncode, done.stdout) == (7, "/bin/sh inside\n")
    assert kurma("enter", "busy", input="echo from a script; exit 4\n").stdout == "from a script\n"
    assert kurma("exec", "busy/busybox", "/no/such").returncode == 127
    done = kurma("exec", "busy", "/no\x1b[31m\nkurma:such")  # as one line, and without colours of others
    assert (done.returncode, done.stderr) == (127, "kurma: app busybox: /no\\x1b[31m\\nkurma:such: not found\n")
    status = json.loads(kurma.out("status", "busy", "--format", "json"))
    assert (status["state"], status["apps"]["busybox"]["exited"]) == ("running", False)
    kurma.out("kill", "-s", "USR1", "busy")
    assert process.stdout.readline() == "usr1\n"
    assert kurma("rm", "busy").returncode == 125
    kurma.out("stop", "busy", "--timeout", "5")
    process.communicate()
    assert process.returncode == 143
    assert json.loads(kurma.out("show", "busy", "--format", "json"))["state"] == "stopped"


def test_stop_by_force(kurma: Any, sleeping: Any) -> None:
    process = sleeping("deaf", script="trap '' TERM; echo up; while :; do sleep 0.1; done")
    kurma.out("stop", "deaf", "--force")
    process.communicate()
    assert process.returncode == 137
    kurma.out("rm", "deaf")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_pod(kurma: Any, sleeping: Any, number: int) -> None:
    process = sleeping(
        "stopped", "--rm", script="trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.1; done"
    )
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "bye\n")
    assert kurma.out("list", "--no-legend") == ""


@pytest.mark.full
def test_gc_cleans_what_a_killed_command_left(kurma: Any, sleeping: Any) -> None:
    process = sleeping("orphan")
    process.kill()
    process.communicate()
    assert "runs without an owner" in kurma.out("gc")
    kurma.out("stop", "orphan", "--force")
    assert "removed" in kurma.out("gc", "--grace-period", "0")
    assert kurma.out("list", "--no-legend") == ""


def test_a_reader_that_goes_away_stops_the_pod(kurma: Any) -> None:
    script = "while :; do echo line; sleep 0.02; done"
    words = ("run", "--rm", *NONE, "--exec", "/bin/sh", kurma.image, "--", "-c", script)
    process = kurma.popen(*words)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 143
    assert kurma.out("list", "--no-legend") == ""


def test_a_million_bytes_come_out_as_they_went_in(kurma: Any) -> None:
    script = "head -c 1000000 /dev/urandom | tee /dev/stderr | sha256sum >/dev/null"
    words = ("run", "--rm", *NONE, "--exec", "/bin/sh", kurma.image, "--", "-c", f"{script}; true")
    done = subprocess.run([*KURMA, *words], capture_output=True, env=kurma.environment, check=False)
    assert len(done.stderr) == 1_000_000
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("/no/such.aci",), 125, "/no/such.aci"),
        (("--pull", "never", "example.com/nowhere"), 125, "example.com/nowhere"),
        (("--net", "nowhere", "IMAGE"), 125, "nowhere"),
        (("--stager", "nowhere", "IMAGE"), 125, "nowhere"),
        (("--renderer", "nowhere", "IMAGE"), 125, "nowhere"),
        (("-v", "/no/such:/x", "IMAGE"), 125, "/no/such"),
        (("--name", "Bad Name", "IMAGE"), 2, "Bad Name"),
        (("--exec", "/no/such", "--net", "none", "IMAGE"), 127, "/no/such"),
    ],
)
def test_failures_are_one_line_and_leave_nothing(kurma: Any, words: tuple[str, ...], code: int, said: str) -> None:
    done = kurma("run", "--rm", *(kurma.image if word == "IMAGE" else word for word in words))
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  hint: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("kurma: ")
    assert said in lines[0]
    assert kurma.out("list", "--no-legend") == ""


def test_a_name_that_is_taken(kurma: Any) -> None:
    kurma.out("prepare", *NONE, "--name", "taken", kurma.image)
    done = kurma("prepare", *NONE, "--name", "taken", kurma.image)
    assert done.returncode == 125
    assert "taken" in done.stderr


def test_images(kurma: Any, tmp_path: Path) -> None:
    image = kurma.out("image", "fetch", kurma.image).strip()
    assert image[:20] in kurma.out("image", "list")
    assert json.loads(kurma.out("image", "show", image[:20], "--format", "json"))["id"] == image
    assert json.loads(kurma.out("image", "cat-manifest", image))["name"] == "example.com/busybox"
    kurma.out("image", "export", image, str(tmp_path / "copy.aci"))
    assert "a valid image" in kurma.out("image", "validate", str(tmp_path / "copy.aci"))
    (top, *_) = kurma.out("image", "render", image).splitlines()
    assert Path(top, "bin", "busybox").is_file()
    uuid = kurma.out("prepare", *NONE, kurma.image).strip()
    assert kurma("image", "rm", image).returncode == 125
    kurma.out("rm", uuid)
    kurma.out("image", "rm", image)
    assert image[:20] not in kurma.out("image", "list")


def test_an_image_is_built_reproducibly_and_runs(kurma: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "rootfs" / "bin").mkdir(parents=True)
    (source / "rootfs" / "bin" / "sh").write_bytes(Path("/bin/busybox").read_bytes())
    (source / "rootfs" / "bin" / "sh").chmod(0o755)
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/built"}
    (source / "manifest").write_text(json.dumps(manifest))
    options = ("--exec", "/bin/sh -c 'echo $WORD'", "-e", "WORD=built", "--version", "2")
    first = kurma.out("image", "build", str(source), "-o", str(tmp_path / "a.aci"), *options)
    second = kurma.out(
        "image", "build", str(source), "-o", str(tmp_path / "b.aci"), "--compress", "gzip", *options
    )
    assert first == second
    assert os.path.getsize(tmp_path / "b.aci") < os.path.getsize(tmp_path / "a.aci")
    assert kurma.out("run", "--rm", *NONE, str(tmp_path / "b.aci")) == "built\n"
    assert kurma("image", "build", str(source), "-o", str(tmp_path / "no" / "x.aci")).returncode == 125


def test_closed_descriptors_never_reach_an_app(kurma: Any) -> None:
    """Whoever starts us with 0 closed: what we open next must not become an app's standard input."""
    words = (
        "run",
        "--rm",
        "-i",
        *NONE,
        "--exec",
        "/bin/sh",
        kurma.image,
        "--",
        "-c",
        "cat; echo end; exit 3",
    )
    command = f"{shlex.join([*KURMA, *words])} <&-"
    done = subprocess.run(
        ["sh", "-c", command], env=kurma.environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (3, "end\n"), done.stderr


def test_few_descriptors_are_enough(kurma: Any) -> None:
    command = f"ulimit -n 64; {shlex.join([*KURMA, 'run', '--rm', *NONE, kurma.image])}"
    done = subprocess.run(
        ["sh", "-c", command], env=kurma.environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (3, "hello\n"), done.stderr
