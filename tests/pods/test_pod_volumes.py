"""Volume sources (V1), empty volumes (V2)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kurma_core.appc.pod import PodManifest, Volume
from kurma_core.errors import VolumeError
from kurma_core.pods.volumes import check_sources, make_empty, setups


def pod(source: Path) -> PodManifest:
    return PodManifest(apps=(), volumes=(Volume("data", "host", str(source)),))


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


def test_empty_volumes_are_made_as_said(tmp_path: Path) -> None:
    manifest = PodManifest(apps=(), volumes=(Volume("e", "empty", mode="1777", uid=os.getuid(), gid=os.getgid()),))
    make_empty(manifest, str(tmp_path))
    assert os.stat(tmp_path / "volumes" / "e").st_mode & 0o7777 == 0o1777
    (setup,) = setups(manifest, str(tmp_path))
    assert setup.source == str(tmp_path / "volumes" / "e")
