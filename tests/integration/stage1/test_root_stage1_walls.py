"""User namespaces, and power over the host, under stage1 images (Z4, H9, X6)."""

import json
import os
import subprocess

import pytest

from kurma_core.linux.mounts import mounts_at_or_below
from kurma_core.models.isolator import IdRange
from kurma_core.trees.copying import Shift
from kurma_core.trees.merging import merge
from tests.integration.stage1.test_root_stage1_called import SHORT, run
from tests.kit.images import archive, busybox_root

pytestmark = pytest.mark.root

#: As the kernel has them: a setuid program's, and those of cap_net_raw=ep in the file's own namespace.
RAW_OF_2 = bytes.fromhex("0100000200200000000000000000000000000000")
PRIVILEGED = ("--isolator", "os/linux/privileged=true")


def owner(path):
    status = os.lstat(path)
    return status.st_uid, status.st_gid


@pytest.fixture(scope="module")
def owned(stage1s):
    """An image with files of user 1000."""
    root = busybox_root(
        str(stage1s.directory / "owned-root"), {"home/alice": "hers\n", "home/tool": "#!/bin/sh\n"}
    )
    os.chown(f"{root}/home/alice", 1000, 100)
    os.chown(f"{root}/home/tool", 1000, 0)
    os.chmod(f"{root}/home/tool", 0o4755)
    app = {"exec": ["/bin/true"], "user": "0", "group": "0"}
    return archive(root, str(stage1s.directory / "owned.aci"), "example.com/owned", app=app)


@pytest.mark.parametrize("version", [1, 6])
def test_a_user_namespace(stage1s, owned, version):
    """Stage1 makes it, of ids that are the pod's alone; what is in the roots belongs to these, and nobody else."""
    ready = "ln -s ready stage1/rootfs/rkt/supervisor-status\n" if version > 4 else ""
    stage1 = stage1s.stage1(version, ready + SHORT, ("run", "gc"))
    name = f"shifted-{version}"
    words = ("run", "--stager", stage1.stager, "--net", "none", "--userns", "auto", "--name", name)
    done = stage1s(*words, "--hosts-entry", "192.0.2.2=db", owned)
    assert done.returncode == 3, done.stderr
    pod = stage1s.show(name)
    first, count = pod["userNamespace"]["first"], pod["userNamespace"]["count"]
    call = stage1.call("run")
    assert call.words[:2] == ["--net=none", f"--private-users={first}:{count}"]
    place = stage1s.pods / "run" / pod["uuid"]
    assert (place / "private-users-prepared").read_text() == f"{first}:{count}"
    rootfs = place / "stage1/rootfs"
    app = rootfs / "opt/stage2/owned"
    root = (first, first)
    made = ("rkt/status", "rkt/env/owned", "opt/stage2", "opt/stage2/owned/manifest", "etc/rkt-hosts")
    assert {path: owner(rootfs / path) for path in ("", "ex/run", *made)} == dict.fromkeys(
        ("", "ex/run", *made), root
    )
    assert owner(app / "rootfs/bin/busybox") == owner(app / "rootfs/bin/sh") == root
    assert owner(app / "rootfs/home/alice") == (first + 1000, first + 100)
    assert owner(app / "rootfs/home/tool") == (first + 1000, first)
    assert os.stat(app / "rootfs/home/tool").st_mode & 0o7777 == 0o4755
    # Copies: nothing is mounted, and the store's own are as they were.
    assert not (place / "overlay").exists()
    assert not mounts_at_or_below(str(place))
    assert not any(pod["uuid"] in path for path in subprocess.check_output(["mount"], text=True).splitlines())
    assert stage1s("rm", name).returncode == 0
    assert not place.exists()


def test_what_cannot_be_in_a_user_namespace(stage1s, owned):
    """An owner that the namespace has not; overlays, which the admin demands."""
    stage1 = stage1s.stage1(2, SHORT, ("run", "gc"))
    done = run(stage1s, stage1, "--rm", "--userns", "1000000:1000")
    assert done.returncode == 3, done.stderr
    words = ("--net", "none", "--rm", "--userns", "1000000:500", owned)
    done = stage1s("run", "--stager", stage1.stager, *words)
    assert done.returncode == 125
    assert "its owner 1000 is outside the 500 ids of the pod's " in done.stderr
    section = {"driver": "rkt", "image": stage1.path, "config": {"storage": "overlay"}}
    stage1s.configure(stagers={"mine": section})
    done = stage1s("run", "--stager", "mine", *words)
    assert "its configuration demands overlays" in done.stderr
    assert len(stage1.calls("run")) == 1


