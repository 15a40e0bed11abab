"""Pods with user namespaces, from inside and from outside (H9)."""

import fcntl
import glob
import json
import os
import shutil
import stat
import struct
import subprocess

import pytest

from kurma_core.errors import IdRangeError, KurmaError, ManifestError, PowerError, StagerError, VolumeError
from kurma_core.linux import capabilities, namespaces
from tests.kit.images import archive, busybox_root, shell
from tests.kit.waiting import until

pytestmark = pytest.mark.root

_NS_GET_USERNS = 0xB701


def userns(pid):
    return os.stat(f"/proc/{pid}/ns/user").st_ino


def owner_of(path):
    """The user namespace that a namespace belongs to."""
    with open(path) as file:
        fd = fcntl.ioctl(file, _NS_GET_USERNS)
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file)


def app_pid(house, pod):
    return house.client.pod(pod.uuid).apps[0].pid


def run_planned(house, app, *, capabilities=None, sysctls=None, **options):
    """A pod with a plan as isolators compile it, whichever isolator plugins are installed."""
    return house.start(planned(house, app, capabilities=capabilities, sysctls=sysctls, **options).uuid)


def planned(house, app, *, capabilities=None, sysctls=None, **options):
    record = house.client.prepare(house.request({"main": app}, userns="auto", **options))
    with open(house.path(record, "pod.json")) as file:
        document = json.load(file)
    document["plans"]["main"]["capabilities"] = capabilities
    # The default one is for the capabilities that there were.
    document["plans"]["main"].pop("seccomp", None)
    document["podPlan"]["sysctls"] = sysctls or {}
    with open(house.path(record, "pod.json"), "w") as file:
        json.dump(document, file)
    return record


def tree_of(path):
    """Everything about the files below a directory that a write, chown or chmod would change."""
    found = {}
    for directory, directories, names in os.walk(path):
        for name in (".", *directories, *names):
            one = os.lstat(f"{directory}/{name}")
            found[f"{directory}/{name}"] = (one.st_ino, one.st_uid, one.st_gid, one.st_mode, one.st_ctime_ns)
    return found


# --- outside -----------------------------------------------------------------------------------------------------


@pytest.mark.vm
def test_every_namespace_belongs_to_it(house):
    with house.running(userns="auto") as pod:
        pid = app_pid(house, pod)
        ids = house.client.pod(pod.uuid).userns
        pinned = os.stat(f"/run/kurma/userns/{pod.uuid}").st_ino
        assert userns(pid) == pinned != userns("self")
        for kind in ("net", "pid", "ipc", "uts", "mnt"):
            assert owner_of(f"/proc/{pid}/ns/{kind}") == pinned, kind
            assert os.stat(f"/proc/{pid}/ns/{kind}").st_ino != os.stat(f"/proc/self/ns/{kind}").st_ino, kind
        with open(f"/proc/{pid}/uid_map") as uids, open(f"/proc/{pid}/gid_map") as gids:
            assert uids.read().split() == gids.read().split() == ["0", str(ids.first), str(ids.count)]
        seen = status(pid)
        assert set(seen["Uid"].split()) == set(seen["Gid"].split()) == {str(ids.first)}
        assert seen["Groups"].strip() == ""
        # The stager is trusted, and outside; PID 1 is inside, and can do nothing there.
        stager = house.client.pod(pod.uuid).stager_pid
        assert userns(stager) == userns("self")
        with open(f"/proc/{stager}/task/{stager}/children") as file:
            first = next(child for child in file.read().split() if child != str(pid))
        assert userns(first) == pinned
        assert status(first)["NSpid"].split()[-1] == "1"
        assert status(first)["Uid"].split()[0] == str(ids.first)
        assert int(status(first)["CapEff"], 16) == int(status(first)["CapBnd"], 16) == 0
    assert not os.path.exists(f"/run/kurma/userns/{pod.uuid}")


def test_the_last_one_takes_the_directory_away(house):
    directory = "/run/kurma/userns"
    assert not os.path.exists(directory)
    with house.running(userns="auto") as first:
        with house.running(userns="auto"):
            assert namespaces.mounted_on(directory)
        assert os.listdir(directory) == [first.uuid]
        assert namespaces.mounted_on(directory)
    assert not os.path.exists(directory)
    # Of one that was killed at it, also half-way.
    namespaces.share_directory(directory)
    for half in (False, True):
        if half:
            os.mkdir(directory)
        house.client.gc(grace=1000, dry_run=True)
        assert os.path.exists(directory)
        house.client.gc(grace=1000)
        assert not os.path.exists(directory)
    # Not what others have put there.
    namespaces.share_directory(directory)
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
    house.client.gc(grace=1000)
    subprocess.run(["umount", directory], check=True)
    assert namespaces.mounted_on(directory)
    house.client.gc(grace=1000)
    assert not os.path.exists(directory)


