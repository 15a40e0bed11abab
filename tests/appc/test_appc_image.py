"""Image manifests: I1–I6, and T8 on them."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kurma_core import json_text
from kurma_core.appc.image import ARCHITECTURES, ImageManifest, NameValue
from kurma_core.errors import ManifestError

IMAGE_ID = "sha512-" + "ab" * 64
FULL = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "example.com/reduce-worker",
    "labels": [
        {"name": "version", "value": "1.0.0"},
        {"name": "arch", "value": "amd64"},
        {"name": "os", "value": "linux"},
    ],
    "app": {
        "exec": ["reduce-worker", "--quiet", "$HOME"],
        "user": "100",
        "group": "/etc/group",
        "supplementaryGIDs": [400, 500],
        "workingDirectory": "/opt/work",
        "environment": [{"name": "Z_1.a-b", "value": "true"}, {"name": "A", "value": ""}],
        "eventHandlers": [
            {"exec": ["/usr/bin/data-downloader"], "name": "pre-start"},
            {"exec": ["deregister-worker", "--verbose"], "name": "post-stop"},
        ],
        "mountPoints": [{"name": "work", "path": "/var/lib/work", "readOnly": True}],
        "ports": [{"name": "health", "port": 4000, "protocol": "tcp", "socketActivated": True, "count": 2}],
        "isolators": [
            {"name": "resource/cpu", "value": {"request": "250m", "limit": "500m"}},
            {"name": "os/linux/no-new-privileges", "value": True},
            {"name": "example.com/odd", "value": None},
        ],
        "userAnnotations": {"Any Key": "x"},
        "userLabels": {"ours": "y"},
    },
    "dependencies": [
        {
            "imageName": "example.com/base",
            "imageID": IMAGE_ID,
            "labels": [{"name": "os", "value": "linux"}],
            "size": 22017258,
        }
    ],
    "pathWhitelist": ["/etc/ca/example.com/crt", "/usr/bin/map-reduce-worker"],
    "annotations": [
        {"name": "authors", "value": "Carly Container <carly@example.com>"},
        {"name": "created", "value": "2014-10-27T19:32:27.67021798Z"},
        {"name": "documentation", "value": "https://example.com/docs"},
        {"name": "homepage", "value": "https://example.com"},
    ],
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


def refused(document: object, path: str, expected: str, found: str) -> None:
    with pytest.raises(ManifestError) as caught:
        ImageManifest.parse(document)
    assert caught.value.data["path"] == path
    assert expected in caught.value.data["expected"]
    assert caught.value.data["found"] == found
    assert path in str(caught.value)


def test_full_manifest_is_read():
    """I1–I6: every field arrives, lists in their order."""
    manifest = ImageManifest.parse(json.dumps(FULL).encode())
    assert (manifest.name, manifest.version, manifest.ac_version) == (
        "example.com/reduce-worker",
        "1.0.0",
        "0.8.11",
    )
    assert (manifest.label("os"), manifest.label("none")) == ("linux", None)
    assert manifest.annotation("homepage") == "https://example.com"
    app = manifest.app
    assert app.exec == ("reduce-worker", "--quiet", "$HOME")
    assert (app.user, app.group, app.supplementary_gids) == ("100", "/etc/group", (400, 500))
    assert app.working_directory == "/opt/work"
    assert app.environment == (NameValue("Z_1.a-b", "true"), NameValue("A", ""))
    assert app.handler("pre-start") == ("/usr/bin/data-downloader",)
    assert app.handler("post-stop") == ("deregister-worker", "--verbose")
    assert (app.mount_points[0].path, app.mount_points[0].read_only) == ("/var/lib/work", True)
    port = app.ports[0]
    assert (port.name, port.port, port.count, port.protocol, port.socket_activated) == (
        "health",
        4000,
        2,
        "tcp",
        True,
    )
    assert app.isolator("resource/cpu").value == {"request": "250m", "limit": "500m"}
    assert app.isolator("none") is None
    assert app.user_labels == {"ours": "y"}
    dependency = manifest.dependencies[0]
    assert (dependency.image_name, dependency.image_id, dependency.size) == (
        "example.com/base",
        IMAGE_ID,
        22017258,
    )
    assert manifest.path_whitelist == ("/etc/ca/example.com/crt", "/usr/bin/map-reduce-worker")


def test_full_manifest_is_written_as_it_was():
    """I1–I6, T8"""
    warnings: list[str] = []
    assert ImageManifest.parse(FULL, warn=warnings.append).to_json() == FULL
    assert warnings == []


def test_least_manifest():
    """I1: three fields are enough, and absence has its meanings."""
    least = {"acKind": "ImageManifest", "acVersion": "0.5.1", "name": "a"}
    manifest = ImageManifest.parse(least)
    assert (manifest.app, manifest.labels, manifest.version) == (None, (), None)
    assert manifest.to_json() == least
    app = {"user": "0", "group": "0", "mountPoints": [{"name": "m", "path": "/m"}]}
    app["ports"] = [{"name": "p", "protocol": "tcp", "port": 65535}]
    manifest = ImageManifest.parse({**least, "app": app})
    assert (manifest.app.exec, manifest.app.working_directory) == ((), None)
    assert manifest.app.mount_points[0].read_only is False
    assert (manifest.app.ports[0].count, manifest.app.ports[0].socket_activated) == (1, False)
    assert manifest.to_json() == {**least, "app": app}


@pytest.mark.parametrize(
    ("key", "value", "expected", "found"),
    [
        ("acKind", MISSING, '"ImageManifest"', "nothing"),
        ("acKind", "PodManifest", '"ImageManifest"', '"PodManifest"'),
        ("acKind", 1, '"ImageManifest"', "1"),
        ("acVersion", MISSING, "a semantic version", "nothing"),
        ("acVersion", None, "a semantic version", "null"),
        ("acVersion", "0.8", "a semantic version", '"0.8"'),
        ("acVersion", "1.0.0", "a 0.x version", '"1.0.0"'),
        ("name", MISSING, "the image's name", "nothing"),
        ("name", "Example.com", "an identifier", '"Example.com"'),
        ("labels", {}, "a list", "an object"),
        ("app", [], "an object", "an empty list"),
        ("dependencies", "x", "a list", '"x"'),
        ("pathWhitelist", ["/a", "b"], "an absolute path", '"b"'),
    ],
)
def test_top_level_refusals(key, value, expected, found):
    """I1, T5"""
    path = f"$.{key}[1]" if key == "pathWhitelist" else f"$.{key}"
    refused(changed(key, to=value), path, expected, found)


def test_not_an_object():
    """I1"""
    refused([], "$", "an object", "an empty list")
    refused(b"[1]", "$", "an object", "a list")


@pytest.mark.parametrize(
    ("labels", "path", "expected", "found"),
    [
        ([{"name": "name", "value": "x"}], "[0].name", 'other than "name"', '"name"'),
        ([{"name": "a", "value": "1"}, {"name": "a", "value": "2"}], "[1].name", "each name once", '"a" again'),
        ([{"name": "A", "value": "1"}], "[0].name", "an identifier", '"A"'),
        ([{"name": "a", "value": 1}], "[0].value", "a string", "1"),
        ([{"name": "a"}], "[0].value", "a string", "nothing"),
        ([{"value": "a"}], "[0].name", "a string", "nothing"),
        (["a"], "[0]", "an object", '"a"'),
        ([{"name": "os", "value": "plan9"}], "[0].value", "one of linux", '"plan9"'),
        (
            [{"name": "arch", "value": "x86_64"}, {"name": "os", "value": "linux"}],
            "[0].value",
            "an architecture of linux: one of amd64",
            '"x86_64"',
        ),
    ],
)
def test_label_refusals(labels, path, expected, found):
    """I2"""
    refused(changed("labels", to=labels), f"$.labels{path}", expected, found)


def test_architectures():
    """I2: every pair of the specification; without os, arch says nothing."""
    for system, architectures in ARCHITECTURES.items():
        for arch in architectures:
            labels = [{"name": "os", "value": system}, {"name": "arch", "value": arch}]
            assert ImageManifest.parse(changed("labels", to=labels)).label("arch") == arch
    assert ImageManifest.parse(changed("labels", to=[{"name": "arch", "value": "pdp11"}])).label("arch") == "pdp11"


@pytest.mark.parametrize(
    ("where", "value", "path", "expected", "found"),
    [
        (("user",), MISSING, "user", "a user", "nothing"),
        (("group",), MISSING, "group", "a group", "nothing"),
        (("user",), 0, "user", "a string", "0"),
        (("user",), "", "user", "not empty", '""'),
        (("exec",), "sh -c x", "exec", "a list", '"sh -c x"'),
        (("exec",), [""], "exec[0]", "a command", '""'),
        (("exec", 1), 5, "exec[1]", "a string", "5"),
        (("exec", 1), "a\0b", "exec[1]", "without NUL", '"a\\x00b"'),
        (("supplementaryGIDs",), [-1], "supplementaryGIDs[0]", "an integer from 0", "-1"),
        (("supplementaryGIDs",), [1, "2"], "supplementaryGIDs[1]", "an integer from 0", '"2"'),
        (("supplementaryGIDs",), [True], "supplementaryGIDs[0]", "an integer from 0", "true"),
        (("supplementaryGIDs",), [2**32 - 1], "supplementaryGIDs[0]", "to 4294967294", "4294967295"),
        (("supplementaryGids",), [1], "supplementaryGids", "supplementaryGIDs or supplementaryGids", "both"),
        (("workingDirectory",), "opt", "workingDirectory", "an absolute path", '"opt"'),
        (("environment", 0, "name"), "1A", "environment[0].name", "a variable's name", '"1A"'),
        (("environment", 0, "name"), "A=B", "environment[0].name", "a variable's name", '"A=B"'),
        (("environment", 0, "name"), "", "environment[0].name", "a variable's name", '""'),
        (("environment", 0, "name"), "A", "environment[1].name", "each name once", '"A" again'),
        (("environment", 1, "value"), "\0", "environment[1].value", "without NUL", '"\\x00"'),
        (("environment",), {"A": "b"}, "environment", "a list", "an object"),
        (("eventHandlers", 0, "name"), "post-start", "eventHandlers[0].name", '"pre-start"', '"post-start"'),
        (
            ("eventHandlers", 0, "name"),
            "post-stop",
            "eventHandlers[1].name",
            "each name once",
            '"post-stop" again',
        ),
        (("eventHandlers", 0, "exec"), [], "eventHandlers[0].exec", "a command", "an empty list"),
        (("eventHandlers", 0, "exec"), MISSING, "eventHandlers[0].exec", "a command", "nothing"),
        (("mountPoints", 0, "name"), "a.b", "mountPoints[0].name", "a name", '"a.b"'),
        (("mountPoints", 0, "path"), "var", "mountPoints[0].path", "an absolute path", '"var"'),
        (("mountPoints", 0, "path"), "/a/../b", "mountPoints[0].path", "without ..", '"/a/../b"'),
        (("mountPoints", 0, "readOnly"), "yes", "mountPoints[0].readOnly", "true or false", '"yes"'),
        (("ports", 0, "port"), 0, "ports[0].port", "an integer from 1 to 65535", "0"),
        (("ports", 0, "port"), 65536, "ports[0].port", "an integer from 1 to 65535", "65536"),
        (("ports", 0, "port"), "80", "ports[0].port", "an integer from 1 to 65535", '"80"'),
        (("ports", 0, "port"), 80.5, "ports[0].port", "an integer from 1 to 65535", "80.5"),
        (("ports", 0, "port"), MISSING, "ports[0].port", "an integer from 1 to 65535", "nothing"),
        (("ports", 0, "count"), 0, "ports[0].count", "an integer from 1", "0"),
        (("ports", 0, "count"), 61537, "ports[0].count", "at most 61536 ports", "61537"),
        (("ports", 0, "protocol"), MISSING, "ports[0].protocol", "a string", "nothing"),
        (("ports", 0, "name"), "http_x", "ports[0].name", "a name", '"http_x"'),
        (("isolators", 0, "name"), "Resource", "isolators[0].name", "an identifier", '"Resource"'),
        (("isolators", 0, "value"), MISSING, "isolators[0].value", "the isolator's value", "nothing"),
        (("userLabels",), {"a": 1}, "userLabels.a", "a string", "1"),
        (("userAnnotations",), [], "userAnnotations", "an object", "an empty list"),
    ],
)
def test_app_refusals(where, value, path, expected, found):
    """I3"""
    refused(changed("app", *where, to=value), f"$.app.{path}", expected, found)


def test_range_of_ports_may_end_at_the_last():
    """I3"""
    assert ImageManifest.parse(changed("app", "ports", 0, "count", to=61536)).app.ports[0].count == 61536


def test_other_spelling_of_gids():
    """I3"""
    document = changed("app", "supplementaryGIDs", to=None)
    document["app"]["supplementaryGids"] = [7]
    warnings: list[str] = []
    assert ImageManifest.parse(document, warn=warnings.append).app.supplementary_gids == (7,)
    assert warnings == []


@pytest.mark.parametrize(
    ("key", "value", "expected", "found"),
    [
        ("imageName", MISSING, "an image's name", "nothing"),
        ("imageName", "A", "an identifier", '"A"'),
        ("imageID", "sha512-ab", "an image ID", '"sha512-ab"'),
        ("size", -1, "an integer from 0", "-1"),
        ("size", "1", "an integer from 0", '"1"'),
    ],
)
def test_dependency_refusals(key, value, expected, found):
    """I4"""
    refused(changed("dependencies", 0, key, to=value), f"$.dependencies[0].{key}", expected, found)


def test_empty_whitelist_is_none():
    """I5"""
    empty, none = changed("pathWhitelist", to=[]), changed("pathWhitelist", to=MISSING)
    assert ImageManifest.parse(empty) == ImageManifest.parse(none)
    assert ImageManifest.parse(empty).to_json() == none


@pytest.mark.parametrize(
    ("annotation", "path", "expected", "found"),
    [
        ({"name": "created", "value": "yesterday"}, "value", "an RFC 3339 time", '"yesterday"'),
        ({"name": "homepage", "value": "example.com"}, "value", "an http or https URL", '"example.com"'),
        ({"name": "documentation", "value": "ftp://a"}, "value", "an http or https URL", '"ftp://a"'),
        ({"name": "Up", "value": ""}, "name", "an identifier", '"Up"'),
        ({"name": "authors", "value": ["a"]}, "value", "a string", "a list"),
    ],
)
def test_annotation_refusals(annotation, path, expected, found):
    """I6"""
    refused(changed("annotations", to=[annotation]), f"$.annotations[0].{path}", expected, found)


def test_annotations_are_unique():
    """I6"""
    twice = [{"name": "a", "value": "1"}, {"name": "a", "value": "1"}]
    refused(changed("annotations", to=twice), "$.annotations[1].name", "each name once", '"a" again')


def test_null_is_absence():
    """Other implementations write null for a list that they have not got."""
    for key in ("labels", "app", "dependencies", "pathWhitelist", "annotations"):
        assert ImageManifest.parse(changed(key, to=None)).to_json() == changed(key, to=MISSING)
    for key in ("environment", "eventHandlers", "mountPoints", "ports", "isolators", "workingDirectory"):
        assert ImageManifest.parse(changed("app", key, to=None)) == ImageManifest.parse(
            changed("app", key, to=MISSING)
        )
    assert ImageManifest.parse(changed("app", "workingDirectory", to="")).app.working_directory is None


OBJECTS = [
    (),
    ("labels", 0),
    ("app",),
    ("app", "environment", 0),
    ("app", "eventHandlers", 0),
    ("app", "mountPoints", 0),
    ("app", "ports", 0),
    ("app", "isolators", 0),
    ("dependencies", 0),
    ("annotations", 0),
]


@pytest.mark.parametrize("where", OBJECTS)
def test_unknown_keys_are_kept_and_warned_about(where):
    """T8: in every object of the document, once each."""
    document = changed(*where, "com.example/new", to={"deep": [1, None, {"x": 0.5}]})
    warnings: list[str] = []
    assert ImageManifest.parse(json_text.dumps(document), warn=warnings.append).to_json() == document
    (warning,) = warnings
    path = "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where)
    assert f'{path}["com.example/new"]' in warning
    assert ImageManifest.parse(document).to_json() == document


def test_duplicate_keys_are_refused():
    """T8"""
    text = json.dumps(FULL).replace('"user": "100"', '"user": "100", "user": "0"')
    refused(text, "$.app.user", "each key once", 'key "user" twice')


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans()), max_size=3),
    st.sampled_from(OBJECTS),
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=3),
)
def test_decode_and_encode_are_inverse(extra, where, arguments):
    """T8"""
    document = copy.deepcopy(FULL)
    place = document
    for step in where:
        place = place[step]
    extra = {f"x-{key}": value for key, value in extra.items()}
    place.update(extra)
    document["app"]["exec"] = ["sh", *arguments]
    manifest = ImageManifest.parse(json_text.dumps(document))
    assert manifest.to_json() == document
    assert ImageManifest.parse(json_text.dumps(manifest.to_json())) == manifest
