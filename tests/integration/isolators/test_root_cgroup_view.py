"""What apps see at ``/sys/fs/cgroup``: their own cgroups, read-only (C8)."""

from __future__ import annotations

import errno
import os

import pytest
from kurma_stager_default.inside.app import cgroup_view

from kurma_core.api.pods import AppOverrides
from kurma_core.linux import mounts, namespaces
from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout
from tests.kit.images import shell
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.vm]

#: A file of the memory controller that shows the limit, on v1 and v2.
LIMITS = ("memory/memory.limit_in_bytes", "memory.max")
SCRIPT = f"""
cd /sys/fs/cgroup
for limit in {" ".join(LIMITS)}; do test -e $limit && cat $limit; done
for each in . */; do mkdir $each/new 2>/dev/null && echo made; done
grep -c ' /sys/fs/cgroup' /proc/self/mountinfo
grep ' /sys/fs/cgroup' /proc/self/mountinfo | cut -d' ' -f4,6 | sort -u
cat cgroup.procs unified/cgroup.procs memory/cgroup.procs 2>/dev/null | sort -u
echo up
exec sleep 1000
"""


def test_an_app_sees_its_own_cgroup(house):
    memory = ("resource/memory", {"limit": 64 << 20})
    apps = {name: shell(SCRIPT) for name in ("first", "other")}
    overrides = {"first": AppOverrides(isolators=(memory,))}
    with house.running(apps, overrides=overrides) as pod:
        for app in apps:
            until(lambda app=app: "up" in house.log(pod, app).splitlines(), lambda app=app: house.log(pod, app))
        logs = {app: house.log(pod, app).splitlines() for app in apps}
        procs = "cd /sys/fs/cgroup; cat cgroup.procs */cgroup.procs"
        entered = house.enter(pod.uuid, "sh", "-c", procs, app="first")[1]
        pod.stop(force=False)
    assert logs["first"][0] == str(64 << 20)
    for app in apps:
        assert "made" not in logs[app]
        assert any(line.startswith("/ ro,") for line in logs[app]), logs[app]
        assert not any(line.startswith(("/.", "/app-")) for line in logs[app]), logs[app]
    assert entered.split()


def test_a_privileged_app_may_write_to_it(house):
    script = """
cd /sys/fs/cgroup
test -e cgroup.procs || cd memory
mkdir new && rmdir new && echo made
"""
    overrides = {"main": AppOverrides(isolators=(("os/linux/privileged", True),))}
    _, output = house.run({"main": shell(script)}, overrides=overrides)
    assert output == "made\n"


@pytest.mark.full
def test_in_a_user_namespace_and_in_handlers(house):
    script = "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true"
    for options in ({"userns": "auto"}, {}):
        assert house.run({"main": shell(script)}, **options)[1] == "2048\n", options
    handlers = [{"name": "pre-start", "exec": ["/bin/sh", "-c", script]}]
    assert house.run({"main": shell(script, eventHandlers=handlers)})[1] == "2048\n2048\n"


def test_on_v2_alone_the_cgroup_is_the_whole(tmp_path):
    """As on a host without v1: the cgroup takes the place of the directory itself."""
    ((base,),) = [[one.directory] for one in Layout.detect().hierarchies if one.version == 2]
    tree = CgroupTree(f"kurma-view-{os.getpid()}", Layout([Hierarchy(2, (), base, ".")]))
    place = tmp_path / "sys"
    place.mkdir()
    tree.create()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                namespaces.unshare(namespaces.CLONE_NEWNS)
                mounts.make_private("/")
                mounts.mount("sysfs", str(place), "sysfs")
                root = os.open(tmp_path, os.O_PATH)
                cgroup_view.attach(root, cgroup_view.clone(tree), writable=False)
                (found,) = mounts.mounts_at_or_below(f"{place}/fs/cgroup")
                assert (found.fstype, found.root.endswith(tree.name)) == ("cgroup2", True)
                assert os.path.exists(f"{place}/fs/cgroup/cgroup.procs")
                try:
                    os.mkdir(f"{place}/fs/cgroup/new")
                except OSError as error:
                    assert error.errno == errno.EROFS  # noqa: PT017 - a child has no pytest
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        tree.remove()