def test_root_inside_may_nothing_outside(house, tmp_path):
    """Seen from a process of the host, which is what the app would be if a wall of the pod's broke."""
    with house.running(userns="auto") as pod:
        ids = house.client.pod(pod.uuid).userns
        secret = tmp_path / "secret"
        secret.write_text("x")
        secret.chmod(0o600)
        os.chmod(tmp_path, 0o755)
        script = f"""
            exec 2>/dev/null
            head -c 1 {secret} && echo read; kill -0 1 && echo killed; head -c 1 /proc/1/environ && echo traced
            mknod {tmp_path}/sda b 8 0 && echo made; chown 0 {tmp_path} && echo chowned
            echo 0 > /proc/sys/kernel/panic && echo set; mount -t tmpfs none /mnt && echo mounted
            id -u
        """
        pid = app_pid(house, pod)
        argv = ["nsenter", "--user", "--target", str(pid), "--setuid", "0", "--setgid", "0", "sh", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout == "0\n", done.stderr
        assert ids.first > 0


# --- inside ------------------------------------------------------------------------------------------------------


def add_cat(root, name):
    """A program that shows who runs it, in any root; busybox drops what a set-user-ID bit gives it."""
    listed = subprocess.run(["ldd", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    for path in [word for word in listed.split() if word.startswith("/")]:
        os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
        shutil.copy(path, f"{root}{path}")
    shutil.copy("/bin/cat", f"{root}/{name}")


@pytest.fixture
def owners(make_house, tmp_path):
    """A house whose image has files of many owners, and programs that become somebody else."""
    root = busybox_root(str(tmp_path / "owners"))
    for name, uid, gid, mode in (
        ("data/root", 0, 0, 0o600),
        ("data/alice", 1000, 100, 0o640),
        ("data/last", 65535, 65535, 0o644),
        ("data/beyond", 65536, 70000, 0o600),
        ("home/alice", 1000, 100, 0o640),
        ("bin/roots", 0, 0, 0o4755),
        ("bin/alices", 1000, 100, 0o6755),
        ("bin/capable", 0, 0, 0o755),
    ):
        if name.startswith("bin/"):
            add_cat(root, name)
        else:
            os.makedirs(f"{root}/home", exist_ok=True)
            with open(f"{root}/{name}", "w") as file:
                file.write("hers\n" if name == "home/alice" else f"{name}\n")
        os.chown(f"{root}/{name}", uid, gid)
        os.chmod(f"{root}/{name}", mode)
    # CAP_NET_BIND_SERVICE, effective and permitted, as setcap(8) writes it.
    value = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    os.setxattr(f"{root}/bin/capable", "security.capability", value)
    os.symlink("root", f"{root}/data/link")
    os.lchown(f"{root}/data/link", 1000, 100)
    path = archive(root, str(tmp_path / "owners.aci"), "example.com/owners", app=shell("true"))
    house = make_house()
    house.image = house.client.here.images.fetch(path).id
    yield house
    for record in house.client.pods():
        house.client.rm(record.uuid, force=True)


def layers_of(house):
    found = {path: what for path, what in tree_of(f"{house.state}/images").items() if "/rootfs/" in path}
    assert any(path.endswith("/data/beyond") for path in found)
    return found


@pytest.mark.parametrize("storage", [pytest.param("overlay", marks=pytest.mark.vm), "copy"])
def test_files_look_right_and_nothing_of_the_image_is_changed(owners, make_house, storage):
    house = make_house({"stagers": {"default": {"driver": "default", "config": {"graphStorage": storage}}}})
    house.image = owners.image
    before = layers_of(house)
    script = r"""
        cd /data; stat -c '%n %u:%g %a' root alice last beyond link . ..; cat root
        cat beyond 2>/dev/null && echo readable; rm -f beyond 2>/dev/null && echo removable
        echo more >> root; echo more >> alice; chown 7:8 last; chmod 4755 last; mv alice bob; touch new
        stat -c '%n %u:%g %a' root bob last new
    """
    run = house.launch(f"{script}\necho done; sleep 1000", userns="auto")
    run.wait_output("done\n")
    record = house.client.pod(run.uuid)
    assert run.output.splitlines() == [
        "root 0:0 600",
        "alice 1000:100 640",
        "last 65535:65535 644",
        "beyond 65534:65534 600",
        "link 1000:100 777",
        ". 0:0 755",
        ".. 0:0 755",
        "data/root",
        "root 0:0 600",
        "bob 1000:100 640",
        "last 7:8 4755",
        "new 0:0 644",
        "done",
    ], record.notes
    assert layers_of(house) == before, "chowned, or written to"
    # On the host, what it has written belongs to its ids.
    (upper,) = glob.glob(house.path(record, "pod/apps/main/*/upper"))
    if storage == "overlay":
        assert os.stat(f"{upper}/data/new").st_uid == record.userns.first
        assert os.stat(f"{upper}/data/bob").st_uid == record.userns.first + 1000
    else:
        # The copy is mapped as a whole: on disk it looks as the image does, where only root gets at it.
        assert (os.stat(f"{upper}/data/new").st_uid, os.stat(f"{upper}/data/beyond").st_uid) == (0, 65536)
        assert stat.S_IMODE(os.stat(house.path(record)).st_mode) == 0o700
    house.client.rm(record.uuid, force=True)
    run.wait()


@pytest.mark.parametrize(
    ("name", "who", "permitted"),
    [("roots", (0, 50), True), ("alices", (1000, 100), False), ("capable", (50, 50), 1 << 10)],
)
def test_set_user_id_files_and_file_capabilities_work_inside(owners, name, who, permitted):
    app = {"exec": [f"/bin/{name}", "/proc/self/status"], "user": "50", "group": "50"}
    record, output = owners.run({"main": app}, userns="auto")
    seen = dict(line.split(":\t", 1) for line in output.splitlines())
    assert (int(seen["Uid"].split()[1]), int(seen["Gid"].split()[1])) == who, record.reason
    found = int(seen["CapPrm"], 16)
    assert (bool(found) if isinstance(permitted, bool) else found) == permitted


def test_what_the_kernel_shows_belongs_to_the_pod(house):
    script = """
        stat -c '%n %u:%g' / /dev /dev/pts /dev/pts/ptmx /dev/shm /dev/mqueue /dev/fd /etc/hosts /etc/hostname /tmp
        echo x > /dev/shm/x; echo x > /dev/null; ls /sys/class/net; hostname new-name && echo named; hostname
        cat /proc/self/setgroups; echo more > /dev/stdout; echo worse > /dev/stderr
    """
    record, output = run_planned(house, script, capabilities=capabilities.NAMES, hostname="given")
    lines = output.splitlines()
    assert [line.split()[1] for line in lines[:10]] == ["0:0"] * 10
    assert set(lines[10:]) == {"lo", "named", "new-name", "allow", "more", "worse"}, record.notes
    assert any(f"the pod's root is user {record.userns.first} of the host" in note for note in record.notes)


def test_a_plain_user_and_users_that_are_not_there(house):
    script = "id -u; id -g; id -G; echo again > /dev/stdout; test -w / || echo not mine"
    record, output = house.run({"main": shell(script, user="alice", group="100")}, userns="auto")
    assert output == "1000\n100\n100\nagain\nnot mine\n"
    for fields, what in (
        ({"user": "65536"}, "user 65536"),
        ({"group": "65536"}, "group 65536"),
        ({"supplementaryGIDs": [5, 99999]}, "group 99999"),
    ):
        with pytest.raises(
            StagerError, match=f"{what} is outside of the pod's user namespace, .* the ids 0 to 65535"
        ):
            house.run({"main": shell("true", **fields)}, userns="auto")
    assert record.exit_code == 0


def test_a_read_only_root(house):
    script = "exec 2>/dev/null; touch /x || mount -o remount,rw / || echo no; cat /etc/hostname"
    app = {"app": shell(script), "readOnlyRootFS": True}
    _, output = run_planned(house, app, capabilities=capabilities.NAMES, hostname="given")
    assert output == "no\ngiven\n"


@pytest.mark.vm
def test_power_over_its_own_namespaces_only(house):
    """CAP_SYS_ADMIN and more, kept: an app may mount, and undo none of the walls."""
    script = r"""
        exec 2>/dev/null
        mkdir /m; mount -t tmpfs none /m && echo mounts; umount /m && echo unmounts
        for place in /proc/sys /proc/keys /sys/firmware /sys /dev/null /dev /; do
            umount $place && echo BAD $place
        done
        mount -o remount,rw,bind /proc/sys && echo BAD remount; mount -o remount,dev,bind / && echo BAD dev
        mount -t proc proc /m && echo BAD proc; mount -t sysfs sys /m && echo BAD sysfs
        echo 1 > /proc/sys/kernel/panic && echo BAD panic; echo b > /proc/sysrq-trigger && echo BAD sysrq
        mknod /m/sda b 8 0 && echo BAD mknod; mknod /m/null c 1 3 && echo BAD null
        mount -t ext4 /dev/sda /m && echo BAD ext4; mount -t devtmpfs d /m && echo BAD devtmpfs
        unshare -m sh -c 'umount /proc/sys' && echo BAD nested
        date -s @0 > /dev/null; test $(date +%s) -gt 1000000 || echo BAD date; dmesg | grep -q . && echo BAD dmesg
        cat /proc/1/environ && echo BAD environ; ls /proc/1/root/ && echo BAD root
        true
    """
    record, output = run_planned(house, script, capabilities=capabilities.NAMES)
    assert output == "mounts\nunmounts\n", record.notes


@pytest.mark.vm
def test_its_cgroup_cannot_be_left(house):
    """Not by mounting what shows cgroups, in whichever namespace."""
    script = r"""
        exec 2>/dev/null
        mkdir /m
        try='
            for type in cgroup2 cgroup; do
                mount -t $type none /m || continue
                echo mounted
                find /m -name cgroup.procs -o -name tasks | while read f; do echo $$ > $f && echo BAD $f; done
                mkdir /m/mine && echo BAD mkdir
                umount /m
            done'
        sh -c "$try"; unshare -m sh -c "$try"
        echo tried
        sleep 1000
    """
    record = planned(house, script, capabilities=capabilities.NAMES)
    run = house.launch(start=record.uuid)
    try:
        run.wait_output("tried\n")
        assert run.output == "mounted\nmounted\ntried\n", "its own cgroups it may look at"
        with open(f"/proc/{app_pid(house, record)}/cgroup") as file:
            places = {line.rstrip("\n").split(":", 2)[2] for line in file}
        assert {place for place in places if record.uuid in place} == {f"/kurma/{record.uuid}/app-main"}
    finally:
        house.client.stop(record.uuid)
        run.wait()


def test_ports_pings_and_sysctls(house):
    script = """
        ping -c 1 -W 2 127.0.0.1 > /dev/null && echo pinged
        httpd -p 80 -h /data; wget -q -O - http://127.0.0.1/from-image
        cat /proc/sys/net/ipv4/ip_default_ttl /proc/sys/kernel/msgmax /proc/sys/net/ipv4/ip_unprivileged_port_start
        echo 3 > /proc/sys/net/ipv4/ip_default_ttl || echo read-only
    """
    sysctls = {"net.ipv4.ip_default_ttl": "77", "kernel.msgmax": "4321"}
    _, output = run_planned(house, f"exec 2>/dev/null; {script}", sysctls=sysctls)
    assert output.splitlines() == ["pinged", "seed", "77", "4321", "1024", "read-only"]


def test_handlers_restarts_and_commands_are_in_it(house):
    app = shell(
        "readlink /proc/self/ns/user; echo main >> /vol/log; test $(wc -l < /vol/log) -ge 4",
        eventHandlers=[
            {"name": "pre-start", "exec": ["/bin/sh", "-c", "readlink /proc/self/ns/user; echo pre >> /vol/log"]},
            {"name": "post-stop", "exec": ["/bin/sh", "-c", "readlink /proc/self/ns/user; id -u"]},
        ],
        mountPoints=[{"name": "vol", "path": "/vol"}],
    )
    whole = {"app": app, "annotations": [{"name": "kurma.io/restart", "value": "on-failure"}]}
    record, _ = house.run({"main": whole}, userns="auto", volumes=[{"name": "vol", "kind": "empty"}])
    assert record.exit_code == 0
    output = house.log(record)
    found = {line for line in output.splitlines() if line.startswith("user:")}
    assert len(found) == 1
    assert f"user:[{userns('self')}]" not in found
    assert "0" in output.splitlines(), output
    with open(house.path(record, "volumes/vol/log")) as file:
        assert file.read().split() == ["pre", "main"] * 2
    assert os.stat(house.path(record, "volumes/vol/log")).st_uid == record.userns.first


def test_a_command_in_it(house):
    with house.running(userns="auto") as pod:
        code, out, err = house.enter(
            pod.uuid, "sh", "-c", "id -u; cat /proc/self/uid_map; touch /x; stat -c %u /x"
        )
        ids = house.client.pod(pod.uuid).userns
        assert (code, out.split(), err) == (0, ["0", "0", str(ids.first), str(ids.count), "0"], "")
        code, out, _ = house.enter(pod.uuid, "sh", "-c", "grep -E 'Cap(Eff|Bnd)' /proc/self/status /proc/1/status")
        mine = [line.split("\t")[1] for line in out.splitlines() if "self" in line]
        assert len(set(mine)) == 1
        assert int(mine[0], 16) == int(status(app_pid(house, pod))["CapEff"], 16) != 0
        assert house.enter(pod.uuid, "id", "-u", user="alice")[1] == "1000\n"
        code, _, err = house.enter(pod.uuid, "true", user="65536")
        assert code == 125
        assert "user 65536 is outside of the pod's user namespace" in err


# --- volumes -----------------------------------------------------------------------------------------------------


def mounting(script, *names, **fields):
    return shell(script, mountPoints=[{"name": name, "path": f"/{name}"} for name in names], **fields)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.mkdir()
    for name, uid, mode in (("root", 0, 0o600), ("alice", 1000, 0o600), ("open", 0, 0o644)):
        (path / name).write_text(f"of {name}\n")
        os.chown(path / name, uid, uid)
        (path / name).chmod(mode)
    return path


def host(source, **fields):
    return [{"name": "vol", "kind": "host", "source": str(source), **fields}]


def test_volumes_of_the_host_keep_their_owners(house, source):
    script = (
        "cd /vol; stat -c '%n %u:%g' root alice open; cat open; cat root; touch new; chown 0 open; chmod 777 ."
    )
    before = tree_of(source)
    _, output = house.run({"main": mounting(script + "; true 2>&1", "vol")}, userns="auto", volumes=host(source))
    lines = [line for line in output.splitlines() if not line.startswith(("cat:", "touch:", "chown:", "chmod:"))]
    assert lines == ["root 65534:65534", "alice 65534:65534", "open 65534:65534", "of open"]
    assert tree_of(source) == before
    assert output.count("Permission denied") + output.count("not permitted") == 4


def test_a_directory_that_was_given_to_its_ids(house, source):
    record = house.client.prepare(
        house.request({"main": mounting("echo x > /vol/new; id -u", "vol")}, userns="auto", volumes=host(source))
    )
    os.chown(source, record.userns.first, record.userns.first)
    _, output = house.start(record.uuid)
    assert output == "0\n"
    assert (source / "new").stat().st_uid == record.userns.first


@pytest.mark.vm
def test_a_mapped_volume(house, source):
    script = """
        cd /vol; stat -c '%n %u:%g' root alice open .; cat root alice; touch new; chown 1000:7 new
        cp new set; chmod 4711 set; mkdir sub; mv open sub/
    """
    app = mounting(script, "vol")
    record, output = house.run({"main": app}, userns="auto", volumes=host(source, **{"kurma.io/idmap": True}))
    assert output.splitlines() == ["root 0:0", "alice 1000:1000", "open 0:0", ". 0:0", "of root", "of alice"], (
        record
    )
    made = (source / "new").stat()
    assert (made.st_uid, made.st_gid) == (1000, 7)
    assert ((source / "sub").stat().st_uid, (source / "sub" / "open").stat().st_uid) == (0, 0)
    assert stat.S_IMODE((source / "set").stat().st_mode) == 0o4711
    app = mounting("touch /vol/x 2>/dev/null || echo refused; cat /vol/root", "vol")
    fields = {"kurma.io/idmap": True, "readOnly": True}
    assert house.run({"main": app}, userns="auto", volumes=host(source, **fields))[1] == "refused\nof root\n"
    assert house.run({"main": app}, userns="none", volumes=host(source, **fields))[1] == "refused\nof root\n"


@pytest.mark.parametrize("below", [False, True])
def test_a_volume_that_cannot_be_mapped_is_refused(house, source, below):
    place = source / "below" if below else source
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "ramfs", "ramfs", str(place)], check=True)
    try:
        app = mounting("true", "vol")
        volumes = host(source, **{"kurma.io/idmap": True})
        with pytest.raises(
            StagerError, match=r"volume vol: owners cannot be mapped .* cannot be mapped by this kernel"
        ):
            house.run({"main": app}, userns="auto", volumes=volumes)
        if below:
            volumes[0]["recursive"] = False
            assert house.run({"main": app}, userns="auto", volumes=volumes)[0].exit_code == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.vm
def test_an_empty_volume_belongs_to_its_ids(house):
    script = (
        "stat -c '%u:%g %a' /vol; echo x > /vol/x; stat -c %u /vol/x; stat -c %u:%g /seeded /seeded/from-image"
    )
    app = mounting(script, "vol")
    app["mountPoints"].append({"name": "data", "path": "/seeded"})
    volumes = [{"name": "vol", "kind": "empty", "uid": 1000, "gid": 100, "mode": "0775"}]
    record, output = house.run({"main": {"app": app}}, userns="auto", volumes=volumes)
    assert output.splitlines()[:2] == ["1000:100 775", "0"], record
    first = record.userns.first
    assert os.stat(house.path(record, "volumes/vol")).st_uid == first + 1000
    assert os.stat(house.path(record, "volumes/vol/x")).st_uid == first
    volumes[0]["gid"] = 65536
    with pytest.raises(VolumeError, match="volume vol: its owner 1000:65536 is outside"):
        house.run({"main": app}, userns="auto", volumes=volumes)
    assert [uuid for uuid in house.uuids() if uuid != record.uuid] == []


@pytest.mark.vm
def test_a_seeded_volume_has_the_images_owners(owners):
    app = shell(
        "stat -c %u:%g /home /home/alice; cat /home/alice", mountPoints=[{"name": "home", "path": "/home"}]
    )
    record, output = owners.run({"main": app}, userns="auto")
    assert output == "0:0\n1000:100\nhers\n"
    (volume,) = os.listdir(owners.path(record, "volumes"))
    assert os.stat(owners.path(record, f"volumes/{volume}/alice")).st_uid == record.userns.first + 1000


def test_a_volume_that_cannot_be_seeded_is_told(owners):
    """The image has something there that belongs to nobody inside, and only its owner may read it."""
    app = shell("true", mountPoints=[{"name": "data", "path": "/data"}])
    with pytest.raises(
        StagerError, match=r"volume main-data: cannot be filled .* at /data: beyond: Permission denied"
    ):
        owners.run({"main": app}, userns="auto")


@pytest.mark.full
def test_layers_that_cannot_be_mapped_are_refused(make_house, busybox_image, tmp_path):
    state = tmp_path / "unmappable"
    state.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "-o", "mode=0700", "ramfs", str(state)], check=True)
    try:
        house = make_house(state=str(state))
        house.image = house.client.here.images.fetch(busybox_image).id
        with pytest.raises(
            StagerError, match=r"layer sha512-\S+: owners cannot be mapped .* its file system \(ramfs\)"
        ):
            house.run("true", userns="auto")
        house.close()
    finally:
        subprocess.run(["umount", str(state)], check=True)


