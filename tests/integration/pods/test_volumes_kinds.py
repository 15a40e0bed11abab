"""Volumes of images, volumes below others, sources that are made, sources that are no directories (C8)."""

import os
import socket
import stat
import subprocess
import time

import pytest

from kurma_core.errors import ImageError, ImageNotFoundError, StagerError, VolumeError
from tests.integration.pods.test_pods_changing import add, bound
from tests.integration.pods.test_pods_volumes import host
from tests.kit.images import archive, busybox_root, shell

pytestmark = pytest.mark.root


def app(script, *mounts, **fields):
    """:param mounts: pairs of a volume and a path."""
    places = [{"volume": name, "path": path} for name, path in mounts]
    return {"app": shell(script, user="0", group="0", **fields), "mounts": places}


def image_volume(image, name="files", **fields):
    return {"name": name, "kind": "image", "kurma.io/image": image, **fields}


@pytest.fixture
def files(house, tmp_path):
    """ID of an image with files and without a command."""
    root = busybox_root(
        str(tmp_path / "root"), {"share/text": "from the image\n", "share/run": "#!/bin/sh\necho ran\n"}
    )
    os.chown(f"{root}/share/text", 1000, 1000)
    os.symlink("share", f"{root}/link")
    path = archive(root, str(tmp_path / "files.aci"), "example.com/files")
    return house.client.here.images.fetch(path).id


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_an_image_as_a_volume(house, files, userns):
    """The whole image, a directory and a file of it: read-only, with its owners, and programs in it run."""
    script = """
        /all/share/run; cat /part/text /file /by-link/text; stat -c %u /part/text
        for place in /all/x /part/x /file; do echo > $place; done 2>&1 | grep -c 'Read-only file system'
    """
    places = [("files", "/all"), ("part", "/part"), ("file", "/file"), ("link", "/by-link")]
    volumes = [
        image_volume(files),
        image_volume(files, "part", **{"kurma.io/sub-path": "share"}),
        image_volume(files, "file", **{"kurma.io/sub-path": "share/text"}),
        image_volume(files, "link", **{"kurma.io/sub-path": "link/"}),
    ]
    record, output = house.run({"main": app(script, *places)}, volumes=volumes, userns=userns)
    assert output == "ran\n" + "from the image\n" * 3 + "1000\n3\n", record
    house.client.rm(record.uuid)


@pytest.mark.full
def test_the_image_of_a_volume_is_kept_while_a_pod_has_it(house, files):
    record = house.client.prepare(
        house.request({"main": app("cat /f/share/text", ("files", "/f"))}, volumes=[image_volume(files)])
    )
    with pytest.raises(ImageError, match="a pod uses it"):
        house.client.image_rm(files)
    house.client.image_gc(grace=0)
    assert house.start(record.uuid)[1] == "from the image\n"
    house.client.rm(record.uuid)
    house.client.image_rm(files)


@pytest.mark.full
def test_images_that_are_not_there(house, files):
    request = {"main": app("true", ("files", "/f"))}
    for fields, error, said in (
        ({"kurma.io/sub-path": "none/x"}, VolumeError, "volume files: its image has no none/x: no such file"),
        ({"kurma.io/sub-path": "share/text/x"}, VolumeError, "its image has no share/text/x: not a directory"),
        ({"kurma.io/image": "sha512-" + "0" * 128}, ImageNotFoundError, "sha512-000"),
    ):
        with pytest.raises(error) as caught:
            house.run(request, volumes=[{**image_volume(files), **fields}])
        assert said in str(caught.value)
    assert house.uuids() == []


def test_an_app_with_an_image_volume_comes_and_goes(house, files):
    with house.running() as pod:
        before = bound(pod)
        volumes = [image_volume(files, **{"kurma.io/sub-path": "share"})]
        add(house, pod, app("cat /f/text; sleep 1000", ("files", "/f")), volumes=volumes)
        assert house.enter(pod.uuid, "/bin/cat", "/f/text", app="one")[1] == "from the image\n"
        with house.connect() as client:
            with pytest.raises(ImageError, match="a pod uses it"):
                client.image_rm(files)
            client.app_rm(pod.uuid, "one", force=True)
            assert bound(pod) == before
            client.image_rm(files)


