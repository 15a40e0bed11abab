"""The half inside, as far as it runs without a pod: JSON, the manifest, logs, reasons, arguments."""

import fcntl
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kurma_stager_default.inside import applog, callin_logs, hostfiles, manifest, smalljson

from kurma_core.models import IsolatorPlan

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_json_reads_and_writes_what_the_package_does(value):
    assert smalljson.decode(f" {json.dumps(value)}\n") == value
    assert smalljson.decode(json.dumps(value, ensure_ascii=False)) == value
    if all(ord(char) < 0xD800 or ord(char) > 0xDFFF for char in str(value)):
        assert json.loads(smalljson.encode(value)) == value


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{bad}", "[1,]", "[1] 2", '"open', "NaN", "[Infinity]", "nul", '"a\nb"']
)
def test_json_refuses(text):
    with pytest.raises(ValueError, match=r"JSON|follows"):
        smalljson.decode(text)


def test_json_of_undecodable_bytes():
    assert json.loads(smalljson.encode("a\udcff")) == "a\ufffd"


def document(**config):
    return {
        "kurmaVersion": "1",
        "name": "pod",
        "pod": {
            "apps": [
                {
                    "name": "a",
                    "image": {"id": "sha512-1"},
                    "mounts": [{"volume": "v", "path": "/v"}],
                    "annotations": [{"name": "kurma.io/restart", "value": "always"}],
                }
            ],
            "volumes": [{"name": "v", "kind": "host", "readOnly": True}],
        },
        "images": {"sha512-1": {"app": {"exec": ["/x"], "user": "1", "group": "2"}}},
        "appImageOrder": {"a": ["sha512-1", "sha512-2"]},
        "stagerConfig": config,
    }


def test_a_manifest_without_the_reserved_part():
    """What a core that knows only the document gives is enough."""
    environment = {"HOSTNAME": "host", "AC_METADATA_URL": "http://x/token"}
    pod = manifest.Pod(document(), environment)
    (app,) = pod.apps
    assert (app.exec, app.user, app.layers, app.restart) == (["/x"], "1", ["sha512-1", "sha512-2"], "always")
    assert [(mount.volume, mount.path, mount.read_only, mount.seed) for mount in app.mounts] == [
        ("v", "/v", True, False)
    ]
    assert app.environment == [("AC_METADATA_URL", "http://x/token")]
    assert (pod.hostname, pod.lifecycle, pod.stop_timeout) == ("host", "all", 10)


def test_a_merged_tree_stands_for_the_image():
    value = document()
    value["images"] = {"sha512-tree": value["images"]["sha512-1"]}
    value["appImageOrder"] = {"a": ["sha512-tree"]}
    assert manifest.Pod(value, {}).apps[0].exec == ["/x"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"kurma.io": {"version": 2}}, "version 2 is newer"),
        ({"kurma.io": {"apps": {"a": {"plan": {"version": 9}}}}}, "version 9 is newer"),
        ({"graphStorage": "aufs"}, "'aufs' is none of overlay, copy"),
    ],
)
def test_a_newer_or_unknown_manifest_is_refused(config, said):
    with pytest.raises(manifest.ManifestError, match=said):
        manifest.Pod(document(**config), {})


def test_a_plan_as_the_core_writes_it():
    """A filter comes through whole; who knows plans without filters alone must refuse one with."""
    plan = IsolatorPlan(seccomp=bytes(range(16)))
    pod = manifest.Pod(document(**{"kurma.io": {"apps": {"a": {"plan": plan.to_json()}}}}), {})
    assert pod.apps[0].plan.seccomp == plan.seccomp
    assert (plan.to_json()["version"], IsolatorPlan().to_json()["version"]) == (2, 1)
    assert "seccomp" not in IsolatorPlan().to_json()


def test_an_empty_storage_is_none_chosen():
    assert manifest.Pod(document(graphStorage=""), {}).storage is None


def test_a_nonsense_manifest_is_told(tmp_path):
    path = tmp_path / "manifest"
    path.write_text('{"pod": []}')
    with pytest.raises(manifest.ManifestError, match="not a stager manifest"):
        manifest.load(str(path))


# --- logs ------------------------------------------------------------------------------------------------------

NOW = 1_500_000_000_000_000_001
STAMP = b"2017-07-14T02:40:00.000000001Z"


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_log_lines_say_what_was_written(chunks):
    """Every byte comes back, in any cutting."""
    made = b"".join(applog.lines(chunk, b"stdout", NOW) for chunk in chunks)
    text = b""
    for line in made.split(b"\n")[:-1]:
        stamp, stream, kind, rest = line.split(b" ", 3)
        assert (stamp, stream) == (STAMP, b"stdout")
        text += rest + (b"\n" if kind == b"F" else b"")
    assert text == b"".join(chunks)


