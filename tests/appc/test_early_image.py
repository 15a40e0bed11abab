"""Early image manifests: E2–E5, E9, and T8 on them."""

from __future__ import annotations

import json

import pytest

from kurma_core.appc.early_image import convert_any, convert_image, is_early_image, is_early_pod
from kurma_core.appc.image import AC_VERSION, ImageManifest
from kurma_core.errors import ManifestError
from tests.appc.early_samples import APP, FILESET, MISSING, changed

LATE_APP = {
    "acKind": "ImageManifest",
    "acVersion": AC_VERSION,
    "name": "example.com/reduce-worker",
    "labels": [
        {"name": "version", "value": "1.0.0"},
        {"name": "os", "value": "linux"},
        {"name": "arch", "value": "amd64"},
    ],
    "app": {
        "exec": ["/usr/bin/reduce-worker"],
        "user": "100",
        "group": "300",
        "eventHandlers": APP["eventHandlers"],
        "environment": [{"name": "REDUCE_WORKER_DEBUG", "value": "true"}],
        "mountPoints": [{"name": "database", "path": "/var/lib/db"}],
        "ports": APP["ports"],
        "isolators": [
            {"name": "os/linux/namespaces", "value": {"net": "private"}},
            {"name": "os/linux/cpu-shares", "value": 20},
            {"name": "resource/memory", "value": {"limit": "1Gi"}},
            {
                "name": "os/linux/capabilities-retain-set",
                "value": {"set": ["CAP_NET_BIND_SERVICE", "CAP_SYS_ADMIN"]},
            },
        ],
    },
    "annotations": [{"name": name, "value": value} for name, value in APP["annotations"].items()],
}
VERSION = [{"name": "version", "value": "1.0.0"}]
LATE_FILESET = {
    "acKind": "ImageManifest",
    "acVersion": AC_VERSION,
    "name": "example.com/reduce-worker",
    "labels": VERSION,
    "dependencies": [
        {
            "imageName": "example.com/reduce-worker-base",
            "imageID": "sha256-" + "0123456789abcdef" * 4,
            "labels": VERSION,
        },
        {
            "imageName": "example.com/reduce-worker-libs",
            "imageID": "sha256-277205b3ae3eb3a8",
            "labels": VERSION,
            "kurma.io/root": "/opt/libs",
        },
        {"imageName": "example.com/trusted-certificate-authority", "kurma.io/root": "/etc/ca"},
    ],
    "pathWhitelist": ["/etc/ca/example.com/crt", "/usr/bin/map-reduce-worker"],
}


def refused(document: dict, path: str, expected: str, found: str) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        convert_any(document)
    assert caught.value.data["path"] == path
    assert expected in str(caught.value.data["expected"])
    assert found in str(caught.value.data["found"])
    return caught.value


def test_early_app_manifest_becomes_a_late_one():
    warnings: list[str] = []
    assert convert_image(json.dumps(APP).encode(), None, warn=warnings.append).to_json() == LATE_APP
    assert warnings == []


def test_early_fileset_manifest_becomes_a_late_one_without_app():
    converted = convert_image(None, json.dumps(FILESET).encode())
    assert converted.to_json() == LATE_FILESET
    assert converted.app is None


def test_early_both_manifests_become_one():
    both = convert_image(json.dumps(APP), json.dumps(FILESET)).to_json()
    assert both == {
        **LATE_APP,
        "dependencies": LATE_FILESET["dependencies"],
        "pathWhitelist": LATE_FILESET["pathWhitelist"],
    }


def test_early_both_manifests_give_what_they_alone_say():
    app = {**changed(APP, "annotations", to={"homepage": "https://example.com/app"}), "x": "app's", "y": 1}
    fileset = {**FILESET, "annotations": {"homepage": "https://example.com/fs", "made/by": "fs"}, "x": 2, "z": 3}
    both = convert_image(app, fileset)
    assert {one.name: one.value for one in both.annotations} == {
        "homepage": "https://example.com/app",
        "made/by": "fs",
    }
    assert both.extra == {"x": "app's", "y": 1, "z": 3}