def test_volumes_below_others(house, tmp_path):
    """In order of depth, whatever the order of the mounts; a missing place is made in the outer volume, and
    nothing of it is replaced."""
    for name in ("outer", "inner", "deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mark").write_text(f"{name}\n")
    (tmp_path / "outer" / "file").write_text("x")
    volumes = [host(name, tmp_path / name) for name in ("outer", "inner", "deep")]
    places = [("deep", "/o/a/b/c"), ("inner", "/o/a"), ("outer", "/o")]
    script = "cat /o/mark /o/a/mark /o/a/b/c/mark"
    assert house.run({"main": app(script, *places)}, volumes=volumes)[1] == "outer\ninner\ndeep\n"
    assert (tmp_path / "outer" / "a").is_dir()
    assert (tmp_path / "inner" / "b" / "c").is_dir()
    places = [("outer", "/o"), ("inner", "/o/file")]
    with pytest.raises(StagerError, match=r"volume inner: cannot be mounted at /o/file: Not a directory"):
        house.run({"main": app("true", *places)}, volumes=volumes)
    assert (tmp_path / "outer" / "file").read_text() == "x"
    volumes[0]["readOnly"] = True
    with pytest.raises(StagerError, match="at /o/new: the volume above it is read-only, and has no such path"):
        house.run({"main": app("true", ("outer", "/o"), ("inner", "/o/new"))}, volumes=volumes)
    script = "cat /o/a/mark; touch /o/x 2>/dev/null || echo refused; touch /o/a/made"
    assert (
        house.run({"main": app(script, ("outer", "/o"), ("inner", "/o/a"))}, volumes=volumes)[1]
        == "inner\nrefused\n"
    )
    assert (tmp_path / "inner" / "made").exists()


def test_usual_places_of_volumes(house, tmp_path):
    """Files over those that Kurma makes, shared memory, files of /proc that programs like LXCFS replace."""
    for name in ("hosts", "hostname", "resolv", "log", "cpuinfo"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "shm").mkdir()
    places = [
        ("hosts", "/etc/hosts"),
        ("hostname", "/etc/hostname"),
        ("resolv", "/etc/resolv.conf"),
        ("log", "/dev/termination-log"),
        ("cpuinfo", "/proc/cpuinfo"),
        ("shm", "/dev/shm"),
        ("sys", "/sys"),
    ]
    volumes = [host(name, tmp_path / name) for name, _ in places[:-1]] + [host("sys", "/sys", recursive=False)]
    script = (
        f"cat {' '.join(path for _, path in places[:5])}; echo x > /dev/shm/x; echo end > /dev/termination-log"
    )
    record, output = house.run({"main": app(script, *places)}, volumes=volumes)
    assert output == "hosts\nhostname\nresolv\nlog\ncpuinfo\n", record
    assert (tmp_path / "shm" / "x").exists()
    assert (tmp_path / "log").read_text() == "end\n"
    assert set(record.apps[0].files.values()) == {"volume"}


def test_a_source_is_made_when_the_pod_is_made_and_again_at_its_start(house, tmp_path):
    volumes = [host("made", tmp_path / "link" / "a" / "b", **{"kurma.io/create": True})]
    os.symlink("real", tmp_path / "link")
    request = house.request({"main": app("touch /m/x", ("made", "/m"))}, volumes=volumes, allow_volume_links=True)
    record = house.client.prepare(request)
    made = tmp_path / "real" / "a" / "b"
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    made.rmdir()
    assert house.start(record.uuid)[0].exit_code == 0
    assert (made / "x").exists()


