"""Early pods: E2, E7, E8, E9, and what is completed once the images are known."""

from __future__ import annotations

import json

import pytest

from kurma_core.appc.early_pod import convert_pod, with_images
from kurma_core.appc.image import AC_VERSION, ImageManifest
from kurma_core.appc.reify import idle_volumes, reify
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import ManifestError
from tests.appc.early_samples import MISSING, POD, changed

UUID = "6733c088-a507-4694-aabf-edbe4fc5266f"
VERSION = [{"name": "version", "value": "1.0.0"}]
LATE = {
    "acKind": "PodManifest",
    "acVersion": AC_VERSION,
    "kurma.io/uuid": UUID,
    "apps": [
        {
            "name": "reduce-worker",
            "image": {
                "id": "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac",
                "name": "example.com/reduce-worker",
                "labels": VERSION,
            },
        },
        {
            "name": "worker-backup",
            "image": {
                "id": "sha256-3e86b59982e49066c5d813af1c2e2579cbf573de",
                "name": "example.com/worker-backup",
                "labels": VERSION,
            },
            "kurma.io/isolators": [{"name": "resource/memory", "value": {"limit": "1Gi"}}],
            "annotations": [{"name": "foo", "value": "baz"}],
        },
        {
            "name": "reduce-worker-register",
            "image": {
                "id": "sha256-86298e1fdb95ec9a45b5935504e26ec29b8feffa",
                "name": "example.com/reduce-worker-register",
                "labels": VERSION,
            },
        },
    ],
    "volumes": [
        {"name": "work", "kind": "host", "source": "/opt/tenant1/work", "readOnly": True},
        {"name": "buildoutput", "kind": "empty"},
    ],
    "isolators": [{"name": "resource/memory", "value": {"limit": "4Gi"}}],
    "annotations": [{"name": "ip-address", "value": "10.1.2.3"}],
}
APP = {
    "exec": ["/bin/x"],
    "user": "0",
    "group": "0",
    "isolators": [
        {"name": "resource/memory", "value": {"limit": "2Gi"}},
        {"name": "os/linux/cpu-shares", "value": 7},
    ],
    "mountPoints": [
        {"name": "work", "path": "/w"},
        {"name": "data", "path": "/d", "readOnly": True},
    ],
}
IMAGE = ImageManifest.parse(
    {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/x", "app": APP}
)
SHA512 = "sha512-" + "ab" * 64


def test_early_pod_becomes_a_late_template():
    warnings: list[str] = []
    converted = convert_pod(json.dumps(POD).encode(), warn=warnings.append)
    assert converted.to_json() == LATE
    assert converted.uuid == UUID
    assert converted.networks is None
    assert warnings == ['$.volumes[1].fulfills[0]: "buildOutput" is called buildoutput']


def test_early_apps_have_names_as_apps_have_today():
    pod = convert_pod(changed(POD, "apps", 0, "app", to="example.com/reduce_worker.main-1.0.0")).pod
    assert [app.name for app in pod.apps] == ["reduce-worker-main", "worker-backup", "reduce-worker-register"]
    assert pod.apps[0].image.name == "example.com/reduce_worker.main"


def test_early_pod_as_a_template_is_read_again_as_it_was_written():
    converted = convert_pod(changed(POD, "volumes", 0, "fulfills", to=["work", "data"]))
    warnings: list[str] = []
    assert PodTemplate.parse(json.dumps(converted.to_json()), warn=warnings.append) == converted
    assert warnings == []
    assert converted.locators()["reduce-worker"] == "sha256-277205b3ae3eb3a8e042a62ae46934b470e431ac"


def test_template_with_locators_and_networks_is_written_as_it_is_read():
    document = {"apps": [{"name": "a", "image": "./a.aci"}], "networks": ["one"]}
    template = PodTemplate.parse(document)
    assert PodTemplate.parse(template.to_json()) == template
    assert template.to_json()["apps"] == document["apps"]
    assert template.uuid is None


@pytest.mark.parametrize(
    ("where", "to", "path", "expected", "found"),
    [
        (("acKind",), "PodManifest", "$.acKind", '"ContainerRuntimeManifest"', '"PodManifest"'),
        (("acVersion",), MISSING, "$.acVersion", "semantic version", "nothing"),
        (("uuid",), "6733C088", "$.uuid", "a UUID", '"6733C088"'),
        (("apps",), MISSING, "$.apps", "a list of apps", "nothing"),
        (("apps", 0, "app"), MISSING, "$.apps[0].app", "name", "nothing"),
        (("apps", 0, "app"), "Up", "$.apps[0].app", "an identifier", '"Up"'),
        (("apps", 1, "app"), "example.com/reduce-worker-1.0.0", "$.apps[1].app", "each app once", "again"),
        (("apps", 0, "imageID"), MISSING, "$.apps[0].imageID", "an image ID", "nothing"),
        (("apps", 0, "imageID"), "md5-1234567890", "$.apps[0].imageID", "an image ID", "md5"),
        (("apps", 0, "imageID"), "sha256-xyz", "$.apps[0].imageID", "an image ID", "xyz"),
        (("apps", 0, "annotations"), [], "$.apps[0].annotations", "an object", "an empty list"),
        (("apps", 0, "isolators"), "x", "$.apps[0].isolators", "a list", '"x"'),
        (("apps", 0, "image"), "x", "$.apps[0].image", "no image in an early document", '"x"'),
        (("apps", 0, "mounts"), [], "$.apps[0].mounts", "no mounts", "an empty list"),
        (("volumes", 0, "kind"), "tmpfs", "$.volumes[0].kind", '"host" or "empty"', '"tmpfs"'),
        (("volumes", 0, "source"), MISSING, "$.volumes[0].source", "an absolute path", "nothing"),
        (("volumes", 0, "source"), "opt", "$.volumes[0].source", "an absolute path", '"opt"'),
        (("volumes", 1, "source"), "/x", "$.volumes[1].source", "no source", '"/x"'),
        (("volumes", 0, "readOnly"), "true", "$.volumes[0].readOnly", "true or false", '"true"'),
        (("volumes", 0, "fulfills"), "work", "$.volumes[0].fulfills", "a list", '"work"'),
        (("volumes", 1, "fulfills"), ["a", "work"], "$.volumes[1].fulfills[1]", "once", '"work" again'),
        (("volumes", 0, "name"), "x", "$.volumes[0].name", "no name in an early document", '"x"'),
        (("isolators", 0, "value"), "4X", "$.isolators[0].value", "powers of 1024", '"4X"'),
        (("annotations", "ip-address"), 10, "$.annotations.ip-address", "a string", "10"),
        (("networks",), ["host"], "$.networks", "no networks", "a list"),
        (("ports",), [{}], "$.ports", "no ports", "a list"),
    ],
)
def test_early_pod_refusals(where, to, path, expected, found):
    with pytest.raises(ManifestError) as caught:
        convert_pod(changed(POD, *where, to=to))
    assert caught.value.data["path"] == path
    assert expected in str(caught.value.data["expected"])
    assert found in str(caught.value.data["found"])


def test_early_pods_own_broken_examples_are_refused_where_they_break():
    missing_comma = '{"acKind": "ContainerRuntimeManifest",\n"isolators": [{"name": "memory/limit" "val": "1G"}]}'
    with pytest.raises(ManifestError, match="line 2, column 39"):
        convert_pod(missing_comma)
    with pytest.raises(ManifestError, match="line 1"):
        convert_pod('{"isolators": {{"name": "memory/limit", "value": "4G"}}}')


def test_early_pod_isolators_may_be_one_object():
    converted = convert_pod(changed(POD, "isolators", to={"memory/limit": "4G"}))
    assert converted.to_json() == LATE


def test_early_app_names_that_would_meet_are_long():
    apps = [
        {"app": "example.com/a/web-1.0.0", "imageID": "sha256-111111"},
        {"app": "example.com/b/web-1.0.0", "imageID": "sha256-222222"},
        {"app": "example.com/db", "imageID": "sha256-333333"},
    ]
    names = [app.name for app in convert_pod(changed(POD, "apps", to=apps)).pod.apps]
    assert names == ["example-com-a-web-1-0-0", "example-com-b-web-1-0-0", "db"]


def test_early_app_names_that_cannot_be_told_apart_are_refused():
    apps = [
        {"app": "a.b/web-1.0.0", "imageID": "sha256-111111"},
        {"app": "a-b/web-1.0.0", "imageID": "sha256-222222"},
    ]
    with pytest.raises(ManifestError, match=r"\$\.apps\[1\]\.app: .*a-b-web-1-0-0"):
        convert_pod(changed(POD, "apps", to=apps))


def test_early_unknown_keys_of_pods_are_kept_and_told():
    warnings: list[str] = []
    document = changed(POD, "x", to=1)
    document["apps"][0]["y"] = 2
    document["volumes"][0]["z"] = 3
    converted = convert_pod(document, warn=warnings.append)
    assert (converted.pod.extra, converted.pod.apps[0].extra, converted.pod.volumes[0].extra) == (
        {"x": 1},
        {"y": 2},
        {"z": 3},
    )
    told = "\n".join(warnings)
    for path in ("$.x ", "$.apps[0].y ", "$.volumes[0].z "):
        assert f"unknown key {path}is kept" in told


# --- images ------------------------------------------------------------------------------------------------------


def completed(document: dict) -> PodTemplate:
    return with_images(
        convert_pod(document), {app["app"].partition("/")[2][:-6]: IMAGE for app in document["apps"]}
    )


def test_early_isolators_of_the_pod_override_the_images_one_by_one():
    template = completed(POD)
    first, second, _ = template.pod.apps
    assert first.app is None  # nothing is said of it: the image's counts whole
    assert second.isolators == ()
    assert second.app.to_json() == {
        **APP,
        "isolators": [
            {"name": "resource/memory", "value": {"limit": "1Gi"}},
            {"name": "os/linux/cpu-shares", "value": 7},
        ],
    }
    assert not template.unfinished


def test_early_volume_stands_for_every_mount_point_that_it_fulfils():
    template = completed(changed(POD, "volumes", 0, "fulfills", to=["other", "work", "data"]))
    assert template.pod.volumes[0].to_json() == {
        "name": "other",
        "kind": "host",
        "source": "/opt/tenant1/work",
        "readOnly": True,
    }
    reified = reify(template, {app.name: (SHA512, IMAGE) for app in template.pod.apps})
    for app in template.pod.apps:
        mounts = {mount.path: (mount.volume_name, mount.read_only) for mount in reified.mounts[app.name]}
        assert mounts == {"/w": ("other", True), "/d": ("other", True)}
    assert reified.notes == ()


def test_early_volume_of_the_mount_points_name_is_mounted():
    template = completed(POD)
    reified = reify(template, {app.name: (SHA512, IMAGE) for app in template.pod.apps})
    assert reified.mounts["reduce-worker"][0].volume_name == "work"
    assert [app.image.id for app in reified.pod.apps] == [SHA512] * 3
    assert "kurma.io" not in json.dumps([app.to_json() for app in reified.pod.apps])


def test_early_volume_that_fulfils_what_no_app_has_is_told():
    read = convert_pod(changed(POD, "volumes", 0, "fulfills", to=["work", "wrok"]))
    template = with_images(read, {app.name: IMAGE for app in read.pod.apps})
    images = {app.name: (SHA512, IMAGE) for app in template.pod.apps}
    notes = idle_volumes(read, reify(template, images), images)
    assert "volume work: no app has the mount point wrok to fulfil" in notes


def test_early_volume_that_fulfils_nothing_has_a_name_that_no_mount_point_has():
    volumes = [{"kind": "empty"}, {"kind": "empty", "fulfills": ["volume-1"]}, {"kind": "empty", "fulfills": []}]
    pod = convert_pod(changed(POD, "volumes", to=volumes)).pod
    assert [volume.name for volume in pod.volumes] == ["volume-1-unused", "volume-1", "volume-3"]


def test_early_app_whose_image_is_not_known_stays_open():
    template = convert_pod(changed(POD, "volumes", 0, "fulfills", to=["work", "data"]))
    partly = with_images(template, {"reduce-worker": IMAGE})
    assert partly.pod.apps[1].isolators == template.pod.apps[1].isolators
    assert partly.pod.volumes == template.pod.volumes
    assert partly.unfinished
    whole = with_images(partly, {app.name: IMAGE for app in template.pod.apps})
    assert whole == with_images(template, {app.name: IMAGE for app in template.pod.apps})


def test_late_template_is_left_as_it_is():
    template = PodTemplate.parse({"apps": [{"name": "a", "image": "./a.aci"}]})
    assert with_images(template, {}) is template


# --- the network -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "first", "second"),
    [
        (None, None, None),
        ("true", None, None),
        ("false", None, None),
        (None, "false", None),
        (None, "true", "true"),
        ("false", "false", "false"),
    ],
)
def test_early_private_network_is_asked_for_and_not_taken(pod, first, second):
    """By isolators, which the gate knows: networks that the pod's file lists would be root's own word (E8)."""
    document = changed(POD, "isolators", to={} if pod is None else {"privateNetwork": pod})
    for index, word in enumerate((first, second)):
        document["apps"][index]["isolators"] = [] if word is None else [{"name": "private-network", "val": word}]
    converted = convert_pod(document)
    assert converted.networks is None
    said = [
        [one.value["net"] for one in scope.isolators if one.name == "os/linux/namespaces"]
        for scope in (converted.pod, *converted.pod.apps)
    ]
    words = {None: [], "true": ["private"], "false": ["host"]}
    assert said[:3] == [words[pod], words[first], words[second]]


@pytest.mark.parametrize(
    ("pod", "first", "second", "path", "found"),
    [
        ("true", None, "false", "$.apps[1].isolators", '"false"'),
        (None, "false", "true", "$.apps[1].isolators", '"true"'),
    ],
)
def test_early_apps_of_one_pod_share_a_network(pod, first, second, path, found):
    document = changed(POD, "isolators", to={} if pod is None else {"privateNetwork": pod})
    for index, word in enumerate((first, second)):
        document["apps"][index]["isolators"] = {} if word is None else {"privateNetwork": word}
    with pytest.raises(ManifestError) as caught:
        convert_pod(document)
    assert caught.value.data["path"] == path
    assert found in str(caught.value.data["found"])
