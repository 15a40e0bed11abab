"""Mounts of containers, user namespaces and DNS of sandboxes: kubelet's messages as Kurma's requests (C6, C8)."""

import grpc
import pytest
from kurma_cri.mounts import app_mounts, explained, grants
from kurma_cri.options import Handler, Options
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.records import Sandbox
from kurma_cri.rpc import RpcError
from kurma_cri.sandbox_request import sandbox_request

from kurma_core.errors import StagerError, VolumeError

MAPPING = cri.IDMapping(host_id=100000, container_id=0, length=65536)


def sandbox(mapped=False):
    config = cri.PodSandboxConfig(metadata=cri.PodSandboxMetadata(name="a", namespace="n", uid="u"))
    if mapped:
        options = config.linux.security_context.namespace_options.userns_options
        options.mode = cri.POD
        options.uids.append(MAPPING)
        options.gids.append(MAPPING)
    return Sandbox("0" * 64, None, config, "", 1)


def volume(mapped=False, **fields):
    config = cri.ContainerConfig(mounts=[cri.Mount(**{"container_path": "/c", **fields})])
    (mount,) = app_mounts(sandbox(mapped), config, {"id": "sha512-x"})
    assert mount["path"] == fields.get("container_path", "/c")
    return {
        key: value for key, value in mount["appVolume"].items() if key not in ("name", "kind", "kurma.io/create")
    }


def test_mounts_of_the_host():
    plain = {"source": "/h", "readOnly": False, "kurma.io/propagation": "private"}
    assert volume(host_path="/h") == plain
    assert volume(host_path="/h", selinux_relabel=True) == plain, "kubelet sets it on nodes without SELinux, too"
    read_only = {**plain, "readOnly": True, "kurma.io/recursive-read-only": False}
    assert volume(host_path="/h", readonly=True) == read_only
    strict = volume(host_path="/h", readonly=True, recursive_read_only=True)
    assert strict == {**read_only, "kurma.io/recursive-read-only": True}
    for word, name in ((cri.PROPAGATION_HOST_TO_CONTAINER, "rslave"), (cri.PROPAGATION_BIDIRECTIONAL, "rshared")):
        assert volume(host_path="/h", propagation=word) == {**plain, "kurma.io/propagation": name}
    mapped = volume(True, host_path="/h", uidMappings=[MAPPING], gidMappings=[MAPPING])
    assert mapped == {**plain, "kurma.io/idmap": True}
    assert volume(host_path="/h", mount_options=["noexec", "noexec"])["kurma.io/options"] == ["noexec"]


def test_mounts_of_images():
    image = cri.ImageSpec(image="id")
    found = volume(image=image, readonly=True, image_sub_path="a//b/")
    assert found == {"readOnly": True, "kurma.io/image": "sha512-x", "kurma.io/sub-path": "a/b"}
    assert "kurma.io/sub-path" not in volume(image=image, readonly=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"container_path": "c", "host_path": "/h"}, "container_path 'c' must be absolute"),
        ({"host_path": "h"}, "host_path 'h' must be absolute"),
        ({"host_path": "/h", "image_sub_path": "x"}, "image_sub_path is for images"),
        ({"host_path": "/h", "propagation": 7}, "propagation 7 is not known"),
        ({"host_path": "/h", "mount_options": ["bind"]}, "mount_options 'bind' is none of noexec, nosuid, nodev"),
        ({"host_path": "/h", "uidMappings": [MAPPING]}, "must be those of the sandbox's user namespace"),
        (
            {"host_path": "/h", "recursive_read_only": True},
            "RROUnsupported: mounts: /c: recursive_read_only needs re",
        ),
        (
            {"host_path": "/h", "recursive_read_only": True, "readonly": True, "propagation": 1},
            "RROUnsupported: mounts: /c: recursive_read_only needs propagation private",
        ),
        ({"image": cri.ImageSpec(image="x")}, "ImageVolumeMountFailed: mounts: /c: an image is mounted read-only"),
        (
            {"image": cri.ImageSpec(image="id"), "readonly": True, "image_sub_path": "../x"},
            "ImageVolumeMountFailed: ",
        ),
        ({"image": cri.ImageSpec(image="x"), "readonly": True, "host_path": "/h"}, "ImageVolumeMountFailed: "),
        (
            {"image": cri.ImageSpec(), "readonly": True},
            "ImageVolumeMountFailed: mounts: /c: the image has no name",
        ),
    ],
)
def test_mounts_that_are_refused(fields, said):
    with pytest.raises(RpcError) as caught:
        volume(**fields)
    assert said in caught.value.message
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_a_container_with_shared_mounts_has_the_right():
    config = cri.ContainerConfig(mounts=[cri.Mount(propagation=cri.PROPAGATION_HOST_TO_CONTAINER), cri.Mount()])
    assert grants(config) == ()
    config.mounts[1].propagation = cri.PROPAGATION_BIDIRECTIONAL
    assert grants(config) == ("kurma.io/propagation=rshared",)


def test_errors_begin_as_kubelet_expects():
    image = cri.Mount(image=cri.ImageSpec(image="x"))
    config = cri.ContainerConfig(mounts=[cri.Mount(), image])
    for name, said in (
        ("mount-1", "ImageVolumeMountFailed: no"),
        ("mount-0", "no"),
        ("id-mount-1", "ImageVolumeMou"),
    ):
        error = VolumeError("no", volume=name)
        explained(error, config)
        assert error.message.startswith(said)
    config = cri.ContainerConfig(mounts=[cri.Mount(recursive_read_only=True)])
    error = StagerError("cannot")
    explained(error, config)
    assert error.message == "RROUnsupported: cannot"


def request(config):
    return sandbox_request(
        "0" * 64, config, Handler("", userns="auto"), 1, Options("/s", "default", "127.0.0.1", 0)
    )


def test_dns_is_written_as_given():
    config = sandbox().config
    assert request(config).dns is None
    config.dns_config.servers.extend(["10.0.0.10"] * 2)
    dns = request(config).dns
    assert (dns.exact, dns.nameservers, dns.search) == (True, ("10.0.0.10", "10.0.0.10"), ())
    config.dns_config.Clear()
    config.dns_config.SetInParent()
    assert request(config).dns.exact, "an empty file"
