"""Paths on which an image or another app has laid snares: users, files given to apps, mount targets (H6, H10)."""

import os
import socket
import stat
import threading
import time

import pytest

from kurma_core.errors import KurmaError, StagerError
from kurma_core.models.pod import MountSetup
from tests.kit.images import shell

pytestmark = pytest.mark.root

PASSWD = "root:x:0:0::/root:/bin/sh\nalice:x:1234:100::/:/bin/sh\n77:x:5:6::/:\n"
GROUP = "root:x:0:\nusers:x:100:\nwheel:x:10:alice\n"


#: Who the process is, by the kernel: a busybox that is asked may look into what the snare is in.
WHO = "grep -e ^Uid -e ^Gid -e ^Groups /proc/self/status"


def who(text):
    """User, group, and further groups."""
    fields = dict(line.split(":") for line in text.splitlines())
    return (
        int(fields["Uid"].split()[0]),
        int(fields["Gid"].split()[0]),
        [int(one) for one in fields["Groups"].split()],
    )


def bare(path):
    """An image's layer whose /etc is not there yet; below it lies one with busybox and no /etc at all."""
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def no_etc(busybox_root, tmp_path_factory):
    root = tmp_path_factory.mktemp("no-etc")
    (root / "bin").mkdir()
    os.link(f"{busybox_root}/bin/busybox", root / "bin/busybox")
    for name in (
        "sh",
        "id",
        "cat",
        "ls",
        "stat",
        "pwd",
        "sleep",
        "echo",
        "mv",
        "ln",
        "rm",
        "mkdir",
        "mkfifo",
        "grep",
    ):
        os.symlink("busybox", root / "bin" / name)
    return str(root)


def snare(layer, kind):
    """``/etc`` of an image, with its user database in some strange shape."""
    real = layer / "real"
    real.mkdir()
    (real / "passwd").write_text(PASSWD)
    (real / "group").write_text(GROUP)
    etc = layer / "etc"
    if kind == "etc is a link":
        etc.symlink_to("/real")
        return
    etc.mkdir()
    (etc / "group").write_text(GROUP)
    passwd = etc / "passwd"
    if kind == "absolute":
        passwd.symlink_to("/real/passwd")
    elif kind == "up and up":
        passwd.symlink_to("../../../../../../../../real/passwd")
    elif kind == "a chain":
        passwd.symlink_to("one")
        (etc / "one").symlink_to("/etc/two")
        (etc / "two").symlink_to("../real/passwd")
    elif kind == "by way of /proc":
        passwd.symlink_to("/proc/self/root/real/passwd")
    elif kind == "the host's":
        passwd.symlink_to(f"../../../../..{layer}/real/passwd")
    elif kind == "a loop":
        passwd.symlink_to("passwd")
    elif kind == "a FIFO":
        os.mkfifo(passwd)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as one:
            here = os.getcwd()
            os.chdir(etc)
            one.bind("passwd")
            os.chdir(here)
    elif kind == "a device":
        os.mknod(passwd, 0o644 | stat.S_IFCHR, os.makedev(1, 5))
    elif kind == "a directory":
        passwd.mkdir()
    elif kind == "endless":
        with open(passwd, "w") as file:
            file.truncate(1 << 40)
    else:
        assert kind == "nonsense"
        passwd.write_bytes(b"\xff\0alice:x:\xc2\xb2:9\nalice:x:" + b"9" * 5000 + b":1::/:\nalice:x:1234:100::/:")


FOUND = ["etc is a link", "absolute", "up and up", "a chain", "nonsense"]
NONE = ["by way of /proc", "the host's", "a loop", "a FIFO", "a socket", "a device", "a directory"]


@pytest.mark.parametrize("kind", FOUND)
def test_users_are_found_beneath_the_root(pods, no_etc, tmp_path, kind):
    layer = bare(tmp_path / "layer")
    snare(layer, kind)
    apps = {
        "name": shell(WHO, user="alice", group=""),
        "number": shell(WHO, user="1234", group=""),
    }
    pod = pods(apps, roots=[str(layer), no_etc]).started()
    assert pod.ended() == 0, pod.output()
    assert who(pod.log("name.log")) == who(pod.log("number.log")) == (1234, 100, [10])


