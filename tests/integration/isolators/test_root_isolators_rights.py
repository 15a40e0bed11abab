"""What an app may do: capabilities, no new privileges, read back by the app itself (X2, X4)."""

import os
import shutil
import struct

import pytest

from tests.kit.images import BUSYBOX, archive, busybox_root, image_id, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

REMOVE, RETAIN = "os/linux/capabilities-remove-set", "os/linux/capabilities-retain-set"
NNP = "os/linux/no-new-privileges"
STATUS = "grep -e ^Cap -e ^NoNewPrivs /proc/self/status"
#: The fourteen, as a mask of capabilities(7).
FOURTEEN = 0xA80425FB
CHOWN, NET_BIND_SERVICE, NET_ADMIN, NET_RAW, MKNOD, AUDIT_WRITE = (1 << bit for bit in (0, 10, 12, 13, 27, 29))
USERS = {"root": "0", "plain": "1000"}
#: By name of the app: isolators, the bounding set, and what a plain user holds.
SETS = {
    "usual": ([], FOURTEEN, 0),
    "less": ([(REMOVE, {"set": ["CAP_MKNOD", "CAP_CHOWN", "CAP_SYS_ADMIN"]})], FOURTEEN & ~MKNOD & ~CHOWN, 0),
    "exact": (
        [(RETAIN, {"set": ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"]})],
        NET_ADMIN | NET_BIND_SERVICE,
        NET_ADMIN | NET_BIND_SERVICE,
    ),
    "none": ([(RETAIN, {"set": []})], 0, 0),
}


def isolators(pairs):
    return [{"name": name, "value": value} for name, value in pairs]


def read(text):
    """By key: the number that ``/proc/PID/status`` shows."""
    lines = [line.split(":") for line in text.splitlines() if line.startswith(("Cap", "NoNewPrivs"))]
    return {key: int(value, 16) for key, value in lines}


def masks(bounding, plain, user):
    held = bounding if user == "root" else plain
    carried = 0 if user == "root" else plain
    keys = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    return dict(zip(keys, (carried, held, held, bounding, carried, 0), strict=True))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image with a program that is setuid root, and one that is given CAP_NET_RAW as it starts."""
    at = tmp_path_factory.mktemp("rights")
    passwd = "root::0:0:root:/root:/bin/sh\nalice:x:1000:100:Alice:/:/bin/sh\n"
    root = busybox_root(str(at / "root"), {"etc/passwd": passwd})
    for name in ("suid", "raw"):
        os.mkdir(f"{root}/{name}")
        shutil.copy(BUSYBOX, f"{root}/{name}/busybox")
    os.chmod(f"{root}/suid/busybox", 0o4755)
    # Version 2, effective; permitted and inheritable, in two halves: as setcap cap_net_raw+ep writes it.
    os.setxattr(f"{root}/raw/busybox", "security.capability", struct.pack("<5I", 0x02000001, NET_RAW, 0, 0, 0))
    return archive(root, str(at / "rights.aci"), "example.com/rights", app=shell("true"))


@pytest.fixture
def home(make_house, image):
    house = make_house({"stop_timeout": 3}, image=image_id(image))
    house.client.here.images.fetch(image)
    return house


@pytest.mark.parametrize("userns", ["none", pytest.param("auto", marks=pytest.mark.vm)])
def test_every_set_is_right_for_root_and_for_a_plain_user(home, userns):
    """In main, in both handlers, and in a command that is run later."""
    handlers = [
        {"name": name, "exec": ["/bin/sh", "-c", f"echo {name}; {STATUS}"]} for name in ("pre-start", "post-stop")
    ]
    apps, wanted = {}, {}
    for kind, (pairs, bounding, plain) in SETS.items():
        for user, number in USERS.items():
            script = f"echo main; {STATUS}; echo up; exec sleep 1000"
            fields = {"user": number, "group": number, "isolators": isolators(pairs), "eventHandlers": handlers}
            apps[f"{kind}-{user}"] = shell(script, **fields)
            wanted[f"{kind}-{user}"] = masks(bounding, plain, user)
    with home.running(apps, userns=userns, grants=(f"{RETAIN}=CAP_NET_ADMIN",)) as pod:
        for app in apps:
            until(lambda app=app: "up\n" in home.log(pod, app), f"app {app}")
        entered = {app: home.enter(pod.uuid, "sh", "-c", STATUS, app=app) for app in apps}
        pod.stop(force=False)
        until(lambda: not pod.stager.alive(), "the pod's end")
        for app, numbers in wanted.items():
            assert read(entered[app][1]) == numbers, app
            parts = home.log(pod, app).replace("up\n", "").split("\n")
            starts = [parts.index(word) for word in ("pre-start", "main", "post-stop")]
            for start in starts:
                assert read("\n".join(parts[start + 1 : start + 7])) == numbers, (app, parts[start])


def test_an_image_from_a_registry_has_fewer_by_default(home, tmp_path):
    """Podman's eleven; for an app that is added, too."""
    root = busybox_root(str(tmp_path / "root"))
    told = [{"name": "appc.io/docker/imageid", "value": "sha256:0"}]
    path = archive(root, str(tmp_path / "d.aci"), "example.com/docker", app=shell("true"), annotations=told)
    home.client.here.images.fetch(path)
    script = f"{STATUS}; echo up; exec sleep 1000"
    app = {"image": image_id(path), "app": shell(script)}
    with home.running({"first": app}) as pod:
        home.client.app_add(pod.uuid, home.request({"later": app}), start=True)
        for name in ("first", "later"):
            until(lambda name=name: "up\n" in home.log(pod, name), f"app {name}")
            assert read(home.log(pod, name))["CapBnd"] == FOURTEEN & ~NET_RAW & ~MKNOD & ~AUDIT_WRITE, name


@pytest.mark.vm
def test_a_file_gives_no_more_than_the_bounding_set(home):
    """A program with capabilities of its own has them where they are in the bounding set, and cannot be run where
    they are not; where nobody gains privileges, it is any program."""
    script = f"exec 2>&1; /raw/busybox {STATUS}; echo $?; /suid/busybox su -c 'id -u' root; echo $?"
    kinds = {
        "usual": [],
        "less": [(REMOVE, {"set": ["CAP_NET_RAW"]})],
        "locked": [(NNP, True)],
        "unlocked": [(NNP, False)],
    }
    user = {"user": "1000", "group": "100"}
    apps = {kind: shell(script, isolators=isolators(pairs), **user) for kind, pairs in kinds.items()}
    record, _ = home.run(apps)
    said = {kind: home.log(record, kind) for kind in kinds}
    for kind in ("usual", "unlocked"):
        assert read(said[kind])["CapEff"] == read(said[kind])["CapPrm"] == NET_RAW
        assert read(said[kind])["NoNewPrivs"] == 0
        assert said[kind].endswith("0\n0\n0\n"), said[kind]
    assert "/raw/busybox: Operation not permitted\n126\n" in said["less"]
    assert said["less"].endswith("0\n0\n")
    assert read(said["locked"])["CapEff"] == 0
    assert read(said["locked"])["NoNewPrivs"] == 1
    assert "must be suid to work properly" in said["locked"]
    assert said["locked"].endswith("1\n")


def test_a_plain_user_with_a_retained_capability_can_use_it(home):
    """The reason why a retain set is ambient: without, it would be of no use to a plain user."""
    # Port 1 is for who has CAP_NET_BIND_SERVICE.
    script = "nc -l -p 1 </dev/null 2>&1 & sleep 0.2; kill $!"
    fields = {"user": "1000", "group": "100"}
    bind = [(RETAIN, {"set": ["CAP_NET_BIND_SERVICE"]})]
    apps = {"with": shell(script, isolators=isolators(bind), **fields), "without": shell(script, **fields)}
    record, _ = home.run(apps)
    assert "Permission denied" in home.log(record, "without")
    assert "Permission denied" not in home.log(record, "with")


def test_nothing_is_gained_by_no_new_privileges_in_a_command_run_later(home):
    app = shell("exec sleep 1000", user="1000", group="100", isolators=isolators([(NNP, True)]))
    with home.running({"main": app}) as pod:
        code, out, errors = home.enter(pod.uuid, "/suid/busybox", "su", "-c", "id -u", "root")
        assert (code, out) == (1, "")
        assert "must be suid" in errors
