"""What vouches for an image of a registry (K4)."""

from __future__ import annotations

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import TrustError
from kurma_core.hookspecs import RemoteLayers
from kurma_core.images.judges import PolicyJudge
from kurma_core.images.policy import Policy

DEFAULTS = {"named": "signed", "https": "signed", "http": "signed", "docker": "digest", "file": "any"}
DIGEST = "sha256:" + "0" * 64


def remote(url: str, *, pinned: bool = False) -> RemoteLayers:
    manifest = ImageManifest(name="example.com/a")
    return RemoteLayers("docker://a", url, url.partition(":")[0], manifest, (), DIGEST, pinned)


def judge(*insecure: str, docker: str = "digest") -> PolicyJudge:
    # Keys play no part for registries.
    return PolicyJudge(Policy({**DEFAULTS, "docker": docker}, frozenset(insecure)), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "insecure", "trust"),
    [
        (remote("https://r.example/v2/a"), (), "digest"),
        (remote("https://r.example/v2/a"), ("tls",), "unverified"),
        (remote("https://r.example/v2/a"), ("image",), "unverified"),
        (remote("http://r.example/v2/a"), (), "unverified"),
        (remote("http://r.example/v2/a"), ("http",), "unverified"),
        (remote("http://r.example/v2/a", pinned=True), ("http",), "digest"),
        (remote("http://127.0.0.1:5000/v2/a"), (), "digest"),
        (remote("http://127.0.0.1.example:5000/v2/a"), (), "unverified"),
        (remote("http://localhost.example/v2/a"), (), "unverified"),
        (remote("file:///a"), (), "local"),
    ],
)
def test_layers(found: RemoteLayers, insecure: tuple[str, ...], trust: str) -> None:
    assert judge(*insecure).layers(found).trust == trust


def test_plain_http_is_recorded() -> None:
    assert judge("http").layers(remote("http://r.example/v2/a")).insecure == ("http",)


def test_where_a_signature_is_wanted_there_is_none() -> None:
    with pytest.raises(TrustError, match="carry no signatures"):
        judge(docker="signed").layers(remote("https://r.example/v2/a"))
