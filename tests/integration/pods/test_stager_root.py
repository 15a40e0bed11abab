"""What a stager finds: its root, namespaces, descriptors, manifest (G1, G2, G4), noted down by one in shell."""

import json
import os
import re
import stat

import pytest

from kurma_core import VERSION
from kurma_core.api.pods import DnsRequest
from kurma_core.errors import KurmaError
from kurma_core.linux.cgroups import Layout, controllers
from tests.kit.waiting import until

pytestmark = pytest.mark.root

#: Everything that can be seen from inside, under /pod/seen; then it runs until it is asked to end.
NOTE = r"""
mkdir /pod/seen; cd /pod/seen
ip -o addr > addresses; ip -o link > links
cat /proc/$$/cmdline > argv; cat /proc/$$/environ > environment
ls -l /proc/$$/fd > descriptors; cat /proc/$$/mountinfo > mounts; cat /proc/$$/cgroup > cgroups
cat /manifest > manifest; ls -a / > root; pwd > /dev/null
echo scratch > /anything && rm /anything && echo yes > scratch
for each in /layers/* /volumes/*; do (echo x > $each/probe) 2> /dev/null && echo $each; done > writable
ls /layers > layers; cat /layers/*/data/from-image > layer-file
echo x > /sys/kernel/probe 2> /dev/null && echo /sys >> writable
ls -R /sys/fs/cgroup > cgroup-tree
cat /proc/sys/kernel/hostname > /dev/null
trap 'exit 0' TERM
exec 4>&-
while :; do sleep 0.05; done
"""


@pytest.fixture
def seen(foreign):
    """``seen(apps, …)``: runs the pod up; its owner, and a reader of what the stager noted."""

    def note(apps="true", **options):
        house = foreign(NOTE, config={"colour": "blue"})
        return house, house.running(apps, **options)

    return note


def noted(house, pod, name):
    with open(house.path(pod, f"pod/seen/{name}")) as file:
        return file.read()


def test_own_root_and_namespaces(seen):
    house, running = seen()
    with running as pod:
        process = f"/proc/{pod.stager.pid}"
        for namespace in ("mnt", "net"):
            assert os.readlink(f"{process}/ns/{namespace}") != os.readlink(f"/proc/self/ns/{namespace}")
        assert os.getsid(pod.stager.pid) == pod.stager.pid, "a session of its own"
        assert os.readlink(f"{process}/ns/pid") == os.readlink("/proc/self/ns/pid")
        # pivot_root: nothing of the host's tree is in its namespace, its root is the namespace's first mount.
        points = [line.split()[4] for line in noted(house, pod, "mounts").splitlines()]
        assert points[0] == "/"
        allowed = (
            r"/|/pod|/opt/stager|/dev(/.*)?|/proc|/sys|/sys/fs/cgroup(/[a-z_,=]+)?"
            r"|/layers/sha512-[0-9a-f]+|/volumes/.*"
        )
        assert [point for point in points if not re.fullmatch(allowed, point)] == []
        # Private: no peer group, no master.
        assert [
            line for line in noted(house, pod, "mounts").splitlines() if " shared:" in line or "master:" in line
        ] == []
        here = os.stat(f"/run/netns/kurma-{pod.uuid}")
        assert os.stat(f"{process}/ns/net").st_ino == here.st_ino
        with open("/proc/self/mountinfo") as file:
            outside = file.read()
        assert house.path(pod, "") not in outside
        assert pod.uuid not in outside.replace(f"/run/netns/kurma-{pod.uuid}", "")


def test_mounts_do_not_cross_either_way(foreign, tmp_path):
    """One made by the stager is not seen outside, one made outside not by the stager, through any of its binds."""
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "outer").mkdir()
    house = foreign(
        "mount -t tmpfs made-inside /volumes/data/inner; mkdir /pod/inner; mount -t tmpfs made-inside /pod/inner\n"
        "exec 4>&-; while ! [ -e /pod/go ]; do sleep 0.02; done\n"
        "cat /proc/self/mountinfo > /pod/mounts; exec sleep 1000"
    )
    volume = {"name": "data", "kind": "host", "source": str(source)}
    app = {"app": _mounting("data"), "mounts": [{"volume": "data", "path": "/d"}]}
    with house.running({"main": app}, volumes=[volume]) as pod:
        with open("/proc/self/mountinfo") as file:
            assert "made-inside" not in file.read()
        os.system(f"mount --make-rshared / ; mount -t tmpfs made-outside {source}/outer")
        try:
            with open(house.path(pod, "pod/go"), "w"):
                pass
            _until_file(house.path(pod, "pod/mounts"), "\n")
            with open(house.path(pod, "pod/mounts")) as file:
                text = file.read()
            assert "made-inside" in text
            assert "made-outside" not in text
        finally:
            os.system(f"umount {source}/outer; mount --make-rprivate /")


