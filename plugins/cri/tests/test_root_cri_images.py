"""The ImageService over the socket of a real kurmad, with a real registry (C19, C20)."""

import base64
import json
import os
import pathlib
import subprocess
import threading

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.conftest import refused
from tests.integration.fetching.front import front
from tests.kit.images import shell
from tests.kit.registry import BUSYBOX, OciDir, layer_tar, running_registry
from tests.kit.waiting import until

pytestmark = pytest.mark.root
CODES = grpc.StatusCode


@pytest.fixture(scope="module")
def layers():
    known = {"passwd": b"alice:x:1000:100::/home/alice:/bin/sh\n", "group": b"users:x:100:\nextra:x:4000:alice\n"}
    files = {"etc": None, **{f"etc/{name}": text for name, text in known.items()}}
    return [layer_tar({"bin": None, "bin/busybox": BUSYBOX.read_bytes(), "bin/sh": ("busybox",), **files})]


@pytest.fixture
def oci(tmp_path):
    (tmp_path / "layout").mkdir()
    return OciDir(tmp_path / "layout")


@pytest.fixture
def registry(tmp_path):
    with running_registry(tmp_path / "registry") as found:
        yield found


@pytest.fixture
def image(node, oci, registry, layers):
    """Pushes an image whose app sleeps. :returns: its name and the digest of its manifest."""
    config = {"Entrypoint": ["/bin/sh", "-c"], "Cmd": ["exec sleep 1000"], "User": "65534:0", "StopSignal": "USR1"}
    oci.image("v1", layers, config)
    name = f"{registry.host}/team/app"
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    yield f"{name}:v1", oci.manifests[-1]["digest"]
    # The state directory is shared with other tests.
    for record in node.house.client.images_list().images:
        if any(registry.host in came.locator for came in record.record.provenance):
            node.house.client.image_rm(record.record.id, managed=True)


def pull(node, name, **auth):
    request = cri.PullImageRequest(image=cri.ImageSpec(image=name), auth=cri.AuthConfig(**auth) if auth else None)
    return node.images.PullImage(request).image_ref


def status(node, name, verbose=False):
    """:returns: the image; None: an empty answer."""
    answer = node.images.ImageStatus(cri.ImageStatusRequest(image=cri.ImageSpec(image=name), verbose=verbose))
    return answer if verbose else answer.image if answer.HasField("image") else None


def remove(node, name):
    node.images.RemoveImage(cri.RemoveImageRequest(image=cri.ImageSpec(image=name)))


def listed(node, name=""):
    wanted = cri.ImageFilter(image=cri.ImageSpec(image=name))
    found = list(node.images.ListImages(cri.ListImagesRequest(filter=wanted)).images)
    streamed = list(node.images.StreamImages(cri.StreamImagesRequest(filter=wanted)))
    assert all(answer.images for answer in streamed)
    assert [one for answer in streamed for one in answer.images] == found
    return found


def run_image(node, sandbox, reference):
    config = node.container_config()
    config.image.image = reference
    container = node.create(sandbox, config)
    node.start(container)
    return container


def test_the_life_of_an_image(node, image):
    name, digest = image
    repository = name.rpartition(":")[0]
    assert status(node, name) is None
    id = pull(node, name)
    assert id.startswith("sha256:")
    assert len(id) == 71
    found = status(node, name)
    assert (found.id, list(found.repo_tags), list(found.repo_digests)) == (id, [name], [f"{repository}@{digest}"])
    assert (found.uid.value, found.username, found.pinned) == (65534, "", False)
    assert found.size > BUSYBOX.stat().st_size
    digits = id.removeprefix("sha256:")
    for reference in (id, digits, digits[:12], f"{repository}@{digest}", f"{name}@{digest}"):
        assert status(node, reference) == found
        assert listed(node, reference) == [found]
    assert found in listed(node)
    info = json.loads(status(node, id, verbose=True).info["info"])
    assert info["imageSpec"]["config"]["Cmd"] == ["exec sleep 1000"]

    sandbox = node.run()
    container = run_image(node, sandbox, id)
    told = node.status(container)
    assert (told.image_id, told.image_ref) == (id, f"{repository}@{digest}")
    kurma = node.house.kurma
    assert "kubelet" in kurma.out("image", "list")
    assert "kubelet manages it" in kurma("image", "rm", name.replace("127", "docker://127", 1)).stderr

    # Removed, it is not listed any more, and the container goes on with its own.
    remove(node, digits)
    assert status(node, name) is None
    assert listed(node, id) == []
    with refused(CODES.NOT_FOUND, id):
        node.create(sandbox, node_config(node, id))
    assert node.status(container).state == cri.CONTAINER_RUNNING
    node.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))
    for _ in range(2):
        remove(node, name)
    stored = [one.record for one in node.house.client.images_list().images]
    assert not [one for one in stored if any(repository in came.locator for came in one.provenance)]