# --- which one ---------------------------------------------------------------------------------------------------


def test_option_annotation_default(make_house):
    house = make_house({"userns": "auto", "userns_pool": {"first": 3000000000, "count": 200, "size": 100}})
    script = "cat /proc/self/uid_map"

    def inside(**options):
        record, output = house.run(script, **options)
        _, first, count = output.split()
        house.client.rm(record.uuid)
        return int(first), int(count)

    assert inside() in ((3000000000, 100), (3000000100, 100))
    note = [{"name": "kurma.io/userns", "value": "500000:7"}]
    # A pod's file may choose a range of its own, or none, only where that is granted.
    for word in ("500000:7", "none"):
        note[0]["value"] = word
        with pytest.raises(PowerError, match="the pod asks for os/linux/namespaces=user"):
            house.run(script, annotations=note)
    assert inside(annotations=note, grants=("os/linux/namespaces=user",)) == (0, 4294967295)
    note[0]["value"] = "500000:7"
    assert inside(annotations=note, grants=("os/linux/namespaces",)) == (500000, 7)
    assert inside(annotations=note, userns="600000:1") == (600000, 1)
    assert inside(annotations=note, userns="none") == (0, 4294967295)
    note[0]["value"] = "yes"
    with pytest.raises(ManifestError, match=r"annotation kurma.io/userns: expected none, auto, or UID:COUNT"):
        house.run(script, annotations=note)
    assert house.uuids() == []