def test_early_conversion_is_read_again_as_it_was_written():
    converted = convert_image(APP, FILESET)
    warnings: list[str] = []
    again = ImageManifest.parse(json.dumps(converted.to_json()), warn=warnings.append)
    assert again == converted
    assert [dependency.root for dependency in again.dependencies] == ["/", "/opt/libs", "/etc/ca"]
    assert warnings == []  # kurma.io/root means something


def test_early_app_and_fileset_of_different_names_are_told():
    warnings: list[str] = []
    other = changed(FILESET, "name", to="example.com/other-0.4.0")
    assert convert_image(APP, other, warn=warnings.append).name == "example.com/reduce-worker"
    assert len(warnings) == 2
    assert "example.com/other" in warnings[0]
    assert "0.4.0" in warnings[1]


def test_early_refusal_names_the_manifest_where_there_are_two():
    with pytest.raises(ManifestError, match=r"^fileset manifest: .*\$\.files\[0\]"):
        convert_image(APP, changed(FILESET, "files", to=["relative"]))
    with pytest.raises(ManifestError, match=r"^app manifest: .*\$\.os: "):
        convert_image(changed(APP, "os"), FILESET)
    with pytest.raises(ManifestError, match="neither"):
        convert_image(None, None)


@pytest.mark.parametrize("kind", ["AppManifest", "ImageManifest"])
def test_early_either_spelling_of_the_kind_is_read(kind):
    document = changed(APP, "acKind", to=kind)
    assert is_early_image(document)
    assert convert_any(document).to_json() == LATE_APP
    assert convert_image(document, None).to_json() == LATE_APP


@pytest.mark.parametrize(
    ("document", "image", "pod"),
    [
        ({"acKind": "AppManifest", "acVersion": "0.1.1"}, True, False),
        ({"acKind": "FilesetManifest"}, True, False),
        ({"acKind": "ImageManifest", "acVersion": "0.1.0"}, True, False),
        ({"acKind": "ImageManifest", "acVersion": "0.1.0", "app": {}}, False, False),
        ({"acKind": "ImageManifest", "acVersion": "0.8.11"}, False, False),
        ({"acKind": "ImageManifest"}, False, False),
        ({"acKind": "ContainerRuntimeManifest"}, False, True),
        ({"acKind": "PodManifest", "acVersion": "0.1.0"}, False, False),
        ([], False, False),
        (None, False, False),
    ],
)
def test_early_documents_are_told_by_kind_and_version(document, image, pod):
    assert is_early_image(document) is image
    assert is_early_pod(document) is pod


def test_early_late_manifest_is_converted_to_itself():
    late = convert_any(APP)
    assert convert_any(late.to_json()) == late


@pytest.mark.parametrize(
    ("written", "name", "version"),
    [
        ("example.com/reduce-worker-1.0.0", "example.com/reduce-worker", "1.0.0"),
        ("example.com/app-1.0.0-rc.1", "example.com/app", "1.0.0-rc.1"),
        ("example.com/app-1.0.0-2.0.0", "example.com/app", "1.0.0-2.0.0"),
        ("coreos.com/etcd-v0.5.0-alpha.4", "coreos.com/etcd", "v0.5.0-alpha.4"),
        ("example.com/debian-7.1", "example.com/debian", "7.1"),
        ("arm-7.0-tools-2.0.0", "arm-7.0-tools", "2.0.0"),
        ("example.com/ubuntu-14", "example.com/ubuntu-14", None),
        ("example.com/reduce-worker", "example.com/reduce-worker", None),
        ("example-1.0.0/app", "example-1.0.0/app", None),
        ("example.com/x--1.0.0", "example.com/x--1.0.0", None),
        ("1.0.0", "1.0.0", None),
    ],
)
def test_early_version_is_the_tail_of_the_name(written, name, version):
    converted = convert_any(changed(APP, "name", to=written))
    assert (converted.name, converted.version) == (name, version)


