"""The node's images: what their manifests tell, and the credentials of a pull (C19)."""

import base64

import grpc
import pytest
from kurma_cri.image_service import credentials_of, image_message
from kurma_cri.images import NodeImage, _facts
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError

from kurma_core.appc.image import App, ImageManifest, NameValue
from kurma_core.models.image import FetchCredentials, ImageRecord, Provenance

CONFIG = f"sha256:{'c' * 64}"


def record(locator="docker://localhost/app:v1", early_id=None, **fields):
    came = Provenance(locator, "2026-01-01T00:00:00Z", "digest")
    given = {
        "name": "localhost/app",
        "version": "v1",
        "labels": {},
        "size": 0,
        "layers": (),
        "provenance": (came,),
    }
    return ImageRecord(**{"id": f"sha512-{'a' * 128}", "early_id": early_id, **given, **fields})


def manifest(user="0", **annotations):
    """Of a registry's image, unless it has no ``imageid``."""
    notes = tuple(NameValue(name.replace("__", "/"), value) for name, value in annotations.items())
    return ImageManifest("localhost/app", app=App(exec=("/x",), user=user, group="0"), annotations=notes)


def of_registry(user, **more):
    return manifest(user, **{"appc.io/docker__imageid": CONFIG, **more})


@pytest.mark.parametrize(
    ("found", "uid", "name"),
    [
        (of_registry("0"), None, ""),
        (of_registry("0", **{"kurma.io/docker__user": "0"}), 0, ""),
        (of_registry("65534"), 65534, ""),
        (of_registry("daemon"), None, "daemon"),
        (manifest("0"), 0, ""),
    ],
)
def test_the_user_of_an_image(found, uid, name):
    facts = _facts(record(), found)
    message = image_message(NodeImage(facts.id, (record(),), (), (), False, facts))
    assert (message.uid.value if message.HasField("uid") else None, message.username) == (uid, name)
    assert message.size > 0


def test_the_id_of_an_image():
    assert _facts(record(), of_registry("0")).id == CONFIG
    assert _facts(record(early_id=f"sha256-{'e' * 64}"), manifest()).id == f"sha256:{'e' * 64}"
    assert len(_facts(record(), manifest()).id) == len(CONFIG)


def test_an_image_of_a_file_has_the_names_that_it_tells():
    notes = {"registryurl": "registry-1.docker.io", "repository": "library/nginx", "tag": "1.25"}
    told = of_registry("0", **{f"appc.io/docker__{key}": value for key, value in notes.items()})
    assert _facts(record("docker-archive:/nginx.tar"), told).names == ("docker.io/library/nginx:1.25",)
    assert _facts(record("oci:/layout"), of_registry("0")).names == ()
    assert _facts(record("/app.aci"), manifest()).names == ("localhost/app:v1",)


@pytest.mark.parametrize(
    ("auth", "found"),
    [
        ({}, None),
        ({"server_address": "localhost"}, None),
        ({"username": "u", "password": "p"}, FetchCredentials("u", "p")),
        ({"auth": base64.b64encode(b"u:p:q\0\0").decode()}, FetchCredentials("u", "p:q")),
        ({"identity_token": "t", "server_address": "s"}, FetchCredentials(identity_token="t", server="s")),
        ({"registry_token": "t"}, FetchCredentials(registry_token="t")),
    ],
)
def test_credentials_of_a_pull(auth, found):
    assert credentials_of(cri.AuthConfig(**auth)) == found


@pytest.mark.parametrize(
    "text", ["!", base64.b64encode(b"no colon").decode(), base64.b64encode(b"\xff:x").decode()]
)
def test_malformed_credentials_are_not_repeated(text):
    with pytest.raises(RpcError, match=r"USER:PASSWORD in base64$") as caught:
        credentials_of(cri.AuthConfig(auth=text))
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert text not in caught.value.message