def test_ranges_are_kept_until_a_pod_is_removed(make_house, tmp_path):
    house = make_house({"userns_pool": {"first": 3000000000, "count": 200, "size": 100}})
    one, _ = house.run("true", userns="auto")
    two, _ = house.run("true", userns="auto")
    assert {one.userns.first, two.userns.first} == {3000000000, 3000000100}
    with pytest.raises(IdRangeError, match="no range of 100 ids is free"):
        house.run("true", userns="auto")
    with pytest.raises(IdRangeError, match=f"pod {one.uuid} has the ids {one.userns}"):
        house.run("true", userns=f"{one.userns.last}:1")
    again, output = house.start(one.uuid)
    assert again.userns == one.userns
    house.client.rm(one.uuid)
    three, output = house.run("cat /proc/self/uid_map", userns="auto")
    assert int(output.split()[1]) == three.userns.first == one.userns.first
    assert sorted(house.uuids()) == sorted([two.uuid, three.uuid])


def test_the_hosts_network(house):
    """There is no network namespace for it to own, so that no right counts there."""
    script = "id -u; ls /sys/class/net | grep -c .; httpd -p 80 -h /data 2>/dev/null || echo refused"
    record, output = house.run(script, userns="auto", net="host")
    root, interfaces, said = output.split()
    assert (root, said) == ("0", "refused")
    assert int(interfaces) >= 1
    assert (record.exit_code, record.network_namespace) == (0, None)


