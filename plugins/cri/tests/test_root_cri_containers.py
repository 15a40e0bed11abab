"""Programs of containers: command, user, environment, and the sandbox that they share (C2, C6 to C8b, C9)."""

import pathlib

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from plugins.cri.tests.test_root_cri_images import image, layers, oci, pull, registry
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
__all__ = ["image", "layers", "oci", "registry"]


def contained(node, sandbox, script, *, name="main", linux=None, **fields):
    """Runs a script to its end. :returns: its output, with the errors."""
    container = node.started(sandbox, "sh", "-c", f"{{ {script}; }} 2>&1", name=name, linux=linux, **fields)
    node.wait_exited(container)
    return "\n".join(node.output(container)).splitlines()


def security(**context):
    return cri.LinuxContainerConfig(security_context=cri.LinuxContainerSecurityContext(**context))


def runs(pid):
    """Whether a process runs. The host's first process may be slow to collect an ended one."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def executed(node, container, *command):
    request = cri.ExecSyncRequest(container_id=container, cmd=command, timeout=20)
    return node.runtime.ExecSync(request).stdout.decode()


def test_command_and_args_over_those_of_the_image(node, image):
    """``command`` replaces the image's entrypoint and arguments, ``args`` the arguments alone; the image's stop
    signal and the name that the person gave are shown."""
    name, _ = image
    id, sandbox = pull(node, name), node.run()
    for number, (words, expected) in enumerate(
        (
            ({"args": ["echo args"]}, ["args"]),
            ({"command": ["/bin/busybox", "echo", "whole"]}, ["whole"]),
            ({"command": ["/bin/busybox", "echo"], "args": ["both"]}, ["both"]),
        )
    ):
        config = node.container_config(name=f"c{number}")
        config.MergeFrom(cri.ContainerConfig(**words))
        config.image.CopyFrom(cri.ImageSpec(image=id, user_specified_image="team/app:v1"))
        container = node.create(sandbox, config)
        node.start(container)
        ended = node.wait_exited(container)
        assert (node.output(container), ended.exit_code, ended.reason) == (expected, 0, "Completed")
        assert (ended.image.image, ended.image.user_specified_image) == ("team/app:v1", "team/app:v1")
        assert (ended.image_id, ended.stop_signal) == (id, cri.SIGNAL_SIGUSR1)
    config = node.container_config(name="default")
    config.image.image = id
    container = node.create(sandbox, config)
    node.start(container)
    assert node.status(container).state == cri.CONTAINER_RUNNING
    assert node.status(container).user.linux.uid == 65534
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=container, timeout=100))
    assert node.status(container).exit_code == 128 + 10, "the image's stop signal"
    for policy, groups in ((cri.Merge, [100, 3000, 4000]), (cri.Strict, [100, 3000])):
        context = {"run_as_username": "alice", "supplemental_groups": [3000], "supplemental_groups_policy": policy}
        config = node.container_config("sh", "-c", "echo $HOME; exec sleep 1000", name=f"alice-{policy}")
        config.image.image = id
        config.linux.CopyFrom(security(**context))
        container = node.create(sandbox, config)
        node.start(container)
        user = node.status(container).user.linux
        assert (user.uid, user.gid, sorted(user.supplemental_groups)) == (1000, 100, groups)
        until(lambda: node.output(container) == ["/home/alice"], lambda: node.output(container))  # noqa: B023
    node.clear()  # before its image is removed


def test_users_environment_and_root(node):
    sandbox = node.run(node.sandbox_config(hostname="web-1"))
    lines = contained(node, sandbox, "hostname; env; cat /etc/hosts; grep ^Seccomp: /proc/self/status")
    found = set(lines)
    assert "web-1" in lines[0]
    assert {"HOSTNAME=web-1", "HOME=/root"} <= found
    assert any(line.startswith("PATH=/") for line in lines)
    assert not any(line.startswith("TERM=") for line in lines)
    assert any("web-1" in line and not line.startswith("HOSTNAME") for line in lines[1:]), "the usual /etc/hosts"
    assert "Seccomp:\t0" in found, "a missing field is unconfined"
    config = node.container_config("true", name="stranger", linux=security(run_as_username="stranger"))
    stranger = node.create(sandbox, config)
    with refused(CODES.INTERNAL, "no user 'stranger'"):
        node.start(stranger)
    assert node.status(stranger).reason == "StartError"
    user = cri.Int64Value(value=65534)
    context = security(run_as_user=user, readonly_rootfs=True, seccomp=cri.SecurityProfile())
    script = "id -u; touch /x; grep ^Seccomp: /proc/self/status; echo $TERM"
    container = node.started(sandbox, "sh", "-c", f"{{ {script}; }}", name="nobody", linux=context, tty=True)
    node.wait_exited(container)
    text = "\n".join(node.output(container)).replace("\r", "")
    assert "65534" in text
    assert "touch: /x: Read-only file system" in text
    assert "Seccomp:\t2" in text, "an empty field is the runtime's default"
    assert text.splitlines()[-1] != "", "TERM with a terminal"
    config = node.container_config("true", name="group", linux=security(run_as_group=cri.Int64Value(value=1)))
    with refused(CODES.INVALID_ARGUMENT, "run_as_group"):
        node.create(sandbox, config)
    with refused(CODES.INVALID_ARGUMENT, "selinux_options"):
        wrong = security(selinux_options=cri.SELinuxOption(level="a b"))
        node.create(sandbox, node.container_config("true", name="label", linux=wrong))


def test_containers_of_one_sandbox_share_it(node):
    """Names that differ by one character are two containers; PID 1 of the pod's namespace reaps; shared memory is
    the pod's."""
    sandbox = node.run()
    names = ["a-b", "a.b", "a_b", "A-b", "ä-b", "a b"]
    containers = {node.started(sandbox, "sleep", "1000", name=name) for name in names}
    assert len(containers) == len(names)
    listed = node.runtime.ListContainers(cri.ListContainersRequest()).containers
    assert [one.metadata.name for one in listed] == names
    one, two = sorted(containers)[:2]
    executed(node, one, "sh", "-c", "echo shared > /dev/shm/x; (sleep 0.1 & exec sleep 0) ")
    assert executed(node, two, "cat", "/dev/shm/x") == "shared\n"
    assert "sleep 1000" in executed(node, two, "ps", "-o", "args")
    until(lambda: " Z " not in executed(node, two, "ps", "-o", "pid,stat,args"), "PID 1 reaps")
    pids = [app.pid for pod in node.house.client.pods() for app in pod.apps]
    assert all(map(runs, pids))
    node.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    assert not any(map(runs, pids))
    status = node.runtime.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox))
    assert {one.id for one in status.containers_statuses} == containers
    assert {one.state for one in status.containers_statuses} == {cri.CONTAINER_EXITED}
    assert status.timestamp > status.status.created_at
    # A sandbox that still runs is stopped by its removal.
    other = node.run()
    node.started(other, "sleep", "1000")
    pod = next(pod for pod in node.house.client.pods() if pod.name.endswith(other))
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=other))
    (app,) = pod.apps
    assert not runs(app.pid)


