"""Stage1 images, told by their annotations (Z1); and what an admin says of them."""

import pytest
from kurma_stager_rkt import plugin, settings, stage1_image
from kurma_testing import load_driver

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import StagerError

PREFIX = "coreos.com/rkt/stage1/"


def manifest(**annotations):
    named = [{"name": PREFIX + name.replace("_", "-"), "value": value} for name, value in annotations.items()]
    value = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/s", "annotations": named}
    return ImageManifest.parse(value)


def test_entrypoints_and_version():
    found = stage1_image.read("mine", manifest(run="/init", **{"app/add": "/bin/add"}, interface_version="5"))
    assert (found.version, found.entrypoints) == (5, {"run": "/init", "app/add": "/bin/add"})
    assert found.lacking == "it has no entrypoint app/rm, app/start, app/stop, enter"


def test_no_version_is_version_1():
    assert stage1_image.read("mine", manifest(run="/init")).version == 1


def test_mutable_with_all_entrypoints_of_apps():
    every = {name: f"/ex/{name}" for name in stage1_image.ENTRYPOINTS}
    assert stage1_image.read("mine", manifest(**every, interface_version="5")).lacking == ""
    assert "version 4" in stage1_image.read("mine", manifest(**every, interface_version="4")).lacking


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({}, f"not a stage1 image: it has no annotation {PREFIX}run"),
        ({"enter": "/enter"}, "has no annotation"),
        ({"run": "init"}, "which is not an absolute path without `..`"),
        ({"run": "/../bin/sh"}, "which is not an absolute path without `..`"),
        ({"run": "/init", "gc": ""}, "which is not an absolute path without `..`"),
        ({"run": "/init", "interface_version": "7"}, "those from 1 to 6 are known"),
        ({"run": "/init", "interface_version": "0"}, "those from 1 to 6 are known"),
        ({"run": "/init", "interface_version": "two"}, "those from 1 to 6 are known"),
        ({"run": "/init", "interface_version": "²"}, "those from 1 to 6 are known"),
    ],
)
def test_no_stage1_image(annotations, why):
    with pytest.raises(StagerError) as raised:
        stage1_image.read("mine", manifest(**annotations))
    assert why in str(raised.value)
    assert str(raised.value).startswith("stager mine: image example.com/s ")


def test_the_plugin_runs_images(tmp_path):
    driver = load_driver(plugin, tmp_path)
    stager = driver.of_image("fly", "/srv/fly.aci")
    assert (stager.name, stager.features().joins_networks, stager.features().default_hostname) == (
        *("fly", True, "rkt-{uuid}"),
    )
    assert not stager.features().secrets, "rkt's stage1 records what it gets on the disk"


def test_what_is_said_of_it():
    found = settings.read("mine", {"lift": ["seccomp"], "ipc": "parent", "localConfig": "/etc/rkt"})
    assert (found.patience, settings.read("mine", {"patience": 5}).patience) == (30, 5)
    assert (found.lift, found.ipc, found.local_config, found.debug) == (("seccomp",), "parent", "/etc/rkt", False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"patience": 0}, "patience in its configuration is 0: seconds that a stop, gc or app entrypoint"),
        ({"patience": "long"}, "patience in its configuration is 'long'"),
        ({"colour": 1}, "'colour', which means nothing to stage1 images"),
        ({"debug": "yes"}, "debug in its configuration is 'yes'"),
        ({"lift": ["all"]}, "lift in its configuration is ['all']"),
        ({"ipc": "host"}, "ipc in its configuration is 'host'"),
        ({"storage": "zfs"}, "storage in its configuration is 'zfs'"),
        ({"localConfig": "etc"}, "localConfig in its configuration is 'etc'"),
    ],
)
def test_what_cannot_be_said(config, why):
    with pytest.raises(StagerError) as raised:
        settings.read("mine", config)
    assert why in str(raised.value)