@pytest.mark.parametrize("kind", NONE)
def test_what_is_no_database_is_none(pods, no_etc, tmp_path, kind):
    """Numbers still work, names are refused, nobody hangs."""
    layer = bare(tmp_path / "layer")
    snare(layer, kind)
    pod = pods({"number": shell(WHO, user="1234", group="")}, roots=[str(layer), no_etc])
    assert pod.ended() == 0, pod.output()
    assert who(pod.log("number.log")) == (1234, 0, [])
    pod = pods({"name": shell("true", user="alice")}, roots=[str(layer), no_etc])
    with pytest.raises(StagerError, match="no user 'alice' in the image's /etc/passwd"):
        pod.started()


def test_an_endless_database_is_refused(pods, no_etc, tmp_path):
    layer = bare(tmp_path / "layer")
    snare(layer, "endless")
    pod = pods({"main": shell("true", user="alice")}, roots=[str(layer), no_etc])
    with pytest.raises(StagerError, match=r"/etc/passwd: \d+ bytes are too many for a user database"):
        pod.started()


def test_a_database_is_none_of_the_kernels_own(pods):
    """What another process has in its environment is not a user: only files with a size are read."""
    told = [{"name": "A", "value": "\nalice:x:0:0::/told:/bin/sh\n"}]
    pod = pods({"main": shell("echo $$; exec sleep 1000", environment=told)}).started()
    pid = pod.wait_log("\n").split()[0]
    assert pod.run("ln", "-sf", f"/proc/{pid}/environ", "/etc/passwd")[0] == 0
    code, _, err = pod.run("sh", "-c", WHO, user="alice")
    assert (code, err) == (125, "kurma: app main: no user 'alice' in the image's /etc/passwd\n")


@pytest.mark.parametrize(
    ("user", "group", "expected"),
    [
        ("77", "", (5, 6)),  # a name, although it is a number
        ("78", "", (78, 0)),
        ("/owned", "/owned", (12, 34)),
        ("/absolute", "/up", (12, 34)),
        ("/fifo", "/fifo", (21, 43)),
        ("/owned", "users", (12, 100)),
        ("alice", "4000000000", (1234, 4000000000)),
    ],
)
def test_numbers_names_and_owners(pods, no_etc, tmp_path, user, group, expected):
    layer = bare(tmp_path / "layer")
    snare(layer, "absolute")
    (layer / "owned").write_text("")
    os.chown(layer / "owned", 12, 34)
    os.mkfifo(layer / "fifo")
    os.chown(layer / "fifo", 21, 43)
    (layer / "absolute").symlink_to("/owned")
    (layer / "up").symlink_to("../../../../owned")
    pod = pods({"main": shell(WHO, user=user, group=group)}, roots=[str(layer), no_etc])
    assert pod.ended() == 0, pod.output()
    assert who(pod.log())[:2] == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"user": "/nothing"}, "user '/nothing', group '0': /nothing: No such file or directory"),
        ({"user": "/loop"}, "user '/loop', group '0': /loop: Too many levels of symbolic links"),
        ({"user": "/proc/self/root/owned"}, "/proc/self/root/owned: Too many levels of symbolic links"),
        ({"group": "staff"}, "no group 'staff' in the image's /etc/group"),
        ({"user": "4294967295"}, "4294967295 is larger than any user or group ID"),
        ({"group": "9" * 40}, "is larger than any user or group ID"),
        ({"user": "-1"}, "no user '-1' in the image's /etc/passwd"),
    ],
)
def test_who_is_not_there_is_told(pods, no_etc, tmp_path, fields, reason):
    layer = bare(tmp_path / "layer")
    snare(layer, "absolute")
    (layer / "loop").symlink_to("loop")
    (layer / "owned").write_text("")
    pod = pods({"main": shell("true", **fields)}, roots=[str(layer), no_etc])
    with pytest.raises(StagerError) as caught:
        pod.started()
    assert reason in str(caught.value)


