"""Volume sources (V1), empty volumes (V2)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kurma_core.appc.pod import PodManifest, Volume
from kurma_core.errors import ManifestError, VolumeError
from kurma_core.models.isolator import IdRange
from kurma_core.pods.prepare.volumes import check_sources, dangers, make_empty, setups


def pod(source: Path | str, *, read_only: bool = False) -> tuple[Volume, ...]:
    return (Volume("data", "host", str(source), read_only),)


def test_a_missing_source_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match=r"volume data: source .*/none/x: .*/none: no such file") as caught:
        check_sources(pod(tmp_path / "none" / "x"), allow_links=True)
    with pytest.raises(VolumeError) as twice:
        check_sources(pod(tmp_path / "none"), allow_links=True)
    assert str(twice.value).count(str(tmp_path / "none")) == 1
    assert "create the directory first" in (caught.value.hint or "")
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


def test_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match="source /dev/null is a device") as caught:
        check_sources(pod("/dev/null"), allow_links=False)
    assert "kurma.io/devices" in (caught.value.hint or "")
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(VolumeError, match="is a device"):
        check_sources(pod(tmp_path / "link"), allow_links=True)


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
