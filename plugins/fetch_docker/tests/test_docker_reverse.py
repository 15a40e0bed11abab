"""Image manifests become configurations again."""

from __future__ import annotations

from typing import Any

import pytest
from kurma_fetch_docker.conversion import ImageOrigin, image_manifest
from kurma_fetch_docker.pushing.image_config import configuration, own_name

from kurma_core.appc.image import App, ImageManifest, NameValue, Port
from kurma_core.hookspecs.fetcher import FetchRequest
from kurma_core.value import replace

LAYERS = ["sha256:" + "1" * 64]


def there_and_back(config: dict[str, Any], group: str = "", gids: tuple[int, ...] = ()) -> dict[str, Any]:
    """:param group: what the image's files say, as :func:`conversion.complete_manifest` fills it in."""
    manifest = image_manifest(config, ImageOrigin("", "x", "v1"), FetchRequest("linux", config["architecture"]))
    app = manifest.app
    assert app is not None
    if not app.group:
        manifest = replace(manifest, app=replace(app, group=group, supplementary_gids=gids))
    return configuration(manifest, LAYERS, "amd64")


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"Cmd": ["/bin/sh"]},
        {"Entrypoint": ["/entry", "--"], "Cmd": ["a b"], "WorkingDir": "/srv", "Labels": {"a": "1"}},
        {"Entrypoint": ["/entry"], "Shell": ["/bin/bash", "-c"], "OnBuild": ["RUN true"], "StopTimeout": 5},
        {"User": "0"},
        {"User": "app:1002"},
        {"Env": ["PATH=/bin", "A=1=2", "EMPTY=", "odd name=1"]},
        {"ExposedPorts": {"6379/tcp": {}, "53/udp": {}, "8000-8010/tcp": {}}, "Volumes": {"/data": {}}},
        {"StopSignal": "SIGQUIT", "Healthcheck": {"Test": ["CMD", "true"], "Interval": 5}},
    ],
)
def test_nothing_is_lost(section: dict[str, Any]) -> None:
    config = {
        "os": "linux",
        "architecture": "amd64",
        "created": "2024-05-06T07:08:09Z",
        "author": "A. U. Thor",
        "config": section,
        "rootfs": {"type": "layers", "diff_ids": LAYERS},
    }
    assert there_and_back(config, group="0") == config


def test_groups_of_the_image_s_own_files_are_looked_up_again() -> None:
    config = {"os": "linux", "architecture": "amd64", "config": {"User": "app"}}
    assert there_and_back(config, "1001", (5, 6))["config"] == {"User": "app"}
    assert there_and_back(config, "1001")["config"] == {"User": "app:1001"}


def test_an_image_that_came_from_no_registry() -> None:
    app = App(exec=("/bin/app", "x"), user="0", group="0", ports=(Port("web", "tcp", 80),))
    manifest = ImageManifest(name="example.com/x", app=app, labels=(NameValue("arch", "aarch64"),))
    assert configuration(manifest, LAYERS, "amd64") == {
        "os": "linux",
        "architecture": "arm64",
        "variant": "v8",
        "config": {"Entrypoint": ["/bin/app", "x"], "ExposedPorts": {"80/tcp": {}}},
        "rootfs": {"type": "layers", "diff_ids": LAYERS},
    }
    assert configuration(ImageManifest(name="none"), LAYERS, "amd64")["config"] == {}


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("example.com/app", "1.0", "example.com/app:1.0"),
        ("example.com/app", None, "example.com/app:latest"),
        ("example.com/app", "1.0+x", "example.com/app:latest"),
        ("hello", "1", "localhost/hello:1"),
        ("hello~x", "1", "None"),
    ],
)
def test_names(name: str, version: str | None, found: str) -> None:
    labels = () if version is None else (NameValue("version", version),)
    assert str(own_name(ImageManifest(name=name, labels=labels))) == found
