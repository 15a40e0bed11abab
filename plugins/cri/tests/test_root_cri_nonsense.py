"""Values that mean nothing, in each field of each request: they are refused by the field's name, and nothing fails
otherwise (C7, C8)."""

import re

import grpc
import pytest
from kurma_cri import limits
from kurma_cri.fields import DECISIONS, HONOURED
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused

pytestmark = pytest.mark.root
CODES = grpc.StatusCode
#: Unknown images and IDs have a code of their own.
REFUSALS = (CODES.INVALID_ARGUMENT, CODES.NOT_FOUND)
LONG = "x" * 300_000
#: Fields whose nonsense is another field's, or that may have any value within the limits of their kind.
ANY = re.compile(
    r"filter\.|image\.|pod_sandbox_id|container_id|labels|annotations|version|pod_cidr|timeout|\.image\b|userns"
)


def nonsense(field):
    """Values without a meaning for any field of this kind."""
    if field.enum_type is not None:
        return [99]
    if field.type == field.TYPE_BYTES:
        return [b"a\0b", LONG.encode()]
    return {
        field.CPPTYPE_STRING: ["a\0b", LONG],
        field.CPPTYPE_INT32: [-1, -(1 << 31)],
        field.CPPTYPE_INT64: [-(1 << 63), -2000],
    }.get(field.cpp_type, [])


def cases(descriptor, path=()):
    """The fields of a message, at any depth, that are honoured: each by its path."""
    for field in descriptor.fields:
        if DECISIONS.get(f"{descriptor.name}.{field.name}") != HONOURED:
            continue
        if field.message_type is None:
            yield (*path, field.name), field
        elif not field.message_type.GetOptions().map_entry:
            yield from cases(field.message_type, (*path, field.name))


def given(message, path, value):
    """Sets a field at any depth."""
    *parents, name = path
    for parent in parents:
        repeated = message.DESCRIPTOR.fields_by_name[parent].is_repeated
        child = getattr(message, parent)
        if repeated:
            message = child[0] if len(child) else child.add()
        else:
            child.SetInParent()
            message = child
    if message.DESCRIPTOR.fields_by_name[name].is_repeated:
        getattr(message, name)[:] = [value]
    else:
        setattr(message, name, value)


def failure(call, request):
    """:returns: the error of a call; None: it was successful."""
    try:
        call(request)
    except grpc.RpcError as error:
        return error
    return None


def check_all(call, make):
    """Calls once for each field and value. :returns: paths of the fields that took one."""
    taken = []
    for path, field in cases(make().DESCRIPTOR):
        where = ".".join(path)
        for value in nonsense(field):
            request = make()
            given(request, path, value)
            error = failure(call, request)
            if error is None:
                taken.append(where)
                continue
            said = error.details()
            assert error.code() in REFUSALS, (where, value, said)
            assert len(said) < 2001, where
            assert said.isprintable(), where
            assert where in said or ANY.search(where), (where, said)
    return [where for where in taken if not ANY.search(where)]


def test_sandboxes(node):
    def run(request):
        id = node.runtime.RunPodSandbox(request).pod_sandbox_id
        node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=id))

    def make():
        return cri.RunPodSandboxRequest(config=node.sandbox_config(host_network=False))

    assert check_all(run, make) == []
    assert not node.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items


def test_containers(node):
    sandbox = node.run()

    def create(request):
        id = node.runtime.CreateContainer(request).container_id
        node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=id))

    def make():
        config = node.container_config("true", envs=[cri.KeyValue(key="A")])
        config.mounts.add(container_path="/d", host_path="/tmp")
        config.devices.add(container_path="/dev/d", host_path="/dev/null")
        config.linux.resources.hugepage_limits.add(page_size="2MB")
        return cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)

    assert check_all(create, make) == []
    assert not node.runtime.ListContainers(cri.ListContainersRequest()).containers


