"""Pod manifests and templates: P1–P4, P6, and T8 on them."""

from __future__ import annotations

import copy
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kurma_core import json_text
from kurma_core.appc.pod import PodManifest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import AppNotFoundError, ManifestError

IMAGE_ID = "sha512-" + "cd" * 64
FTP = {"name": "ftp", "protocol": "tcp", "port": 21, "count": 2, "socketActivated": True}
FULL = {
    "acKind": "PodManifest",
    "acVersion": "0.8.11",
    "apps": [
        {
            "name": "reduce-worker",
            "image": {
                "id": IMAGE_ID,
                "name": "example.com/reduce-worker",
                "labels": [{"name": "version", "value": "1.0.0"}],
            },
            "app": {"exec": ["/bin/reduce-worker"], "user": "0", "group": "0"},
            "readOnlyRootFS": True,
            "mounts": [
                {"volume": "work", "path": "/mnt/work"},
                {"volume": "work", "path": "/tmp", "appVolume": {"name": "tmp", "kind": "empty", "mode": "1777"}},
            ],
            "annotations": [{"name": "foo", "value": "bar"}],
        },
        {"name": "register", "image": {"id": IMAGE_ID}},
    ],
    "volumes": [
        {"name": "work", "kind": "host", "source": "/opt/tenant1/work", "readOnly": True, "recursive": False},
        {"name": "buildoutput", "kind": "empty", "mode": "0700", "uid": 5, "gid": 6, "readOnly": True},
    ],
    "isolators": [{"name": "resource/memory", "value": {"limit": "4G"}}],
    "annotations": [{"name": "ip-address", "value": "10.1.2.3"}],
    "ports": [{"name": "ftp", "hostPort": 2121, "hostIP": "127.0.0.1", "podPort": FTP}],
    "userAnnotations": {"a": "b"},
    "userLabels": {"c": "d"},
}
MISSING = object()


def changed(*where: object, to: object) -> dict:
    """FULL with the value at ``where`` replaced, or taken away."""
    document = copy.deepcopy(FULL)
    place = document
    for step in where[:-1]:
        place = place[step]
    if to is MISSING:
        del place[where[-1]]
    else:
        place[where[-1]] = to
    return document


def path_of(where: tuple) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)


def refused(document: object, path: str, expected: str, found: str, parse=PodManifest.parse) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(document)
    assert caught.value.data["path"] == path
    assert expected in caught.value.data["expected"]
    assert caught.value.data["found"] == found


def test_full_manifest_is_read():
    """P1–P4"""
    pod = PodManifest.parse(json.dumps(FULL).encode())
    app = pod.app("reduce-worker")
    assert (app.image.id, app.image.name) == (IMAGE_ID, "example.com/reduce-worker")
    assert app.app.exec == ("/bin/reduce-worker",)
    assert app.read_only_rootfs
    assert (app.mounts[0].volume, app.mounts[0].path, app.mounts[0].app_volume) == ("work", "/mnt/work", None)
    assert app.mounts[1].app_volume.mode_bits == 0o1777
    assert app.annotation("foo") == "bar"
    work, output = pod.volumes
    assert (work.kind, work.source, work.read_only, work.recursive) == ("host", "/opt/tenant1/work", True, False)
    assert (output.kind, output.mode_bits, output.uid, output.gid) == ("empty", 0o700, 5, 6)
    assert pod.volume("buildoutput") is output
    assert pod.volume("none") is None
    assert pod.isolators[0].value == {"limit": "4G"}
    assert pod.annotation("ip-address") == "10.1.2.3"
    port = pod.ports[0]
    assert (port.name, port.host_port, port.host_ip, port.pod_port.to_json()) == ("ftp", 2121, "127.0.0.1", FTP)


def test_full_manifest_is_written_as_it_was():
    """P1–P4, T8"""
    warnings: list[str] = []
    assert PodManifest.parse(FULL, warn=warnings.append).to_json() == FULL
    assert warnings == []


