"""Images and pods of the early draft (0.1.0), from archive to what apps see (E1, E2, E5 to E8)."""

import json
import os
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest
import yaml

from kurma_core.linux.cgroups import Layout
from tests.integration.pods.early import app_manifest, archive, fileset_manifest, tree
from tests.kit.house import received
from tests.kit.images import busybox_root
from tests.kit.waiting import PATIENCE, until

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

    def small(name, point, path, *, write, read):
        script = f"echo the {write} > {path}/{write}; while ! [ -s {path}/{read} ]; do sleep 0.02; done; "
        manifest = app_manifest(
            f"example.com/{name}-1.0.0",
            script + f'echo "$AC_APP_NAME: $(cat {path}/{read})"',
            mountPoints=[{"name": point, "path": path}],
        )
        return archive(at / f"{name}.aci", at / "base", manifest)

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
    asks = small("asks", "scratch", "/scratch", write="question", read="answer")
    tells = small("tells", "work", "/both", write="answer", read="question")
    eater = archive(
        at / "eater.aci",
        at / "base",
        app_manifest(
            "example.com/eater-1.0.0",
            "tail -c 200m /dev/zero; (echo $?; grep CapBnd /proc/self/status) > /out/meal; "
            "mv /out/meal /out/eaten; exec nc -l -p 9000 -e cat /dev/zero",
            mountPoints=[{"name": "out", "path": "/out"}],
            isolators=[
                {"name": "memory/limit", "val": "1G"},
                {"name": "cpu/shares", "val": "20"},
                {"name": "capabilities/bounding-set", "val": "CAP_CHOWN CAP_KILL"},
                {"name": "block-io/read-bandwidth", "val": f"{at} 4M"},
                {"name": "blockIO/writeBandwidth", "val": f"{at} 8M"},
                {"name": "networkIO/writeBandwidth", "val": "eth0 1M"},
            ],
        ),
    )
    return SimpleNamespace(base=base, libs=libs, worker=worker, solo=solo, asks=asks, tells=tells, eater=eater)


@pytest.fixture
def kurma(house, images, tmp_path):
    """``kurma(*words)``: the command itself, on a store that has the images; ``kurma.start``: not waited for.

    :param path: a directory with plugins of the test's own."""
    for path, _ in vars(images).values():
        house.client.here.images.fetch(path)

    def begin(*words, pod=None, path=None):
        if pod is not None:
            (tmp_path / "pod.json").write_text(json.dumps(pod))
            words = (*words, "--pod", str(tmp_path / "pod.json"))
        start = "from kurma_core.cli.main import main; raise SystemExit(main())"
        command = [sys.executable, "-c", start, "--dir", house.state, "--config", house.config_file, *words]
        given = {**os.environ, "PYTHONPATH": str(path)} if path else None
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given)

    def run(*words, pod=None):
        with begin(*words, pod=pod) as process:
            out, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    run.start = begin
    return run


def pod_of(images, *apps, **fields):
    return {
        "acVersion": "0.1.0",
        "acKind": "ContainerRuntimeManifest",
        "apps": [{"app": f"example.com/{name}-1.0.0", "imageID": getattr(images, name)[1][:47]} for name in apps],
        **fields,
    }


@pytest.mark.parametrize("renderer", ["overlay", "copy"])
def test_early_pod_runs_as_it_says(kurma, images, house, tmp_path, renderer):
    work = tree(tmp_path / "on-the-host", given="by the host\n")
    work.chmod(0o777)  # the app may write there, but for readOnly
    pod = pod_of(
        images,
        "worker",
        uuid=UUID,
        volumes=[{"kind": "host", "source": str(work), "readOnly": True, "fulfills": ["spare", "work"]}],
        isolators=[{"name": "memory/limit", "value": "4G"}],
        annotations={"ip-address": "10.1.2.3"},
    )
    pod["apps"][0]["isolators"] = [{"name": "memory/limit", "val": "2G"}]
    done = kurma("run", "--net", "none", "--renderer", renderer, pod=pod)
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
    assert app["image"]["id"] == house.client.here.images.get(images.worker[1]).id
    assert record.manifest["isolators"] == [{"name": "resource/memory", "value": {"limit": "4Gi"}}]
    assert record.manifest["annotations"] == [{"name": "ip-address", "value": "10.1.2.3"}]
    assert "kurma.io/" not in json.dumps(record.manifest)

    again = kurma("run", "--net", "none", pod=pod)
    assert again.returncode == 125
    assert f"a pod with this UUID exists\n  hint: kurma rm {UUID.lower()}" in again.stderr