def test_a_bridge(house):
    """Debian's CNI plugins join a network namespace that belongs to the pod's user namespace."""
    script = (
        "ip -o -4 addr show eth0; ping -c 1 -W 2 $(ip route | grep default | cut -d' ' -f3) > /dev/null && echo up"
    )
    try:
        record, output = house.run(script, userns="auto", net="default")
        assert "inet 10." in output or "inet 172." in output or "inet " in output
        assert output.endswith("up\n"), record
    finally:
        house.client.network_rm("default")


def test_apps_share_it_and_two_pods_do_not(house):
    with (
        house.running({"a": "sleep 1000", "b": "sleep 1000"}, userns="auto") as pod,
        house.running(userns="auto") as other,
    ):
        record, elsewhere = house.client.pod(pod.uuid), house.client.pod(other.uuid)
        assert len({userns(app.pid) for app in record.apps}) == 1
        assert userns(record.apps[0].pid) != userns(elsewhere.apps[0].pid)
        assert not record.userns.overlaps(elsewhere.userns)
        # Nobody of the one pod may do anything to the other's, whatever he may in his own.
        argv = ["nsenter", "--user", "--target", str(record.apps[0].pid), "--setuid", "0", "--setgid", "0"]
        for words in (["kill", "-0", str(elsewhere.apps[0].pid)], ["ls", f"/proc/{elsewhere.apps[0].pid}/root/"]):
            assert subprocess.run([*argv, *words], capture_output=True, check=False).returncode != 0, words
        assert subprocess.run([*argv, "kill", "-0", str(record.apps[1].pid)], check=False).returncode == 0


