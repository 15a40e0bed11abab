"""Volumes whose mounts propagate between the host and apps, and read-only volumes with mounts below them (C8)."""

import contextlib
import os
import subprocess

import pytest

from kurma_core.errors import PowerError, StagerError, VolumeError
from tests.integration.pods.test_pods_changing import add
from tests.integration.pods.test_pods_volumes import host
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

PRIVILEGED = {"name": "os/linux/privileged", "value": True}
GRANT = "kurma.io/propagation=rshared"


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)


def mounted(path):
    with open("/proc/self/mountinfo") as file:
        return [line.split()[4] for line in file if line.split()[4].startswith(str(path))]


@pytest.fixture
def source(tmp_path):
    """A directory that is a shared mount; whatever is mounted below it at the end is unmounted."""
    place = tmp_path / "source"
    place.mkdir()
    mount("-t", "tmpfs", "tmpfs", place)
    mount("--make-shared", place)
    (place / "below").mkdir()
    (place / "late").mkdir()
    mount("-t", "tmpfs", "below", place / "below")
    (place / "below" / "mark").write_text("below\n")
    yield place
    for path in reversed(mounted(place)):
        subprocess.run(["umount", path], check=True)


def app(script="sleep 1000", *volumes, path="/vol"):
    mounts = [{"volume": name, "path": f"{path}{number or ''}"} for number, name in enumerate(volumes or ("vol",))]
    return {"app": shell(script, user="0", group="0"), "mounts": mounts}


def volume(source, propagation, name="vol", **fields):
    return host(name, source, **{"kurma.io/propagation": propagation, **fields})


def enter(house, pod, script, **options):
    code, output, errors = house.enter(pod.uuid, "/bin/sh", "-c", script, **options)
    assert code == 0, errors
    return output


def test_mounts_of_the_host_appear_in_the_app(house, source):
    """rslave, for the first app and for one that is added, also for their later executions; an app without it
    is left alone."""
    apps = {"main": app(), "plain": app("sleep 1000", "private")}
    volumes = [volume(source, "rslave"), host("private", source)]
    with house.running(apps, volumes=volumes) as pod:
        add(house, pod, app(), "added")
        mount("-t", "tmpfs", "late", source / "late")
        (source / "late" / "mark").write_text("late\n")
        for name in ("main", "added"):
            assert enter(house, pod, "cat /vol/below/mark /vol/late/mark", app=name) == "below\nlate\n"
        assert enter(house, pod, "cat /vol/below/mark; ls /vol/late", app="plain") == "below\n"
        subprocess.run(["umount", str(source / "late")], check=True)
        for name in ("main", "added"):
            assert enter(house, pod, "ls /vol/late", app=name) == ""
        mount("-t", "tmpfs", "late", source / "late")
        with house.connect() as client:
            client.app_stop(pod.uuid, "added", timeout=0)
            client.app_start(pod.uuid, "added")
            assert enter(house, pod, "grep -c ' /vol/late ' /proc/self/mountinfo", app="added") == "1\n"
            client.app_stop(pod.uuid, "added", timeout=0)
            client.app_rm(pod.uuid, "added")
    assert mounted(source) == [str(source), str(source / "below"), str(source / "late")]


def test_mounts_of_the_app_appear_on_the_host(house, source):
    """rshared, in a privileged app; the end of the app, and of the pod, unmounts nothing of the host."""
    script = "mount -t tmpfs mine /vol/late && echo mine > /vol/late/mark; sleep 1000"
    with pytest.raises(PowerError, match=r"the pod's manifest asks for kurma\.io/propagation=rshared"):
        house.client.prepare(house.request({"main": app(script)}, volumes=[volume(source, "rshared")]))
    apps = {"main": {**app(), "app": shell(script, isolators=[PRIVILEGED])}}
    request = house.request(apps, volumes=[volume(source, "rshared")], grants=(GRANT, PRIVILEGED["name"]))
    with house.started(house.client.prepare(request)) as pod:
        until(lambda: (source / "late" / "mark").exists(), "the app's mount on the host")
        mount("-t", "tmpfs", "deep", source / "below")
        (source / "below" / "new").write_text("new\n")
        assert enter(house, pod, "cat /vol/below/new") == "new\n"
        enter(house, pod, "umount /vol/below")
        assert not (source / "below" / "new").exists()
        enter(house, pod, "umount /vol/late")
        assert not (source / "late" / "mark").exists()
        enter(house, pod, "mount -t tmpfs again /vol/late")
    assert mounted(source) == [str(source), str(source / "below"), str(source / "late")]
    assert (source / "below" / "mark").read_text() == "below\n"


@pytest.mark.full
def test_without_the_right_the_app_mounts_nothing(house, source):
    """rshared alone gives no right to mount."""
    script = "mount -t tmpfs mine /vol/late 2>/dev/null || echo refused"
    volumes = [volume(source, "rshared")]
    assert house.run({"main": app(script)}, volumes=volumes, grants=(GRANT,))[1] == "refused\n"


