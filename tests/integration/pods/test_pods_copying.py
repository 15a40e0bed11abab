"""Files from and to the root of an app that runs (``kurma cp``): where they go, who owns them, and what comes
neither out nor in."""

import io
import os
import stat
import subprocess
import tarfile

import pytest

from kurma_core.errors import ArchiveError, HostError, KurmaError, PodStateError
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

MAKES = (
    "mkdir -p /out/sub/deep /tmp/e; echo one >/out/a; echo two >/out/sub/deep/b; chown 1000:100 /out/a;"
    "chmod 4751 /out/a; ln -s /etc/passwd /out/link; ln -s / /out/up; mkfifo /out/pipe; chmod 750 /out/sub;"
    "touch -t 202001020304 /out/sub; ln -s /out /dir; touch /out/up/made; exec sleep 1000"
)
OUT = {"a": "one\n", "link": "/etc/passwd", "sub": None, "sub/deep": None, "sub/deep/b": "two\n", "up": "/"}


def tree(top):
    """Content, or target, by way."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else None
    return found


def rights(path):
    status = os.stat(path)
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


@pytest.fixture
def web(house):
    """A pod whose app has made what is copied, and what a command says in it."""

    class Web:
        def __init__(self, pod):
            self.uuid = pod.uuid
            self.stop = pod.stop

        def says(self, script):
            code, out, err = house.enter(self.uuid, "sh", "-c", script)
            assert (code, err) == (0, "")
            return out

        def out(self, path, target, **how):
            house.client.copy_out(
                self.uuid, None, path, target if hasattr(target, "write") else str(target), **how
            )

        def put(self, source, path, **how):
            source = source if hasattr(source, "read") else str(source)
            house.client.copy_in(self.uuid, "main", source, path, **how)

    made = []

    def start(script=MAKES, app=None, **options):
        running = house.running({"main": shell(script, **(app or {}))}, **options)
        pod = running.__enter__()
        made.append(running)
        root = f"/proc/{house.client.pod(pod.uuid).apps[0].pid}/root"
        until(lambda: os.path.exists(f"{root}/made"), "what the app makes")
        return Web(pod)

    yield start
    for running in made:
        running.__exit__(None, None, None)


def test_out_of_an_app(house, web, tmp_path):
    """Where it goes by what is there, links as they are, pipes left out; the caller's, and nobody's setuid."""
    pod = web()
    house.notes.clear()
    pod.out("/out", tmp_path / "new")
    assert house.notes == ["pipe is not copied: it is a named pipe"]
    assert tree(tmp_path / "new") == OUT
    assert rights(tmp_path / "new/a") == (0, 0, 0o751)
    assert rights(tmp_path / "new/sub") == (0, 0, 0o750)
    assert int(os.stat(tmp_path / "new/sub").st_mtime) == 1577934240
    (tmp_path / "there/out/sub").mkdir(parents=True)
    (tmp_path / "there/out/a").write_text("old")
    (tmp_path / "there/out/sub/kept").write_text("kept")
    pod.out("dir/", tmp_path / "there", whole=True)
    assert tree(tmp_path / "there/dir") == OUT
    pod.out("/out", tmp_path / "there", whole=True)
    assert tree(tmp_path / "there/out") == {**OUT, "sub/kept": "kept"}
    assert rights(tmp_path / "there/out/a") == (1000, 100, 0o4751)
    pod.out("/out/sub/.", tmp_path / "there")
    assert (tmp_path / "there/deep/b").read_text() == "two\n"
    # Links on the way lead nowhere but inside.
    pod.out("/out/up/out/../../dir/a", tmp_path / "there/a")
    pod.out("/out/link", tmp_path / "link")
    pod.out("/out/link", tmp_path / "passwd", follow=True)
    assert ((tmp_path / "there/a").read_text(), os.readlink(tmp_path / "link")) == ("one\n", "/etc/passwd")
    assert "alice" in (tmp_path / "passwd").read_text()
    pod.out("/", tmp_path / "all")
    assert os.listdir(tmp_path / "all/out/sub") == ["deep"]
    assert not (tmp_path / "all/proc").exists(), "the kernel's"
    assert list(tmp_path.rglob(".kurma-cp*")) == []


def test_into_an_app(web, tmp_path):
    pod = web()
    (tmp_path / "site/css").mkdir(parents=True)
    (tmp_path / "site/index").write_text("hello\n")
    (tmp_path / "site/css/x").write_text("y\n")
    (tmp_path / "site/css/abs").symlink_to("/data")
    with open(tmp_path / "site/holes", "wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"in between")
    os.chown(tmp_path / "site/index", 1000, 100)
    pod.put(tmp_path / "site", "/srv")
    pod.put(tmp_path / "site", "/tmp")
    pod.put(f"{tmp_path}/site/.", "/tmp", whole=True)
    assert pod.says("cat /srv/index /tmp/site/css/x /tmp/index") == "hello\ny\nhello\n"
    assert pod.says("stat -c %u:%g /srv/index /tmp/site/index /tmp/index") == "0:0\n0:0\n1000:100\n"
    assert pod.says("readlink /srv/css/abs") == "/data\n"
    assert (
        pod.says("tail -c +33554433 /srv/holes | head -c 10; stat -c ' %s' /srv/holes") == "in between 67108864\n"
    )
    assert int(pod.says("du -k /srv/holes").split()[0]) < 1000, "holes stay holes"
    # A link of the app's that leads to / leads to its own.
    pod.put(tmp_path / "site/index", "/out/up/came-by-link")
    assert pod.says("cat /came-by-link") == "hello\n"
    assert not os.path.exists("/came-by-link")
    pod.put(tmp_path / "site/index", "/out/a")
    assert pod.says("cat /out/a; ls -A / /out /srv | grep -c kurma || true") == "hello\n0\n"


def archive(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in members:
            made.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def test_archives(web, tmp_path):
    """As tar writes and reads them."""
    pod = web()
    out = io.BytesIO()
    pod.out("/out", out)
    subprocess.run(["tar", "-x", "-C", tmp_path], input=out.getvalue(), check=True)
    assert tree(tmp_path / "out") == OUT
    out.seek(0)
    with tarfile.open(fileobj=out) as read:
        found = read.getmember("out/a")
    assert (found.uid, found.gid, found.mode) == (1000, 100, 0o4751)
    os.link(tmp_path / "out/a", tmp_path / "out/sub/again")
    packed = subprocess.run(["tar", "-cz", "-C", tmp_path / "out", "."], capture_output=True, check=True).stdout
    pod.put(io.BytesIO(packed), "/data")
    assert pod.says("cat /data/sub/again /data/sub/deep/b; stat -c %h /data/a") == "one\ntwo\n2\n"
    pod.put(io.BytesIO(archive("implied/x", "implied/y")), "/data")
    assert pod.says("ls /data/implied") == "x\ny\n"
    for wrong, why in (
        (packed[: len(packed) // 2], "standard input is not a tar archive"),
        (b"nonsense" * 1000, "standard input is not a tar archive"),
        (archive("new/a", "new/../../x"), "leads out of it"),
    ):
        with pytest.raises(ArchiveError, match=why):
            pod.put(io.BytesIO(wrong), "/tmp/e")
        assert pod.says("ls -A /tmp/e") == ""
    with pytest.raises(HostError, match="/nowhere: no such file or directory"):
        pod.put(io.BytesIO(packed), "/nowhere")


def test_a_pod_in_a_user_namespace(web, tmp_path):
    """Owners are those that the app sees; in a volume, too."""
    pod = web(userns="auto")
    (tmp_path / "f").write_text("f")
    os.chown(tmp_path / "f", 33, 34)
    pod.put(tmp_path / "f", "/tmp/plain")
    pod.put(tmp_path / "f", "/tmp/whole", whole=True)
    assert pod.says("stat -c %u:%g /tmp/plain /tmp/whole") == "0:0\n33:34\n"
    pod.out("/out/a", tmp_path / "a", whole=True)
    assert rights(tmp_path / "a") == (1000, 100, 0o4751)
    os.chown(tmp_path / "f", 0xFFFFFFF, 0)
    with pytest.raises(HostError, match="has no id 268435455"):
        pod.put(tmp_path / "f", "/tmp/none", whole=True)
    assert pod.says("ls -A /tmp").split() == ["e", "plain", "whole"]
    # What is made after that is the host's root's again.
    (tmp_path / "mine").write_text("")
    assert os.stat(tmp_path / "mine").st_uid == 0


def test_what_is_refused(house, web, tmp_path):
    """Each with why; what was there is as it was."""
    pod = web()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/deep").write_text("a file")
    file, directory = tmp_path / "file", tmp_path / "d"
    for path, target, why in (
        ("/out/nothing", file, "^/out/nothing: no such file or directory"),
        ("/out/a/", file, "^/out/a/: not a directory"),
        ("/proc/version", file, "^cannot copy /proc/version: it is the kernel's"),
        ("/dev/null", file, "^cannot copy /dev/null: it is a device"),
        ("/out/pipe", file, "^cannot copy /out/pipe: it is a named pipe"),
        ("/out/sub", file, "file: not a directory"),
        ("/out/a", f"{file}/", "file/: not a directory"),
        ("/out/a", tmp_path / "no/such", "no: no such file or directory"),
        ("/out/sub/.", directory / "sub", "deep is there, and is not a directory"),
    ):
        with pytest.raises(HostError, match=why):
            pod.out(path, target)
    (tmp_path / "e/a").mkdir(parents=True)
    with pytest.raises(HostError, match="a is a directory there"):
        pod.out("/out/a", tmp_path / "e")
    assert (file.read_text(), tree(directory)) == ("mine", {"sub": None, "sub/deep": "a file"})
    with pytest.raises(HostError, match="/out/a: not a directory"):
        pod.put(directory, "/out/a")
    with pytest.raises(KurmaError, match="has no app other"):
        house.client.copy_in(pod.uuid, "other", str(file), "/x")
    pod.stop(force=True)
    with pytest.raises(PodStateError) as caught:
        pod.out("/out/a", file)
    assert "volumes stay" in caught.value.hint


def test_what_nothing_is_written_to(web, tmp_path):
    """What the kernel has made, what is not a file, what is mounted: it stays; and the error names which place is
    meant."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "bound").write_text("bound")
    (tmp_path / "d").mkdir()
    (tmp_path / "fixed").mkdir()
    file, directory = tmp_path / "file", tmp_path / "d"
    pod = web(
        "mkdir /out; echo a >/out/a; touch /made; exec sleep 1000",
        {"mountPoints": [{"name": "bound", "path": "/bound"}, {"name": "fixed", "path": "/fixed"}]},
        volumes=[
            {"name": "bound", "kind": "host", "source": str(tmp_path / "bound")},
            {"name": "fixed", "kind": "host", "source": str(tmp_path / "fixed"), "readOnly": True},
        ],
    )
    linked = tarfile.TarInfo("other")
    linked.type, linked.linkname = tarfile.LNKTYPE, "no/such"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.addfile(linked)
    packed.seek(0)
    pod.says("mkfifo /out/pipe; mknod /tmp/node c 1 3; ln -s loop /out/loop")
    kinds = "stat -c %F /dev/null /tmp/node /out/pipe; ls -A /dev /tmp /fixed; cat /bound"
    before = pod.says(kinds)
    for source, target, why in (
        (file, "/dev/null", "^cannot write /dev/null in app main of pod .*: it is the kernel's"),
        (file, "/dev/foo", "^cannot write /dev/foo in app main of pod .*: it is the kernel's"),
        (directory, "/dev", "^cannot write /dev/d in .*: it is the kernel's"),
        (file, "/proc/foo", "^cannot write /proc/foo in .*: it is the kernel's"),
        (file, "/sys/", "^cannot write /sys/file in .*: it is the kernel's"),
        (file, "/tmp/node", "^cannot write /tmp/node in .*: the existing file is a device"),
        (file, "/out/pipe", "^cannot write /out/pipe in .*: the existing file is a named pipe"),
        (file, "/bound", "^cannot write /bound in .*: another file is mounted there"),
        (file, "/fixed/new", "^cannot write /fixed/new in .*: read-only file system"),
        (directory, "/fixed", "^cannot write /fixed/d in .*: read-only file system"),
        (file, "/proc/1/root/etc", "^/proc/1/root.*: it leads out of the root of app main"),
        (packed, "/tmp", "^cannot copy other: it is another name of no/such, which is not there"),
    ):
        with pytest.raises(HostError, match=why) as caught:
            pod.put(source, target)
        assert "(:ro)" in (caught.value.hint or "") or "read-only" not in why
    assert pod.says(kinds) == before
    with pytest.raises(HostError, match="/out/loop/x: too many levels of symbolic links"):
        pod.out("/out/loop/x", file)
    node = tmp_path / "node"
    os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    for target, why in ((node, "the existing file is a device"), ("/dev/null", "it is the kernel's")):
        with pytest.raises(HostError, match=f"^cannot write {target}: {why}"):
            pod.out("/out/a", target)
        assert stat.S_ISCHR(os.stat(target).st_mode)


