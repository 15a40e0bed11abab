"""Volumes of pods: where they come from, what apps see of them, what is refused (V1 to V5)."""

import os
import stat

import pytest

from kurma_core.errors import KurmaError, VolumeError
from kurma_core.pods.run import launch
from tests.kit.images import archive, busybox_root, shell

pytestmark = pytest.mark.root


def mounting(script, *names, **fields):
    points = [{"name": name, "path": f"/{name}"} for name in names]
    return shell(script, mountPoints=points, **fields)


def host(name, source, **fields):
    return {"name": name, "kind": "host", "source": str(source), **fields}


def test_a_directory_of_the_host(house, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "given").write_text("by the host\n")
    script = "cat /vol/given; echo by the app > /vol/made; chown 7:8 /vol/made"
    record, output = house.run({"main": mounting(script, "vol")}, volumes=[host("vol", source)])
    assert (record.exit_code, output) == (0, "by the host\n")
    assert (source / "made").read_text() == "by the app\n"
    assert (source / "made").stat().st_uid == 7


@pytest.mark.parametrize("where", ["volume", "mount-point"])
def test_read_only(house, tmp_path, where):
    source = tmp_path / "source"
    source.mkdir()
    app = mounting("exec 2>&-; echo x > /vol/probe || echo refused; mount -o remount,rw /vol || echo again", "vol")
    app["mountPoints"][0]["readOnly"] = where == "mount-point"
    volume = host("vol", source, readOnly=where == "volume")
    _, output = house.run({"main": app}, volumes=[volume])
    assert output == "refused\nagain\n"
    assert list(source.iterdir()) == []


def test_what_is_mounted_below_comes_along_where_wanted(house, tmp_path):
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    assert os.system(f"mount -t tmpfs below {source}/below && echo there > {source}/below/file") == 0
    try:
        for recursive, by_point, expected in (
            (True, False, "there\n"),
            (True, True, "there\n"),
            (False, False, ""),
        ):
            app = mounting("cat /vol/below/file; echo x > /vol/below/probe || true", "vol")
            app["mountPoints"][0]["readOnly"] = by_point
            volume = host("vol", source, recursive=recursive, readOnly=not by_point)
            record, output = house.run({"main": app}, volumes=[volume])
            assert output.replace("cat: can't open '/vol/below/file': No such file or directory\n", "").startswith(
                expected
            )
            assert not (source / "below" / "probe").exists(), "read-only holds for what is mounted below"
            house.client.rm(record.uuid)
    finally:
        os.system(f"umount {source}/below")


def test_a_file_of_the_host(house, tmp_path):
    source = tmp_path / "file"
    source.write_text("a file\n")
    record, output = house.run({"main": mounting("cat /vol; [ -f /vol ]", "vol")}, volumes=[host("vol", source)])
    assert (record.exit_code, output) == (0, "a file\n")


def test_an_empty_volume_is_shared_and_has_its_mode_and_owner(house):
    volume = {"name": "vol", "kind": "empty", "mode": "2750", "uid": 11, "gid": 12}
    apps = {
        "writer": mounting("stat -c '%a %u %g' /vol; echo shared > /vol/file", "vol"),
        "reader": mounting("while ! [ -s /vol/file ]; do sleep 0.02; done; cat /vol/file", "vol"),
    }
    record, output = house.run(apps, volumes=[volume])
    assert record.exit_code == 0
    assert sorted(output.splitlines()) == ["2750 11 12", "shared"]
    # It is there to be read until the pod is removed.
    with open(house.path(record, "volumes/vol/file")) as file:
        assert file.read() == "shared\n"
    assert stat.S_IMODE(os.stat(house.path(record)).st_mode) == 0o700


def memory(name, **fields):
    return {"name": name, "kind": "empty", "kurma.io/memory": True, **fields}


@pytest.mark.parametrize("userns", ["none", "auto"])
def test_a_volume_in_memory(house, userns):
    """Shared by the pod's apps, of its size, mode and owner; nothing of it on a disk, nothing of it afterwards."""
    volumes = [
        memory("vol", mode="2751", uid=11, gid=12, **{"kurma.io/size": "1Mi"}),
        memory("seen", readOnly=True),
    ]
    script = """
    exec 2> /dev/null
    stat -c '%a %u %g' /vol; grep -E ' /(vol|seen) tmpfs ' /proc/mounts | cut -d ' ' -f 2,4
    head -c 1048576 /dev/zero > /vol/full; echo x > /vol/more || echo full; rm /vol/more
    echo x > /seen/x || echo refused
    rm /vol/full; echo '#!/bin/sh' > /vol/program; chmod 755 /vol/program; /vol/program || echo dead
    echo shared > /vol/file
    """
    waiting = "n=0; until [ -s /vol/file ] || [ $((n+=1)) = 999 ]; do sleep 0.02; done; cat /vol/file"
    apps = {"writer": mounting(script, "vol", "seen"), "reader": mounting(waiting, "vol")}
    record, _ = house.run(apps, volumes=volumes, userns=userns)
    assert record.exit_code == 0
    assert not os.path.exists(house.path(record, "volumes/vol")), "nothing of it is on a disk"
    lines = house.log(record, "writer").splitlines()
    modes = dict(line.split() for line in lines if line.startswith(("/vol ", "/seen ")))
    assert set(modes["/vol"].split(",")) >= {"rw", "nosuid", "nodev", "noexec", "size=1024k"}
    assert set(modes["/seen"].split(",")) >= {"ro", "nosuid", "nodev", "noexec"}
    words = [line for line in lines if line in ("2751 11 12", "full", "refused", "dead")]
    assert words == ["2751 11 12", "full", "refused", "dead"]
    assert house.log(record, "reader") == "shared\n"