def test_early_empty_volume_is_shared_by_all_that_it_fulfils(kurma, images):
    """Each app calls it otherwise; they meet in it while both run, and it goes with the pod."""
    pod = pod_of(images, "asks", "tells", volumes=[{"kind": "empty", "fulfills": ["work", "scratch"]}])
    done = kurma("run", "--net", "none", pod=pod)
    assert done.returncode == 0, done.stderr
    assert "asks: the answer" in done.stdout
    assert "tells: the question" in done.stdout
    prepared = kurma("prepare", "--net", "none", pod=pod)
    assert prepared.returncode == 0, prepared.stderr
    manifest = json.loads(kurma("cat-manifest", prepared.stdout.strip()).stdout)
    assert [app["mounts"] for app in manifest["apps"]] == [
        [{"volume": "work", "path": "/scratch"}],
        [{"volume": "work", "path": "/both"}],
    ]
    assert manifest["volumes"] == [{"name": "work", "kind": "empty"}]


def in_cgroup(pid, controller, *names):
    """What the host's kernel holds in the process's cgroup, and in the one above."""
    hierarchy = Layout.detect().of(controller)
    wanted = controller if hierarchy.version == 1 else ""
    with open(f"/proc/{pid}/cgroup") as file:
        lines = [line.strip().split(":", 2) for line in file]
    (path,) = [path for _, controllers, path in lines if wanted in controllers.split(",")]
    for directory in (hierarchy.directory + path, os.path.dirname(hierarchy.directory + path)):
        (name,) = [name for name in names if os.path.exists(f"{directory}/{name}")]
        with open(f"{directory}/{name}") as file:
            yield file.read().strip()


def test_early_isolators_hold(kurma, images, house, tmp_path):
    """E7, E8, from inside and from outside: those of the image, of the pod for an app, and of the pod."""
    out = tree(tmp_path / "out", before="")
    pod = pod_of(
        images,
        "eater",
        uuid=UUID,
        volumes=[{"kind": "host", "source": str(out), "fulfills": ["out"]}],
        isolators={"memory/limit": "96M"},
    )
    pod["apps"][0]["isolators"] = [{"name": "memory/limit", "val": "48M"}]
    run = kurma.start("run", "--net", "default", pod=pod)
    try:
        until(lambda: (out / "eaten").exists() or run.poll() is not None, "the app's meal")
        record = house.client.pod(UUID.lower())
        (app,) = record.apps
        # The kernel ends what takes more than 48 MiB; and there are CHOWN and KILL.
        assert (out / "eaten").read_text().split() == ["137", "CapBnd:", f"{1 << 0 | 1 << 5:016x}"]
        of_app, of_pod = in_cgroup(app.pid, "memory", "memory.limit_in_bytes", "memory.max")
        assert (of_app, of_pod) == (str(48 << 20), str(96 << 20))
        assert next(in_cgroup(app.pid, "cpu", "cpu.shares", "cpu.weight")) in ("20", "2")
        for name, limit in (("read", 4 << 20), ("write", 8 << 20)):
            files = (f"blkio.throttle.{name}_bps_device", "io.max")
            controller = "blkio" if Layout.detect().of("blkio") else "io"
            assert str(limit) in next(in_cgroup(app.pid, controller, *files))
        assert received(house, record) < 1.3 * (1 << 20)
    finally:
        run.terminate()
        _, errors = run.communicate(timeout=PATIENCE)
    found = house.client.pod(UUID.lower()).isolators
    outcomes = {(one.name, one.scope): one.outcome for one in found if not one.default}
    flat = "modified" if Layout.detect().of("blkio") else "enforced"
    assert outcomes == {
        ("resource/memory", None): "enforced",
        ("resource/memory", "eater"): "enforced",
        ("os/linux/cpu-shares", "eater"): "enforced",
        ("os/linux/capabilities-retain-set", "eater"): "enforced",
        ("kurma.io/block-read-bandwidth", "eater"): "enforced",
        ("kurma.io/block-write-bandwidth", "eater"): flat,
        ("kurma.io/network-write-bandwidth", "eater"): "modified",
    }, errors


