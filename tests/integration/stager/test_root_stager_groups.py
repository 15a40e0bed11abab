"""Where the default stager stands in its pod's cgroup, on a host whose v2 hierarchy has controllers."""

import os
import traceback
import uuid

import pytest
from kurma_stager_default.inside.pod.pod_cgroups import PodGroups

from kurma_core.linux import clone
from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout, controllers

pytestmark = [pytest.mark.root, pytest.mark.vm]


@pytest.mark.parametrize("leaf", [True, False], ids=["started in a leaf", "started in the pod's own"])
def test_it_makes_way_unless_that_was_seen_to(leaf):
    (unified,) = [one for one in Layout.detect().hierarchies if one.version == 2]
    tree = CgroupTree(f"kurma-test-{uuid.uuid4().hex[:8]}/pod", Layout([unified]))
    tree.create()
    try:
        pod = tree.directories()[0]
        assert controllers(pod), "a v2 controller is needed to see the rule"
        pid = clone.fork_into(tree.leaf("own") if leaf else [pod])
        if pid == 0:
            code = 9
            try:
                groups = PodGroups(Layout([Hierarchy(2, (), pod, ".")]))
                groups.make_way()
                with open("/proc/self/cgroup") as file:
                    where = file.read().splitlines()[-1]
                assert where == f"0::/{tree.name}/" + ("own" if leaf else "stager")
                # What the kernel refuses while a process is in the pod's own
                app = groups.app("main")
                app.create()
                assert controllers(app.directories()[0]) == controllers(pod)
                code = 0
            except (AssertionError, OSError):
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        tree.kill()
        tree.remove()
