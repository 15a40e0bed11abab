"""Named volumes: pods share them, they outlive pods, they start with an image's files, and a kill harms none."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from kurma_core.errors import HostError, UsageError, VolumeError, VolumeNotFoundError, VolumeStateError
from kurma_core.hookspecs.pod_setup import VolumeSetup
from kurma_core.staging.app_callins import LiveRoot
from kurma_core.staging.stager_root import of_volume, volume_mounts
from kurma_core.volume_store import VolumeStore
from tests.integration.pods.test_pods_changing import add
from tests.kit.house import both_ways
from tests.kit.images import archive, busybox_root, shell

pytestmark = pytest.mark.root


def app(script, *mounts, **fields):
    """:param mounts: pairs of a volume and a path."""
    places = [{"volume": name, "path": path} for name, path in mounts]
    return {"app": shell(script, user="0", group="0", **fields), "mounts": places}


def named(name="vol", volume="data", **fields):
    return {"name": name, "kind": "named", "volume": volume, **fields}


def path(house, volume="data"):
    return f"{house.state}/volumes/{volume}/data"


@pytest.fixture
def filled(house, tmp_path):
    """ID of an image with a directory that has owners, modes, links and attributes."""
    root = busybox_root(str(tmp_path / "root"), {"srv/text": "from the image\n", "srv/deep/other": "deep\n"})
    os.chown(f"{root}/srv", 11, 12)
    os.chmod(f"{root}/srv", 0o750)
    os.chown(f"{root}/srv/text", 1000, 100)
    os.chmod(f"{root}/srv/text", 0o640)
    os.symlink("/etc/passwd", f"{root}/srv/link")
    os.link(f"{root}/srv/text", f"{root}/srv/again")
    os.symlink("srv", f"{root}/by-link")
    os.mkdir(f"{root}/bare")
    image = archive(root, str(tmp_path / "filled.aci"), "example.com/filled", app=shell("true"))
    return house.client.image_fetch(image, insecure=frozenset({"image"})).id


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_two_pods_share_a_volume_with_its_owners(house, userns):
    """Inside and outside, and in pods with other ids: files have the owners that the apps gave them."""
    house.client.volume_create("data", uid=7, gid=8, mode="0770")
    script = "stat -c '%a %u:%g' /new/place; echo one > /new/place/file; chown 1000:100 /new/place/file"
    _, output = house.run({"main": app(script, ("vol", "/new/place"))}, volumes=[named()], userns=userns)
    assert output == "770 7:8\n"
    status = os.stat(f"{path(house)}/file")
    assert (status.st_uid, status.st_gid) == (1000, 100)
    script = "cat /x/file; stat -c '%u:%g' /x/file; echo two > /x/file 2>&1 | grep -c 'Read-only'"
    volumes = [named(readOnly=True)]
    _, output = house.run({"main": app(script, ("vol", "/x"))}, volumes=volumes, userns="auto")
    assert output.startswith("one\n1000:100\n")
    assert Path(f"{path(house)}/file").read_text() == "one\n"


def test_at_the_same_time(house):
    with house.running({"main": app("sleep 1000", ("vol", "/x"))}, volumes=[named()]) as one:
        with house.running({"main": app("sleep 1000", ("vol", "/y"))}, volumes=[named()]) as two:
            assert house.enter(one.uuid, "sh", "-c", "echo hello > /x/file")[0] == 0
            assert house.enter(two.uuid, "cat", "/y/file")[1] == "hello\n"
            assert sorted(house.client.volume("data").pods) == sorted(
                house.client.pod(pod.uuid).name for pod in (one, two)
            )


@both_ways
def test_a_volume_lasts_until_it_is_removed(kurma, way):
    """``-v NAME:PATH`` creates it, no removal of a pod removes it, and its removal waits for its pods."""
    run = ("run", "--net", "none", "--rm", "-v", "keep-it:/srv/x", kurma.image, "--exec", "/bin/sh", "--")
    kurma.out(*run, "-c", "echo kept > /srv/x/file")
    assert kurma.out(*run, "-c", "cat /srv/x/file") == "kept\n"
    assert kurma.json("volume", "list")[0]["name"] == "keep-it"
    assert kurma.json("volume", "show", "keep-it")["pods"] == []
    kurma.out("create", "--name", "user", "-v", "keep-it:/x:ro", kurma.image)
    assert kurma.json("volume", "show", "keep-it")["pods"] == ["user"]
    assert "keep-it" in kurma.out("show", "user")
    refused = kurma("volume", "rm", "keep-it")
    assert refused.returncode != 0
    assert "cannot remove volume keep-it: pods use it: user" in refused.stderr
    assert "hint: first remove these pods: kurma rm user" in refused.stderr
    assert kurma.out("volume", "prune", "--force") == "0 B freed\n"
    kurma.out("rm", "user")
    assert [one["name"] for one in kurma.json("volume", "list", "--filter", "used=false")] == ["keep-it"]
    kurma.out("volume", "rm", "keep-it")
    assert kurma.json("volume", "list") == []
    assert kurma("volume", "rm", "keep-it").returncode != 0
    kurma.out("volume", "rm", "--force", "keep-it")
    template = ("--format", "{{.kind}} {{.name}}")
    events = kurma.out("events", "--since", "0", "--no-follow", "--subject", "volume", *template).splitlines()
    assert events[-2:] == ["created keep-it", "removed keep-it"]


def test_prune_and_disk_use(house):
    house.client.volume_create("used")
    house.client.volume_create("unused")
    with open(f"{path(house, 'unused')}/file", "wb") as file:
        file.write(bytes(100_000))
    record = house.client.prepare(
        house.request({"main": app("true", ("vol", "/x"))}, volumes=[named(volume="used")])
    )
    (use,) = [one for one in house.client.disk_use() if one.kind == "volume"]
    assert (use.count, use.active) == (2, 1)
    assert use.size > use.reclaimable > 100_000
    plan = house.client.prune(volumes=True, dry_run=True)
    assert [one.name for one in plan.volumes] == ["unused"]
    assert house.client.prune().volumes == ()
    assert house.client.prune(volumes=True, only=["volume/other"]).volumes == ()
    done = house.client.prune(volumes=True)
    assert [(one.name, one.size > 100_000) for one in done.volumes] == [("unused", True)]
    assert done.freed >= done.volumes[0].size
    house.client.rm(record.uuid)
    assert [one.name for one in house.client.volume_prune(dry_run=True)] == ["used"]
    assert [one.name for one in house.client.volume_prune()] == ["used"]
    assert house.client.volumes_list() == []


@pytest.mark.parametrize("userns", ["none", "auto"])
@pytest.mark.parametrize("where", ["/srv", "/by-link"])
def test_a_new_volume_gets_the_files_of_the_image(house, filled, userns, where):
    script = f"cd {where}; stat -c '%n %a %u:%g' . text deep; cat text; readlink link; rm -r text deep link again"
    apps = {"main": {**app(script, ("vol", where)), "image": {"id": filled}}}
    record, output = house.run(apps, volumes=[named()], userns=userns)
    assert output == ". 750 11:12\ntext 640 1000:100\ndeep 755 0:0\nfrom the image\n/etc/passwd\n", record
    assert os.listdir(path(house)) == []
    # Only once: what an app removes stays removed.
    assert house.start(record.uuid)[1].endswith("No such file or directory\n")
    assert os.listdir(path(house)) == []
    assert sorted(os.listdir(os.path.dirname(path(house)))) == [".lock", "data", "volume.json"]


def test_hard_links_and_chosen_owners_of_a_filled_volume(house, filled):
    house.client.volume_create("data", uid=5, mode="0711")
    apps = {
        "main": {**app("stat -c '%a %u:%g' /srv; stat -c %h /srv/text", ("vol", "/srv")), "image": {"id": filled}}
    }
    assert house.run(apps, volumes=[named()])[1] == "711 5:5\n2\n"


def test_a_volume_with_files_is_not_filled(house, filled):
    house.client.volume_create("data")
    with open(f"{path(house)}/mine", "w") as file:
        file.write("mine\n")
    apps = {"main": {**app("ls /srv", ("vol", "/srv")), "image": {"id": filled}}}
    assert house.run(apps, volumes=[named()])[1] == "mine\n"


def test_a_place_that_no_image_has_fills_nothing(house, filled):
    """The first pod that mounts it over a directory of its image does, also while the other one runs."""
    empty = {"main": {**app("sleep 1000", ("vol", "/new")), "image": {"id": filled}}}
    with house.running(empty, volumes=[named()]) as pod:
        assert house.enter(pod.uuid, "ls", "/new")[1] == ""
        apps = {"main": {**app("ls /srv", ("vol", "/srv")), "image": {"id": filled}}}
        assert house.run(apps, volumes=[named()])[1] == "again\ndeep\nlink\ntext\n"
        assert house.enter(pod.uuid, "cat", "/new/text")[1] == "from the image\n"


def test_many_pods_fill_it_once(house, filled):
    script = "echo more >> /srv/text; sleep 1000"
    apps = {"main": {**app(script, ("vol", "/srv")), "image": {"id": filled}}}
    runs = [house.launch(apps, volumes=[named()], wait=None) for _ in range(3)]
    for run in runs:
        run.wait_state("running")
    for run in runs:
        run.kill()
    house.client.gc(grace=0)
    for pod in house.uuids():
        house.client.stop(pod, force=True)
    assert Path(f"{path(house)}/text").read_text() == "from the image\n" + "more\n" * 3


def test_an_added_app_uses_one(house):
    with house.running() as pod:
        add(house, pod, app("cat /x/from-image; sleep 1000", ("vol", "/data")), volumes=[named()])
        assert house.enter(pod.uuid, "/bin/cat", "/data/from-image", app="one")[1] == "seed\n"
        with house.connect() as client:
            with pytest.raises(VolumeStateError, match="pods use it"):
                client.volume_rm("data")
            client.app_rm(pod.uuid, "one", force=True)
            client.volume_rm("data")


def test_what_is_wrong(house):
    request = {"main": app("true", ("vol", "/x"))}
    for volume in ("../x", "a/b", ".x", "x" * 65, ""):
        with pytest.raises(UsageError):
            house.client.volume_create(volume)
        with pytest.raises(VolumeNotFoundError):
            house.client.volume_rm(volume)
    house.client.volume_create("data", labels={"a": "b"})
    house.client.volume_create("data", labels={"a": "b"})
    with pytest.raises(VolumeStateError, match="it exists with another owner, mode or labels"):
        house.client.volume_create("data", mode="0700")
    with pytest.raises(UsageError, match="is not a mode"):
        house.client.volume_create("other", mode="9")
    with pytest.raises(UsageError, match="it has a group, and no owner"):
        house.client.volume_create("other", gid=1)
    with pytest.raises(VolumeNotFoundError):
        house.client.volume("other")
    # A damaged record hides no other volume, keeps pods from starting, and can be removed.
    house.client.volume_create("other")
    with open(f"{house.state}/volumes/data/volume.json", "w") as file:
        file.write("{")
    assert [one.name for one in house.client.volumes_list()] == ["other"]
    assert any("volume data is damaged" in note for note in house.notes)
    # Nor do files that other programs have left.
    for stray in ("stray", "a b", "-"):
        Path(f"{house.state}/volumes/{stray}").touch()
    assert [one.name for one in house.client.volumes_list()] == ["other"]
    assert any("volumes/stray is not a directory" in note for note in house.notes)
    house.client.volume_rm("stray")
    for stray in ("a b", "-"):
        os.unlink(f"{house.state}/volumes/{stray}")
    with pytest.raises(Exception, match="volume data is damaged"):
        house.run(request, volumes=[named()])
    for pod in house.uuids():
        house.client.rm(pod, force=True)
    house.client.volume_rm("data")
    assert not os.path.exists(f"{house.state}/volumes/data")


def test_a_volume_whose_directory_is_gone_is_damaged(house, filled):
    """Also one that has got the files of its image, and is looked at no more before it is mounted."""
    apps = {"main": {**app("true", ("vol", "/srv")), "image": {"id": filled}}}
    record, _ = house.run(apps, volumes=[named()])
    shutil.rmtree(path(house))
    with pytest.raises(VolumeError, match=r"volume data is damaged: .*/volumes/data/data: no such file"):
        house.start(record.uuid)
    assert house.client.volumes_list() == []
    assert any("volume data is damaged" in note for note in house.notes)
    # A listing does not report one that is removed meanwhile.
    with pytest.raises(VolumeNotFoundError, match="no volume none"):
        VolumeStore(house.state).directory_status("none")


def part(sub_path, name="part", **fields):
    return named(name=name, **{"kurma.io/sub-path": sub_path}, **fields)


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_a_directory_in_a_volume(house, filled, userns):
    """It is made with the owner and the mode of the volume; the rest of the volume is not to be seen."""
    house.client.volume_create("data", uid=7, gid=8, mode="0770")
    script = "stat -c '%a %u:%g' /srv; ls -A /srv; echo new > /srv/file; echo one > /one/x"
    apps = {"main": {**app(script, ("part", "/srv"), ("one", "/one")), "image": {"id": filled}}}
    volumes = [part("a/b"), part("one", name="one")]
    _, output = house.run(apps, volumes=volumes, userns=userns)
    assert output == "770 7:8\n"
    assert Path(f"{path(house)}/a/b/file").read_text() == "new\n"
    assert sorted(os.listdir(path(house))) == ["a", "one"]
    _, output = house.run({"main": app("cat /x; echo no > /x || :", ("part", "/x"))}, volumes=[part("a/b/file")])
    assert output == "new\n"
    assert Path(f"{path(house)}/a/b/file").read_text() == "no\n"
    _, output = house.run({"main": app("touch /y/z; ls /y", ("part", "/y"))}, volumes=[part("c", readOnly=True)])
    assert "Read-only file system" in output


@pytest.mark.parametrize("link", ["/etc", "../../..", "real", "/dangling"])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_link_in_a_volume_is_not_mounted(house, link, allowed):
    """An app may have made it."""
    script = f"mkdir /x/real; ln -s '{link}' /x/link"
    house.run({"main": app(script, ("vol", "/x"))}, volumes=[named()])
    for sub_path in ("link", "link/deep"):
        request = house.request(
            {"main": app("ls -A /x", ("part", "/x"))}, volumes=[part(sub_path)], allow_volume_links=allowed
        )
        record = house.client.prepare(request)
        with pytest.raises(VolumeError, match=f"cannot mount {sub_path} of it: a symbolic link is on the way"):
            house.start(record.uuid)
        house.client.rm(record.uuid)
    assert not os.path.exists("/dangling")
    assert os.listdir(f"{path(house)}/real") == []


def test_a_link_that_comes_after_the_check(house):
    """The mount itself follows none, also if the pod may use links as sources."""
    with house.running({"main": app("exec sleep 1000", ("vol", "/x"))}, volumes=[named()]) as pod:
        setup = VolumeSetup("part", path(house), False, recursive=False, sub_path="link")
        os.symlink("/etc", f"{path(house)}/link")
        (bind,) = volume_mounts([setup], links=True)
        with pytest.raises(HostError) as refused:
            LiveRoot(house.client.here.services.spawner, pod.stager).bind([bind])
        assert refused.value.data["errno"] == errno.ELOOP
        assert "symbolic link" in of_volume(refused.value, [setup]).message


def test_an_app_is_started_again_after_its_directory_was_removed(house):
    apps = {"main": app("exec sleep 1000", ("vol", "/x")), "one": app("exec sleep 1000", ("part", "/a"))}
    with house.running(apps, volumes=[named(), part("a")]) as pod:
        house.client.app_stop(pod.uuid, "one", force=True)
        house.enter(pod.uuid, "rm", "-r", "/x/a", app="main")
        house.client.app_start(pod.uuid, "one")
        house.enter(pod.uuid, "touch", "/a/new", app="one")
        assert os.listdir(f"{path(house)}/a") == ["new"]
        house.client.app_stop(pod.uuid, "one", force=True)
        house.enter(pod.uuid, "sh", "-c", "rm -r /x/a; ln -s / /x/a", app="main")
        with pytest.raises(VolumeError, match="a symbolic link is on the way"):
            house.client.app_start(pod.uuid, "one")


def test_nobody_else_gets_there(house):
    house.client.volume_create("data")
    assert stat.S_IMODE(os.stat(f"{house.state}/volumes").st_mode) == 0o700


def test_a_link_in_a_volume_is_not_followed_by_its_removal(house, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine\n")
    house.client.volume_create("data")
    os.symlink(outside, f"{path(house)}/link")
    os.rename(path(house), f"{path(house)}-real")
    os.symlink(outside, path(house))
    house.client.volume_rm("data")
    assert (outside / "file").read_text() == "mine\n"
    assert os.listdir(f"{house.state}/volumes") == [".lock"]


_FILL = "kurma_core.pods.prepare.named_volumes"
_STORE = "kurma_core.volume_store"


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    [
        ["entering", f"{_STORE}:VolumeStore._make"],
        ["entering", f"{_STORE}:_write"],
        ["leaving", f"{_STORE}:VolumeStore._make"],
        ["entering", f"{_FILL}:_copy"],
        ["entering", "kurma_core.image_store.durable:sync_file_system"],
        ["leaving", f"{_FILL}:_copy"],
        ["entering", f"{_FILL}:_move_in"],
        ["entering", "kurma_core.trees.copying:copy_directory_attributes"],
        ["leaving", f"{_FILL}:_move_in"],
        ["entering", f"{_STORE}:VolumeStore.set_filled"],
        ["leaving", f"{_STORE}:VolumeStore.set_filled"],
    ],
    ids=lambda fault: "-".join(fault).rpartition(":")[2] + "-" + fault[0],
)
def test_killed_while_it_is_made_and_filled(house, filled, fault):
    apps = {
        "main": {**app("cat /srv/text /srv/deep/other; stat -c %a /srv", ("vol", "/srv")), "image": {"id": filled}}
    }
    run = house.launch(apps, volumes=[named()], faults=[fault], wait=None)
    assert run.wait() == -signal.SIGKILL, run.errors
    house.client.gc(grace=0)
    left = sorted(os.listdir(f"{house.state}/volumes"))
    assert [name for name in left if name not in (".lock", "data")] == []
    if "data" in left:
        assert ".filling" not in os.listdir(f"{house.state}/volumes/data")
    _, output = house.run(apps, volumes=[named()])
    assert output == "from the image\ndeep\n750\n"
    assert sorted(os.listdir(f"{house.state}/volumes/data")) == [".lock", "data", "volume.json"]
    with open(f"{house.state}/volumes/data/volume.json") as file:
        assert json.load(file)["filled"] is True


@pytest.mark.full
@pytest.mark.parametrize("do", ["create", "rm"])
def test_killed_at_each_step_of_a_command(house, do, tmp_path):
    """strace kills the command at each system call that changes something: the volume exists, complete, or it does
    not exist; gc removes the rest."""
    kurma = house.kurma
    words = ["create", "--owner", "3:4", "--mode", "0700", "data"] if do == "create" else ["rm", "data"]
    killed = 0
    for call in ("mkdir", "chown", "chmod", "rename", "unlinkat", "unlink", "rmdir"):
        for count in range(1, 9):
            if do == "rm":
                house.client.volume_create("data", uid=3, gid=4, mode="0700")
                Path(path(house), "file").write_text("x")
                Path(path(house), "deep").mkdir()
            struck = ["strace", "-f", "-qq", "-o", "/dev/null"]
            struck += ["-e", f"inject={call}:signal=KILL:when={count}", kurma.program, "volume", *words]
            done = subprocess.run(struck, capture_output=True, text=True, check=False, env=kurma.environment)
            killed += done.returncode != 0
            left = os.listdir(f"{house.state}/volumes") if os.path.isdir(f"{house.state}/volumes") else []
            lines = house.client.gc(grace=0).lines
            assert all(line.startswith("volumes/.") for line in lines), lines
            assert bool(lines) == any(name.startswith((".new-", ".gone-")) for name in left)
            for volume in house.client.volumes_list():
                assert (volume.uid, volume.gid, volume.mode) == (3, 4, "0700")
                house.client.volume_rm("data")
            if os.path.isdir(f"{house.state}/volumes"):
                assert [name for name in os.listdir(f"{house.state}/volumes") if name != ".lock"] == []
            if done.returncode == 0:
                break
    assert killed > 3
