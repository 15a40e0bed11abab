"""Logs in a directory of the host that the pod names (C16): where they are, who writes them, how they go on."""

import contextlib
import os
import re
import stat
import threading

import pytest

from kurma_core.errors import PodStateError, StagerError, UsageError
from kurma_core.models.pod import LOG_DIRECTORY, LOG_PATH
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([PF]) (.*)")


def logged(path, **fields):
    """An app that writes what it is asked to, on each signal."""
    notes = [] if path is None else [{"name": LOG_PATH, "value": path}]
    return {"annotations": notes, **fields}


def app(script, path=None, **more):
    return logged(path, app=shell(script), **more)


def parts(path):
    """Stream, tag and text of each line of a log."""
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    return [match.groups() for match in found]


@contextlib.contextmanager
def logging(house, tmp_path, apps, **options):
    (tmp_path / "real").mkdir(exist_ok=True)
    # The directory itself may lie behind links.
    with contextlib.suppress(FileExistsError):
        (tmp_path / "linked").symlink_to("real")
    notes = [{"name": LOG_DIRECTORY, "value": f"{tmp_path}/linked/pod"}]
    with house.running(apps, annotations=notes, **options) as pod:
        yield pod, tmp_path / "real" / "pod"


SCRIPT = """
trap 'echo again; echo err >&2' USR1
echo first; printf 'not ended'
while :; do sleep 1000 & wait; done
"""


def test_logs_of_apps_are_where_the_pod_wants_them(house, tmp_path):
    """The directories are made; the default is the app's name; a log may be wanted by none."""
    apps = {
        "one": app(SCRIPT, "a/b/one.log"),
        "two": app("echo two; exec sleep 1000"),
        "mute": app("echo never seen; exec sleep 1000", ""),
    }
    with logging(house, tmp_path, apps) as (pod, directory):
        one = directory / "a/b/one.log"
        assert one.exists()
        assert (directory / "two.log").exists()
        assert sorted(os.listdir(directory)) == ["a", "two.log"]
        until(lambda: len(parts(one)) == 2, "the app's output")
        assert parts(one) == [("stdout", "F", "first"), ("stdout", "P", "not ended")]
        assert stat.S_IMODE(one.stat().st_mode) == 0o640
        assert os.listdir(house.path(pod, "pod/logs")) == []
        until(lambda: "two" in house.log(pod), "the other's output")
        assert house.log(pod, "one") == "first\nnot ended"
        assert house.log(pod, "mute") == ""

        one.rename(directory / "a/b/one.old")
        house.client.kill(pod.uuid, 10, "one")
        until(lambda: "again" in (directory / "a/b/one.old").read_text(), "what is written to the old file")
        house.client.app_reopen_log(pod.uuid, "one")
        assert one.exists()
        assert one.read_bytes() == b""
        before = (directory / "a/b/one.old").read_bytes()
        house.client.kill(pod.uuid, 10, "one")
        until(lambda: len(parts(one)) == 2, "what is written to the new file")
        assert sorted(parts(one)) == [("stderr", "F", "err"), ("stdout", "F", "again")]
        assert (directory / "a/b/one.old").read_bytes() == before

        # Of an app that does not run: an error, and no file.
        house.client.app_stop(pod.uuid, "one", timeout=0)
        one.unlink()
        with pytest.raises(StagerError, match="does not run"):
            house.client.app_reopen_log(pod.uuid, "one")
        assert not one.exists()
        house.client.app_start(pod.uuid, "one")
        assert one.exists()
    with pytest.raises(PodStateError):
        house.client.app_reopen_log(pod.uuid, "one")
    house.client.rm(pod.uuid)
    assert one.exists(), "Kurma removes no such log"


def test_long_lines_are_in_parts(house, tmp_path):
    script = "head -c 40000 /dev/zero | tr '\\0' x; echo; echo short; exec sleep 1000"
    with logging(house, tmp_path, {"main": app(script)}) as (_, directory):
        log = directory / "main.log"
        until(lambda: "short" in log.read_text(), "the output")
        assert all(len(text) <= 16384 for _, _, text in parts(log))
        *first, (_, tag, text) = parts(log)
        assert (tag, text) == ("F", "short")
        assert first[-1][1] == "F"
        assert {tag for _, tag, _ in first[:-1]} == {"P"}
        assert "".join(text for _, _, text in first) == "x" * 40000


