"""A user without a group has the groups that the image's own files give it, as with Docker and podman (R3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kurma_fetch_docker.conversion import complete_manifest

from kurma_core.appc.image import App, ImageManifest
from kurma_core.hookspecs.renderer import ImageLayer
from kurma_core.images.user_groups import ImageFiles

PASSWD = "root:x:0:0::/:/bin/sh\n# a comment\nbad:line\napp:x:1000:1001::/:/bin/sh\nodd:x:5:99999999999::/:\n"
GROUP = "root:x:0:\nwheel:x:10:root,app\napp:x:1001:app\naudio:x:29:app\nodd:x:x:app\n"


def layer(
    path: Path, files: dict[str, str], removed: tuple[str, ...] = (), opaque: tuple[str, ...] = ()
) -> ImageLayer:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    path.mkdir(exist_ok=True)
    return ImageLayer(path.name, str(path), removed, opaque)


def groups_of(user: str, *layers: ImageLayer, group: str = "") -> tuple[str, tuple[int, ...]]:
    app = complete_manifest(ImageManifest("a", app=App(user=user, group=group)), ImageFiles(layers)).app
    assert app is not None
    return app.group, app.supplementary_gids


@pytest.fixture
def base(tmp_path: Path) -> ImageLayer:
    return layer(tmp_path / "base", {"etc/passwd": PASSWD, "etc/group": GROUP})


@pytest.mark.parametrize(
    ("user", "found"),
    [
        ("app", ("1001", (10, 29))),
        ("1000", ("1001", (10, 29))),
        ("0", ("0", (10,))),
        ("nobody", ("0", ())),
        ("4242", ("0", ())),
        ("odd", ("0", ())),
    ],
)
def test_users(base: ImageLayer, user: str, found: tuple[str, tuple[int, ...]]) -> None:
    assert groups_of(user, base) == found


def test_a_group_that_is_given_stays(base: ImageLayer) -> None:
    assert groups_of("app", base, group="7") == ("7", ())


def test_the_topmost_file_counts(base: ImageLayer, tmp_path: Path) -> None:
    top = layer(tmp_path / "top", {"etc/passwd": "app:x:1:2::/:\n"})
    assert groups_of("app", base, top) == ("2", (10, 29, 1001))


@pytest.mark.parametrize("whiteout", [{"removed": ("etc/passwd",)}, {"removed": ("etc",)}, {"opaque": ("etc",)}])
def test_whiteouts(base: ImageLayer, tmp_path: Path, whiteout: dict[str, tuple[str, ...]]) -> None:
    top = layer(tmp_path / "top", {"other": ""}, **whiteout)
    assert groups_of("app", base, top) == ("0", ())


def test_no_files_and_links_out_of_the_image(tmp_path: Path) -> None:
    """A link to this machine's own file must not be followed."""
    empty = layer(tmp_path / "empty", {})
    assert groups_of("root", empty) == ("0", ())
    evil = layer(tmp_path / "evil", {"etc/other": ""})
    os.symlink("/etc/passwd", tmp_path / "evil" / "etc" / "passwd")
    os.mkfifo(tmp_path / "evil" / "etc" / "group")
    assert groups_of("daemon", evil) == ("0", ())