@pytest.mark.full
def test_an_app_that_starts_again_gets_what_its_source_is_now(house, tmp_path):
    """A vanished source is made again, a replaced one is mounted anew; a running app keeps what it has."""
    (tmp_path / "file").write_text("old\n")
    volumes = [host("made", tmp_path / "made", **{"kurma.io/create": True}), host("file", tmp_path / "file")]
    places = [("made", "/m"), ("file", "/f")]
    with house.running({"main": app("sleep 1000", ("file", "/f"))}, volumes=volumes[1:]) as pod:
        add(house, pod, app("sleep 1000", *places), volumes=volumes)
        before = bound(pod)
        with house.connect() as client:
            client.app_stop(pod.uuid, "one", timeout=0)
            (tmp_path / "made").rmdir()
            (tmp_path / "new").write_text("new\n")
            (tmp_path / "new").replace(tmp_path / "file")
            client.app_start(pod.uuid, "one")
            assert house.enter(pod.uuid, "/bin/sh", "-c", "touch /m/x; cat /f", app="one")[1] == "new\n"
            assert house.enter(pod.uuid, "/bin/cat", "/f", app="main")[1] == "old\n"
            assert (tmp_path / "made" / "x").exists()
            assert bound(pod) == before
            client.app_stop(pod.uuid, "one", timeout=0)
            (tmp_path / "file").unlink()
            with pytest.raises(VolumeError, match=r"volume file: source .*/file: no such file"):
                client.app_start(pod.uuid, "one")
            (tmp_path / "file").symlink_to("/etc/passwd")
            with pytest.raises(VolumeError, match=r"volume file: source .*/file: .*/file is a symbolic link"):
                client.app_start(pod.uuid, "one")
            (tmp_path / "file").unlink()
            (tmp_path / "file").write_text("third\n")
            client.app_start(pod.uuid, "one")
            assert house.enter(pod.uuid, "/bin/cat", "/f", app="one")[1] == "third\n"


def test_sources_that_are_no_directories(house, tmp_path):
    """A device cannot be opened by an app without the right; a socket works; a link is followed where it may."""
    served = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(served))
        server.listen()
        os.symlink("socket", tmp_path / "link")
        volumes = [host("null", "/dev/null"), host("socket", served), host("link", tmp_path / "link")]
        places = [("null", "/n"), ("socket", "/run/s"), ("link", "/run/l")]
        script = "stat -c %F /n /run/s /run/l; cat /n 2>&1 | grep -c 'Permission denied'"
        record, output = house.run({"main": app(script, *places)}, volumes=volumes, allow_volume_links=True)
    assert output == "character special file\nsocket\nsocket\n1\n", record
    assert any(note.startswith("volume null: /dev/null is a device") for note in record.notes)
    privileged = app(
        "echo x > /n && echo opened", ("null", "/n"), isolators=[{"name": "os/linux/privileged", "value": True}]
    )
    grants = ("os/linux/privileged",)
    assert house.run({"main": privileged}, volumes=volumes[:1], grants=grants)[1] == "opened\n"


@pytest.mark.full
def test_a_privileged_app_has_the_hosts_dev(house):
    privileged = app(
        "ls /dev/kmsg; echo x > /dev/null",
        ("dev", "/dev"),
        isolators=[{"name": "os/linux/privileged", "value": True}],
    )
    volumes, grants = [host("dev", "/dev")], ("os/linux/privileged",)
    record, output = house.run({"main": privileged}, volumes=volumes, grants=grants)
    assert (record.exit_code, output) == (0, "/dev/kmsg\n"), record
    with pytest.raises(StagerError, match="volume dev: cannot be mounted at /dev: kurma reserves this path"):
        house.run({"main": app("true", ("dev", "/dev"))}, volumes=volumes)


@pytest.mark.full
def test_many_volumes_are_quick(house, tmp_path):
    """As quick as one, by far."""
    names = [f"v{number}" for number in range(50)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mark").write_text("m")
    volumes = [host(name, tmp_path / name) for name in names]

    def took(count):
        places = [(name, f"/volumes/{name}") for name in names[:count]]
        begun = time.monotonic()
        output = house.run({"main": app("cat /volumes/*/mark", *places)}, volumes=volumes[:count])[1]
        assert output == "m" * count
        return time.monotonic() - begun

    took(1)
    one = min(took(1) for _ in range(3))
    assert min(took(50) for _ in range(3)) < 4 * one + 1


@pytest.mark.full
@pytest.mark.parametrize("read_only", [False, True])
def test_mapped_volumes_of_every_kind(house, tmp_path, read_only):
    """Directories and files, also in memory, below each other, in the first app and in one that is added: never
    chowned."""
    (tmp_path / "memory").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "memory")], check=True)
    try:
        _mapped(house, tmp_path, read_only)
    finally:
        subprocess.run(["umount", str(tmp_path / "memory")], check=True)