# --- files given to apps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
def test_given_files_follow_links_inside(pods, no_etc, tmp_path, read_only):
    """H10: by absolute links, by ``..``, by chains, dangling ones too: what they name in the app's own root."""
    layer = bare(tmp_path / "layer")
    etc = layer / "etc"
    etc.mkdir()
    (etc / "hosts").symlink_to("../../../../made/hosts")
    (etc / "hostname").symlink_to("name")
    (etc / "name").symlink_to("/made/name")
    (etc / "resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    pod = pods(
        {"main": shell("cat /made/hosts /made/name /run/systemd/resolve/stub-resolv.conf; cat /etc/hosts")},
        roots=[str(layer), no_etc],
        read_only=read_only,
        hosts=(("127.0.0.1", ("localhost",)),),
        dns={"nameservers": ("10.0.0.53",), "search": (), "options": ()},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "127.0.0.1\tlocalhost\ntest-host\nnameserver 10.0.0.53\n127.0.0.1\tlocalhost\n"
    assert sorted(os.listdir(layer)) == ["etc"]
    for outside in ("/made", "/run/systemd/resolve/stub-resolv.conf"):
        assert not os.path.exists(outside)


@pytest.mark.vm
def test_files_that_are_replaced_are_never_the_hosts(pods, no_etc, tmp_path):
    """H10: where the image's file is a link to one of the host's, by whatever way."""
    host = tmp_path / "host"
    host.write_text("the host's\n")
    layer = bare(tmp_path / "layer")
    etc = layer / "etc"
    etc.mkdir()
    (etc / "hosts").symlink_to(host)
    (etc / "hostname").symlink_to(f"../../../../../../../../..{host}")
    (etc / "resolv.conf").symlink_to(f"/proc/self/root{host}")
    for replaced in ((), ("hosts", "hostname", "resolv.conf")):
        pod = pods(
            {"main": shell("cat /etc/hosts; echo; cat /etc/hostname; cat /etc/resolv.conf")},
            roots=[str(layer), no_etc],
            hosts=(("127.0.0.1", ("test-host",)),),
            dns={"nameservers": ("10.0.0.53",), "search": (), "options": ()},
            replace_files=replaced,
        )
        assert pod.ended() == 0, pod.output()
        assert "the host's" not in pod.log()
        assert host.read_text() == "the host's\n"
        assert sorted(os.listdir(layer)) == ["etc"]


@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_what_an_image_has_in_their_place_stays(pods, no_etc, tmp_path, storage):
    """A FIFO, a directory, a loop, a file with content: none is written to, none holds anybody up."""
    layer = bare(tmp_path / "layer")
    etc = layer / "etc"
    etc.mkdir()
    os.mkfifo(etc / "hosts")
    (etc / "hostname").mkdir()
    (etc / "resolv.conf").symlink_to("resolv.conf")
    script = "stat -c %F /etc/hosts /etc/hostname; ls -l /etc/resolv.conf | grep -c resolv.conf.*resolv.conf"
    pod = pods(
        {"main": shell(script)},
        roots=[str(layer), no_etc],
        hosts=(("127.0.0.1", ("test-host",)),),
        dns={"nameservers": ("10.0.0.53",), "search": (), "options": ()},
        replace_files=("hosts", "hostname", "resolv.conf"),
        config={"graphStorage": storage},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "fifo\ndirectory\n1\n"
    assert set(pod.app()["files"].values()) == {"image"}


def test_each_app_has_files_of_its_own(pods):
    """H10: what one app writes there, no other sees; nor does the image."""
    pod = pods(
        {
            "one": shell("echo mine >> /etc/hosts; echo done; sleep 1000"),
            "two": shell("until [ -e /dev/shm/go ]; do :; done; cat /etc/hosts; echo end"),
        },
        hosts=(("127.0.0.1", ("localhost",)),),
    ).started()
    pod.wait_log("done", "one.log")
    assert pod.run("touch", "/dev/shm/go", app="one")[0] == 0
    assert pod.wait_log("end", "two.log") == "127.0.0.1\tlocalhost\nend\n"


# --- mount targets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "lands"),
    [
        ("/run/there", "/run/there/deep"),
        ("../../../../../../../../{host}", "{host}/deep"),
        ("{host}", "{host}/deep"),
        ("one", "/made/deep"),
        ("/proc/self/root/made", "/made/deep"),
        ("/proc/1/root/made", "/made/deep"),
        ("/dev/shm/../../made", "/made/deep"),
    ],
)
def test_targets_stay_inside(pods, no_etc, tmp_path, link, lands):
    """V3: whatever an image's links say, a volume is mounted in the app's own root, and the host sees nothing."""
    layer = bare(tmp_path / "layer")
    host = tmp_path / "host"
    host.mkdir()
    (layer / "link").symlink_to(link.format(host=host))
    (layer / "one").symlink_to("/two")
    (layer / "two").symlink_to("three/../made")
    (layer / "three").mkdir()
    source = tmp_path / "source"
    source.mkdir()
    (source / "mark").write_text("here\n")
    pod = pods(
        {"main": shell(f"cat {lands.format(host=host)}/mark")},
        roots=[str(layer), no_etc],
        volumes={"v": str(source)},
        mounts={"main": [MountSetup("v", "/link/deep", False, False)]},
    )
    assert pod.ended() == 0, pod.output()
    assert pod.log() == "here\n"
    assert os.listdir(host) == []
    assert os.listdir(source) == ["mark"]


@pytest.mark.parametrize("link", ["/proc/1", "/proc/self/fd", "/sys/kernel", "/proc/self/root/proc/sys"])
def test_the_systems_places_are_no_targets(pods, no_etc, tmp_path, link):
    layer = bare(tmp_path / "layer")
    (layer / "link").symlink_to(link)
    source = tmp_path / "source"
    source.mkdir()
    pod = pods(
        {"main": shell("true")},
        roots=[str(layer), no_etc],
        volumes={"v": str(source)},
        mounts={"main": [MountSetup("v", "/link", False, False)]},
    )
    with pytest.raises(StagerError) as caught:
        pod.started()
    assert "volume v: cannot be mounted at /link" in str(caught.value)


def test_a_working_directory_is_made_inside(pods, no_etc, tmp_path):
    layer = bare(tmp_path / "layer")
    host = tmp_path / "host"
    host.mkdir()
    (layer / "link").symlink_to(f"../../../../../../../../{host}")
    pod = pods(
        {"main": shell("pwd -P", workingDirectory="/link")},
        roots=[str(layer), no_etc],
    )
    with pytest.raises(StagerError, match="the working directory /link does not exist"):
        pod.started()
    assert os.listdir(host) == []


# --- races -----------------------------------------------------------------------------------------------------


class Swapping(threading.Thread):
    """Swaps two names, without rest; to be used in a ``with``."""

    def __init__(self, one, other):
        super().__init__(daemon=True)
        self.names = str(one), str(other)
        self.over = threading.Event()
        self.turns = 0

    def run(self):
        one, other = self.names
        while not self.over.is_set():
            os.rename(one, one + "-")
            os.rename(other, one)
            os.rename(one + "-", other)
            self.turns += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


@pytest.mark.full
def test_a_source_that_is_swapped_for_a_link(pods, tmp_path):
    """V1: the volume is the directory that was named, or none: never what a link in its place leads to."""
    (tmp_path / "v" / "source").mkdir(parents=True)
    (tmp_path / "v" / "source" / "mark").write_text("named")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "mark").write_text("secret")
    (tmp_path / "v" / "link").symlink_to(tmp_path / "secret")
    seen = set()
    with Swapping(tmp_path / "v" / "source", tmp_path / "v" / "link") as swapping:
        for _ in range(12):
            try:
                pod = pods(
                    {"main": shell("cat /data/mark")},
                    volumes={"v": str(tmp_path / "v" / "source")},
                    mounts={"main": [MountSetup("v", "/data", False, False)]},
                )
                pod.started()
            except KurmaError as error:
                assert f"{tmp_path}/v/source" in str(error)  # noqa: PT017 - one of many turns
                seen.add("refused")
                continue
            pod.ended()
            seen.add(pod.log())
    assert swapping.turns > 100
    assert seen == {"named", "refused"}


