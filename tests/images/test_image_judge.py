"""What vouches for an image of a registry, and for an archive (K4)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import TrustError
from kurma_core.hookspecs.fetcher import RemoteArchive, RemoteBlobHooks, RemoteLayers
from kurma_core.images.trust_policy import TrustPolicy

DEFAULTS = {"named": "signed", "https": "signed", "http": "signed", "registry": "digest", "file": "any"}
DIGEST = "sha256:" + "0" * 64


def remote(url: str, *, pinned: bool = False) -> RemoteLayers:
    manifest = ImageManifest(name="example.com/a")
    return RemoteLayers("docker://a", url, url.partition(":")[0], manifest, (), DIGEST, pinned)


def judge(*insecure: str, registry: str = "digest") -> TrustPolicy:
    # Keys play no part for registries.
    return TrustPolicy({**DEFAULTS, "registry": registry}, frozenset(insecure))


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
    assert judge(*insecure).judge_layers(found).trust == trust


def test_plain_http_is_recorded() -> None:
    assert judge("http").judge_layers(remote("http://r.example/v2/a")).insecure == ("http",)


def test_where_a_signature_is_wanted_there_is_none() -> None:
    with pytest.raises(TrustError, match="images from registries have none"):
        judge(registry="signed").judge_layers(remote("https://r.example/v2/a"))


# --- archives ---


def judged(url: str, *insecure: str, transport: str = "", source: str = "", **policy: str) -> str:
    """What vouches for an archive that nobody signed."""
    scheme = url.partition(":")[0]
    archive = RemoteArchive(
        locator=url,
        url=url,
        transport=transport or scheme,
        blob=RemoteBlobHooks(),
    )
    staged = SimpleNamespace(manifest=SimpleNamespace(name="example.com/a"), id="sha512-0", archive_path="/none")
    keys = SimpleNamespace(keys_for=lambda name: {})
    found = TrustPolicy({**DEFAULTS, **policy}, frozenset(insecure), keys=keys)  # type: ignore[arg-type]
    return found.judge_archive(archive, staged, source=source or transport or scheme).trust  # type: ignore[arg-type]


WEB = "https://example.com/a.aci"
PLAIN = "http://example.com/a.aci"


@pytest.mark.parametrize(("url", "source"), [(WEB, ""), (PLAIN, ""), (WEB, "named"), (PLAIN, "named")])
@pytest.mark.parametrize("insecure", [(), ("tls",), ("http",), ("tls", "http", "pubkey")])
def test_unsigned_archives_are_refused(url: str, source: str, insecure: tuple[str, ...]) -> None:
    """By default; and the ways to them may be relaxed without what vouches for them being so."""
    with pytest.raises(TrustError, match="is not signed"):
        judged(url, *insecure, source=source)
    assert judged(url, *insecure, "image", source=source) == "unverified"


def test_tls_stands_for_a_digest() -> None:
    assert judged(WEB, https="digest") == "digest"
    assert judged(WEB, source="named", named="digest") == "digest"


@pytest.mark.parametrize(
    ("url", "insecure", "source"),
    [(WEB, ("tls",), ""), (WEB, ("tls",), "named"), (PLAIN, ("http",), ""), (PLAIN, ("http",), "named")],
)
def test_where_nothing_holds_the_way_nothing_stands_for_it(
    url: str, insecure: tuple[str, ...], source: str
) -> None:
    with pytest.raises(TrustError, match="is not signed"):
        judged(url, *insecure, source=source, https="digest", http="digest", named="digest")


def test_where_anything_goes_it_is_on_record() -> None:
    assert judged(WEB, https="any") == "unverified"
    assert judged("file:///a.aci") == "local"
    with pytest.raises(TrustError, match="is not signed"):
        judged("file:///a.aci", file="signed")
    with pytest.raises(TrustError, match="is not signed"):
        judged("file:///a.aci", file="digest")
