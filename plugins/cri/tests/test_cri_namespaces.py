"""What the namespaces of a sandbox and of its containers may be (C6, C6a, C8)."""

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from kurma_cri.namespaces import container_grants, container_pid, sandbox_namespaces
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Sandbox
from kurma_cri.rpc import RpcError

CODES = grpc.StatusCode
RANGE = {"host_id": 655360, "length": 65536}


def linux(sysctls=None, parent="", **options):
    context = {"namespace_options": options}
    return ParseDict(
        {"sysctls": sysctls or {}, "cgroup_parent": parent, "security_context": context},
        cri.LinuxPodSandboxConfig(),
    )


def userns(mode="POD", uids=(RANGE,), gids=(RANGE,)):
    return {"userns_options": {"mode": mode, "uids": list(uids), "gids": list(gids)}}


def test_a_sandbox():
    found = sandbox_namespaces(linux(), "auto")
    assert (found.isolators, found.annotations, found.userns) == ((), {}, "auto")
    found = sandbox_namespaces(linux({"kernel.sem": "1 2 3 4"}, "a.slice", pid="NODE", **userns()), None)
    assert found.isolators == (
        ("os/linux/namespaces", {"pid": "host"}),
        ("os/unix/sysctl", {"kernel.sem": "1 2 3 4"}),
    )
    assert found.annotations == {"kurma.io/cgroup-parent": "a.slice"}
    assert found.userns == "655360:65536"
    assert sandbox_namespaces(linux(ipc="NODE", pid="CONTAINER"), None).isolators == (
        ("os/linux/namespaces", {"ipc": "host"}),
    )
    assert sandbox_namespaces(linux(**userns("NODE", (), ())), "auto").userns == "none"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (linux(network="CONTAINER"), "network: a sandbox has the mode POD or NODE, not CONTAINER"),
        (linux(ipc="TARGET"), "ipc: a sandbox has the mode POD or NODE, not TARGET"),
        (linux(pid="TARGET", target_id="a"), "pid: a sandbox has the mode POD, CONTAINER or NODE"),
        (linux(**userns("CONTAINER")), "expected the mode POD or NODE, got CONTAINER"),
        (linux(**userns("NODE")), "mappings need the mode POD"),
        (linux(**userns(uids=())), "got 0 and 1"),
        (linux(**userns(gids=(RANGE, RANGE))), "got 1 and 2"),
        (linux(**userns(gids=({**RANGE, "length": 1},))), "must be equal"),
        (linux(**userns(uids=[{**RANGE, "container_id": 1}], gids=[{**RANGE, "container_id": 1}])), "must be 0"),
        (linux(**userns(uids=[{"length": 5}], gids=[{"length": 5}])), "host_id 0 with length 5"),
        (linux({"vm.swappiness": "1"}), "sysctls: vm.swappiness is not a sysctl of a namespace"),
        (linux({"kernel.semx": "1"}), "sysctls: kernel.semx"),
        (linux({"net.core.somaxconn": "1"}, network="NODE"), "has the node's network namespace"),
        (linux({"kernel/shmmax": "1"}, ipc="NODE"), "has the node's ipc namespace"),
    ],
)
def test_sandboxes_that_cannot_be(given, said):
    with pytest.raises(RpcError) as caught:
        sandbox_namespaces(given, None)
    assert caught.value.code == CODES.INVALID_ARGUMENT
    assert said in str(caught.value)


class _Pod:
    """A record without apps."""

    apps = ()
    manifest = {}  # noqa: RUF012 - never changed


def container(given, **options):
    sandbox = Sandbox("s", _Pod(), cri.PodSandboxConfig(linux=given), "", 0)
    return container_pid(sandbox, ParseDict(options, cri.NamespaceOption()))


def test_a_container():
    assert container(linux()) == {}
    assert container(linux(), pid="CONTAINER") == {"kurma.io/pid": "own"}
    assert container(linux(network="NODE", ipc="NODE", pid="NODE"), network="NODE", ipc="NODE", pid="NODE") == {}
    host = container(linux(), pid="NODE")
    assert host == {"kurma.io/pid": "host"}
    assert container_grants(host) == ("os/linux/namespaces=pid",)
    assert container_grants({}) == ()
    assert container(linux(**userns()), **userns()) == {}


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        (linux(), {"network": "NODE"}, "network: the mode NODE is not that of the sandbox"),
        (linux(), {"ipc": "NODE"}, "ipc: the mode NODE is not that of the sandbox"),
        (linux(), {"ipc": "CONTAINER"}, "ipc: the mode CONTAINER"),
        (linux(), {"pid": "TARGET", "target_id": "none"}, "the sandbox has no container 'none'"),
        (linux(), {"pid": "TARGET"}, "the sandbox has no container ''"),
        (linux(), {"target_id": "a"}, "target_id needs the pid mode TARGET"),
        (linux(), userns(), "userns_options are not those of the sandbox"),
        (linux(**userns()), userns("NODE", (), ()), "userns_options are not those of the sandbox"),
    ],
)
def test_containers_that_cannot_be(given, options, said):
    with pytest.raises(RpcError) as caught:
        container(given, **options)
    assert caught.value.code == CODES.INVALID_ARGUMENT
    assert said in str(caught.value)