RACE = """
    cd /data; mkdir w; echo up
    while :; do
        mv w x; ln -s /proc/1/root w; rm w; ln -s /pod w; rm w; mkfifo w; rm w; mv x w
        mv passwd p; ln -s /proc/1/environ passwd; rm passwd; mkfifo passwd; rm passwd; mkdir passwd; rm -r passwd
        echo alice:x:0:0::/:/bin/sh > q; mv p passwd
    done 2>/dev/null
"""


@pytest.mark.full
def test_an_app_that_races_with_what_starts_in_another(pods, tmp_path):
    """One app swaps, on a volume that both have, another one's user database and working directory."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "passwd").write_text("root:x:0:0::/:/bin/sh\nalice:x:1234:100::/:/bin/sh\n")
    pod = pods(
        {"racer": shell(RACE), "victim": shell("exec sleep 1000")},
        volumes={"v": str(source)},
        mounts={
            "racer": [MountSetup("v", "/data", False, False)],
            "victim": [MountSetup("v", "/etc", False, False)],
        },
    ).started()
    pod.wait_log("up", "racer.log")
    answers = set()
    for _ in range(25):
        # No id: it would open what the racer has put there.
        script = "pwd -P; grep ^Uid /proc/self/status"
        code, out, err = pod.run("/bin/sh", "-c", script, app="victim", user="alice", workingDirectory="/etc/w")
        answers.add(out if code == 0 else err)
    assert len(answers) > 1
    fine = {f"/etc/{name}\nUid:" + "\t1234" * 4 + "\n" for name in "wx"}
    refused = {
        "kurma: app victim: no user 'alice' in the image's /etc/passwd\n",
        *[
            f"kurma: app victim: the working directory /etc/w {why}\n"
            for why in ("does not exist", "is not a directory", "may not be entered by user 1234")
        ],
    }
    assert answers <= fine | refused


EMPTY_AND_SWAP = """
    cd /data; echo up
    while :; do
        for one in sub*; do mv $one kept; ln -s /pod/planted $one; rm $one; mv kept $one; done
        [ -e sub39/file ] && rm -rf /data/*
    done 2>/dev/null
"""


@pytest.mark.full
def test_an_app_that_races_with_the_filling_of_a_volume(pods, busybox_root, tmp_path):
    """The image's content goes into the volume, or nowhere: never where another app's link leads."""
    layer = tmp_path / "layer"
    for number in range(40):
        (layer / "data" / f"sub{number}").mkdir(parents=True)
        for name in ("file", "other"):
            (layer / "data" / f"sub{number}" / name).write_text("image's")
    executions = 0
    for turn in range(4):
        source = tmp_path / f"source{turn}"
        source.mkdir()
        pod = pods(
            {"racer": shell(EMPTY_AND_SWAP), "victim": shell("sleep 0.01")},
            roots={"victim": [str(layer), busybox_root], "racer": [busybox_root]},
            volumes={"v": str(source)},
            mounts={
                "racer": [MountSetup("v", "/data", False, False)],
                "victim": [MountSetup("v", "/data", False, True)],
            },
            app_annotations={"kurma.io/restart": "always"},
        )
        planted = f"{pod.directory}/pod/planted"
        os.makedirs(planted, exist_ok=True)
        began = time.monotonic()
        # A busy machine takes its time for the second one.
        while pod.process.alive() and (waited := time.monotonic() - began) < 10:
            if waited > 0.6 and (pod.app("victim")["restarts"] or "message" in pod.app("victim")):
                break
            time.sleep(0.02)
        assert os.listdir(planted) == []
        victim = pod.app("victim")
        executions += victim["restarts"] + 1
        if victim.get("exitReason") == "start-failed":
            assert ": sub" in victim["message"]
    assert executions > 4
