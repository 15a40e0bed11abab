"""Mounts, environment and DNS of containers, seen from inside and from the host (C6, C8)."""

import os
import stat
import subprocess

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from tests.kit.waiting import until

pytestmark = pytest.mark.root
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def shared(tmp_path):
    """A directory that is a shared mount."""
    place = tmp_path / "shared"
    place.mkdir()
    for words in (["-t", "tmpfs", "tmpfs"], ["--make-shared"]):
        subprocess.run(["mount", *words, str(place)], check=True)
    (place / "late").mkdir()
    yield place
    subprocess.run(["umount", "-R", str(place)], check=True)


def mount(host, path, **fields):
    return cri.Mount(host_path=str(host), container_path=path, **fields)


def output(node, sandbox, script, **fields):
    """Starts a container and waits for its script. :returns: its output, and its ID."""
    container = node.started(sandbox, "sh", "-c", f"{{ {script}; }} 2>&1; echo up; exec sleep 1000", **fields)

    def text():
        return "".join(f"{line}\n" for line in node.output(container))

    until(lambda: "up\n" in text(), text)
    return text().partition("up\n")[0], container


def executed(node, container, script):
    pod = next(pod for pod in node.house.client.pods() if container in pod.images)
    code, text, errors = node.house.enter(pod.uuid, "/bin/sh", "-c", script, app=container)
    assert code == 0, errors
    return text


def test_mounts_environment_and_dns(node, tmp_path, shared):
    dns = cri.DNSConfig(servers=["10.96.0.10"] * 2, searches=["a.svc", "svc"], options=["ndots:5"])
    sandbox = node.run(node.sandbox_config(hostname="web-0", dns_config=dns))
    for name in ("hosts", "log"):
        (tmp_path / name).write_text(f"{name}\n")
    os.symlink("made", tmp_path / "link")
    mounts = [
        mount(tmp_path / "link" / "a", "/data"),
        mount("/dev/null", "/data/null"),
        mount(tmp_path / "hosts", "/etc/hosts"),
        mount(tmp_path / "log", "/dev/termination-log"),
        mount(shared, "/shared", propagation=cri.PROPAGATION_HOST_TO_CONTAINER, readonly=True),
        cri.Mount(
            container_path="/image",
            image=cri.ImageSpec(image=node.house.image),
            readonly=True,
            image_sub_path="bin",
        ),
    ]
    script = (
        "echo $HOSTNAME $TERM; pwd; cat /etc/hosts /etc/resolv.conf; echo end > /dev/termination-log; "
        "/image/true && echo ran"
    )
    envs = [cri.KeyValue(key="A", value=b"b")]
    text, container = output(node, sandbox, script, mounts=mounts, envs=envs, working_dir="/data/work")
    resolv = "nameserver 10.96.0.10\nnameserver 10.96.0.10\nsearch a.svc svc\noptions ndots:5\n"
    assert text == f"web-0\n/data/work\nhosts\n{resolv}ran\n"
    assert stat.S_IMODE((tmp_path / "made" / "a").stat().st_mode) == 0o755
    assert (tmp_path / "made" / "a" / "work").is_dir()
    assert (tmp_path / "log").read_text() == "end\n"
    subprocess.run(["mount", "-t", "tmpfs", "late", str(shared / "late")], check=True)
    assert executed(node, container, "grep -c ' /shared/late ' /proc/self/mountinfo") == "1\n"
    found = node.status(container).mounts
    assert [(one.container_path, one.host_path) for one in found] == [
        (one.container_path, one.host_path) for one in mounts
    ]
    assert found[5].image.image == node.status(container).image_id