def _mounting(name, **fields):
    return {
        "exec": ["/bin/true"],
        "user": "0",
        "group": "0",
        "mountPoints": [{"name": name, "path": f"/{name}"}],
        **fields,
    }


def _until_file(path, text):
    def there():
        with open(path) as file:
            return text in file.read()

    until(lambda: os.path.exists(path) and there(), path)


def test_the_network_is_complete_before_it_starts(seen):
    house, running = seen(net="default")
    with running as pod:
        record = house.client.pod(pod.uuid)
        address = record.attachments[-1].result.addresses[0].address
        assert f"inet {address} " in noted(house, pod, "addresses")
        assert re.search(r"inet 127\.0\.0\.1/8 .* lo", noted(house, pod, "addresses"))
        assert re.search(r"eth0@?\S*: <[^>]*\bUP\b", noted(house, pod, "links"))
    house.client.network_rm("default")


def test_every_path_of_the_document(seen, tmp_path):
    (tmp_path / "rw").mkdir()
    (tmp_path / "ro").mkdir()
    volumes = [
        {"name": "rw", "kind": "host", "source": str(tmp_path / "rw")},
        {"name": "ro", "kind": "host", "source": str(tmp_path / "ro"), "readOnly": True},
        {"name": "kept", "kind": "empty", "mode": "0750", "uid": 5, "gid": 6},
    ]
    points = [{"name": v["name"], "path": f"/{v['name']}"} for v in volumes]
    app = {"app": _mounting("rw", mountPoints=points)}
    house, running = seen({"main": app}, volumes=volumes)
    with running as pod:
        assert noted(house, pod, "layers").split() == [house.image]
        assert noted(house, pod, "layer-file") == "seed\n"
        # Layers and what is read-only refuse, the rest takes.
        assert sorted(noted(house, pod, "writable").split()) == ["/volumes/kept", "/volumes/rw"]
        assert noted(house, pod, "scratch") == "yes\n"
        root = f"/proc/{pod.stager.pid}/root"
        assert stat.S_IMODE(os.stat(f"{root}/manifest").st_mode) == 0o600
        kept = os.stat(f"{root}/volumes/kept")
        assert (stat.S_IMODE(kept.st_mode), kept.st_uid, kept.st_gid) == (0o750, 5, 6)
        assert os.stat(f"{root}/dev/null").st_rdev == os.stat("/dev/null").st_rdev
        assert os.path.samefile(f"{root}/pod", house.path(pod, "pod"))
        mounts = {line.split()[4]: line for line in noted(house, pod, "mounts").splitlines()}
        flags = {point: line.split()[5].split(",") for point, line in mounts.items()}
        kinds = {point: line.split(" - ")[1].split()[0] for point, line in mounts.items()}
        assert kinds["/proc"] == "proc"
        assert kinds["/sys"] == "sysfs"
        assert "ro" in flags["/sys"]
        # Read-only, and setuid files in it still work inside apps.
        assert "ro" in flags[f"/layers/{house.image}"]
        assert "nosuid" not in flags[f"/layers/{house.image}"]


def test_its_cgroup_and_no_other(seen):
    house, running = seen()
    with running as pod:
        where = {}
        for line in noted(house, pod, "cgroups").splitlines():
            _, names, path = line.split(":", 2)
            assert path.startswith(f"/kurma/{pod.uuid}"), line
            where[names] = path.removeprefix(f"/kurma/{pod.uuid}")
        root = f"/proc/{pod.stager.pid}/root/sys/fs/cgroup"
        for hierarchy in Layout.detect().hierarchies:
            inside = root if hierarchy.place == "." else f"{root}/{hierarchy.place}"
            assert os.path.samefile(inside, f"{hierarchy.directory}/kurma/{pod.uuid}")
            # On v2, its own cgroup would take no process beside controllers for its children.
            own = "/stager" if hierarchy.version == 2 and controllers(hierarchy.directory) else ""
            assert where[",".join(hierarchy.controllers)] == own
            with open(f"{inside}{own}/cgroup.procs") as file:
                assert str(pod.stager.pid) in file.read().split()
            os.mkdir(f"{inside}/probe")
            assert os.path.isdir(f"{hierarchy.directory}/kurma/{pod.uuid}/probe")