def _mapped(house, tmp_path, read_only):
    os.chown(tmp_path / "memory", 9, 9)
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "sub").mkdir()
    (tmp_path / "file").write_text("file\n")
    (tmp_path / "file").chmod(0o600)
    os.chown(tmp_path / "dir", 7, 7)
    fields = {"kurma.io/idmap": True, "readOnly": read_only}
    volumes = [host(name, tmp_path / name, **fields) for name in ("dir", "file", "memory")]
    places = [("dir", "/d"), ("file", "/f"), ("file", "/d/sub/file"), ("memory", "/m")]
    script = "stat -c %u:%g /d /f /m; cat /f; touch /d/x 2>/dev/null || echo read-only; sleep 1000"
    if read_only:
        (tmp_path / "dir" / "sub" / "file").touch()
    expected = "7:7\n0:0\n9:9\nfile\n" + ("read-only\n" if read_only else "")
    with house.running({"main": app(script, *places)}, volumes=volumes, userns="auto") as pod:
        add(house, pod, app(script.replace("/d/x", "/d/y"), *places), "one")
        for name in ("main", "one"):
            code, output, _ = house.enter(pod.uuid, "/bin/sh", "-c", script.split("; sleep")[0], app=name)
            assert (code, output) == (0, expected)
    assert (tmp_path / "dir").stat().st_uid == 7
    assert (tmp_path / "file").stat().st_uid == 0
    if not read_only:
        assert (tmp_path / "dir" / "x").stat().st_uid == 0
        assert (tmp_path / "dir" / "sub" / "file").stat().st_uid == 0


def test_options_of_a_mount(house, tmp_path, files):
    (tmp_path / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "run").chmod(0o755)
    script = "/d/run 2>&1 | grep -c 'Permission denied'; /f/share/run 2>&1 | grep -c 'Permission denied'"
    options = {"kurma.io/options": ["noexec", "nosuid"]}
    volumes = [host("dir", tmp_path, **options), image_volume(files, **options)]
    assert house.run({"main": app(script, ("dir", "/d"), ("files", "/f"))}, volumes=volumes)[1] == "1\n1\n"


@pytest.mark.parametrize("userns", ["none", pytest.param("auto", marks=pytest.mark.full)])
def test_a_missing_working_directory_is_made(house, tmp_path, userns):
    """C8: as Docker does, in a volume too; what cannot be made is an error of the change to it."""
    (tmp_path / "vol").mkdir()
    notes = [{"name": "kurma.io/make-working-directory", "value": "true"}]
    volumes = [host("vol", tmp_path / "vol", **{"kurma.io/idmap": True})]
    for place in ("/vol/a/b", "/own/dir"):
        main = app("pwd; stat -c '%a %u' .", ("vol", "/vol"), workingDirectory=place)
        record, output = house.run({"main": {**main, "annotations": notes}}, volumes=volumes, userns=userns)
        assert output == f"{place}\n755 0\n", record
    assert (tmp_path / "vol" / "a" / "b").stat().st_uid == 0
    volumes[0]["readOnly"] = True
    main = app("pwd", ("vol", "/vol"), workingDirectory="/vol/none")
    with pytest.raises(StagerError, match="the working directory /vol/none does not exist"):
        house.run({"main": {**main, "annotations": notes}}, volumes=volumes, userns=userns)


@pytest.mark.full
def test_a_stager_image_that_does_not_declare_them(foreign, tmp_path):
    """It is refused by name; volumes below others are mounted in their order by every stager."""
    house = foreign("exit 0")
    volumes = [host("dir", tmp_path, **{"kurma.io/options": ["noexec"]})]
    with pytest.raises(StagerError, match=r"\(annotation kurma.io/stager/volumes\): volume dir has the options"):
        house.run({"main": app("true", ("dir", "/d"))}, volumes=volumes)
    (tmp_path / "below").mkdir()
    nested = [host("dir", tmp_path), host("below", tmp_path / "below")]
    record, _ = house.run({"main": app("true", ("dir", "/d"), ("below", "/d/below"))}, volumes=nested)
    assert record.exit_code == 0