def test_other_calls(node):
    runtime, sandbox = node.runtime, node.run()
    container = node.started(sandbox, "sleep", "1000")
    for call, request in (
        (runtime.UpdateContainerResources, cri.UpdateContainerResourcesRequest(container_id=container)),
        (runtime.UpdatePodSandboxResources, cri.UpdatePodSandboxResourcesRequest(pod_sandbox_id=sandbox)),
        (runtime.ExecSync, cri.ExecSyncRequest(container_id=container, cmd=["true"])),
        (runtime.Exec, cri.ExecRequest(container_id=container, cmd=["true"], stdout=True)),
        (runtime.Attach, cri.AttachRequest(container_id=container, stdout=True)),
        (runtime.PortForward, cri.PortForwardRequest(pod_sandbox_id=sandbox)),
        (runtime.ContainerStatus, cri.ContainerStatusRequest(container_id=container)),
        (runtime.ContainerStats, cri.ContainerStatsRequest(container_id=container)),
        (runtime.ReopenContainerLog, cri.ReopenContainerLogRequest(container_id="0" * 64)),
        (runtime.PodSandboxStatus, cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox)),
        (runtime.PodSandboxStats, cri.PodSandboxStatsRequest(pod_sandbox_id=sandbox)),
        (runtime.ListContainers, cri.ListContainersRequest()),
        (runtime.ListPodSandbox, cri.ListPodSandboxRequest()),
        (runtime.ListContainerStats, cri.ListContainerStatsRequest()),
        (runtime.ListPodSandboxStats, cri.ListPodSandboxStatsRequest()),
        (runtime.UpdateRuntimeConfig, cri.UpdateRuntimeConfigRequest()),
        (runtime.Version, cri.VersionRequest()),
        (runtime.Status, cri.StatusRequest()),
        (runtime.StopPodSandbox, cri.StopPodSandboxRequest()),
        (runtime.RemovePodSandbox, cri.RemovePodSandboxRequest()),
        (runtime.StartContainer, cri.StartContainerRequest()),
        (runtime.StopContainer, cri.StopContainerRequest(container_id="0" * 64)),
        (runtime.RemoveContainer, cri.RemoveContainerRequest()),
        (node.images.ImageStatus, cri.ImageStatusRequest()),
        (node.images.ListImages, cri.ListImagesRequest()),
        (node.images.PullImage, cri.PullImageRequest()),
        (node.images.RemoveImage, cri.RemoveImageRequest()),
    ):

        def make(request=request):
            copy = type(request)()
            copy.CopyFrom(request)
            return copy

        assert check_all(lambda message, call=call: call(message, timeout=20), make) == []
    assert node.status(container).state == cri.CONTAINER_RUNNING
    for kind in (cri.ListContainersRequest(), cri.ListPodSandboxRequest()):
        kind.filter.state.state = 99
        call = runtime.ListContainers if "Containers" in type(kind).__name__ else runtime.ListPodSandbox
        with refused(CODES.INVALID_ARGUMENT, "filter.state.state: 99"):
            call(kind)


def test_sizes(node):
    """Each limit is told with its number; what Kubernetes allows is within it."""
    sandbox = node.run()
    long = cri.KeyValue(key="A", value=b"x" * (limits.WORD - 10))
    many = [cri.KeyValue(key=f"SERVICE_{number}", value=b"10.0.0.1") for number in range(4000)]
    container = node.started(sandbox, "sh", "-c", "env | grep -c SERVICE_; echo ${#A}", envs=[*many, long])
    assert node.wait_exited(container).exit_code == 0
    assert node.output(container) == ["4000", str(len(long.value))]

    def refuse(words, *, command=("true",), **fields):
        with refused(CODES.INVALID_ARGUMENT, *words):
            node.create(sandbox, node.container_config(*command, name="other", **fields))

    refuse(["config.args", str(limits.WORD)], args=["x" * (limits.WORD + 1)])
    refuse(["config.envs", "10000"], envs=[cri.KeyValue(key=f"A{number}") for number in range(limits.ITEMS + 1)])
    refuse(["config: ", str(limits.CONTAINER)], args=["x" * limits.WORD] * 5)
    refuse(["config.labels", str(limits.ENTRIES)], labels={"a": "x" * limits.ENTRIES})
    with refused(CODES.INVALID_ARGUMENT, "config.metadata.name", str(limits.NAME)):
        node.run(node.sandbox_config(name="x" * (limits.NAME + 1)))
    annotations = {"example.com/a": "x" * (limits.ENTRIES - 20)}
    other = node.run(node.sandbox_config(annotations=annotations))
    assert node.sandbox_status(other).annotations == annotations
    with pytest.raises(grpc.RpcError) as caught:
        node.run(node.sandbox_config(log_directory="x" * (17 << 20)))
    assert caught.value.code() == CODES.RESOURCE_EXHAUSTED


def test_names_of_variables(node):
    """Kubernetes allows all printable ASCII characters except ``=``; the last of several with one name counts."""
    odd = "".join(chr(number) for number in range(32, 127) if chr(number) != "=")
    envs = [
        cri.KeyValue(key=odd, value=b"all"),
        cri.KeyValue(key="1st.name", value="grüße\n2".encode()),
        cri.KeyValue(key="TWICE", value=b"one"),
        cri.KeyValue(key="TWICE", value=b"two"),
    ]
    container = node.started(node.run(), "cat", "/proc/self/environ", envs=envs)
    assert node.wait_exited(container).exit_code == 0
    found = "\n".join(node.output(container)).split("\0")
    assert f"{odd}=all" in found
    assert "1st.name=grüße\n2" in found
    assert [one for one in found if one.startswith("TWICE=")] == ["TWICE=two"]
    for wrong in ("", "a=b", "a\tb", "grüße"):
        envs = [cri.KeyValue(key=wrong, value=b"secret-value")]
        with pytest.raises(grpc.RpcError) as caught:
            node.create(node.run(), node.container_config("true", envs=envs))
        assert caught.value.code() == CODES.INVALID_ARGUMENT
        assert "secret-value" not in caught.value.details()
