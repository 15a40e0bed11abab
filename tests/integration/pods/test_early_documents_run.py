"""Images and pods of the early draft (0.1.0), from archive to what apps see (E1, E2, E5 to E8)."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from types import SimpleNamespace

import pytest

from tests.integration.pods.support import busybox_root

pytestmark = pytest.mark.root

UUID = "6733C088-A507-4694-AABF-EDBE4FC5266F"
KEPT = ["busybox", "sh", "cat", "ls", "id", "env", "echo", "stat", "readlink"]
SEES = """
id -u; id -g; echo "$MODE"
cat /opt/libs/lib /own
ls /opt/libs /data
cat /work/given
echo x 2>&- >/work/probe || echo refused
"""


def archive(path, rootfs, app=None, fileset=None):
    """Path and early ID of an archive of the early layout (E1)."""
    with tarfile.open(path, "w") as tar:
        for name, document in (("app", app), ("fileset", fileset)):
            if document is not None:
                text = json.dumps(document).encode()
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text), 0o644
                tar.addfile(info, BytesIO(text))
        tar.add(rootfs, "rootfs")
    with open(path, "rb") as file:
        return str(path), "sha256-" + hashlib.file_digest(file, "sha256").hexdigest()


def app_manifest(name, script, **fields):
    return {
        "acVersion": "0.1.0",
        "acKind": "AppManifest",
        "name": name,
        "os": "linux",
        "arch": "amd64",
        "exec": ["/bin/sh", "-c", script],
        "user": "0",
        "group": "0",
        **fields,
    }


def fileset_manifest(name, *dependencies, files=()):
    return {
        "acVersion": "0.1.0",
        "acKind": "FilesetManifest",
        "name": name,
        "dependencies": list(dependencies),
        "files": list(files),
    }


def tree(path, **files):
    for name, text in files.items():
        path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        path.joinpath(name).write_text(text)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Archives: base and libs, filesets; worker, both, on the two; solo, an app alone."""
    at = tmp_path_factory.mktemp("early")
    base = archive(
        at / "base.aci", busybox_root(str(at / "base")), None, fileset_manifest("example.com/base-1.0.0")
    )
    libs_tree = tree(at / "libs", lib="of libs\n", dropped="not wanted\n")
    libs = archive(at / "libs.aci", libs_tree, None, fileset_manifest("example.com/libs-2.1"))
    worker = archive(
        at / "worker.aci",
        tree(at / "worker", own="its own\n"),
        app_manifest(
            "example.com/worker-1.0.0",
            SEES,
            user="1000",
            group="100",
            environment={"MODE": "fast"},
            mountPoints=[{"name": "work", "path": "/work"}],
            isolators=[{"name": "memory/limit", "val": "1G"}, {"name": "cpu/shares", "val": "20"}],
        ),
        fileset_manifest(
            "example.com/worker-1.0.0",
            {"hash": base[1], "name": "example.com/base-1.0.0", "root": "/"},
            {"hash": libs[1][:47], "name": "example.com/libs-2.1", "root": "/opt/libs"},
            files=[*(f"/bin/{name}" for name in KEPT), "/data", "/opt/libs/lib", "/own"],
        ),
    )
    solo = archive(
        at / "solo.aci",
        busybox_root(str(at / "solo")),
        app_manifest(
            "example.com/solo-1.0.0",
            "readlink /proc/self/ns/net",
            mountPoints=[{"name": "scratch", "path": "/scratch"}],
            isolators={"privateNetwork": "false"},
        ),
    )
    return SimpleNamespace(base=base, libs=libs, worker=worker, solo=solo)


