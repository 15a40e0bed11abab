"""The secrets of apps as the stager's driver gets them: owners, sizes, and values that nothing shows."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kurma_core.appc.pod import PodManifest
from kurma_core.errors import HostError, ManifestError, SecretError
from kurma_core.hookspecs.pod_setup import AppSetup, SecretSetup
from kurma_core.models.isolator import IdRange
from kurma_core.pods.prepare.app_settings import secret_values
from kurma_core.pods.prepare.secrets import users
from kurma_core.pods.record.pod_store import PodStore
from kurma_core.secret_store import SecretStore
from kurma_core.spawn_plan import File, FileSystemMount
from kurma_core.staging.stager_root import secret_files
from kurma_core.value import replace
from tests.pods.documents import pod_document

IMAGE = {"id": f"sha512-{'0' * 128}"}


def pod(*secrets: dict[str, object]) -> PodManifest:
    apps = [{"name": "main", "image": IMAGE, "secrets": list(secrets)}, {"name": "other", "image": IMAGE}]
    return PodManifest.parse({"acKind": "PodManifest", "acVersion": "0.8.11", "apps": apps})


@pytest.fixture
def store(tmp_path: Path) -> SecretStore:
    found = SecretStore(str(tmp_path))
    found.write("pass", b"hunter2")
    return found


def test_the_manifest_keeps_names(store: SecretStore) -> None:
    given = [
        {"name": "pass"},
        {"name": "pass", "target": "sub//./x", "uid": 1, "gid": 2, "mode": "0400"},
        {"name": "pass", "environment": "PW"},
    ]
    written = pod(*given).to_json()
    assert written["apps"][0]["secrets"] == [
        {"name": "pass", "target": "/run/secrets/pass"},
        {**given[1], "target": "/run/secrets/sub/x"},
        given[2],
    ]
    assert "secrets" not in written["apps"][1]
    assert PodManifest.parse(written).to_json() == written


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"name": "a"}, {"name": "b", "target": "a"}),
        ({"name": "a", "environment": "A"}, {"name": "b", "environment": "A"}),
        ({"name": "a", "target": "/x/y"}, {"name": "b", "target": "/x"}),
    ],
)
def test_targets_of_secrets_that_overlap(one: dict[str, object], other: dict[str, object]) -> None:
    with pytest.raises(ManifestError, match="expected targets that differ, none below another"):
        pod(one, other)


def test_owners_are_those_of_the_host(store: SecretStore, tmp_path: Path) -> None:
    apps = pod({"name": "pass", "uid": 5, "gid": 6}).apps
    found = secret_values(apps, IdRange(1000000, 65536), str(tmp_path))
    assert list(found) == ["main"]
    (secret,) = found["main"]
    assert (secret.uid, secret.gid, secret.mode, secret.value) == (1000005, 1000006, 0o444, b"hunter2")
    (secret,) = secret_values(apps, None, str(tmp_path))["main"]
    assert (secret.uid, secret.gid) == (5, 6)
    with pytest.raises(SecretError, match="no user or group 6"):
        secret_values(apps, IdRange(1000000, 6), str(tmp_path))


class Starved(PodStore):
    """The pods as a process finds them that gets no descriptor any more, once it has listed them."""

    def uuids(self) -> list[str]:
        found = super().uuids()
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return found


def test_users_of_secrets(tmp_path: Path) -> None:
    """A pod with a damaged definition does not count. One that cannot be read for a moment may."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    directory = PodStore(str(tmp_path)).directory("u")
    os.makedirs(directory.path)
    directory.write_pod(replace(pod_document(), manifest=pod({"name": "pass"})))
    assert users(PodStore(str(tmp_path))) == {"pass": [directory.read_document().name]}
    try:
        with pytest.raises(HostError, match="Too many open files"):
            users(Starved(str(tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    Path(directory.path, "pod.json").write_text("{")
    assert users(PodStore(str(tmp_path))) == {}


def test_no_app_has_secrets(tmp_path: Path) -> None:
    assert secret_values(pod().apps, None, str(tmp_path)) == {}
    assert secret_files([AppSetup("main", ())]) == []


def test_the_files_of_an_app() -> None:
    secrets = (
        SecretSetup("pass", b"x" * (64 << 10), path="/run/secrets/pass", uid=7, gid=8, mode=0o440),
        SecretSetup("pass", b"x", variable="PW"),
    )
    mount, *files = secret_files([AppSetup("main", (), secrets=secrets)])
    assert isinstance(mount, FileSystemMount)
    assert (mount.target, mount.options["size"], mount.options["mode"]) == ("/secrets/main", "131072", "0700")
    assert set(mount.attributes) == {"nosuid", "nodev", "noexec"}
    assert files == [
        File("/secrets/main/0", b"x" * (64 << 10), 0o440, 7, 8),
        File("/secrets/main/1", b"x", 0o400),
    ]


def test_no_value_is_shown() -> None:
    setup = AppSetup("main", (), secrets=(SecretSetup("pass", b"hunter2", variable="PW"),))
    assert "pass" in repr(setup)
    assert "hunter2" not in repr(setup)