def test_defaults():
    """P2, P3: what absence means."""
    least = {"acKind": "PodManifest", "acVersion": "0.8.0", "apps": []}
    assert PodManifest.parse(least).to_json() == least
    volumes = [{"name": "h", "kind": "host", "source": "/"}, {"name": "e", "kind": "empty"}]
    pod = PodManifest.parse({**least, "volumes": volumes, "apps": [{"name": "a", "image": {"id": IMAGE_ID}}]})
    assert not pod.app("a").read_only_rootfs
    assert pod.app("a").app is None
    assert (pod.volumes[0].recursive, pod.volumes[0].read_only) == (True, False)
    assert (pod.volumes[1].mode_bits, pod.volumes[1].uid, pod.volumes[1].gid) == (0o755, 0, 0)


def test_no_such_app():
    with pytest.raises(AppNotFoundError) as caught:
        PodManifest.parse(FULL).app("x")
    assert "reduce-worker, register" in caught.value.hint


@pytest.mark.parametrize(
    ("where", "value", "expected", "found"),
    [
        (("acKind",), MISSING, '"PodManifest"', "nothing"),
        (("acKind",), "ImageManifest", '"PodManifest"', '"ImageManifest"'),
        (("acVersion",), MISSING, "a semantic version", "nothing"),
        (("apps",), MISSING, "a list of apps", "nothing"),
        (("apps",), {}, "a list", "an object"),
    ],
)
def test_top_level_refusals(where, value, expected, found):
    """P1"""
    refused(changed(*where, to=value), path_of(where), expected, found)


@pytest.mark.parametrize(
    ("where", "value", "expected", "found"),
    [
        (("name",), MISSING, "the app's name", "nothing"),
        (("name",), "a/b", "a name", '"a/b"'),
        (("image",), MISSING, "the app's image", "nothing"),
        (("image",), "docker://x", "an object", '"docker://x"'),
        (("image", "id"), MISSING, "an image ID", "nothing"),
        (("image", "id"), "sha512-12", "an image ID", '"sha512-12"'),
        (("image", "name"), "A", "an identifier", '"A"'),
        (("app", "user"), MISSING, "a user", "nothing"),
        (("readOnlyRootFS",), 1, "true or false", "1"),
        (("mounts", 0, "volume"), MISSING, "a volume's name", "nothing"),
        (("mounts", 0, "path"), MISSING, "an absolute path", "nothing"),
        (("mounts", 0, "path"), "mnt", "an absolute path", '"mnt"'),
        (("mounts", 1, "appVolume", "kind"), "tmpfs", '"host", "empty", "image" or "named"', '"tmpfs"'),
        (("annotations", 0, "name"), "F", "an identifier", '"F"'),
    ],
)
def test_app_refusals(where, value, expected, found):
    """P2"""
    where = ("apps", 0, *where)
    refused(changed(*where, to=value), path_of(where), expected, found)


def test_app_names_are_unique():
    """P2"""
    refused(
        changed("apps", 1, "name", to="reduce-worker"), "$.apps[1].name", "each name once", '"reduce-worker" again'
    )


@pytest.mark.parametrize(
    ("where", "value", "expected", "found"),
    [
        ((0, "name"), MISSING, "the volume's name", "nothing"),
        ((0, "kind"), MISSING, '"host", "empty", "image" or "named"', "nothing"),
        ((0, "kind"), "nfs", '"host", "empty", "image" or "named"', '"nfs"'),
        ((0, "source"), MISSING, "an absolute path on the host", "nothing"),
        ((0, "source"), "opt", "an absolute path", '"opt"'),
        ((0, "mode"), "0755", "no mode", '"0755"'),
        ((0, "uid"), 0, "no uid", "0"),
        ((0, "recursive"), "no", "true or false", '"no"'),
        ((1, "source"), "/x", "no source", '"/x"'),
        ((1, "recursive"), True, "no recursive", "true"),
        ((1, "mode"), "0799", "a mode in octal digits", '"0799"'),
        ((1, "mode"), "77777", "a mode in octal digits", '"77777"'),
        ((1, "mode"), 755, "a string", "755"),
        ((1, "mode"), "", "a mode in octal digits", '""'),
        ((1, "uid"), -1, "an integer from 0", "-1"),
        ((1, "gid"), "root", "an integer from 0", '"root"'),
    ],
)
def test_volume_refusals(where, value, expected, found):
    """P3"""
    where = ("volumes", *where)
    refused(changed(*where, to=value), path_of(where), expected, found)


