"""Configurations become image manifests exactly so (R3)."""

from __future__ import annotations

import json
from typing import Any

import kurma_fetch_docker.conversion
import pytest
from kurma_fetch_docker.conversion import ImageOrigin, conventions, image_manifest
from kurma_fetch_docker.plugin import ANNOTATIONS

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import FetchError, FetchNotFoundError, ImageError
from kurma_core.hookspecs.fetcher import FetchRequest
from kurma_core.models.image import Conventions

REQUEST = FetchRequest("linux", "amd64")
CONFIG_DIGEST = "sha256:" + "1" * 64
MANIFEST_DIGEST = "sha256:" + "2" * 64


def convert(
    section: dict[str, Any] | None = None,
    origin: ImageOrigin | None = None,
    request: FetchRequest = REQUEST,
    **config: Any,
) -> ImageManifest:
    document = {"os": "linux", "architecture": "amd64", "config": section or {}, **config}
    redis = ImageOrigin("registry-1.docker.io", "library/redis", "7", MANIFEST_DIGEST, CONFIG_DIGEST)
    return image_manifest(document, origin or redis, request)


def app_of(section: dict[str, Any]) -> Any:
    app = convert(section).app
    assert app is not None
    return app


def test_the_whole_of_it() -> None:
    manifest = convert(
        {
            "Entrypoint": ["/entry", "--"],
            "Cmd": ["redis-server"],
            "User": "redis:999",
            "Env": ["PATH=/bin", "A=1=2", "EMPTY="],
            "WorkingDir": "/data",
            "Volumes": {"/data": {}, "/var/lib/x": {}},
            "ExposedPorts": {"6379/tcp": {}, "53/udp": {}},
            "Labels": {"b": "2", "a": "1"},
            "StopSignal": "SIGQUIT",
            "Healthcheck": {"Test": ["CMD", "true"]},
        },
        created="2024-05-06T07:08:09.123456789Z",
        author="Somebody",
    )
    assert manifest.to_json() == {
        "acKind": "ImageManifest",
        "acVersion": manifest.ac_version,
        "name": "registry-1.docker.io/library/redis",
        "labels": [
            {"name": "version", "value": "7"},
            {"name": "os", "value": "linux"},
            {"name": "arch", "value": "amd64"},
        ],
        "app": {
            "exec": ["/entry", "--", "redis-server"],
            "user": "redis",
            "group": "999",
            "workingDirectory": "/data",
            "environment": [
                {"name": "PATH", "value": "/bin"},
                {"name": "A", "value": "1=2"},
                {"name": "EMPTY", "value": ""},
            ],
            "mountPoints": [
                {"name": "volume-data", "path": "/data"},
                {"name": "volume-var-lib-x", "path": "/var/lib/x"},
            ],
            "ports": [
                {"name": "53-udp", "protocol": "udp", "port": 53},
                {"name": "6379-tcp", "protocol": "tcp", "port": 6379},
            ],
            "userLabels": {"a": "1", "b": "2"},
        },
        "annotations": [
            {"name": "created", "value": "2024-05-06T07:08:09.123456789Z"},
            {"name": "authors", "value": "Somebody"},
            {"name": "appc.io/docker/registryurl", "value": "registry-1.docker.io"},
            {"name": "appc.io/docker/repository", "value": "library/redis"},
            {"name": "appc.io/docker/imageid", "value": CONFIG_DIGEST},
            {"name": "appc.io/docker/manifesthash", "value": MANIFEST_DIGEST},
            {"name": "appc.io/docker/tag", "value": "7"},
            {"name": "appc.io/docker/entrypoint", "value": '["/entry","--"]'},
            {"name": "appc.io/docker/cmd", "value": '["redis-server"]'},
            {"name": "kurma.io/docker/healthcheck", "value": '{"Test":["CMD","true"]}'},
            {"name": "kurma.io/docker/stopsignal", "value": "SIGQUIT"},
        ],
    }


def test_it_is_deterministic() -> None:
    one = {"Volumes": {"/b": {}, "/a": {}}, "Labels": {"x": "1", "y": "2"}, "ExposedPorts": {"2": {}, "1": {}}}
    two = {"ExposedPorts": {"1": {}, "2": {}}, "Labels": {"y": "2", "x": "1"}, "Volumes": {"/a": {}, "/b": {}}}
    assert json.dumps(convert(one).to_json()) == json.dumps(convert(two).to_json())


def test_what_no_identifier_can_hold_becomes_an_underscore() -> None:
    assert convert(origin=ImageOrigin("127.0.0.1:5000", "x", "1")).name == "127.0.0.1_5000/x"


@pytest.mark.parametrize(
    ("user", "pair"),
    [("", ("0", "")), ("u", ("u", "")), ("1:2", ("1", "2")), ("u:g", ("u", "g")), ("u:", ("u", ""))],
)
def test_users(user: str, pair: tuple[str, str]) -> None:
    """Without a group the user's own are meant: the image's files tell them, later."""
    app = app_of({"User": user})
    assert (app.user, app.group) == pair


@pytest.mark.parametrize(("user", "note"), [("", None), ("0", "0"), ("0:1", "0"), ("root", None), ("1", None)])
def test_root_by_its_number_is_told_from_no_user(user: str, note: str | None) -> None:
    assert convert({"User": user}).annotation("kurma.io/docker/user") == note


