"""Volume sources (V1), empty volumes (V2)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kurma_core.appc.pod import PodManifest, Volume
from kurma_core.errors import ManifestError, StagerError, VolumeError
from kurma_core.hookspecs.stager import StagerFeatures
from kurma_core.models.isolator import IdRange
from kurma_core.models.pod import MountSetup
from kurma_core.pods.prepare.volumes import check_sources, check_stager, dangers, make_empty, setups


def pod(source: Path | str, *, read_only: bool = False) -> tuple[Volume, ...]:
    return (Volume("data", "host", str(source), read_only),)


def test_a_missing_source_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match=r"volume data: source .*/none/x: .*/none: no such file") as caught:
        check_sources(pod(tmp_path / "none" / "x"), allow_links=True)
    with pytest.raises(VolumeError) as twice:
        check_sources(pod(tmp_path / "none"), allow_links=True)
    assert str(twice.value).count(str(tmp_path / "none")) == 1
    assert "create it first" in (caught.value.hint or "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("below", ["link", "link/sub"])
def test_links_are_refused_unless_allowed(tmp_path: Path, below: str) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(VolumeError, match="link is a symbolic link"):
        check_sources(pod(tmp_path / below), allow_links=False)
    check_sources(pod(tmp_path / below), allow_links=True)
    check_sources(pod(tmp_path / "real" / "sub"), allow_links=False)


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(VolumeError, match=r"source .*/link: no such file"):
        check_sources(pod(tmp_path / "link"), allow_links=True)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(VolumeError, match=r"source .*/loop: too many levels of symbolic links"):
        check_sources(pod(tmp_path / "loop"), allow_links=True)


def test_what_is_no_directory_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VolumeError, match=r"source .*/file/x: not a directory"):
        check_sources(pod(tmp_path / "file" / "x"), allow_links=False)
    with pytest.raises(VolumeError, match="file name too long"):
        check_sources(pod(tmp_path / ("n" * 256)), allow_links=False)


def test_a_note_says_that_a_device_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    for source in ("/dev/null", tmp_path / "link"):
        check_sources(pod(source), allow_links=True)
        (note,) = dangers(pod(source), str(tmp_path))
        assert note.startswith(f"volume data: {source} is a device: its apps cannot open it unless")


def created(source: Path | str, **fields: object) -> tuple[Volume, ...]:
    value = {"name": "data", "kind": "host", "source": str(source), "kurma.io/create": True, **fields}
    return (Volume.parse(value, "$"),)


def test_a_missing_source_is_made_if_the_volume_says_so(tmp_path: Path) -> None:
    """C8"""
    before = os.umask(0o077)
    try:
        check_sources(created(tmp_path / "a" / "b"), allow_links=False)
    finally:
        os.umask(before)
    assert [os.stat(tmp_path / path).st_mode & 0o7777 for path in ("a", "a/b")] == [0o755, 0o755]
    (tmp_path / "a" / "b").chmod(0o700)
    check_sources(created(tmp_path / "a" / "b"), allow_links=False)
    assert os.stat(tmp_path / "a" / "b").st_mode & 0o7777 == 0o700, "an existing one is left alone"
    (tmp_path / "file").write_text("")
    check_sources(created(tmp_path / "file"), allow_links=False)
    with pytest.raises(VolumeError, match=r"source .*/file/x: not a directory"):
        check_sources(created(tmp_path / "file" / "x"), allow_links=False)


def test_a_source_is_made_behind_links_only_where_they_are_allowed(tmp_path: Path) -> None:
    """C8: a link is followed."""
    (tmp_path / "link").symlink_to("real/deep")
    with pytest.raises(VolumeError, match="link is a symbolic link"):
        check_sources(created(tmp_path / "link" / "sub"), allow_links=False)
    assert not (tmp_path / "real").exists()
    check_sources(created(tmp_path / "link" / "sub"), allow_links=True)
    assert (tmp_path / "real" / "deep" / "sub").is_dir()


def test_a_source_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match=r"source /proc/none/x cannot be made: no such file"):
        check_sources(created("/proc/none/x"), allow_links=False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kurma.io/propagation": "slave"}, '"private", "rslave" or "rshared"'),
        ({"kurma.io/recursive-read-only": True}, "a volume with readOnly true"),
        (
            {"kurma.io/recursive-read-only": True, "readOnly": True, "kurma.io/propagation": "rslave"},
            "a volume with kurma.io/propagation private",
        ),
        ({"kurma.io/options": ["exec"]}, "one of noexec, nosuid, nodev"),
        ({"kurma.io/image": "x"}, "no kurma.io/image in a volume of kind host"),
        ({"kind": "image", "source": None}, "the locator or the ID of an image"),
        ({"kind": "image", "kurma.io/image": "x"}, "no source in a volume of kind image"),
        (
            {"kind": "image", "kurma.io/image": "x", "source": None, "readOnly": False},
            "true: the files of an image are read-only",
        ),
        (
            {"kind": "image", "kurma.io/image": "x", "source": None, "kurma.io/sub-path": "../x"},
            "a relative path without ..",
        ),
        ({"kind": "image", "kurma.io/image": "x", "source": None, "kurma.io/sub-path": "/x"}, "a relative path"),
        ({"kurma.io/sub-path": "a"}, "no sub path in a volume of kind host"),
        ({"kind": "empty", "source": None, "kurma.io/sub-path": "a"}, "no kurma.io/sub-path in a volume of kind"),
        ({"kind": "named", "source": None, "kurma.io/sub-path": "a/../b"}, "a relative path without .."),
        ({"kind": "empty", "source": None, "kurma.io/create": True}, "no kurma.io/create in a volume of kind"),
    ],
)
def test_keys_that_do_not_fit(fields: dict[str, object], said: str) -> None:
    value = {"name": "v", "kind": "host", "source": "/x", **fields}
    with pytest.raises(ManifestError) as caught:
        Volume.parse({key: one for key, one in value.items() if one is not None}, "$")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "host", "source": "/x", "kurma.io/propagation": "rslave", "kurma.io/create": True},
        {"kind": "host", "source": "/x", "readOnly": True, "kurma.io/recursive-read-only": True},
        {"kind": "host", "source": "/x", "readOnly": True, "kurma.io/recursive-read-only": False},
        {"kind": "host", "source": "/x", "kurma.io/options": ["noexec", "nodev"]},
        {"kind": "image", "readOnly": True, "kurma.io/image": "docker://x", "kurma.io/sub-path": "a/b"},
        {"kind": "named", "kurma.io/sub-path": "a/b", "volume": "data"},
        {"kind": "host", "source": "/x", "kurma.io/sub-path": "a/b", "kurma.io/volume": "data"},
    ],
)
def test_a_volume_is_written_as_it_was_read(fields: dict[str, object]) -> None:
    assert Volume.parse({"name": "v", **fields}, "$").to_json() == {"name": "v", **fields}


def test_volumes_that_not_every_stager_mounts() -> None:
    def volume(**fields: object) -> Volume:
        return Volume.parse({"name": "v", "kind": "host", "source": "/x", **fields}, "$")

    shared, plain = volume(**{"kurma.io/propagation": "rshared"}), volume()
    image = Volume.parse({"name": "v", "kind": "image", "kurma.io/image": "sha512-x"}, "$")
    loose = volume(**{"readOnly": True, "kurma.io/recursive-read-only": False})
    strict = volume(**{"readOnly": True, "kurma.io/recursive-read-only": True})
    one, below = MountSetup("v", "/a", False), MountSetup("v", "/a/b", False)
    for given, mounts, said in (
        (shared, [one], "volume v has the propagation rshared"),
        (image, [one], "volume v is of an image"),
        (loose, [one], "volume v is read-only without the mounts below it"),
        (strict, [one], "volume v is read-only including the mounts below it"),
        (volume(**{"kurma.io/options": ["noexec"]}), [one], "volume v has the options noexec"),
        (volume(**{"kurma.io/volume": "v", "kurma.io/sub-path": "a"}), [one], "volume v is mounted in part"),
        (plain, [one, below], "volume v is mounted below the one at /a"),
    ):
        manifest = PodManifest(apps=(), volumes=(given,))
        with pytest.raises(StagerError, match=f"stager other cannot mount such volumes: {said}"):
            check_stager(manifest, [mounts], "other", StagerFeatures)
        check_stager(manifest, [mounts], "other", lambda: StagerFeatures(volume_kinds=True))
    check_stager(PodManifest(apps=(), volumes=(shared, plain)), [[]], "other", StagerFeatures)
    check_stager(PodManifest(apps=(), volumes=(plain,)), [[one], [below]], "other", StagerFeatures)


def test_what_is_dangerous_is_told(tmp_path: Path) -> None:
    (tmp_path / "state" / "pods").mkdir(parents=True)
    (tmp_path / "states").mkdir()
    (tmp_path / "link").symlink_to("state")
    state = str(tmp_path / "state")
    own = "is a place of Kurma's own state, with images and other pods in it: its apps may"
    for source, read_only, said in (
        ("/", False, "volume data: / is the whole host: its apps may change that"),
        ("/", True, "volume data: / is the whole host: its apps may read that"),
        (tmp_path, False, f"volume data: {tmp_path} {own} change that"),
        (state, True, f"volume data: {state} {own} read that"),
        (f"{state}/pods", False, f"volume data: {state}/pods {own} change that"),
        (tmp_path / "link", False, f"volume data: {tmp_path}/link {own} change that"),
        (
            "/sys/fs/cgroup",
            False,
            "volume data: /sys/fs/cgroup is the host's own view of its kernel and processes",
        ),
        ("/proc", True, ""),
        ("/sys", True, ""),
        (tmp_path / "states", False, ""),
        ("/srv", False, ""),
    ):
        notes = dangers(pod(source, read_only=read_only), state)
        assert "".join(notes).startswith(said), source
        assert len(notes) == bool(said), source


def test_empty_volumes_are_made_as_said(tmp_path: Path) -> None:
    manifest = PodManifest(apps=(), volumes=(Volume("e", "empty", mode="1777", uid=os.getuid(), gid=os.getgid()),))
    make_empty(manifest, str(tmp_path))
    assert os.stat(tmp_path / "volumes" / "e").st_mode & 0o7777 == 0o1777
    (setup,) = setups(manifest, str(tmp_path))
    assert setup.source == str(tmp_path / "volumes" / "e")


def test_volumes_in_memory_are_made_by_the_kernel(tmp_path: Path) -> None:
    fields = {"name": "m", "kind": "empty", "kurma.io/memory": True, "kurma.io/size": "1.5Mi", "uid": 5, "gid": 6}
    volume = Volume.parse(fields, "$")
    assert volume.to_json() == fields
    manifest = PodManifest(apps=(), volumes=(volume,))
    make_empty(manifest, str(tmp_path))
    assert os.listdir(tmp_path) == []
    for ids, owner in ((None, ("5", "6")), (IdRange(1000, 10), ("1005", "1006"))):
        (setup,) = setups(manifest, str(tmp_path), ids)
        assert setup.tmpfs == {"mode": "0755", "uid": owner[0], "gid": owner[1], "size": "1572864"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "empty", "kurma.io/size": "1Mi"}, "no size where kurma.io/memory is not true"),
        ({"kind": "empty", "kurma.io/memory": True, "kurma.io/size": "0"}, "more than 0 bytes"),
        ({"kind": "empty", "kurma.io/memory": True, "kurma.io/size": "much"}, "a quantity of bytes"),
        ({"kind": "empty", "kurma.io/memory": "yes"}, "kurma.io/memory"),
        ({"kind": "host", "source": "/x", "kurma.io/memory": True}, "no kurma.io/memory in a volume of kind host"),
    ],
)
def test_what_is_no_volume_in_memory(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        Volume.parse({"name": "m", **fields}, "$")


def test_a_source_that_changes_while_its_danger_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    volume = Volume("v", "host", source=str(tmp_path))
    monkeypatch.setattr(os.path, "realpath", gone)
    with pytest.raises(VolumeError, match=f"volume v: source {tmp_path}: no such file or directory"):
        dangers([volume], "/var/lib/kurma")
