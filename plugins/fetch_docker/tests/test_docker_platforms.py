"""One platform chosen among several (R1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kurma_fetch_docker.oci_documents import OCI_INDEX, OCI_MANIFEST, Descriptor, choose, digest_of, pick

from kurma_core.errors import FetchError, FetchNotFoundError
from kurma_core.hookspecs.fetcher import FetchRequest


def entries(*platforms: str | None) -> list[Descriptor]:
    """One for each ``os/architecture[/variant]``; its digest tells its place."""
    found = []
    for number, text in enumerate(platforms):
        platform = (
            None if text is None else dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))
        )
        found.append(Descriptor("", f"sha256:{number:064x}", 1, platform))
    return found


@pytest.mark.parametrize(
    ("arch", "platforms", "place"),
    [
        ("amd64", ("linux/arm64/v8", "linux/amd64"), 1),
        ("amd64", ("windows/amd64", "linux/amd64"), 1),
        ("amd64", ("linux/amd64/v3", "linux/amd64"), 1),
        ("amd64", ("unknown/unknown", "linux/amd64"), 1),
        ("aarch64", ("linux/arm64", "linux/arm64/v8"), 1),
        ("aarch64", ("linux/arm64",), 0),
        ("armv7l", ("linux/arm/v5", "linux/arm/v6", "linux/arm/v7"), 2),
        ("armv7l", ("linux/arm/v5", "linux/arm/v6"), 1),
        ("armv6l", ("linux/arm/v7", "linux/arm/v6"), 1),
        ("i386", ("linux/amd64", "linux/386"), 1),
        ("s390x", ("linux/amd64", "linux/s390x"), 1),
        ("amd64", (None,), 0),
    ],
)
def test_the_one_for_this_platform(arch: str, platforms: tuple[str | None, ...], place: int) -> None:
    chosen = pick(entries(*platforms), "r", FetchRequest("linux", arch))
    assert chosen.digest == f"sha256:{place:064x}"


@pytest.mark.parametrize(
    ("arch", "platforms", "hint"),
    [
        ("amd64", ("linux/arm64/v8", "unknown/unknown"), "it is made for linux/arm64/v8"),
        ("armv6l", ("linux/arm/v7",), "it is made for linux/arm/v7"),
        ("amd64", (None, None), None),
        ("amd64", (), None),
    ],
)
def test_none_for_it(arch: str, platforms: tuple[str | None, ...], hint: str | None) -> None:
    with pytest.raises(FetchNotFoundError, match="not made for linux/") as caught:
        pick(entries(*platforms), "r", FetchRequest("linux", arch))
    assert caught.value.hint == hint


class Index:
    """Documents by digest, and indexes made of them."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}

    def document(self, **content: object) -> dict[str, object]:
        text = json.dumps(content).encode()
        self.documents[digest_of(text)] = text
        return {"digest": digest_of(text), "size": len(text), "mediaType": content["mediaType"]}

    def image(self, name: str, platform: str | None = None, **more: object) -> dict[str, object]:
        config = {"digest": digest_of(name.encode()), "size": 1}
        entry = self.document(mediaType=OCI_MANIFEST, config=config, layers=[], **more)
        return entry if platform is None else {**entry, "platform": platform_of(platform)}

    def index(self, *entries: object) -> dict[str, object]:
        return self.document(mediaType=OCI_INDEX, manifests=entries)

    def chosen(self, entry: dict[str, object], arch: str = "amd64") -> str:
        """The digest of the configuration."""
        digest = str(entry["digest"])
        request = FetchRequest("linux", arch)
        found = choose(self.documents[digest], digest, "r", request, lambda found: self.documents[found.digest])
        return found.config.digest


def platform_of(text: str) -> dict[str, str]:
    return dict(zip(("os", "architecture", "variant"), text.split("/"), strict=False))


def test_attestations_are_no_images() -> None:
    """As buildx writes them: beside an image that gives no platform, and with words about it."""
    here = Index()
    words = {**here.image("words", "unknown/unknown"), "annotations": {"vnd.docker.reference.type": "attestation"}}
    assert here.chosen(here.index(words, here.image("app", "linux/amd64"))) == digest_of(b"app")
    assert here.chosen(here.index(here.image("app"), words)) == digest_of(b"app")
    with pytest.raises(FetchNotFoundError, match="not made for linux/amd64") as caught:
        here.chosen(here.index(words, here.image("app", "linux/arm64")))
    assert caught.value.hint == "it is made for linux/arm64"


def test_indexes_in_indexes() -> None:
    here = Index()
    arms = here.index(here.image("arm", "linux/arm64"))
    intel = here.index(here.image("old", "linux/386"), here.image("new", "linux/amd64"))
    assert here.chosen(here.index(arms, intel)) == digest_of(b"new")
    assert here.chosen(here.index(arms, intel), "aarch64") == digest_of(b"arm")
    with pytest.raises(FetchNotFoundError, match="not made for linux/s390x") as caught:
        here.chosen(here.index(arms, intel), "s390x")
    assert caught.value.hint == "it is made for linux/386, linux/amd64, linux/arm64"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"manifests": [], "layers": []}, "has the keys of an image and of an index"),
        ({"schemaVersion": 1, "fsLayers": []}, "Docker's schema 1, which is obsolete"),
        ({"config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}}, "holds application/vnd.cncf.helm"),
        ({"mediaType": "application/vnd.example"}, "holds application/vnd.example, not an image"),
        ({"mediaType": "a\nb\x1b"}, r"holds a\\nb\\x1b, not an image"),
        ({"config": {"mediaType": "a\nb"}}, r"holds a\\nb, not an image"),
        ({"manifests": [{"platform": {"os": "a\nb", "architecture": "\x1b"}}] * 2}, "not made for linux/amd64"),
        ({"layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"}]}, "are encrypted"),
        ({"config": 5}, "malformed descriptor"),
    ],
)
def test_what_is_no_image(document: dict[str, Any], text: str) -> None:
    descriptor = {"digest": digest_of(b"x"), "size": 1}
    if "manifests" in document:
        document["manifests"] = [{**descriptor, **one} for one in document["manifests"]]
    elif "schemaVersion" not in document and document.get("config") != 5:
        document["config"] = {**descriptor, **document.get("config", {})}
        document["layers"] = [{**descriptor, **layer} for layer in document.get("layers", [])]
    content = json.dumps(document).encode()
    with pytest.raises(FetchError, match=text) as caught:
        choose(content, digest_of(content), "r", FetchRequest("linux", "amd64"), lambda found: b"")
    assert caught.value.message.startswith("r: ")
    assert f"{caught.value.message}{caught.value.hint or ''}".isprintable()