@pytest.mark.parametrize(
    ("sub_path", "expected"),
    [("/a", "a relative path"), ("a/../b", "a relative path without .."), (1, "a string")],
)
def test_sub_paths_stay_in_their_volume(sub_path, expected):
    volume = {"name": "work", "kind": "named", "kurma.io/sub-path": sub_path}
    found = f'"{sub_path}"' if isinstance(sub_path, str) else str(sub_path)
    refused(changed("volumes", 0, to=volume), '$.volumes[0]["kurma.io/sub-path"]', expected, found)


def test_volume_names_are_unique():
    """P3"""
    refused(changed("volumes", 1, "name", to="work"), "$.volumes[1].name", "each name once", '"work" again')


@pytest.mark.parametrize(
    ("where", "value", "expected", "found"),
    [
        (("ports", 0, "name"), MISSING, "the name of an app's port", "nothing"),
        (("ports", 0, "hostPort"), MISSING, "an integer from 1 to 65535", "nothing"),
        (("ports", 0, "hostPort"), 0, "an integer from 1 to 65535", "0"),
        (("ports", 0, "hostIP"), "localhost", "an IPv4 or IPv6 address", '"localhost"'),
        (("ports", 0, "podPort"), 21, "an object, a port as in an image manifest", "21"),
        (("ports", 0, "podPort", "name"), MISSING, "a string", "nothing"),
        (("ports", 0, "podPort", "protocol"), MISSING, "a string", "nothing"),
        (("ports", 0, "podPort", "port"), 65536, "an integer from 1 to 65535", "65536"),
        (("ports", 0, "podPort", "count"), 65535, "at most 65515 ports from 21 up", "65535"),
        (("ports", 0, "podPort", "socketActivated"), "yes", "true or false", '"yes"'),
        (("isolators", 0, "value"), MISSING, "the isolator's value", "nothing"),
        (("annotations", 0, "value"), 10, "a string", "10"),
        (("userLabels",), [], "an object", "an empty list"),
    ],
)
def test_other_refusals(where, value, expected, found):
    """P4"""
    refused(changed(*where, to=value), path_of(where), expected, found)


def test_ports_and_annotations_are_unique():
    """P4"""
    for key in ("ports", "annotations"):
        name = FULL[key][0]["name"]
        refused(changed(key, to=FULL[key] * 2), f"$.{key}[1].name", "each name once", f'"{name}" again')


def test_addresses():
    """P4"""
    for address in ("::1", "0.0.0.0", "192.0.2.1"):
        assert PodManifest.parse(changed("ports", 0, "hostIP", to=address)).ports[0].host_ip == address


OBJECTS = [
    (),
    ("apps", 0),
    ("apps", 0, "image"),
    ("apps", 0, "app"),
    ("apps", 0, "mounts", 0),
    ("apps", 0, "mounts", 1, "appVolume"),
    ("volumes", 0),
    ("volumes", 1),
    ("ports", 0),
    ("isolators", 0),
]


@pytest.mark.parametrize("where", OBJECTS)
def test_unknown_keys_are_kept_and_warned_about(where):
    """T8"""
    document = changed(*where, "new", to=[{"x": 1}])
    warnings: list[str] = []
    assert PodManifest.parse(json_text.dumps(document), warn=warnings.append).to_json() == document
    (warning,) = warnings
    assert f"{path_of(where)}.new" in warning


