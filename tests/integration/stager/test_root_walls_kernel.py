"""What an app may do to the kernel by way of ``/proc``, ``/sys``, ``/dev`` and mounts (H11). Asked from inside."""

import glob
import os
import stat
import subprocess

import pytest
from kurma_stager_default.inside.app import proc_sys_dev

from kurma_core.linux import capabilities
from kurma_core.models.isolator import IsolatorPlan
from kurma_core.models.pod import MountSetup
from tests.kit.images import shell

pytestmark = pytest.mark.root

PYTHON = ["/opt/stager/bin/python3", "-IuS", "-c"]

#: What runc, podman, containerd and Docker mask or make read-only, as of 2025; not every kernel has all of it.
MASKED_ELSEWHERE = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/dev/block", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/selinux"),
]
READ_ONLY_ELSEWHERE = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def test_the_lists_have_what_others_have():
    ours = {f"/proc/{name}" for name in proc_sys_dev._MASKED_IN_PROC} | {
        f"/sys/{name}" for name in proc_sys_dev._MASKED_IN_SYS
    }
    assert set(MASKED_ELSEWHERE) <= ours
    assert set(READ_ONLY_ELSEWHERE) == {f"/proc/{name}" for name in proc_sys_dev._READ_ONLY}


LOOK = """
import os, stat, sys
for path in sys.argv[1:]:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            empty = os.listdir(path) == []
        else:
            with open(path, "rb") as file:
                empty = stat.S_ISCHR(mode) and file.read(1) == b""
        print(path, "empty" if empty else "full")
    except FileNotFoundError:
        pass
"""


@pytest.mark.vm
def test_masked_paths_are_empty(pods, stager_tree, busybox_root):
    """As root; in the root that the pod has and, by links of the image, in none other."""
    cpus = [f"{directory}/thermal_throttle" for directory in glob.glob("/sys/devices/system/cpu/cpu[0-9]*")]
    paths = [*MASKED_ELSEWHERE, "/proc/dynamic_debug", "/proc/key-users", *cpus]
    pod = pods(
        {"main": {"exec": [*PYTHON, LOOK, *paths], "user": "0", "group": "0"}},
        roots=[stager_tree.path, busybox_root],
    )
    assert pod.ended() == 0, pod.output()
    found = dict(line.split() for line in pod.log().splitlines())
    assert set(found.values()) == {"empty"}, found
    assert set(found) == {path for path in paths if os.path.exists(path)}
    assert {"/proc/keys", "/proc/timer_list"} <= set(found), "this kernel has too little to see anything"


WRITABLE = r"""
import os, stat
own = {str(os.getpid()), "self", "thread-self", "1"}
def walk(top):
    for entry in os.scandir(top):
        if top == "/proc" and (entry.name.isdigit() or entry.name in own):
            continue
        if entry.is_dir(follow_symlinks=False):
            try:
                yield from walk(entry.path)
            except OSError:
                pass
        elif entry.is_file(follow_symlinks=False):
            yield entry.path
for path in walk(TOP):
    try:
        # Root may open what nobody can write to; by its mode a file says that there is something to write.
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode) and mode & 0o222:  # what is masked is the null device
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            print(path)
    except OSError:
        pass
print("end")
"""
#: To be opened for writing by root in an app, and yet harmless: triggers of one's own (the kernel asks for a right
#: at the write), memory types (likewise), and the pod's own network.
HARMLESS = ("/proc/pressure/", "/proc/mtrr", "/proc/net/")


@pytest.mark.vm
@pytest.mark.parametrize("top", ["/proc", "/sys"])
def test_nothing_of_the_kernel_is_to_be_written(pods, stager_tree, busybox_root, top):
    """Every file there is, opened for writing by root with the usual capabilities."""
    app = {"exec": [*PYTHON, WRITABLE.replace("TOP", repr(top))], "user": "0", "group": "0"}
    pod = pods({"main": app}, roots=[stager_tree.path, busybox_root])
    assert pod.ended() == 0, pod.output()
    *found, end = pod.log().split("\n")[:-1]
    assert end == "end"
    assert [path for path in found if not path.startswith(HARMLESS)] == []


CHANGES = """
    echo 1 > /proc/sysrq-trigger || echo refused
    echo 1 > /proc/sys/kernel/panic || echo refused
    echo x > /proc/sys/kernel/core_pattern || echo refused
    echo 1 > /proc/sys/vm/drop_caches || echo refused
    echo 1 > /proc/sys/net/ipv4/ip_forward || echo refused
    echo 0 > /proc/irq/default_smp_affinity || echo refused
    mkdir /sys/fs/cgroup/new || echo refused
    mount -o remount,rw /sys || echo refused
    mount -o remount,rw,bind /proc/sys || echo refused
    umount /proc/keys || echo refused
    mount -t proc proc /work || echo refused
    mount -t sysfs sys /work || echo refused
    mount -t tmpfs tmp /work || echo refused
    mount -t cgroup2 own /work || echo refused
    mount --bind /tmp /work || echo refused
    mount -t devtmpfs dev /work || echo refused
    pivot_root / /work || echo refused
    echo end
"""


@pytest.mark.parametrize("namespace", [False, True], ids=["as it is", "in a user namespace of its own"])
@pytest.mark.parametrize("user", ["0", "1000"])
def test_what_is_hidden_stays_hidden(pods, user, namespace):
    """No write, no remount, no mount: also for one who makes itself root of a user namespace."""
    script = f"unshare -Urm /bin/sh -c '{CHANGES}' || echo no namespace" if namespace else CHANGES
    pod = pods({"main": shell(script, user=user, group=user)})
    assert pod.ended() == 0, pod.output()
    said = pod.log(stream=b"stdout").split("\n")[:-1]
    assert said in (["refused"] * 17 + ["end"], ["no namespace"])