@pytest.mark.parametrize(
    ("where", "to", "path", "expected", "found"),
    [
        (("acKind",), "PodManifest", "$.acKind", '"ImageManifest"', '"PodManifest"'),
        (("acVersion",), "1.0.0", "$.acVersion", "0.x", '"1.0.0"'),
        (("name",), MISSING, "$.name", "name", "nothing"),
        (("name",), "Example.com/x", "$.name", "an identifier", '"Example.com/x"'),
        (("os",), MISSING, "$.os", "linux", "nothing"),
        (("os",), "plan9", "$.os", "linux", '"plan9"'),
        (("arch",), MISSING, "$.arch", "amd64", "nothing"),
        (("arch",), "vax", "$.arch", "amd64", '"vax"'),
        (("exec",), "/bin/x -y", "$.exec", "a list", '"/bin/x -y"'),
        (("exec", 0), "", "$.exec[0]", "a command", '""'),
        (("user",), MISSING, "$.user", "a user", "nothing"),
        (("group",), 0, "$.group", "a string", "0"),
        (("eventHandlers", 0, "name"), "pre-stop", "$.eventHandlers[0].name", "pre-start", '"pre-stop"'),
        (("eventHandlers", 0, "exec"), [], "$.eventHandlers[0].exec", "a command", "an empty list"),
        (("environment",), [], "$.environment", "an object", "an empty list"),
        (("environment", "1x"), "y", "$.environment.1x", "a variable's name", '"1x"'),
        (("environment", "X"), 1, "$.environment.X", "a string", "1"),
        (("environment", "X"), "a\0b", "$.environment.X", "without NUL", "a"),
        (("mountPoints", 0, "path"), "var", "$.mountPoints[0].path", "an absolute path", '"var"'),
        (("mountPoints", 0, "path"), "/a/../b", "$.mountPoints[0].path", "without ..", "/a/../b"),
        (("mountPoints", 0, "name"), "..", "$.mountPoints[0].name", "a name", '".."'),
        (("ports", 0, "port"), 0, "$.ports[0].port", "1 to 65535", "0"),
        (("annotations",), [], "$.annotations", "an object", "an empty list"),
        (("annotations", "created"), "yesterday", "$.annotations.created", "RFC 3339", '"yesterday"'),
        (("annotations", "homepage"), "ftp://x", "$.annotations.homepage", "http", '"ftp://x"'),
        (("annotations", "documentation"), "x", "$.annotations.documentation", "http", '"x"'),
        (("annotations", "authors"), ["A", 1], "$.annotations.authors[1]", "a string", "1"),
        (("annotations", "Upper"), "x", "$.annotations.Upper", "an identifier", '"Upper"'),
        (("labels",), [], "$.labels", "no labels in an early document", "an empty list"),
        (("app",), {}, "$.app", "no app in an early document", "an object"),
        (("pathWhitelist",), ["/x"], "$.pathWhitelist", "no pathWhitelist", "a list"),
        (("dependencies",), [{}], "$.dependencies", "no dependencies", "a list"),
    ],
)
def test_early_app_manifest_refusals(where, to, path, expected, found):
    refused(changed(APP, *where, to=to), path, expected, found)


@pytest.mark.parametrize(
    ("where", "to", "path", "expected", "found"),
    [
        (("name",), MISSING, "$.name", "name", "nothing"),
        (("dependencies", 0, "hash"), "sha256-...", "$.dependencies[0].hash", "an image ID", '"sha256-..."'),
        (("dependencies", 0, "hash"), "sha256-12345", "$.dependencies[0].hash", "an image ID", "12345"),
        (("dependencies", 0, "hash"), "sha512-12345678", "$.dependencies[0].hash", "128 hex", "12345678"),
        (("dependencies", 0, "hash"), "sha256-" + "a" * 65, "$.dependencies[0].hash", "up to 64", "aaa"),
        (("dependencies", 0, "name"), MISSING, "$.dependencies[0].name", "name", "nothing"),
        (("dependencies", 1, "root"), "opt", "$.dependencies[1].root", "an absolute path", '"opt"'),
        (("dependencies", 1, "root"), "/opt/../x", "$.dependencies[1].root", "without ..", "/opt/../x"),
        (("dependencies", 1, "imageID"), "x", "$.dependencies[1].imageID", "no imageID", '"x"'),
        (("files",), "/x", "$.files", "a list", '"/x"'),
        (("files", 1), "x", "$.files[1]", "an absolute path", '"x"'),
        (("pathWhitelist",), ["/x"], "$.pathWhitelist", "no pathWhitelist", "a list"),
    ],
)
def test_early_fileset_manifest_refusals(where, to, path, expected, found):
    refused(changed(FILESET, *where, to=to), path, expected, found)