@pytest.fixture
def kurma(house, images, tmp_path):
    """``kurma(*words)``: the command itself, on a store that has the images."""
    for path, _ in vars(images).values():
        house.client.images.fetch(path)

    def run(*words, pod=None):
        if pod is not None:
            (tmp_path / "pod.json").write_text(json.dumps(pod))
            words = (*words, "--pod", str(tmp_path / "pod.json"))
        start = "from kurma_core.cli.main import main; raise SystemExit(main())"
        command = [sys.executable, "-c", start, "--dir", house.state, "--config", house.config_file, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def pod_of(images, *apps, **fields):
    return {
        "acVersion": "0.1.0",
        "acKind": "ContainerRuntimeManifest",
        "apps": [{"app": f"example.com/{name}-1.0.0", "imageID": getattr(images, name)[1][:47]} for name in apps],
        **fields,
    }


def test_early_pod_runs_as_it_says(kurma, images, house, tmp_path):
    work = tree(tmp_path / "on-the-host", given="by the host\n")
    pod = pod_of(
        images,
        "worker",
        uuid=UUID,
        volumes=[{"kind": "host", "source": str(work), "readOnly": True, "fulfills": ["spare", "work"]}],
        isolators=[{"name": "memory/limit", "value": "4G"}],
        annotations={"ip-address": "10.1.2.3"},
    )
    pod["apps"][0]["isolators"] = [{"name": "memory/limit", "val": "2G"}]
    done = kurma("run", "--net", "none", pod=pod)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1000",
        "100",
        "fast",
        "of libs",
        "its own",
        "/data:",
        "",
        "/opt/libs:",
        "lib",
        "by the host",
        "refused",
    ]
    assert not (work / "probe").exists()
    record = house.client.pod(UUID.lower())
    assert record.uuid == UUID.lower()
    (app,) = record.manifest["apps"]
    assert app["app"]["isolators"] == [
        {"name": "resource/memory", "value": {"limit": "2Gi"}},
        {"name": "os/linux/cpu-shares", "value": 20},
    ]
    assert app["image"]["id"] == house.client.images.get(images.worker[1]).id
    assert record.manifest["isolators"] == [{"name": "resource/memory", "value": {"limit": "4Gi"}}]
    assert record.manifest["annotations"] == [{"name": "ip-address", "value": "10.1.2.3"}]
    assert "kurma.io/" not in json.dumps(record.manifest)

    again = kurma("run", "--net", "none", pod=pod)
    assert again.returncode == 125
    assert f"a pod with this UUID exists\n  hint: kurma rm {UUID.lower()}" in again.stderr


def test_early_empty_volume_is_shared_by_all_that_it_fulfils(kurma, images):
    pod = pod_of(images, "solo", "worker", volumes=[{"kind": "empty", "fulfills": ["work", "scratch"]}])
    prepared = kurma("prepare", "--net", "none", pod=pod)
    assert prepared.returncode == 0, prepared.stderr
    manifest = json.loads(kurma("cat-manifest", prepared.stdout.strip()).stdout)
    assert [app["mounts"] for app in manifest["apps"]] == [
        [{"volume": "work", "path": "/scratch"}],
        [{"volume": "work", "path": "/work"}],
    ]
    assert manifest["volumes"] == [{"name": "work", "kind": "empty"}]


def test_early_host_network_is_the_pods_to_ask_for_and_not_the_images(kurma, images):
    ours = os.readlink("/proc/self/ns/net")
    alone = kurma("run", "--net", "none", images.solo[1])
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() != ours
    assert "os/linux/namespaces of app app is ignored: the host's network is not for an image" in alone.stderr
    private = kurma("run", "--net", "none", pod=pod_of(images, "solo", isolators={"private-network": "true"}))
    assert private.stdout.strip() not in ("", ours)
    host = kurma("run", pod=pod_of(images, "solo", isolators={"private-network": "false"}))
    assert (host.returncode, host.stdout.strip()) == (0, ours), host.stderr
    assert "os/linux/namespaces" not in host.stderr


def test_early_fileset_alone_runs_what_it_is_told_to(kurma, images):
    nothing = kurma("run", "--net", "none", images.base[1])
    assert nothing.returncode == 125
    assert "nothing to run" in nothing.stderr
    told = kurma("run", "--net", "none", "--exec", "/bin/cat", images.base[1], "--", "/data/from-image")
    assert (told.returncode, told.stdout) == (0, "seed\n"), told.stderr


def test_early_images_and_pods_are_printed_in_the_late_form(kurma, images, house, tmp_path):
    path, early_id = images.worker
    of_archive = json.loads(kurma("image", "convert", path).stdout)
    assert of_archive == json.loads(kurma("image", "convert", early_id[:20]).stdout)
    assert of_archive["dependencies"][1]["kurma.io/root"] == "/opt/libs"
    volumes = [{"kind": "host", "source": str(tmp_path), "fulfills": ["spare", "work"]}]
    (tmp_path / "early.json").write_text(json.dumps(pod_of(images, "worker", uuid=UUID, volumes=volumes)))
    late = json.loads(kurma("pod", "convert", str(tmp_path / "early.json")).stdout)
    (app,) = late["apps"]
    assert app["image"]["id"] == house.client.images.get(early_id).id
    assert app["mounts"] == [{"volume": "spare", "path": "/work"}]
    prepared = kurma("prepare", "--net", "none", pod=late)
    assert prepared.stdout.strip() == UUID.lower(), prepared.stderr


def test_early_pod_whose_image_is_missing_says_which(kurma, images):
    pod = pod_of(images, "worker")
    pod["apps"][0]["imageID"] = "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac"
    missing = kurma("run", "--net", "none", pod=pod)
    assert missing.returncode == 125
    assert "the store holds no image sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac" in missing.stderr