def test_an_app_that_comes_later_is_in_it(house, source):
    """With volumes of its own: one of the host's, mapped, and an empty one."""
    with house.running({"first": "sleep 1000"}, userns="auto") as pod:
        mounts = [{"volume": "vol", "path": "/vol"}, {"volume": "own", "path": "/own"}]
        whole = {
            "app": shell("stat -c %u /vol/alice; touch /vol/new /own/new; echo done; sleep 1000"),
            "mounts": mounts,
        }
        volumes = [*host(source, **{"kurma.io/idmap": True}), {"name": "own", "kind": "empty"}]
        with house.connect() as client:
            client.app_add(pod.uuid, house.request({"late": whole}, volumes=volumes), start=True)
        until(lambda: "done" in house.log(house.client.pod(pod.uuid), "late"), "its last word")
        assert house.log(house.client.pod(pod.uuid), "late") == "1000\ndone\n"
        first, late = house.client.pod(pod.uuid).apps
        assert userns(late.pid) == userns(first.pid) == os.stat(f"/run/kurma/userns/{pod.uuid}").st_ino
        assert (source / "new").stat().st_uid == 0
        ids = house.client.pod(pod.uuid).userns
        assert os.stat(house.path(pod.uuid, "volumes/own/new")).st_uid == ids.first