def test_a_log_that_cannot_be_written_drops_and_says_so(tmp_path):
    """H7: a full disk loses lines, nothing else."""
    directory = tmp_path / "logs"
    log = applog.AppLog(str(directory / "a.log"), 0, 1)
    log.write(applog.STDOUT, b"lost\n")
    log.write(applog.STDOUT, b"lost too\n")
    assert (log.dropped, log.dropped_in_all) == (14, 14)
    directory.mkdir()
    log.write(applog.STDOUT, b"kept\n")
    log.close()
    first, second = (directory / "a.log").read_bytes().splitlines()
    assert first.endswith(b"stderr F [kurma: 14 bytes of output were dropped, the log could not be written]")
    assert second.endswith(b"stdout F kept")
    assert (log.dropped, log.dropped_in_all) == (0, 14)


def test_a_full_disk_cuts_no_line(monkeypatch, tmp_path):
    """A write that comes to its end half way leaves nothing of the chunk."""
    log = applog.AppLog(str(tmp_path / "a.log"), 0, 1)
    log.write(applog.STDOUT, b"one\n")
    real, calls = os.write, []

    def half(fd, data):
        calls.append(data)
        if len(calls) == 1:
            return real(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    log.write(applog.STDOUT, b"two\n")
    monkeypatch.undo()
    log.write(applog.STDOUT, b"three\n")
    log.close()
    kept = [line.split(b" ", 3)[3] for line in (tmp_path / "a.log").read_bytes().splitlines()]
    assert kept == [b"one", b"[kurma: 4 bytes of output were dropped, the log could not be written]", b"three"]


def test_a_log_is_turned_between_lines(tmp_path):
    """Whatever the chunks are, a file ends with a whole line of the stream that fills it."""
    log = applog.AppLog(str(tmp_path / "a.log"), 200, 50)
    for number in range(100):
        log.write(applog.STDOUT, b"%d begins" % number)
        log.write(applog.STDOUT, b" and ends\nnext\n" * (number % 4 + 1) + b"open")
        log.write(applog.STDOUT, b"\n")
    log.close()
    names = os.listdir(tmp_path)
    assert len(names) == 50
    for name in names:
        assert (tmp_path / name).read_bytes().splitlines()[-1].split(b" ")[2] == b"F", name


def test_a_line_as_long_as_two_logs_is_torn(tmp_path):
    log = applog.AppLog(str(tmp_path / "a.log"), 200, 3)
    for _ in range(100):
        log.write(applog.STDOUT, b"x" * 50)
    log.close()
    assert sum((tmp_path / name).stat().st_size for name in os.listdir(tmp_path)) < 3 * 600


def test_what_is_followed_is_kept(tmp_path, monkeypatch):
    """Up to a bound, and until it is followed no more."""
    log = applog.AppLog(str(tmp_path / "a.log"), 200, 3)
    written = []

    def write(count):
        for _ in range(count):
            written.append(b"%d " % len(written) + b"x" * 60)
            log.write(applog.STDOUT, written[-1] + b"\n")

    def there():
        names = sorted(os.listdir(tmp_path), key=lambda name: -int(name.partition("log.")[2] or 0))
        lines = b"".join((tmp_path / name).read_bytes() for name in names).splitlines()
        return [line.split(b" ", 3)[3] for line in lines], len(names)

    follower = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(follower, fcntl.LOCK_SH)
    write(100)
    assert there()[0] == written
    monkeypatch.setattr(applog, "FOLLOWED_BYTES", 2000)
    write(100)
    found, count = there()
    assert found == written[-len(found) :]
    assert count == 10
    os.close(follower)
    write(10)
    found, count = there()
    assert found == written[-len(found) :]
    assert count == 3
    log.close()


def test_names_of_logs(tmp_path):
    assert applog.free_name(str(tmp_path), "a") == "a.log"
    (tmp_path / "a.log").touch()
    (tmp_path / "a.1.log").touch()
    assert applog.free_name(str(tmp_path), "a") == "a.2.log"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", b"2026-01-31T12:00:00.000000000Z"),
        ("2026-01-31T12:00:00.5Z", b"2026-01-31T12:00:00.500000000Z"),
        ("1500000000", b"2017-07-14T02:40:00.000000000Z"),
    ],
)
def test_since(text, moment):
    assert callin_logs.Wanted(["a", "--since", text]).since == moment


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["a", "--tail"],
        ["a", "--tail", "x"],
        ["a", "--since", "now"],
        ["a", "--stream=all"],
        ["a", "--x=1"],
    ],
)
def test_wrong_arguments_of_logs(arguments):
    with pytest.raises(callin_logs.UsageError):
        callin_logs.Wanted(arguments)


def test_no_resolver_file_without_dns():
    """The app keeps its own."""
    pod = manifest.Pod(document(), {})
    assert set(hostfiles.contents(pod)) == {"/etc/hosts", "/etc/hostname"}
