"""What speaks for an image: whose signatures count, its digests, and what its ID does not settle (X6)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kurma_core.images.trust_policy import TrustPolicy, loose_parts
from kurma_core.models.image import REGISTRY, ImageRecord, Provenance
from kurma_core.value import replace

ID = "sha512-" + "0" * 128
ALICE, MALLORY = "A" * 40, "1" * 39 + "E"
DIGEST = "sha256:" + "d" * 64


def record(*provenance: Provenance) -> ImageRecord:
    return ImageRecord(ID, "example.com/app", None, {}, 0, (), provenance)


def came(trust: str, **more: Any) -> Provenance:
    return Provenance("example.com/app", "2026-01-02T03:04:05Z", trust, **more)


def policy(**lapsed: str) -> TrustPolicy:
    """:param lapsed: why the signatures of these keys count no longer."""
    keys = SimpleNamespace(lapse=lambda name, signer, since: lapsed.get(signer))
    return TrustPolicy({}, keys=cast("Any", keys))


@pytest.mark.parametrize(
    ("one", "signers"),
    [
        (came("signed", fingerprint=ALICE), (ALICE,)),
        # Of an encrypted archive, the signature is over something else than what is in the store.
        (came("signed", fingerprint=ALICE, encrypted=True), ()),
        (came("unverified", fingerprint=ALICE), ()),
        (came("local", fingerprint=ALICE), ()),
        (came("digest", digest=DIGEST), ()),
    ],
)
def test_a_signature_counts_that_was_verified_over_the_image(one: Provenance, signers: tuple[str, ...]) -> None:
    assert policy().vouchers(record(one)).signers == signers


def test_every_way_in_which_it_came_is_looked_at_now() -> None:
    ways = (came("unverified"), came("signed", fingerprint=MALLORY), came("signed", fingerprint=ALICE))
    found = policy(**{MALLORY: "revoked"}).vouchers(record(*ways))
    assert (found.signers, found.lapsed) == ((ALICE,), {MALLORY: "revoked"})
    assert (found.id, found.name) == (ID, "example.com/app")


def test_its_digests_are_its_id_and_those_of_registries() -> None:
    assert policy().vouchers(record(came("local"))).digests == {ID}
    assert policy().vouchers(record(came("local"), came("digest", digest=DIGEST))).digests == {ID, DIGEST}
    early = "sha256-" + "e" * 64
    assert policy().vouchers(replace(record(came("local")), early_id=early)).digests == {ID, early}


def node(ident: str, *dependencies: tuple[str | None, Any]) -> Any:
    named = [SimpleNamespace(image_id=wanted) for wanted, _ in dependencies]
    manifest = SimpleNamespace(dependencies=named)
    return cast(
        "Any", SimpleNamespace(id=ident, manifest=manifest, dependencies=[found for _, found in dependencies])
    )


def test_what_it_names_by_its_whole_id_is_settled_and_nothing_else() -> None:
    base, libs, tools = node("base"), node("libs"), node("tools")
    assert list(loose_parts(node("app"))) == []
    assert list(loose_parts(node("app", (ID, base)))) == []
    assert list(loose_parts(node("app", (None, base), (ID, libs)))) == ["base"]
    # So little of an ID another image can be made to have.
    assert list(loose_parts(node("app", (ID[: len("sha512-") + 39], base)))) == ["base"]
    assert list(loose_parts(node("app", (ID[: len("sha512-") + 40], base)))) == []
    # At any depth, below what is settled itself, too.
    deep = node("deep", (None, tools), (ID, base))
    assert list(loose_parts(node("app", (ID, deep), (None, libs)))) == ["tools", "libs"]


def test_names_are_those_that_callers_type() -> None:
    """A registry's image by the address, without a password; any other by its own name and version (19.3)."""
    registry = Provenance(
        "docker://me:secret@example.com/web:1", "2026-01-02T03:04:05Z", "digest", source=REGISTRY
    )
    file = replace(came("local"), locator="file:///srv/web.aci", source="file")
    assert record(file, registry, file, registry).names == ("docker://example.com/web:1", "example.com/app")
    assert replace(record(file), version="1.0").names == ("example.com/app:1.0",)