def test_what_is_shifted_with_the_owner(tmp_path):
    """Names of one file are names of one; file capabilities are the namespace's; so are ids in an ACL."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "tool").write_text("text")
    os.link(source / "tool", source / "again")
    os.setxattr(source / "tool", "security.capability", RAW_OF_2)
    entries = ("01000600ffffffff", "02000400e8030000", "04000400ffffffff", "10000400ffffffff", "20000000ffffffff")
    acl = bytes.fromhex("02000000" + "".join(entries))
    (source / "shared").write_text("text")
    os.setxattr(source / "shared", "system.posix_acl_access", acl)

    class Layer:
        path, root, filter, removed, opaque, implied = str(source), "", None, (), (), ()

    merge(str(target), [Layer()], copy=True, shift=Shift(IdRange(70000, 65536)))
    assert os.stat(target / "tool").st_ino == os.stat(target / "again").st_ino
    assert owner(target / "tool") == owner(target) == (70000, 70000)
    found = os.getxattr(target / "tool", "security.capability")
    assert found == b"\1\0\0\3" + RAW_OF_2[4:] + (70000).to_bytes(4, "little")
    theirs = os.getxattr(target / "shared", "system.posix_acl_access")
    assert theirs == acl.replace(bytes.fromhex("e8030000"), (71000).to_bytes(4, "little"))


def test_a_privileged_app(stage1s):
    """All of stage1's walls are taken down, where that was granted; who asks in a pod's file alone is refused."""
    walls = ["--disable-capabilities-restriction", "--disable-paths", "--disable-seccomp"]
    stage1 = stage1s.stage1(3, SHORT, ("run", "gc"))
    done = run(stage1s, stage1, "--rm", *PRIVILEGED)
    assert done.returncode == 3, done.stderr
    assert stage1.call("run").words[2:5] == walls
    assert "isolator os/linux/privileged of app app is modified: stage1 lifts its restrictions" in done.stderr
    app = {"name": "app", "image": stage1s.image}
    file = stage1s.directory / "asks.json"
    privileged = [{"name": "os/linux/privileged", "value": True}]
    pod = {"acKind": "PodManifest", "acVersion": "0.8.11", "apps": [app], "isolators": privileged}
    file.write_text(json.dumps(pod))
    done = stage1s("run", "--rm", "--stager", stage1.stager, "--net", "none", "--pod", str(file))
    assert done.returncode != 3
    assert "asks for os/linux/privileged" in done.stderr
    old = stage1s.stage1(2, SHORT, ("run", "gc"))
    done = run(stage1s, old, "--rm", *PRIVILEGED)
    assert done.returncode == 3
    assert done.stderr.count("lifted: it keeps to interface version 2, and that came with 3; they stay") == 3
    assert old.call("run").words[2:] == old.call("run").words[-1:]
    assert len(stage1.calls("run")) == 1


def test_namespaces_of_the_host(stage1s):
    """The one of IPC, by the version that knows of it; others are not to be told of."""
    stage1 = stage1s.stage1(6, "ln -s ready stage1/rootfs/rkt/supervisor-status\n" + SHORT, ("run", "gc"))
    shared = ("--isolator", 'os/linux/namespaces={"ipc": "host", "pid": "host"}')
    done = run(stage1s, stage1, "--rm", *shared)
    assert done.returncode == 3, done.stderr
    assert stage1.call("run").words[-2] == "--ipc=parent"
    assert "its stage1 is not told that the pod shares the host's pid namespace" in done.stderr
    stage1s.configure(stagers={"mine": {"driver": "rkt", "image": stage1.path, "config": {"ipc": "private"}}})
    done = stage1s("run", "--rm", "--stager", "mine", "--net", "none", *shared, stage1s.image)
    assert done.returncode == 125
    assert "asks for the host's IPC namespace, and the stager's configuration for one of its own" in done.stderr
    assert len(stage1.calls("run")) == 1
