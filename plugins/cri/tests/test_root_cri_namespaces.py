"""Namespaces of sandboxes and containers, from inside and from outside (C6, C8)."""

import os
import uuid

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from kurma_core.linux.cgroups import CgroupTree
from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
MAPPING = cri.IDMapping(host_id=655360, container_id=0, length=65536)


def options(**values):
    return cri.LinuxContainerConfig(
        security_context=cri.LinuxContainerSecurityContext(namespace_options=cri.NamespaceOption(**values))
    )


def contained(node, sandbox, script, name, **values):
    """Starts a container. :returns: its ID, and the lines of its script."""
    script = f"{{ {script}; }} 2>&1; echo up; exec sleep 1000"
    container = node.started(sandbox, "sh", "-c", script, name=name, linux=options(network=cri.NODE, **values))

    def lines():
        return "\n".join(node.output(container)).splitlines()

    until(lambda: "up" in lines(), lambda: f"{name}: {lines()}")
    return container, lines()


def main(node, container):
    pod = next(pod for pod in node.house.client.pods() if container in pod.images)
    return pod, next(app.pid for app in pod.apps if app.name == container)


def namespace(pid, kind="pid"):
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


def test_namespaces_cgroup_and_sysctls(node):
    top = f"kurmatest{uuid.uuid4().hex[:8]}"
    config = node.sandbox_config()
    config.linux.cgroup_parent = f"{top}-pod1.slice"
    config.linux.sysctls["kernel.shmmax"] = "12345678"
    config.linux.security_context.namespace_options.pid = cri.CONTAINER
    try:
        sandbox = node.run(config)
        look = "echo pid $$; cat /proc/sys/kernel/shmmax; echo /proc/[0-9]*"
        one, lines = contained(node, sandbox, look, "one", pid=cri.CONTAINER)
        assert lines[:3] == ["pid 1", "12345678", "/proc/1"]
        two, _ = contained(node, sandbox, "true", "two", pid=cri.CONTAINER)
        pod, pid = main(node, one)
        assert len({namespace(pid), namespace(main(node, two)[1]), namespace("self")}) == 3
        target, lines = contained(node, sandbox, "cat /proc/1/comm", "target", pid=cri.TARGET, target_id=one)
        assert (namespace(main(node, target)[1]), lines[0]) == (namespace(pid), "sleep")
        host, lines = contained(node, sandbox, f"readlink /proc/{os.getpid()}/exe", "host", pid=cri.NODE)
        assert namespace(main(node, host)[1]) == namespace("self")
        assert namespace(main(node, host)[1], "ipc") != namespace("self", "ipc")
        shared, _ = contained(node, sandbox, "true", "shared")
        assert namespace(main(node, shared)[1]) not in (namespace("self"), namespace(pid))
        tree = CgroupTree(f"{top}.slice/{top}-pod1.slice/kurma-{pod.uuid}")
        assert pid in tree.pids()
        status = node.sandbox_status(sandbox).linux.namespaces.options
        assert (status.pid, status.network) == (cri.CONTAINER, cri.NODE)
        # The target is looked at when a container is created, and again when it is started.
        late = node.create(
            sandbox,
            node.container_config(
                "true", name="late", linux=options(network=cri.NODE, pid=cri.TARGET, target_id=one)
            ),
        )
        node.runtime.StopContainer(cri.StopContainerRequest(container_id=one, timeout=0))
        with pytest.raises(grpc.RpcError, match="whose PID namespace it shares, does not run"):
            node.start(late)
        with refused(CODES.FAILED_PRECONDITION, "does not run"):
            contained(node, sandbox, "true", "later", pid=cri.TARGET, target_id=one)
        node.clear()
        assert not tree.exists()
        # By a path, too.
        config = node.sandbox_config()
        config.linux.cgroup_parent = f"/{top}/besteffort/pod2"
        host = {"ipc": cri.NODE, "pid": cri.NODE}
        for name, mode in host.items():
            setattr(config.linux.security_context.namespace_options, name, mode)
        sandbox = node.run(config)
        own, _ = contained(node, sandbox, "true", "own", **host)
        pod, pid = main(node, own)
        assert pid in CgroupTree(f"{top}/besteffort/pod2/kurma-{pod.uuid}").pids()
        for name in host:
            assert namespace(pid, name) == namespace("self", name)
    finally:
        node.clear()
        for name in (f"{top}.slice", top):
            CgroupTree(name).remove()


def test_a_user_namespace(node):
    """Kubelet gives the range, also to a sandbox that replaces an ended one."""
    config = node.sandbox_config()
    config.linux.security_context.namespace_options.userns_options.CopyFrom(
        cri.UserNamespace(mode=cri.POD, uids=[MAPPING], gids=[MAPPING])
    )
    own = config.linux.security_context.namespace_options.userns_options
    first = node.run(config)
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=first))
    config.metadata.attempt = 1
    sandbox = node.run(config)
    container, lines = contained(
        node, sandbox, "cat /proc/self/uid_map; echo $$", "one", pid=cri.CONTAINER, userns_options=own
    )
    assert [lines[0].split(), lines[1]] == [["0", "655360", "65536"], "1"]
    _, pid = main(node, container)
    assert os.stat(f"/proc/{pid}").st_uid == 655360
    assert node.sandbox_status(sandbox).linux.namespaces.options.userns_options == own


def test_a_wrong_parent_of_the_cgroup_is_refused(node):
    config = node.sandbox_config()
    config.linux.cgroup_parent = "../up"
    with refused(CODES.INVALID_ARGUMENT, "kurma.io/cgroup-parent"):
        node.run(config)
    assert not node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items