def test_no_link_below_the_directory_is_followed(house, tmp_path):
    """Neither to a file, nor on the way; the app does not start, and nothing comes to be elsewhere."""
    (tmp_path / "real/pod/sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "real/pod/away").symlink_to(tmp_path / "other")
    (tmp_path / "real/pod/file.log").symlink_to(tmp_path / "other/file.log")
    os.mkfifo(tmp_path / "real/pod/fifo.log")
    with logging(house, tmp_path, {"main": "exec sleep 1000"}) as (pod, _):
        for number, path in enumerate(("away/x.log", "file.log", "fifo.log", "sub")):
            request = house.request({f"app{number}": app("exec sleep 1000", path)})
            house.client.app_add(pod.uuid, request)
            with pytest.raises(StagerError, match="cannot be opened"):
                house.client.app_start(pod.uuid, f"app{number}")
        assert os.listdir(tmp_path / "other") == []
        for path in ("../x.log", "/x.log", "a//b", "a/./b", "."):
            with pytest.raises(UsageError, match="its annotation"):
                house.client.app_add(pod.uuid, house.request({"bad": app("true", path)}))
        with pytest.raises(UsageError, match="same log"):
            house.client.app_add(pod.uuid, house.request({"same": app("true", "main.log")}))


def test_what_the_annotations_may_not_say(house):
    def refused(match, apps="true", **options):
        with pytest.raises(UsageError, match=match):
            house.client.prepare(house.request(apps, **options))

    refused("no log directory", {"main": app("true", "x.log")})
    refused("log-dir", annotations=[{"name": LOG_DIRECTORY, "value": "logs"}])
    refused("own state", annotations=[{"name": LOG_DIRECTORY, "value": f"{house.state}/logs"}])
    refused("stop-signal", {"main": {"app": shell("true"), "annotations": [
        {"name": "kurma.io/stop-signal", "value": "SIGNONE"}]}})  # fmt: skip
    refused("stdin", {"main": {"app": shell("true"), "annotations": [{"name": "kurma.io/stdin", "value": "yes"}]}})
    with house.running("exec sleep 1000") as pod, pytest.raises(UsageError, match="own directory"):
        house.client.app_reopen_log(pod.uuid, "main")


@pytest.mark.full
def test_a_million_lines_and_ten_rotations(house, tmp_path):
    """No line is lost, doubled or divided, in the files and for a client that follows."""
    lines = 1_000_000
    batch = "seq $((i * 5000 + 1)) $((i * 5000 + 5000)); i=$((i + 1)); usleep 20000"
    script = f"i=0; while [ $i -lt {lines // 5000} ]; do {batch}; done; echo done; exec sleep 1000"
    with logging(house, tmp_path, {"main": "exec sleep 1000"}, net="none") as (pod, directory):
        house.client.app_add(pod.uuid, house.request({"seq": app(script, "seq/0.log")}), start=True)
        followed, reader = following(house, pod, "seq")
        until(lambda: followed, "the first output of the client")
        log = directory / "seq/0.log"
        for number in range(10):
            until(lambda: log.stat().st_size > 100_000, "enough output")
            log.rename(directory / f"seq/0.log.{number}.old")
            house.client.app_reopen_log(pod.uuid, "seq")
        files = [directory / f"seq/0.log.{number}.old" for number in range(10)] + [log]
        until(lambda: log.read_bytes().endswith(b" done\n"), "the last line")
        assert {file.read_text().rpartition("\n")[0].rpartition("\n")[2].split(" ")[2] for file in files} == {"F"}
        text = "".join(part + ("\n" if tag == "F" else "") for file in files for _, tag, part in parts(file))
        assert text == "".join(f"{number}\n" for number in range(1, lines + 1)) + "done\n"
        reader.join(20)
        assert "".join(followed) == text


def following(house, pod, name):
    """What a client gets that follows the log, up to the line "done", and its thread."""
    found = []

    def read():
        with house.connect() as client:
            for text in client.logs(pod.uuid, name, follow=True):
                found.append(text.text.decode() + ("" if text.partial else "\n"))
                if found[-1].endswith("done\n"):
                    return

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return found, thread