def test_early_host_network_is_granted_or_refused(kurma, images, house):
    ours = os.readlink("/proc/self/ns/net")
    alone = kurma("run", "--net", "none", images.solo[1])
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() != ours
    assert "os/linux/namespaces of app app is ignored: the pod's net namespace is its own" in alone.stderr
    refused = kurma("run", images.solo[1])
    assert refused.returncode == 125
    assert "app app: its image example.com/solo asks for os/linux/namespaces=net" in refused.stderr
    assert "grants: {app: {digests: [sha512-" in refused.stderr
    private = kurma("run", "--net", "none", pod=pod_of(images, "solo", isolators={"private-network": "true"}))
    assert private.stdout.strip() not in ("", ours)
    of_pod, of_app = pod_of(images, "asks", isolators={"private-network": "false"}), pod_of(images, "asks")
    of_app["apps"][0]["isolators"] = {"private-network": "false"}
    for pod, who in ((of_pod, "the pod asks"), (of_app, "the pod's manifest asks")):
        refused = kurma("run", pod=pod)
        assert refused.returncode == 125
        assert f"app asks: {who} for os/linux/namespaces=net" in refused.stderr
    of_pod["apps"] = of_app["apps"] = pod_of(images, "solo")["apps"]
    refused = kurma("run", pod=of_pod)
    assert refused.returncode == 125
    typed = kurma("run", "--net", "host", pod=of_pod)
    assert (typed.returncode, typed.stdout.strip()) == (0, ours), typed.stderr
    grant = refused.stderr.partition("kurma.yml: ")[2].splitlines()[0]
    with open(house.config_file, "r+") as file:
        config = {**json.load(file), **yaml.safe_load(grant)}
        file.seek(0)
        json.dump(config, file)
    host = kurma("run", pod=of_pod)
    assert (host.returncode, host.stdout.strip()) == (0, ours), host.stderr
    assert "has os/linux/namespaces=net by the grant " in host.stderr
    by_option = kurma("run", "--grant", "os/linux/namespaces=net", pod=pod_of(images, "solo"))
    assert (by_option.returncode, by_option.stdout.strip()) == (0, ours), by_option.stderr


def test_early_fileset_alone_runs_what_it_is_told_to(kurma, images):
    nothing = kurma("run", "--net", "none", images.base[1])
    assert nothing.returncode == 125
    assert "nothing to run" in nothing.stderr
    told = kurma("run", "--net", "none", "--exec", "/bin/cat", images.base[1], "--", "/data/from-image")
    assert (told.returncode, told.stdout) == (0, "seed\n"), told.stderr


def test_early_image_runs_by_the_name_that_its_document_has(kurma, images):
    """One of the store, and only where it may stand for its name."""
    words = ("run", "--net", "none", "--pull", "never", "example.com/solo-1.0.0")
    refused = kurma(*words)
    assert refused.returncode == 125
    assert "was fetched from a local file, without a signature" in refused.stderr
    done = kurma(*words[:-1], "--insecure-options=image", words[-1])
    assert (done.returncode, done.stdout.startswith("net:")) == (0, True), done.stderr


def test_early_images_and_pods_are_printed_in_the_late_form(kurma, images, house, tmp_path):
    path, early_id = images.worker
    of_archive = json.loads(kurma("image", "convert", path).stdout)
    assert of_archive == json.loads(kurma("image", "convert", early_id[:20]).stdout)
    assert of_archive["dependencies"][1]["kurma.io/root"] == "/opt/libs"
    with tarfile.open(path) as tar:
        own = b"".join(tar.extractfile(name).read() for name in ("app", "fileset")).decode()
    assert kurma("image", "cat-manifest", "--original", early_id[:20]).stdout == own
    volumes = [{"kind": "host", "source": str(tmp_path), "fulfills": ["spare", "work"]}]
    (tmp_path / "early.json").write_text(json.dumps(pod_of(images, "worker", uuid=UUID, volumes=volumes)))
    late = json.loads(kurma("pod", "convert", str(tmp_path / "early.json")).stdout)
    (app,) = late["apps"]
    assert app["image"]["id"] == house.client.here.images.get(early_id).id
    assert app["mounts"] == [{"volume": "spare", "path": "/work"}]
    prepared = kurma("prepare", "--net", "none", pod=late)
    assert prepared.stdout.strip() == UUID.lower(), prepared.stderr


def test_early_pod_whose_image_is_missing_says_which(kurma, images):
    pod = pod_of(images, "worker")
    pod["apps"][0]["imageID"] = "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac"
    missing = kurma("run", "--net", "none", pod=pod)
    assert missing.returncode == 125
    assert "the store holds no image sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac" in missing.stderr
