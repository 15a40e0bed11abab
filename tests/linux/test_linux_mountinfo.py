from kurma_core.linux import mounts
from kurma_core.linux.cgroups import Hierarchy, Layout

LINES = [
    "22 27 0:21 / /proc rw,relatime shared:5 master:1 - proc proc rw",
    r"36 35 98:0 /mnt1 /mnt\0402\011x\134y rw,noatime - ext3 /dev/root rw,errors=continue",
    r"40 35 0:41 / /odd\9name ro - overlay none rw,lowerdir=/a:/b",
]


def test_fields_with_and_without_propagation():
    proc, ext, odd = (mounts.Mount(line + "\n") for line in LINES)
    assert (proc.id, proc.parent, proc.target, proc.fstype) == (22, 27, "/proc", "proc")
    assert proc.propagation == ["shared:5", "master:1"]
    assert ext.target == "/mnt 2\tx\\y"
    assert ext.root == "/mnt1"
    assert ext.super_options == ["rw", "errors=continue"]
    assert odd.target == r"/odd\9name"
    assert odd.propagation == []


def test_own_mounts_have_a_root():
    assert any(one.target == "/" for one in mounts.mountinfo())


def parse(lines, memberships):
    return Layout.parse([mounts.Mount(line) for line in lines], memberships)


def test_v2_layout():
    layout = parse(["31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"], ["0::/user.slice"])
    assert layout.kind == "v2"
    assert [one.place for one in layout.hierarchies] == ["."]


def test_v1_layout_with_joined_controllers_and_a_second_mount():
    lines = [
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        "34 1 0:30 / /elsewhere/memory rw - cgroup cgroup rw,memory",
    ]
    layout = parse(lines, ["3:memory:/a", "2:cpu,cpuacct:/", "1:pids:/"])
    assert layout.kind == "v1"
    assert [(one.controllers, one.place) for one in layout.hierarchies] == [
        (("cpu", "cpuacct"), "cpu,cpuacct"),
        (("memory",), "memory"),
    ]
    assert layout.of("cpuacct") is layout.hierarchies[0]
    assert layout.of("pids") is None


def test_hybrid_layout():
    lines = [
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
        "33 31 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd",
        "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    ]
    layout = parse(lines, ["2:name=systemd:/", "1:cpu:/", "0::/"])
    assert layout.kind == "hybrid"
    assert [one.controllers for one in layout.hierarchies] == [("cpu",), ("name=systemd",), ()]


def test_controllers_and_their_versions(tmp_path):
    """v2 lists in a file what v1 has as mounts."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    v2 = Hierarchy(2, (), str(tmp_path), ".")
    assert Layout([v2]).versions() == {"cgroup": 2, "cpu": 2, "io": 2, "memory": 2, "pids": 2}
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    v1 = Hierarchy(1, ("cpu", "cpuacct"), "/sys/fs/cgroup/cpu", "cpu")
    assert Layout([v1, v2]).versions() == {"cpu": 1, "cpuacct": 1, "cgroup": 2, "hugetlb": 2}
    assert Layout([]).versions() == {}