@given(
    st.sampled_from(OBJECTS),
    st.dictionaries(st.text().map("x-".__add__), st.none() | st.integers() | st.text(), max_size=3),
)
def test_decode_and_encode_are_inverse(where, extra):
    """T8"""
    document = copy.deepcopy(FULL)
    place = document
    for step in where:
        place = place[step]
    place.update(extra)
    pod = PodManifest.parse(json_text.dumps(document))
    assert pod.to_json() == document
    assert PodManifest.parse(json_text.dumps(pod.to_json())) == pod


TEMPLATE = """
apps:
  - name: web
    image: docker://127.0.0.1:5000/web:1.0
  - name: named
    image:
      name: example.com/app
      labels:
        - {name: os, value: linux}
        - {name: version, value: "1.0"}
        - {name: arch, value: amd64}
  - name: bare
    image: {name: example.com/app}
  - name: path
    image: ./app.aci
volumes:
  - {name: work, kind: empty}
networks: [default, "backend:eth7,ip=10.0.0.7"]
"""


def test_template_in_yaml_and_json():
    """P6: no IDs, no UUID, no kind; the same from YAML and from JSON."""
    template = PodTemplate.parse(yaml.safe_load(TEMPLATE))
    assert template.locators() == {
        "web": "docker://127.0.0.1:5000/web:1.0",
        "named": "example.com/app:1.0,os=linux,arch=amd64",
        "bare": "example.com/app",
        "path": "./app.aci",
    }
    assert template.networks == ("default", "backend:eth7,ip=10.0.0.7")
    assert template.pod.volumes[0].name == "work"
    assert PodTemplate.parse(json.dumps(yaml.safe_load(TEMPLATE)).encode()) == template


def test_whole_manifest_is_a_template():
    """P6"""
    template = PodTemplate.parse(FULL)
    assert template.pod == PodManifest.parse(FULL)
    assert template.networks is None
    assert template.locators() == {"reduce-worker": IMAGE_ID, "register": IMAGE_ID}


def test_empty_networks_are_not_absent_ones():
    """P6"""
    assert PodTemplate.parse({"apps": [], "networks": []}).networks == ()
    assert PodTemplate.parse({"apps": []}).networks is None


@pytest.mark.parametrize(
    ("document", "path", "expected", "found"),
    [
        ({"apps": [], "acKind": "Pod"}, "$.acKind", '"PodManifest"', '"Pod"'),
        ({"apps": [], "networks": "default"}, "$.networks", "a list", '"default"'),
        ({"apps": [], "networks": [1]}, "$.networks[0]", "a string", "1"),
        ({"apps": [{"name": "a", "image": ""}]}, "$.apps[0].image", "not empty", '""'),
        ({"apps": [{"name": "a", "image": 7}]}, "$.apps[0].image", "locator", "7"),
        ({"apps": [{"name": "a", "image": {}}]}, "$.apps[0].image", "an id or a name", "neither"),
        ({"apps": [{"name": "a", "image": "x"}], 5: 1}, "$", "keys that are strings", "key 5"),
        (None, "$", "an object", "null"),
    ],
)
def test_template_refusals(document, path, expected, found):
    """P6"""
    refused(document, path, expected, found, parse=PodTemplate.parse)


def test_template_warns_about_unknown_keys():
    """P6, T8"""
    warnings: list[str] = []
    PodTemplate.parse({"apps": [], "network": ["default"]}, warn=warnings.append)
    assert len(warnings) == 1
    assert "$.network " in warnings[0]


def test_a_mistyped_key_is_told_with_the_one_that_was_meant() -> None:
    """19.2: the key is kept all the same."""
    told: list[str] = []
    app = {"name": "a", "image": "docker://x", "readonly": True}
    PodTemplate.parse({"network": "host", "zzz": 1, "apps": [app]}, warn=told.append)
    kept = "is kept and means nothing to Kurma"
    assert sorted(told) == [
        f"unknown key $.apps[0].readonly {kept}; did you mean readOnlyRootFS?",
        f"unknown key $.network {kept}; did you mean networks?",
        f"unknown key $.zzz {kept}",
    ]