def test_sources_that_do_not_propagate(house, source, tmp_path):
    """A private source is refused for both, one that is only a slave for rshared; nothing is left."""
    mount("--make-private", source)
    for word, needs in (("rslave", "a shared or a slave"), ("rshared", "a shared")):
        said = f"volume vol: source {source}: propagation {word} needs {needs} mount, and {source}, where"
        with pytest.raises(VolumeError) as caught:
            house.run({"main": app("true")}, volumes=[volume(source, word)], grants=(GRANT,))
        assert house.uuids() == []
        assert str(caught.value).startswith(said)
        assert str(caught.value).endswith("is private")
        assert caught.value.hint == f"make it shared: mount --make-rshared {source}"
    mount("--make-shared", source)
    other = tmp_path / "other"
    other.mkdir()
    mount("--bind", source, other)
    mount("--make-slave", other)
    try:
        with pytest.raises(VolumeError, match="is a slave"):
            house.run({"main": app("true")}, volumes=[volume(other, "rshared")], grants=(GRANT,))
        with house.running({"main": app()}, volumes=[volume(other, "rslave")]) as pod:
            mount("-t", "tmpfs", "late", source / "late")
            assert enter(house, pod, "grep -c ' /vol/late ' /proc/self/mountinfo") == "1\n"
    finally:
        for path in reversed(mounted(other)):
            subprocess.run(["umount", path], check=True)


@pytest.mark.full
def test_a_source_that_became_private_is_refused_at_the_start(house, source):
    record = house.client.prepare(house.request({"main": app("true")}, volumes=[volume(source, "rslave")]))
    mount("--make-private", source)
    with pytest.raises(VolumeError, match="propagation rslave needs a shared or a slave mount"):
        house.start(record.uuid)
    house.client.rm(record.uuid)


@pytest.mark.full
def test_a_volume_below_one_that_is_shared_is_refused(house, source, tmp_path):
    """It would appear on the host."""
    (tmp_path / "plain").mkdir()
    mounts = [{"volume": "vol", "path": "/vol"}, {"volume": "plain", "path": "/vol/late"}]
    apps = {"main": {"app": shell("true"), "mounts": mounts}}
    volumes = [volume(source, "rshared"), host("plain", tmp_path / "plain")]
    with pytest.raises(StagerError, match="it would appear on the host, since volume vol at /vol"):
        house.run(apps, volumes=volumes, grants=(GRANT,))
    volumes[0] = volume(source, "rslave")
    apps["main"]["app"] = shell("grep -c ' /vol/late ' /proc/self/mountinfo")
    assert house.run(apps, volumes=volumes)[1] == "1\n"
    assert str(source / "late") not in mounted(source)


@pytest.mark.full
@pytest.mark.parametrize("name", ["kurma.io/masked-paths", "kurma.io/read-only-paths"])
def test_paths_of_a_shared_volume_are_not_protected(house, source, name):
    """The protection would be a mount on the host."""
    main = app("true")
    main["app"]["isolators"] = [{"name": name, "value": ["/vol/late"]}]
    with pytest.raises(
        StagerError, match="/vol/late: it cannot be protected on a volume with the propagation rshared"
    ):
        house.run({"main": main}, volumes=[volume(source, "rshared")], grants=(GRANT, name))
    assert mounted(source) == [str(source), str(source / "below")]
    record, _ = house.run({"main": main}, volumes=[volume(source, "rslave")], grants=(name,))
    assert record.exit_code == 0
    assert mounted(source) == [str(source), str(source / "below")]


@pytest.mark.full
def test_a_pod_with_a_user_namespace(house, source):
    """rslave works, the owners of the first mount mapped; rshared does not reach the host, so it is refused."""
    volumes = [volume(source, "rslave", **{"kurma.io/idmap": True})]
    with house.running({"main": app()}, volumes=volumes, userns="auto") as pod:
        mount("-t", "tmpfs", "late", source / "late")
        assert enter(house, pod, "stat -c %u /vol; grep -c ' /vol/late ' /proc/self/mountinfo") == "0\n1\n"
    with pytest.raises(VolumeError, match="rshared is not possible in a pod with a user namespace"):
        house.run({"main": app("true")}, volumes=[volume(source, "rshared")], grants=(GRANT,), userns="auto")


@pytest.mark.full
@pytest.mark.parametrize("strike", ["stager", "app"])
def test_a_pod_that_is_killed_unmounts_nothing(house, source, strike):
    apps = {"main": {**app(), "app": shell("sleep 1000", isolators=[PRIVILEGED])}}
    grants = (GRANT, PRIVILEGED["name"])
    run = house.launch(apps, volumes=[volume(source, "rshared")], grants=grants)
    pid = house.client.pod(run.uuid).apps[0].pid if strike == "app" else house.state_of(run.uuid)["stager"]["pid"]
    os.kill(pid, 9)
    run.process.wait()
    assert mounted(source) == [str(source), str(source / "below")]
    house.client.rm(run.uuid, force=True)


def test_read_only_with_and_without_submounts(house, source):
    """By default and on demand, mounts below the source are read-only too; ``false`` leaves them writable."""
    script = "for name in /vol /vol/below; do touch $name/x 2>/dev/null && echo writable || echo read-only; done"
    key = "kurma.io/recursive-read-only"
    for fields, expected in (
        ({}, "read-only\nread-only\n"),
        ({key: True}, "read-only\nread-only\n"),
        ({key: False}, "read-only\nwritable\n"),
    ):
        volumes = [host("vol", source, readOnly=True, **fields)]
        assert house.run({"main": app(script)}, volumes=volumes)[1] == expected
        with contextlib.suppress(FileNotFoundError):
            os.unlink(source / "below" / "x")