def test_arguments_and_environment(seen):
    house, running = seen()
    with running as pod:
        assert noted(house, pod, "argv").split("\0")[1:3] == ["/init", "an argument"]
        environment = dict(pair.split("=", 1) for pair in noted(house, pod, "environment").split("\0") if pair)
        assert environment["OWN"] == "of the image"
        assert environment["HOSTNAME"] == house.client.pod(pod.uuid).name
        assert set(environment) - {"PWD", "SHLVL"} == {"AC_METADATA_URL", "OWN", "HOSTNAME", "PATH"}


def test_descriptors_and_no_others(foreign):
    app = {"exec": ["/bin/busybox", "ls", "-l", "/proc/self/fd"], "user": "0", "group": "0"}
    house = foreign("", app=app)
    record, output = house.run("true")
    assert record.state == "stopped"
    places = dict(re.findall(r" (\d+) -> (.*)", output))
    assert places.pop("0") == "/dev/null"
    assert places.pop("4").startswith("pipe:")
    assert set(places) == {"1", "2"}
    assert all(place.endswith(f"{record.uuid}/stager/output") for place in places.values())


def test_the_manifest_key_by_key(seen):
    apps = {"one": "true", "two": {"app": {"exec": ["/bin/false"], "user": "alice", "group": "users"}}}
    house, running = seen(
        apps,
        name="the-name",
        hostname="the-host",
        hosts=(("10.1.2.3", ("friend", "friend.example")),),
        dns=DnsRequest(("10.9.9.9",), ("example.com",), ("ndots:2",)),
        interactive="two",
    )
    with running as pod:
        document = json.loads(noted(house, pod, "manifest"))
        assert set(document) == {"kurmaVersion", "name", "pod", "images", "appImageOrder", "stagerConfig"}
        assert document["kurmaVersion"] == VERSION
        assert document["name"] == "the-name"
        assert document["pod"] == house.client.pod(pod.uuid).manifest
        assert document["pod"]["acKind"] == "PodManifest"
        assert [app["name"] for app in document["pod"]["apps"]] == ["one", "two"]
        assert all(app["image"]["id"] == house.image for app in document["pod"]["apps"])
        assert document["images"] == {house.image: house.client.here.images.manifest(house.image).to_json()}
        assert document["appImageOrder"] == {"one": [house.image], "two": [house.image]}
        assert set(document["stagerConfig"]) == {"colour", "kurma.io"}
        assert document["stagerConfig"]["colour"] == "blue"
        own = document["stagerConfig"]["kurma.io"]
        assert own["version"] == 1
        assert own["uuid"] == pod.uuid
        assert own["hostname"] == "the-host"
        assert own["dns"] == {"nameservers": ["10.9.9.9"], "search": ["example.com"], "options": ["ndots:2"]}
        assert ["10.1.2.3", ["friend", "friend.example"]] in own["hosts"]
        assert ["127.0.0.1", ["localhost"]] in own["hosts"]
        assert own["stopTimeout"] == 2
        assert own["logs"] == {"size": house.client.config.log.size, "count": house.client.config.log.count}
        assert set(own["apps"]) == {"one", "two"}
        one = own["apps"]["one"]
        assert set(own) == {
            *("version", "uuid", "hostname", "dns", "hosts", "podPlan", "keep", "stopTimeout", "logs", "userns"),
            *("apps", "names"),
        }
        assert (own["keep"], own["userns"], own["names"]) == (False, None, None)
        assert set(one) == {
            *("mounts", "environment", "stdin", "stdinOpen", "terminal", "makeWorkingDirectory", "stopSignal"),
            "replaceFiles",
            "plan",
        }
        assert (one["makeWorkingDirectory"], one["stopSignal"]) == (False, 15)
        assert [own["apps"][name]["stdinOpen"] for name in ("one", "two")] == [False, True]
        assert one["terminal"] is False
        assert (own["apps"]["one"]["stdin"], own["apps"]["two"]["stdin"]) == (False, True)
        assert own["podPlan"]["version"] == 1
        # The default filter of system calls.
        assert own["apps"]["one"]["plan"]["version"] == 2


def test_a_stager_may_have_no_dependencies(foreign):
    house = foreign("exit 0", dependencies=[{"imageName": "example.com/busybox"}])
    with pytest.raises(KurmaError, match=r"must not depend on others|may have none"):
        house.run("true")
    assert not house.client.pods(), "it is refused before there is a pod"
