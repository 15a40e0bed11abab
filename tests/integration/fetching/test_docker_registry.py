"""``docker://`` against a real registry: resolved, fetched, checked, stored, rendered (R1, R2, R3, S5, S6)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    FetchNotFoundError,
    FetchTLSError,
    FetchUnauthorizedError,
    ImageNotFoundError,
)
from tests.integration.fetching.parts import MakeMachine, watched_steps
from tests.kit.registry import OciDir, Registry, layer_tar, running_registry

pytestmark = pytest.mark.root

CONFIG = {
    "Entrypoint": ["/bin/sh", "-c"],
    "Cmd": ["id"],
    "User": "app",
    "Env": ["PATH=/bin", "GREETING=hello"],
    "WorkingDir": "/srv",
}
PASSWD = b"root:x:0:0::/:/bin/sh\napp:x:1000:1001::/srv:/bin/sh\n"
GROUP = b"root:x:0:\napp:x:1001:\naudio:x:29:app\nwheel:x:10:root,app\n"


@pytest.fixture
def pushed(registry: Registry, oci: OciDir, busybox_layer: bytes) -> str:
    """Two layers; the second takes away and re-creates."""
    top = layer_tar({"etc": None, "etc/passwd": PASSWD, "etc/group": GROUP, "srv": None, "srv/file": b"content"})
    oci.image("v1", [busybox_layer, top], CONFIG)
    registry.push(f"oci:{oci.path}:v1", "team/app:v1")
    return f"docker://{registry.host}/team/app:v1"


def test_from_the_registry_to_a_rendered_tree(machine: MakeMachine, pushed: str, registry: Registry) -> None:
    here = machine()
    record = here.images.fetch(pushed)
    assert record.name == f"{registry.host.replace(':', '_')}/team/app"
    assert record.version == "v1"
    assert record.trust == "digest"
    assert len(record.layers) == 2
    manifest = here.images.manifest(record.id)
    assert manifest.app is not None
    assert manifest.app.exec == ("/bin/sh", "-c", "id")
    assert manifest.app.working_directory == "/srv"
    rendered = here.images.render(record.id)
    assert all(os.path.isdir(layer.path) for layer in rendered.layers)
    flat = here.images.render(record.id, "copy")
    assert Path(flat.layers[0].path, "srv/file").read_bytes() == b"content"
    assert os.access(Path(flat.layers[0].path, "bin/busybox"), os.X_OK)
    assert here.partials() == []
    assert any("plain http (it is on this machine)" in note for note in here.notes)


def test_the_users_own_groups_are_taken_from_the_image(machine: MakeMachine, pushed: str) -> None:
    here = machine()
    app = here.images.manifest(here.images.fetch(pushed).id).app
    assert app is not None
    assert (app.user, app.group, app.supplementary_gids) == ("app", "1001", (10, 29))


def test_the_same_input_has_the_same_id(machine: MakeMachine, pushed: str, tmp_path: Path) -> None:
    one, two = machine("one"), machine("two")
    record = one.images.fetch(pushed)
    assert two.images.fetch(pushed).id == record.id
    with (tmp_path / "export.aci").open("wb") as out:
        one.images.store.export(record.id, out)
    import hashlib

    assert f"sha512-{hashlib.sha512((tmp_path / 'export.aci').read_bytes()).hexdigest()}" == record.id


def test_what_is_there_is_not_asked_for_again(machine: MakeMachine, pushed: str, registry: Registry) -> None:
    here = machine()
    record = here.images.fetch(pushed)
    here.notes.clear()
    assert here.images.resolve(pushed).id == record.id
    assert here.images.resolve(pushed, pull="never").id == record.id
    assert here.notes == [], "the registry was spoken to"
    assert here.images.resolve(record.id[:20]).id == record.id
    assert len(here.images.fetch(pushed, pull="always").provenance) == 1


def test_pull_always_sees_that_a_tag_moved(
    machine: MakeMachine, pushed: str, registry: Registry, oci: OciDir, busybox_layer: bytes
) -> None:
    here = machine()
    old = here.images.fetch(pushed)
    oci.image("v2", [busybox_layer], {"Cmd": ["/bin/sh"]})
    registry.push(f"oci:{oci.path}:v2", "team/app:v1")
    assert here.images.fetch(pushed).id == old.id
    new = here.images.fetch(pushed, pull="always")
    assert new.id != old.id
    assert set(new.layers) < set(old.layers), "a layer that is there is not stored twice"


def test_pull_never(machine: MakeMachine, pushed: str) -> None:
    with pytest.raises(ImageNotFoundError, match="not in the store"):
        machine().images.fetch(pushed, pull="never")


def test_a_missing_tag_and_a_missing_name(machine: MakeMachine, pushed: str, registry: Registry) -> None:
    for name in ("team/app:v9", "team/none:v1"):
        with pytest.raises(FetchNotFoundError, match="not found"):
            machine().images.fetch(f"docker://{registry.host}/{name}")


def test_pinned_by_digest(machine: MakeMachine, pushed: str, registry: Registry) -> None:
    here = machine()
    digest = here.images.fetch(pushed).provenance[0].digest
    pinned = here.images.fetch(f"docker://{registry.host}/team/app@{digest}")
    assert pinned.version is None
    with pytest.raises(FetchNotFoundError):
        here.images.fetch(f"docker://{registry.host}/team/app@sha256:{'0' * 64}")


def test_an_index_of_several_platforms(
    machine: MakeMachine, registry: Registry, oci: OciDir, busybox_layer: bytes
) -> None:
    other = layer_tar({"file": b"another architecture"})
    entries = [
        oci.image(None, [other], {"Cmd": ["no"]}, {"os": "linux", "architecture": "s390x"}),
        oci.image(None, [busybox_layer], {"Cmd": ["yes"]}, {"os": "linux", "architecture": "amd64"}),
        oci.image(
            None, [busybox_layer], {"Cmd": ["yes"]}, {"os": "linux", "architecture": "arm64", "variant": "v8"}
        ),
    ]
    oci.index("multi", entries)
    registry.push(f"oci:{oci.path}:multi", "multi:1")
    here = machine()
    app = here.images.manifest(here.images.fetch(f"docker://{registry.host}/multi:1").id).app
    assert app is not None
    assert app.exec == ("yes",)
    oci.index("foreign", entries[:1])
    registry.push(f"oci:{oci.path}:foreign", "foreign:1")
    with pytest.raises(FetchNotFoundError, match="not made for linux/") as caught:
        here.images.fetch(f"docker://{registry.host}/foreign:1")
    assert caught.value.hint == "it is made for linux/s390x"


def test_whiteouts_over_layers(machine: MakeMachine, registry: Registry, oci: OciDir) -> None:
    base = layer_tar(
        {"a": None, "a/one": b"1", "a/two": b"2", "b": None, "b/old": b"old", "gone": b"x", "kept": b"k"}
    )
    top = layer_tar(
        {
            ".wh.gone": b"",
            "a/.wh.one": b"",
            "b": None,
            "b/.wh..wh..opq": b"",
            "b/new": b"new",
            ".wh.a": b"",
            "a": None,
        }
    )
    oci.image("w", [base, top], {"Cmd": ["x"]})
    registry.push(f"oci:{oci.path}:w", "whiteouts:1")
    here = machine()
    record = here.images.fetch(f"docker://{registry.host}/whiteouts:1")
    for renderer in ("overlay", "copy"):
        layers = here.images.render(record.id, renderer).layers
        tree = Path(layers[-1].path)
        names = sorted(str(path.relative_to(tree)) for layer in layers for path in Path(layer.path).rglob("*"))
        assert len(layers) == 1, "no stager needs to know a whiteout"
        assert names == ["a", "b", "b/new", "kept"]


def test_a_blob_that_was_changed_is_refused(
    machine: MakeMachine, pushed: str, registry: Registry, oci: OciDir
) -> None:
    blob = registry.blob_file(oci.layers_of(oci.manifests[0])[1])
    good = blob.read_bytes()
    content = bytearray(good)
    content[-9] ^= 1
    blob.write_bytes(content)
    here = machine()
    with pytest.raises(FetchError) as caught:
        here.images.fetch(pushed)
    assert isinstance(caught.value, FetchDigestError)
    assert here.images.list() == ()
    blob.write_bytes(good)
    assert here.images.fetch(pushed), "nothing of the wrong bytes may have stayed"
    assert here.partials() == []


def test_asked_twice_at_once_it_is_fetched_once(machine: MakeMachine, pushed: str, registry: Registry) -> None:
    """Two managers of one state directory, as two processes have them."""
    machines = [machine(), machine()]
    steps = watched_steps(machines)
    records = []
    threads = [
        threading.Thread(target=lambda here=here: records.append(here.images.fetch(pushed))) for here in machines
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(records) == 2
    assert len({record.id for record in records}) == 1
    assert steps.count("staging") == 2, "each of the two layers is read once"
    assert len(machines[0].images.list()) == 1


def test_tls_with_and_without_its_authority(
    machine: MakeMachine, tmp_path: Path, oci: OciDir, busybox_layer: bytes
) -> None:
    import trustme

    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for pem in leaf.cert_chain_pems:
        pem.write_to_path(str(tmp_path / "cert.pem"), append=True)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = {"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")}
    oci.image("v1", [busybox_layer], {"Cmd": ["x"]})
    with running_registry(tmp_path / "tls", tls=tls) as registry:
        registry.push(f"oci:{oci.path}:v1", "app:v1")
        locator = f"docker://{registry.host}/app:v1"
        with pytest.raises(FetchTLSError, match="unknown authority"):
            machine("strict").images.fetch(locator)
        options = {"fetchers": {"docker": {"config": {"ca_file": str(tmp_path / "ca.pem")}}}}
        here = machine("known", plugins=options)
        assert here.images.fetch(locator).provenance[0].url == f"https://{registry.host}/v2/app/manifests/v1"
        assert here.notes == []
        relaxed = machine("relaxed").images.fetch(locator, insecure={"tls"})
        assert relaxed.provenance[0].insecure == ("tls",)


#: bcrypt of "secret", for the user "user".
HTPASSWD = "user:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a"


def test_credentials(machine: MakeMachine, tmp_path: Path, oci: OciDir, busybox_layer: bytes) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}}
    oci.image("v1", [busybox_layer], {"Cmd": ["x"]})
    with running_registry(tmp_path / "auth", auth=auth) as registry:
        registry.push(f"oci:{oci.path}:v1", "app:v1", "--dest-creds=user:secret")
        locator = f"docker://{registry.host}/app:v1"
        with pytest.raises(FetchUnauthorizedError, match="requires credentials, and kurma has none"):
            machine("none").images.fetch(locator)
        docker = {"auths": {registry.host: {"auth": "dXNlcjpzZWNyZXQ="}}}
        (tmp_path / "dockercfg").write_text(json.dumps(docker))
        options = {"fetchers": {"docker": {"config": {"docker_config": str(tmp_path / "dockercfg")}}}}
        assert machine("docker", plugins=options).images.fetch(locator)
        wrong = tmp_path / "auth.d"
        wrong.mkdir()
        file = wrong / "a.json"
        file.write_text(
            json.dumps({"hosts": [registry.host], "type": "basic", "user": "user", "password": "wrong"})
        )
        file.chmod(0o600)
        with pytest.raises(FetchUnauthorizedError, match="does not accept the credentials"):
            machine("wrong").images.fetch(locator)
        file.write_text(file.read_text().replace("wrong", "secret"))
        assert machine("right").images.fetch(locator)


def test_a_mirror_serves_a_real_name(
    machine: MakeMachine, registry: Registry, oci: OciDir, busybox_layer: bytes
) -> None:
    oci.image("v1", [busybox_layer], {"Cmd": ["x"]})
    registry.push(f"oci:{oci.path}:v1", "library/redis:7")
    here = machine(registries={"mirrors": {"docker.io": [registry.host]}})
    record = here.images.fetch("docker:///redis:7")
    assert record.name == "registry-1.docker.io/library/redis"


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive", "oci"])
def test_files_that_skopeo_writes(
    machine: MakeMachine, registry: Registry, pushed: str, tmp_path: Path, kind: str
) -> None:
    reference = {"oci-archive": "v1", "docker-archive": "example.com/team/app:v1", "oci": "v1"}[kind]
    target = f"{kind}:{tmp_path}/saved:{reference}"
    command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", pushed, target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    here = machine()
    record = here.images.fetch(f"{kind}:{tmp_path}/saved")
    assert here.images.fetch(target).id == record.id
    assert record.version == "v1"
    assert record.trust == "local"
    app = here.images.manifest(record.id).app
    assert app is not None
    assert app.exec == ("/bin/sh", "-c", "id")
    assert here.partials() == []
    with pytest.raises(FetchNotFoundError):
        here.images.fetch(f"{kind}:{tmp_path}/saved:none")
    if kind != "oci":
        subprocess.run(["gzip", str(tmp_path / "saved")], check=True)
        assert here.images.fetch(f"{kind}:{tmp_path}/saved.gz").layers == record.layers