# --- devices and mounts ----------------------------------------------------------------------------------------

DEVICES = [
    *("fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
    *("tty", "urandom", "zero"),
]


@pytest.mark.parametrize("storage", ["overlay", "copy"])
def test_no_device_but_those_given(pods, tmp_path, storage):
    """H11: exactly those in /dev; what mknod makes is dead wherever an app can, below a volume's mounts too."""
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "dev", "inner", source / "inner"], check=True)
    try:
        os.mknod(source / "inner" / "there", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        script = """
            ls /dev
            for place in / /tmp /etc /dev /dev/shm /volume /volume/inner; do
                node=$place/made
                mknod $node c 1 5 && (head -c 1 $node || (: > $node)) 2>&1 | grep -c 'ermission denied'
            done
            head -c 1 /volume/inner/there 2>&1 | grep -c 'ermission denied'
            grep -v -e ' / / ' -e nodev /proc/self/mountinfo | cut -d' ' -f 5,6
        """
        pod = pods(
            {"main": shell(script)},
            volumes={"v": str(source)},
            mounts={"main": [MountSetup("v", "/volume", False, False)]},
            config={"graphStorage": storage},
        )
        assert pod.ended() == 0, pod.output()
    finally:
        subprocess.run(["umount", source / "inner"], check=True)
    said = pod.log(stream=b"stdout").split("\n")[:-1]
    assert said[: len(DEVICES)] == DEVICES
    rest = said[len(DEVICES) :]
    assert set(rest[:8]) == {"2"} or rest[:8] == ["2"] * 7 + ["1"], rest
    # Without nodev: the nodes that were given, their like on what is masked, and terminals.
    given = {f"/dev/{name}" for name in proc_sys_dev.NODES} | {"/dev/pts"}
    for line in rest[8:]:
        place, options = line.split()
        assert place in given or place.startswith("/proc/"), line
        assert place == "/dev/pts" or options.startswith("ro,nosuid"), line


def test_read_only_reaches_what_is_mounted_below(pods, tmp_path):
    """V1: a read-only volume is read-only throughout; the same volume elsewhere is not."""
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "inner", source / "inner"], check=True)
    try:
        script = "for place in /v /v/inner; do touch $place/mark 2>/dev/null && echo written || echo refused; done"
        write = {"exec": ["/bin/sh", "-c", script], "user": "0", "group": "0"}
        pod = pods(
            {"reader": write, "writer": write},
            volumes={"v": str(source)},
            mounts={
                "reader": [MountSetup("v", "/v", True, False)],
                "writer": [MountSetup("v", "/v", False, False)],
            },
        )
        assert pod.ended() == 0, pod.output()
    finally:
        subprocess.run(["umount", source / "inner"], check=True)
    assert pod.log("reader.log", b"stdout") == "refused\nrefused\n"
    assert pod.log("writer.log", b"stdout") == "written\nwritten\n"


def test_the_root_is_nodev_and_set_user_id_works_in_it(pods):
    """G2, H11: flags of every mount of an app, by the kernel's own word."""
    pod = pods({"main": shell("cat /proc/self/mountinfo")})
    assert pod.ended() == 0
    flags = {line.split()[4]: set(line.split()[5].split(",")) for line in pod.log().splitlines()}
    assert "nodev" in flags["/"]
    assert "nosuid" not in flags["/"]
    for place in ("/proc", "/sys", "/dev/shm", "/dev/mqueue"):
        assert {"nosuid", "nodev", "noexec"} <= flags[place], place
    assert {"nosuid", "nodev"} <= flags["/dev"]
    assert {"nosuid", "noexec"} <= flags["/dev/pts"]
    for place in ("/sys", *[name for name in READ_ONLY_ELSEWHERE if name in flags]):
        assert "ro" in flags[place], place


def test_a_right_that_undoes_it_is_told(pods):
    """CAP_SYS_ADMIN unmounts what is masked: no wall is claimed that is none."""
    rights = (*capabilities.names(capabilities.DEFAULT_SET), "CAP_SYS_ADMIN")
    pod = pods(
        {"main": shell("umount /proc/timer_list && wc -l < /proc/timer_list")},
        plans={"main": IsolatorPlan(capabilities=rights)},
    )
    assert pod.ended() == 0
    assert int(pod.log(stream=b"stdout")) > 1
    assert any("it can undo what is masked or read-only for it" in note for note in pod.document()["notes"])


def test_no_descriptor_comes_along(pods, stager_tree, busybox_root):
    """Of the stager's, the call-in's or the caller's, in an app, its handlers and a command run in it."""
    script = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], flush=True)"
    show = [*PYTHON, script]
    app = {"exec": [*PYTHON, script + "; import time; time.sleep(1000)"], "user": "0", "group": "0"}
    app["eventHandlers"] = [{"name": name, "exec": show} for name in ("pre-start", "post-stop")]
    pod = pods({"main": app}, roots=[stager_tree.path, busybox_root]).started()
    pod.wait_log("[0, 1, 2]\n[0, 1, 2]\n")
    assert pod.run(*show)[:2] == (0, "[0, 1, 2]\n")
    assert pod.stop() == 0
    assert pod.log() == "[0, 1, 2]\n" * 3