# --- going wrong -------------------------------------------------------------------------------------------------


def left_of(uuid):
    return [path for path in (f"/run/kurma/userns/{uuid}", f"/run/netns/kurma-{uuid}") if os.path.lexists(path)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("when", "step"), [("before", "user-namespace"), ("after", "user-namespace"), ("after", "network-namespace")]
)
def test_killed_on_the_way_up(house, when, step):
    run = house.launch("id -u", userns="auto", faults=[[when, step]], wait=None)
    uuid = run.uuid
    assert run.wait() == -9
    assert house.client.gc(grace=1000).lines == (f"pod {uuid}: taken down",)
    assert left_of(uuid) == []
    _, output = house.start(uuid)
    assert output == "0\n"
    house.client.rm(uuid)


@pytest.mark.full
def test_killed_between_claim_and_record(make_house):
    """Nobody knows that pod's range but its claim, which goes with what is left of the pod."""
    house = make_house({"userns_pool": {"first": 3100000000, "count": 100, "size": 100}})
    where = "kurma_core.pods.prepare.volumes:check_owners"
    run = house.launch("true", userns="auto", faults=[["entering", where]], wait=None)
    assert run.wait() == -9
    assert os.path.islink("/run/kurma/ids/3100000000:100")
    house.client.gc(grace=0)
    assert house.uuids() == []
    record, _ = house.run("true", userns="auto")
    assert record.userns.first == 3100000000
    house.client.rm(record.uuid)