def test_attempts(node):
    """The name and the attempt together are unique in the sandbox; a removed one is free again."""
    sandbox = node.run()
    config = node.container_config("true")
    first = node.create(sandbox, config)
    with refused(CODES.ALREADY_EXISTS, first, "'main'", "attempt 0"):
        node.create(sandbox, config)
    config.metadata.attempt = 1
    second = node.create(sandbox, config)
    node.create(node.run(), config)
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=second))
    assert node.create(sandbox, config) != second
    assert node.status(first).state == cri.CONTAINER_CREATED


def test_streams_of_many_containers(node):
    """A message of a stream has at least one item, and each container comes once; all filters hold together."""
    sandbox, empty = node.run(), node.run()
    ids = [
        node.create(sandbox, node.container_config("true", name=f"c{number}", labels={"even": str(number % 2)}))
        for number in range(101)
    ]
    node.start(ids[0])
    node.wait_exited(ids[0])

    def streamed(**wanted):
        request = cri.StreamContainersRequest(filter=cri.ContainerFilter(**wanted))
        messages = list(node.runtime.StreamContainers(request))
        assert all(message.containers for message in messages)
        found = [one for message in messages for one in message.containers]
        listed = node.runtime.ListContainers(cri.ListContainersRequest(filter=request.filter)).containers
        assert found == list(listed)
        return [one.id for one in found]

    exited, created = (
        cri.ContainerStateValue(state=state) for state in (cri.CONTAINER_EXITED, cri.CONTAINER_CREATED)
    )
    assert streamed() == ids
    assert streamed(id=ids[5][:12]) == [ids[5]]
    assert streamed(state=exited) == [ids[0]]
    assert streamed(pod_sandbox_id=empty) == []
    assert streamed(pod_sandbox_id=sandbox[:12], label_selector={"even": "1"}, state=created) == ids[1::2]
    assert streamed(id=ids[0], state=created) == []
    assert streamed(label_selector={"even": "1", "odd": "1"}) == []