def test_early_json_is_read_strictly_and_the_place_is_named():
    with pytest.raises(ManifestError, match="line 2, column 22") as caught:
        convert_image(b'{"acKind": "AppManifest",\n "x": {"name": "a/b" "val": "1G"}}', None)
    assert (caught.value.data["line"], caught.value.data["column"]) == (2, 22)
    with pytest.raises(ManifestError, match="twice"):
        convert_image(b'{"acKind": "AppManifest", "acKind": "AppManifest"}', None)


def test_early_authors_may_be_a_list():
    converted = convert_any(changed(APP, "annotations", "authors", to=["Carly <c@example.com>", "Nat"]))
    assert converted.annotation("authors") == "Carly <c@example.com>, Nat"


def test_early_names_of_mount_points_become_names_and_do_not_meet():
    warnings: list[str] = []
    document = changed(APP, "mountPoints", 0, "name", to="buildOutput")
    converted = convert_any(document, warn=warnings.append)
    assert [point.name for point in converted.app.mount_points] == ["buildoutput"]
    assert warnings == ['$.mountPoints[0].name: "buildOutput" is called buildoutput']
    document["mountPoints"].append({"name": "buildoutput", "path": "/b"})
    refused(document, "$.mountPoints[1].name", 'differs from "buildOutput"', '"buildoutput"')


def test_early_unknown_keys_are_kept_and_told():
    warnings: list[str] = []
    app = changed(changed(APP, "xTop", to=[1]), "ports", 0, "xPort", to="y")
    fileset = changed(changed(FILESET, "dependencies", 0, "xDep", to=True), "xTop", to=[2])
    converted = convert_image(app, fileset, warn=warnings.append)
    assert converted.extra == {"xTop": [1]}
    assert converted.app.ports[0].extra == {"xPort": "y"}
    assert converted.dependencies[0].extra == {"xDep": True}
    assert ImageManifest.parse(converted.to_json()) == converted
    told = "\n".join(warnings)
    for path in ("$.xTop", "$.ports[0].xPort", "$.dependencies[0].xDep"):
        assert f"unknown key {path} is kept" in told
    assert "unknown key $.xTop: the app manifest's counts" in told


def test_early_fileset_manifest_may_name_its_platform():
    document = {**FILESET, "os": "linux", "arch": "aarch64"}
    warnings: list[str] = []
    converted = convert_image(None, document, warn=warnings.append)
    assert (converted.label("os"), converted.label("arch"), warnings) == ("linux", "aarch64", [])
    assert convert_image(APP, document, warn=warnings.append).label("arch") == "amd64"
    assert warnings == ["arch: the app manifest's, amd64, counts, and not aarch64"]
    refused({**FILESET, "arch": "amd64"}, "$.os", "linux", "nothing")
    refused({**FILESET, "os": "linux", "arch": "vax"}, "$.arch", "amd64", '"vax"')


@pytest.mark.parametrize("root", ["opt", "/a/../b", 1])
def test_early_root_is_checked_where_it_is_kept(root):
    with pytest.raises(ManifestError) as caught:
        ImageManifest.parse(changed(LATE_FILESET, "dependencies", 1, "kurma.io/root", to=root))
    assert caught.value.data["path"] == '$.dependencies[1]["kurma.io/root"]'