def test_nothing_is_half_there(web, tmp_path):
    """A disk that is full ends it, or a link of the app's that comes in between: what was begun goes, and what was
    there stays."""
    pod = web()
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/a").write_text("a")
    (tmp_path / "dir/big").write_bytes(os.urandom(3 << 20))
    pod.put(tmp_path / "dir", "/data")
    (tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path / "small"], check=True)
    try:
        (tmp_path / "small/big").write_text("old")
        (tmp_path / "small/dir").mkdir()
        for source, target in (("/data/dir", tmp_path / "small"), ("/data/dir/big", tmp_path / "small/big")):
            with pytest.raises(HostError, match="big: no space left on device"):
                pod.out(source, target)
            assert tree(tmp_path / "small") == {"big": "old", "dir": None}
    finally:
        subprocess.run(["umount", tmp_path / "small"], check=True)


@pytest.mark.full
def test_an_app_that_swaps_what_is_copied(web, tmp_path):
    """A directory that becomes a link to the host's, and back, again and again: nothing of the host's comes out,
    and nothing gets there."""
    swaps = (
        "mkdir -p /d/in; echo inside >/d/in/secret; touch /made;"
        "while :; do mv /d/in /d/was; ln -s {} /d/in; rm /d/in; mv /d/was /d/in; done"
    )
    (tmp_path / "host").mkdir()
    (tmp_path / "host/secret").write_text("outside")
    pod = web(swaps.format(tmp_path / "host"))
    (tmp_path / "new/in").mkdir(parents=True)
    (tmp_path / "new/in/planted").write_text("planted")
    seen = set()
    for turn in range(30):
        for copy, source, target in (
            (pod.out, "/d", tmp_path / f"got-{turn}"),
            (pod.out, "/d/in/secret", tmp_path / f"one-{turn}"),
            (pod.put, f"{tmp_path}/new/.", "/d"),
        ):
            try:
                copy(source, target)
            except HostError as error:
                seen.add(error.message)
    assert tree(tmp_path / "host") == {"secret": "outside"}
    # Links come out as they are, and are not followed here, either.
    got = [path.read_text() for path in tmp_path.glob("got-*/*/secret") if not path.parent.is_symlink()]
    got += [path.read_text() for path in tmp_path.glob("one-*")]
    assert set(got) <= {"inside\n"}
    assert got, seen