def test_mounts_that_cannot_be_made(node, tmp_path):
    sandbox = node.run()
    (tmp_path / "private").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "private")], check=True)
    image = cri.ImageSpec(image=node.house.image)
    try:
        for one, words in (
            (mount(tmp_path / "private", "/p", propagation=cri.PROPAGATION_BIDIRECTIONAL), "needs a shared mount"),
            (
                mount(tmp_path / "private", "/p", propagation=cri.PROPAGATION_HOST_TO_CONTAINER),
                "shared or a slave",
            ),
            (mount(tmp_path, "/p", recursive_read_only=True), "RROUnsupported: "),
            (
                cri.Mount(container_path="/p", image=image, readonly=True, image_sub_path="no"),
                "its image has no no",
            ),
            (cri.Mount(container_path="/p", image=image), "ImageVolumeMountFailed: "),
        ):
            with refused(INVALID, words):
                node.create(sandbox, node.container_config("true", mounts=[one]))
        for gone in (cri.ImageSpec(image="sha512-" + "0" * 128), cri.ImageSpec(image="example.com/no:1")):
            one = cri.Mount(container_path="/p", image=gone, readonly=True)
            with pytest.raises(grpc.RpcError) as caught:
                node.create(sandbox, node.container_config("true", mounts=[one]))
            assert caught.value.details().startswith("ImageVolumeMountFailed: ")
        one = cri.Mount(container_path="/p", image=image, readonly=True, image_sub_path="no")
        with pytest.raises(grpc.RpcError) as caught:
            node.create(sandbox, node.container_config("true", mounts=[one]))
        assert caught.value.details().startswith("ImageVolumeMountFailed: ")
        assert not node.runtime.ListContainers(cri.ListContainersRequest()).containers
    finally:
        subprocess.run(["umount", str(tmp_path / "private")], check=True)


def test_features_of_the_default_handler(node):
    (handler,) = node.runtime.Status(cri.StatusRequest()).runtime_handlers
    assert (handler.name, handler.features.recursive_read_only_mounts) == ("", True)
    assert handler.features.user_namespaces is True


@pytest.mark.full
def test_mounts_that_reach_the_node(node, shared):
    """A privileged container mounts for the node; what is mounted below a read-only mount stays writable."""
    config = node.sandbox_config()
    config.linux.security_context.privileged = True
    sandbox = node.run(config)
    linux = cri.LinuxContainerConfig()
    linux.security_context.privileged = True
    both = mount(shared, "/shared", propagation=cri.PROPAGATION_BIDIRECTIONAL)
    text, container = output(node, sandbox, "mount -t tmpfs mine /shared/late", mounts=[both], linux=linux)
    assert text == ""
    assert os.path.ismount(shared / "late")
    for fields, expected in (({}, "writable\n"), ({"recursive_read_only": True}, "read-only\n")):
        one = mount(shared, "/shared", readonly=True, **fields)
        script = "touch /shared/x && echo wrong; touch /shared/late/x && echo writable || echo read-only"
        found, _ = output(node, sandbox, f"{{ {script}; }} 2>/dev/null", name=expected.strip(), mounts=[one])
        assert found == expected
    node.runtime.StopContainer(cri.StopContainerRequest(container_id=container))
    assert os.path.ismount(shared / "late")


@pytest.mark.full
def test_a_sandbox_with_a_user_namespace(node, tmp_path):
    mapping = cri.IDMapping(host_id=2_000_000, container_id=0, length=65536)
    config = node.sandbox_config(host_network=False)
    options = config.linux.security_context.namespace_options.userns_options
    options.mode = cri.POD
    options.uids.append(mapping)
    options.gids.append(mapping)
    sandbox = node.run(config)
    (tmp_path / "dir").mkdir()
    os.chown(tmp_path / "dir", 1000, 1000)
    (tmp_path / "file").write_text("file\n")
    maps = {"uidMappings": [mapping], "gidMappings": [mapping]}
    mounts = [mount(tmp_path / "dir", "/d", **maps), mount(tmp_path / "file", "/d/file", **maps)]
    script = "stat -c %u /d /d/file; cat /d/file; touch /d/new; cat /proc/self/uid_map"
    text, _ = output(node, sandbox, script, mounts=mounts)
    assert text.split() == ["1000", "0", "file", "0", "2000000", "65536"]
    assert (tmp_path / "dir").stat().st_uid == 1000
    assert (tmp_path / "dir" / "new").stat().st_uid == 0
    assert node.sandbox_status(sandbox).linux.namespaces.options.userns_options == options