def node_config(node, reference):
    config = node.container_config(name="second")
    config.image.image = reference
    return config


def test_the_file_system_of_images(node):
    for systems in (answer := node.images.ImageFsInfo(cri.ImageFsInfoRequest())).image_filesystems, None:
        if systems is not None:
            (system,) = systems
            assert os.path.isdir(system.fs_id.mountpoint)
            assert system.used_bytes.value > BUSYBOX.stat().st_size
            assert system.inodes_used.value > 0
            assert system.timestamp > 0
    assert answer.container_filesystems[0].fs_id.mountpoint == answer.image_filesystems[0].fs_id.mountpoint


@pytest.mark.full
def test_one_image_by_several_names(node, image, registry, oci):
    """One ID, whatever registry or tag it came by; each name is removed with it."""
    name, digest = image
    registry.push(f"oci:{oci.path}:v1", "other/name:v2")
    second = f"{registry.host}/other/name:v2"
    id = pull(node, name)
    assert pull(node, second) == id
    found = status(node, id)
    assert sorted(found.repo_tags) == sorted([name, second])
    assert len(found.repo_digests) == 2
    # By digest it has no tag of its own.
    assert pull(node, f"{registry.host}/other/name@{digest}") == id
    assert sorted(status(node, id).repo_tags) == sorted([name, second])
    remove(node, second)
    assert status(node, name) is None
    assert pull(node, f"{registry.host}/other/name@{digest}") == id
    only = status(node, id)
    assert (list(only.repo_tags), list(only.repo_digests)) == ([], [f"{registry.host}/other/name@{digest}"])


@pytest.mark.full
def test_a_tag_moves_to_the_newer_image(node, image, registry, oci, layers):
    name, digest = image
    first = pull(node, name)
    oci.image("v2", layers, {"Cmd": ["/bin/true"], "User": "daemon"})
    registry.push(f"oci:{oci.path}:v2", "team/app:v1")
    second = pull(node, name)
    assert first != second
    assert (status(node, name).id, status(node, name).username) == (second, "daemon")
    for _ in range(2):
        old = status(node, first)
        assert (list(old.repo_tags), list(old.repo_digests)) == ([], [f"{name.rpartition(':')[0]}@{digest}"])
        # The tag does not come back to the older one with the removal of the newer one.
        remove(node, second)
        assert status(node, name) is None


@pytest.mark.full
def test_images_of_others_are_pinned(node, image):
    """Kubelet deletes what no container of its own uses: never what people fetched, or their pods use."""
    name, _ = image
    client = node.house.client
    record = client.image_fetch(f"docker://{name}")
    assert status(node, name).pinned
    id = pull(node, name)
    assert not status(node, name).pinned
    pod = client.prepare(node.house.request({"main": {"image": record.id}}))
    assert status(node, name).pinned
    with refused(CODES.FAILED_PRECONDITION, pod.name):
        remove(node, id)
    assert status(node, name).id == id
    assert record.id not in {one.name for one in client.image_gc(grace=0.0, dry_run=True).removed}
    client.rm(pod.uuid)
    assert not status(node, name).pinned
    volume = {"name": "tools", "kind": "image", "kurma.io/image": record.id}
    mounts = [{"volume": "tools", "path": "/tools"}]
    pod = client.prepare(node.house.request({"main": {"app": shell("true"), "mounts": mounts}}, volumes=[volume]))
    assert status(node, name).pinned
    with refused(CODES.FAILED_PRECONDITION, pod.name):
        remove(node, id)
    client.rm(pod.uuid)
    assert record.id not in {one.name for one in client.image_gc(grace=0.0, dry_run=True).removed}
    assert not status(node, name).pinned
    remove(node, id)
    assert status(node, name) is None


def test_an_image_that_a_container_mounts_is_in_use(node, image):
    """It is not listed once it is removed, and stays for the container that mounts it (C8, C19)."""
    name, digest = image
    id = pull(node, name)
    client, sandbox = node.house.client, node.run()
    mount = cri.Mount(container_path="/tools", image=cri.ImageSpec(image=id), readonly=True)
    container = node.started(sandbox, "sleep", "1000", mounts=[mount])
    (shown,) = node.status(container).mounts
    assert (shown.image.image, shown.image.image_ref) == (id, f"{name.rpartition(':')[0]}@{digest}")
    (record,) = (one.record for one in client.images_list().images if one.record.released is False
                 and any(name in came.locator for came in one.record.provenance))  # fmt: skip
    assert record.id not in {one.name for one in client.image_gc(grace=0.0, dry_run=True).removed}
    remove(node, name)
    assert status(node, name) is None
    assert record.id not in {one.name for one in client.image_gc(grace=0.0, dry_run=True).removed}
    request = cri.ExecSyncRequest(container_id=container, cmd=["/tools/bin/busybox", "echo", "here"])
    assert node.runtime.ExecSync(request).stdout == b"here\n"
    node.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
    remove(node, name)
    assert record.id not in {one.record.id for one in client.images_list().images}