def test_no_command_is_no_error_here() -> None:
    assert app_of({"Env": ["A=1"]}).exec == ()


def test_a_command_that_is_one_text() -> None:
    assert app_of({"Entrypoint": "/bin/sh", "Cmd": None}).exec == ("/bin/sh",)


def test_variables_that_no_manifest_can_hold_are_kept_aside() -> None:
    manifest = convert({"Env": ["A=1", "1x=2", "A=3"]})
    assert manifest.app is not None
    assert [(item.name, item.value) for item in manifest.app.environment] == [("A", "3")]
    assert manifest.annotation("kurma.io/docker/env") == '["1x=2"]'


def test_volumes_whose_names_meet() -> None:
    app = app_of({"Volumes": {"/a/b": {}, "/a-b": {}, "c/../d": {}}})
    assert [(point.name, point.path) for point in app.mount_points] == [
        ("volume-a-b", "/a-b"),
        ("volume-a-b-2", "/a/b"),
        ("volume-d", "/d"),
    ]


def test_ranges_of_ports() -> None:
    (port,) = app_of({"ExposedPorts": {"8000-8009/tcp": {}}}).ports
    assert (port.name, port.port, port.count) == ("8000-8009-tcp", 8000, 10)


@pytest.mark.parametrize(
    ("config", "arch"),
    [
        ({"architecture": "arm64", "variant": "v8"}, "aarch64"),
        ({"architecture": "arm", "variant": "v6"}, "armv6l"),
        ({"architecture": "386"}, "i386"),
        ({"architecture": ""}, "amd64"),
    ],
)
def test_architectures(config: dict[str, str], arch: str) -> None:
    assert convert(request=FetchRequest("linux", arch), **config).label("arch") == arch


@pytest.mark.parametrize(
    ("machine", "architecture", "runs"),
    [
        ("amd64", "arm64", False),
        ("amd64", "386", True),
        ("i386", "amd64", False),
        ("aarch64", "arm", True),
        ("armv7l", "arm64", False),
    ],
)
def test_an_image_for_one_platform_alone(machine: str, architecture: str, runs: bool) -> None:
    request = FetchRequest("linux", machine)
    if runs:
        assert convert(request=request, architecture=architecture).name
        return
    with pytest.raises(FetchNotFoundError, match="not made for linux/") as caught:
        convert(request=request, architecture=architecture)
    assert caught.value.hint == f"it is made for linux/{architecture}"


@pytest.mark.parametrize(
    "config",
    [
        {"os": "windows"},
        {"architecture": "riscv64"},
        {"config": ["x"]},
        {"config": {"Env": "A=1", "Cmd": 1}},
        {"config": {"ExposedPorts": {"http": {}}}},
        {"config": {"ExposedPorts": {"99999/tcp": {}}}},
        {"config": {"Labels": {"a": 1}}},
    ],
)
def test_what_cannot_be_expressed_is_refused_in_one_line(config: dict[str, Any]) -> None:
    with pytest.raises(FetchError) as caught:
        convert(**config)
    assert "\n" not in caught.value.message


def test_a_created_that_is_no_time_is_kept_aside() -> None:
    manifest = convert(created="yesterday")
    assert manifest.annotation("created") is None
    assert manifest.annotation("kurma.io/docker/created") == "yesterday"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"os": "windows\n\x1b[1m"}, r"for windows\n\x1b[1m, not for linux"),
        ({"architecture": "x\ny"}, r"for linux/x\ny, which has no App Container name"),
        ({"architecture": "s390x"}, "not made for linux/amd64"),
    ],
)
def test_another_platform_is_told_on_one_line(config: dict[str, str], told: str) -> None:
    with pytest.raises(FetchError) as caught:
        convert(**config)
    assert told in caught.value.message
    assert f"{caught.value.message}{caught.value.hint or ''}".isprintable()


# --- conventions ---


def expected(section: dict[str, Any]) -> Conventions:
    return conventions({pair.name: pair.value for pair in convert(section).annotations})


def test_what_a_converted_image_expects() -> None:
    found = expected({"Entrypoint": ["/e", "--"], "Cmd": ["/c"]})
    assert found == Conventions(("/e", "--"), 15, True, True, True)
    assert expected({"Cmd": ["/c"]}).entrypoint == ()
    assert expected({}).entrypoint is None
    said = ("SIGINT", "quit", "9", "SIGRTMIN+3", "0", "x")
    assert [expected({"StopSignal": word}).stop_signal for word in said] == [2, 3, 9, 37, 15, 15]


def test_annotations_of_docker2aci() -> None:
    assert conventions({"appc.io/docker/entrypoint": "/e 'a b'"}).entrypoint == ("/e", "a b")
    with pytest.raises(ImageError, match=r"appc\.io/docker/cmd is not a list of words: 5"):
        conventions({"appc.io/docker/cmd": "5"})


def test_all_annotations_are_declared() -> None:
    made = convert({"Entrypoint": ["/e"], "Env": ["A B=1"], "Healthcheck": {"Test": ["x"]}}, created="once")
    names = [pair.name for pair in made.annotations]
    assert len(names) > 5
    assert all(name.startswith(ANNOTATIONS) for name in names)


def test_the_conversion_is_public() -> None:
    public = kurma_fetch_docker.conversion.__all__
    assert set(public) == {"ImageOrigin", "complete_manifest", "conventions", "diff_ids", "image_manifest"}
