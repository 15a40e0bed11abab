"""``kurma stager export``: a stager as an image for others, in process, whoever asks."""

import tarfile

import pytest

from kurma_core.client import Settings, connect
from kurma_core.errors import HostError, StagerError, StagerNotFoundError
from kurma_core.image_store.builder import build_archive


@pytest.fixture
def client(tmp_path):
    (tmp_path / "kurma.yml").write_text(
        f"state_dir: {tmp_path}/state\nrun_dir: {tmp_path}/run\nstagers:\n  mine: {{image: /srv/mine.aci}}\n"
    )
    with connect(Settings(config_file=str(tmp_path / "kurma.yml"))) as client:
        yield client


def test_it_is_an_archive(client, tmp_path):
    """Of the configured stager; its ID is told, all of it is root's, and nothing comes into the store."""
    found = client.stager_export(str(tmp_path / "stage1.aci"), format="stage1")
    facts = client.here.images.files.inspect(str(tmp_path / "stage1.aci"))
    assert facts.id == found
    assert facts.contents.manifest.annotation("coreos.com/rkt/stage1/interface-version") == "6"
    assert facts.contents.manifest.annotation("coreos.com/rkt/stage1/run") == "/stage1/run"
    assert not (tmp_path / "state/images").exists()
    with tarfile.open(tmp_path / "stage1.aci") as archive:
        assert {(each.uid, each.gid) for each in archive} == {(0, 0)}


def test_the_only_format_need_not_be_named(client, tmp_path):
    """18: the core knows no format."""
    found = client.stager_export(str(tmp_path / "image.aci"))
    assert client.stager_export(str(tmp_path / "stage1.aci"), format="stage1") == found


def test_whose_files_they_are(tmp_path):
    """Root's, whoever has exported them: here, they are somebody else's."""
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "rootfs/file").write_text("x")
    manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/x"}
    with open(tmp_path / "x.aci", "wb") as out:
        build_archive(str(tmp_path / "rootfs"), manifest, out, owner=lambda _path, _status: (7, 8))
    with tarfile.open(tmp_path / "x.aci") as archive:
        assert {each.name: (each.uid, each.gid) for each in archive} == {
            "manifest": (0, 0),
            "rootfs": (7, 8),
            "rootfs/file": (7, 8),
        }


@pytest.mark.parametrize(
    ("name", "format", "error", "said"),
    [
        ("rkt", None, StagerError, "stager rkt cannot be exported$"),
        (None, "odd", StagerError, "stager default cannot be exported as odd"),
        ("rkt", "stage1", StagerError, "stager rkt cannot be exported as stage1"),
        ("mine", "stage1", StagerError, "stager mine cannot be exported as stage1"),
        ("rkt:/srv/x.aci", "stage1", StagerError, "cannot be exported as stage1"),
        ("none", "stage1", StagerNotFoundError, "no stager none"),
    ],
)
def test_what_cannot_be_exported(client, tmp_path, name, format, error, said):
    with pytest.raises(error, match=said) as caught:
        client.stager_export(str(tmp_path / "out.aci"), format=format, name=name)
    assert caught.value.hint
    assert not (tmp_path / "out.aci").exists()


def test_a_place_that_cannot_be_written_to(client, tmp_path):
    with pytest.raises(HostError):
        client.stager_export(str(tmp_path / "none/out.aci"), format="stage1")