@pytest.mark.full
def test_refused_pulls(node, image, registry):
    name, _ = image
    with refused(CODES.NOT_FOUND, "not found"):
        pull(node, name.replace(":v1", ":v9"))
    with refused(CODES.UNKNOWN, "RegistryUnavailable: "):
        pull(node, "127.0.0.1:1/team/app")
    for text in ("", "Nginx", "sha256:" + "a" * 64):
        with refused(CODES.INVALID_ARGUMENT):
            pull(node, text)
    with refused(CODES.INVALID_ARGUMENT, "runtime handler 'other'"):
        spec = cri.ImageSpec(image=name, runtime_handler="other")
        node.images.PullImage(cri.PullImageRequest(image=spec))
    with refused(CODES.INVALID_ARGUMENT, "base64"):
        pull(node, name, auth="!")


@pytest.mark.full
def test_an_untrusted_image(make_house, make_node, oci, registry, layers, tmp_path):
    section = {"socket": f"{tmp_path}/cri.sock", "network": "default"}
    house = make_house(
        {"trust": {"registry": "signed"}, "plugins": {"services": {"cri": {"config": section}}}},
    )
    node = make_node(house)
    oci.image("v1", layers, {"Cmd": ["/bin/true"]})
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    with refused(CODES.UNKNOWN, "SignatureValidationFailed: "):
        pull(node, f"{registry.host}/team/app:v1")


@pytest.mark.full
def test_credentials(node, oci, layers, tmp_path):
    """Of each pull its own, and in no log."""
    subprocess.run(["htpasswd", "-Bbc", str(tmp_path / "users"), "user", "hunter22"], check=True)
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "users")}}
    oci.image("v1", layers, {"Cmd": ["/bin/true"]})
    with running_registry(tmp_path / "closed", auth=auth) as registry:
        registry.push(f"oci:{oci.path}:v1", "team/app:v1", "--dest-creds=user:hunter22")
        name = f"{registry.host}/team/app:v1"
        both = base64.b64encode(b"user:hunter22").decode()
        id = pull(node, name, username="user", password="hunter22", server_address=f"http://{registry.host}/v1/")
        assert pull(node, name, auth=both) == id
        for given in ({}, {"username": "user", "password": "wrong"}):
            with refused(CODES.UNKNOWN, "credentials"):
                pull(node, name, **given)
        remove(node, id)
    assert "hunter22" not in node.daemon.log.read_text()
    assert both not in node.daemon.log.read_text()


@pytest.mark.full
def test_two_pulls_do_the_work_once_and_a_cancelled_one_stops(node, oci, registry):
    big = layer_tar({"data": os.urandom(4_000_000)})
    oci.image("v1", [big], {"Cmd": ["/bin/true"]})
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    with front(registry.host) as slow:
        name = f"{slow.host}/team/app:v1"
        blob = oci.layers_of(oci.manifests[-1])[-1]
        slow.stall = lambda path: 1_000_000 if path.endswith(blob) else None
        spec = cri.PullImageRequest(image=cri.ImageSpec(image=name))
        call = node.images.PullImage.future(spec)
        partial = f"{node.house.state}/images/partial"
        until(lambda: _received(partial), "some of the layer has come")
        call.cancel()
        until(lambda: not _received(partial, locked=True), "the pull has stopped")
        slow.stall = lambda path: None
        slow.pace = 0.01
        found = []
        threads = [threading.Thread(target=lambda: found.append(pull(node, name))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found[0] == found[1]
        # The rest of the layer is asked for, once.
        rest = lambda: [asked for asked in slow.of(blob) if asked.start]  # noqa: E731
        until(rest, "the registry has seen the end of the request")
        assert len(rest()) == 1, slow.asked
        remove(node, name)


def _received(directory, locked=False):
    """Partial files with some bytes. :param locked: only those that a process writes to."""
    found = [path for path in pathlib.Path(directory).glob("*") if path.stat().st_size]
    if not locked:
        return found
    return [
        path for path in found if subprocess.run(["flock", "--nonblock", path, "true"], check=False).returncode
    ]