@pytest.mark.full
@pytest.mark.parametrize("when", ["undoing", "undone"])
def test_killed_on_the_way_down(house, when):
    run = house.launch("true", userns="auto", faults=[[when, "user-namespace"]], wait=None)
    uuid = run.uuid
    assert run.wait() == -9
    assert bool(left_of(uuid)) == (when == "undoing")
    (record,) = house.client.pods()
    assert record.exit_code == 0
    assert left_of(uuid) == []
    assert house.state_of(uuid)["steps"] == []


def test_a_namespace_that_lies_in_the_way(house):
    """Somebody else's: not ours to take. An empty file, on which one was before a reboot, is nothing any more."""
    record = house.client.prepare(house.request("true", userns="auto"))
    path = f"/run/kurma/userns/{record.uuid}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("somebody's")
    for _ in range(2):
        with pytest.raises(KurmaError, match=r"cannot make the user namespace .*exists"):
            house.start(record.uuid)
        assert left_of(record.uuid) == [path]
    os.truncate(path, 0)
    assert house.start(record.uuid)[0].exit_code == 0
    assert left_of(record.uuid) == []


def test_a_broken_record_leaves_no_namespace(house):
    run = house.launch("sleep 1000", userns="auto")
    run.kill()
    with open(house.path(run.uuid, "pod.json"), "w") as file:
        file.write("{")
    assert len(left_of(run.uuid)) == 2
    house.client.rm(run.uuid, force=True)
    assert left_of(run.uuid) == []


# --- other stagers -----------------------------------------------------------------------------------------------


def test_a_stager_that_knows_nothing_of_it_is_refused(foreign):
    house = foreign("exit 0")
    with pytest.raises(
        StagerError, match=r"does not say that it keeps pods in their user namespace .*stager/userns"
    ):
        house.run("true", userns="auto")
    record = next(one for one in house.client.pods() if one.state == "errored")
    assert left_of(record.uuid) == []
    assert house.run("true", userns="none")[0].exit_code == 0


def test_a_stager_that_says_it_does_is_told(foreign, source):
    init = """
        cp /manifest /pod/seen; readlink /proc/self/ns/user > /pod/own
        if [ -e /userns ]; then stat -L -c %i /userns > /pod/inode; fi
    """
    house = foreign(init, annotations=[{"name": "kurma.io/stager/userns", "value": "true"}])
    volumes = host(source, **{"kurma.io/idmap": True})
    record, _ = house.run({"main": mounting("true", "vol")}, userns="700000:1000", volumes=volumes)
    with open(house.path(record, "pod/seen")) as file:
        told = json.load(file)["stagerConfig"]["kurma.io"]
    whole = [[0, 700000, 1000]]
    assert told["userns"] == {"path": "/userns", "uids": whole, "gids": whole}
    assert [mount["idmap"] for mount in told["apps"]["main"]["mounts"]] == [True]
    with open(house.path(record, "pod/own")) as file:
        assert file.read() == f"user:[{userns('self')}]\n"
    with open(house.path(record, "pod/inode")) as file:
        assert int(file.read()) != userns("self")
    record, _ = house.run({"main": mounting("true", "vol")}, volumes=volumes)
    with open(house.path(record, "pod/seen")) as file:
        assert json.load(file)["stagerConfig"]["kurma.io"]["userns"] is None