def test_a_volume_that_stands_nowhere_is_told(house):
    record, _ = house.run(
        {"main": mounting("true", "vol")}, volumes=[{"name": n, "kind": "empty"} for n in ("vol", "vlo")]
    )
    (note,) = [one for one in record.notes if "vlo" in one]
    assert note.startswith("volume vlo: stands nowhere: ")
    assert note in house.notes, "on standard error, too"


def test_a_volume_that_nobody_gave_starts_with_the_images_content(house):
    """Written to, it changes neither the image nor another pod's."""
    app = mounting("cat /data/from-image; echo changed > /data/from-image; echo new > /data/new", "data")
    for _ in range(2):
        record, output = house.run({"main": app})
        assert (record.exit_code, output) == (0, "seed\n")
    assert any("data" in note for note in record.notes)


def test_a_seeded_volume_is_used_by_its_own_app_alone(house, tmp_path):
    root = busybox_root(str(tmp_path / "root"), {"data/mine": "content\n"})
    os.chown(f"{root}/data", 33, 34)
    os.chmod(f"{root}/data", 0o710)
    path = archive(root, str(tmp_path / "other.aci"), "example.com/other", app=shell("true"))
    image = house.client.here.images.fetch(path).id
    app = {"image": image, "app": mounting("stat -c '%a %u %g' /data; cat /data/mine", "data")}
    record, output = house.run({"main": app})
    assert output == "710 33 34\ncontent\n"
    house.client.rm(record.uuid)
    house.client.here.images.remove(image)


def test_a_missing_source(house, tmp_path):
    with pytest.raises(VolumeError, match=f"volume vol: source {tmp_path}/none: no such file") as caught:
        house.run({"main": mounting("true", "vol")}, volumes=[host("vol", tmp_path / "none")])
    assert "create it first" in caught.value.hint
    assert house.uuids() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("place", ["link", "link/inner"])
def test_a_link_on_the_way_is_refused_unless_allowed(house, tmp_path, place):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "mark").write_text("x")
    (tmp_path / "real" / "inner" / "mark").write_text("x")
    (tmp_path / "link").symlink_to("real")
    app, volumes = {"main": mounting("ls /vol", "vol")}, [host("vol", tmp_path / place)]
    with pytest.raises(VolumeError, match=f"{tmp_path}/link is a symbolic link"):
        house.run(app, volumes=volumes)
    assert house.uuids() == []
    _, output = house.run(app, volumes=volumes, allow_volume_links=True)
    assert "mark" in output


def test_a_link_put_there_between_check_and_mount_is_not_followed(house, tmp_path):
    """Not when it is prepared, nor in the moment between the check at the start and the mount."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    source = tmp_path / "source"
    source.mkdir()
    app, volumes = {"main": mounting("ls /vol", "vol")}, [host("vol", source)]
    record = house.client.prepare(house.request(app, volumes=volumes))
    source.rmdir()
    source.symlink_to("secret")
    with pytest.raises(VolumeError, match="is a symbolic link"):
        house.start(record.uuid)

    source.unlink()
    source.mkdir()

    class Swapping(launch.Cgroup):
        def do(self, pod):
            source.rmdir()
            source.symlink_to("secret")
            super().do(pod)

    steps = launch.STEPS
    launch.STEPS = tuple(Swapping() if step.name == "cgroup" else step for step in steps)
    try:
        with pytest.raises(VolumeError, match=f"volume vol: source {source}: a symbolic link has come to stand"):
            house.start(record.uuid)
    finally:
        launch.STEPS = steps
    assert house.client.pod(record.uuid).state == "errored"
    assert house.state_of(record)["steps"] == []


def test_a_target_that_leads_out_of_the_image(house, tmp_path):
    """A link in the image never takes a mount outside of it."""
    root = busybox_root(str(tmp_path / "root"))
    os.symlink("/../../../../../etc", f"{root}/vol")
    path = archive(root, str(tmp_path / "evil.aci"), "example.com/evil", app=shell("true"))
    image = house.client.here.images.fetch(path).id
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "here").write_text("x")
    app = {"image": image, "app": mounting("ls /etc/here /vol/here", "vol")}
    try:
        record, output = house.run({"main": app}, volumes=[host("vol", tmp_path / "source")])
        assert "/etc/here" in output
    except KurmaError:
        record = house.client.pods()[-1]
    house.client.rm(record.uuid)
    house.client.here.images.remove(image)
    assert not os.path.exists("/etc/here")


def test_a_volume_on_a_path_that_the_image_lacks(house, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "mark").write_text("x")
    app = mounting("ls /deep/er/vol", "vol")
    app["mountPoints"][0]["path"] = "/deep/er/vol"
    _, output = house.run({"main": app}, volumes=[host("vol", tmp_path / "source")])
    assert output == "mark\n"
