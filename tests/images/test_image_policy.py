"""What must vouch for an image, and whether one of the store will do (K4, S4)."""

from __future__ import annotations

import pytest

from kurma_core.errors import UsageError
from kurma_core.images.trust_policy import Policy, at_least, is_loopback, refused_by_name, relaxations
from kurma_core.models.image import ImageRecord, Provenance

DEFAULTS = {"named": "signed", "https": "signed", "http": "signed", "docker": "digest", "file": "any"}
WEB = "https://example.com/a.aci"
DOCKER = "docker://example.com/a"


def record(*provenance: tuple[str, str], insecure: tuple[str, ...] = (), url: str = "") -> ImageRecord:
    return ImageRecord(
        id="sha512-" + "0" * 128,
        name="example.com/a",
        version=None,
        labels={},
        size=0,
        layers=(),
        provenance=tuple(
            Provenance(locator, "2026-01-01T00:00:00Z", trust, url=url, insecure=insecure)
            for locator, trust in provenance
        ),
    )


@pytest.mark.parametrize(
    ("source", "locator", "trust", "accepted"),
    [
        ("https", WEB, "signed", True),
        ("https", WEB, "unverified", False),
        ("https", WEB, "digest", False),
        ("docker", DOCKER, "digest", True),
        ("docker", DOCKER, "unverified", False),
        ("docker", "oci:/a", "local", True),
        ("file", "file:///a", "local", True),
        ("file", "file:///a", "unverified", True),
    ],
)
def test_defaults(source: str, locator: str, trust: str, accepted: bool) -> None:
    assert Policy(DEFAULTS).accepts(record((locator, trust)), source, locator) is accepted


def test_only_what_came_by_that_locator_vouches() -> None:
    known = record(("https://other.example/a.aci", "signed"), (WEB, "unverified"))
    assert not Policy(DEFAULTS).accepts(known, "https", WEB)
    assert Policy(DEFAULTS, frozenset({"image"})).accepts(known, "https", WEB)


def test_plain_http_is_excused_for_as_long_as_it_is_listed() -> None:
    url = "http://10.0.0.1:5000/v2/a/manifests/latest"
    known = record((DOCKER, "unverified"), insecure=("http",), url=url)
    assert Policy(DEFAULTS, plain=frozenset({"10.0.0.1:5000"})).accepts(known, "docker", DOCKER)
    assert Policy(DEFAULTS, frozenset({"http"})).accepts(known, "docker", DOCKER)
    assert not Policy(DEFAULTS, plain=frozenset({"10.0.0.2:5000"})).accepts(known, "docker", DOCKER)
    worse = record((DOCKER, "unverified"), insecure=("http", "image"), url=url)
    assert not Policy(DEFAULTS, plain=frozenset({"10.0.0.1:5000"})).accepts(worse, "docker", DOCKER)


@pytest.mark.parametrize(
    ("provenance", "accepted"),
    [
        ((WEB, "signed"), True),
        ((DOCKER, "digest"), True),
        ((WEB, "digest"), False),
        (("file:///a", "local"), False),
        (("oci:/a", "local"), False),
        ((WEB, "unverified"), False),
    ],
)
def test_what_may_stand_for_a_name(provenance: tuple[str, str], accepted: bool) -> None:
    assert Policy(DEFAULTS).accepts_by_name(record(provenance)) is accepted
    assert Policy({**DEFAULTS, "named": "any"}).accepts_by_name(record(provenance))


def test_the_refusal_says_what_to_do() -> None:
    error = refused_by_name(record(("file:///a", "local")))
    assert "example.com/a" in error.message
    assert "sha512-0000" in (error.hint or "")


def test_order() -> None:
    assert at_least("signed", "local")
    assert at_least("local", "local")
    assert not at_least("unverified", "local")


def test_relaxations() -> None:
    assert relaxations(["tls", "http"]) == {"tls", "http"}
    with pytest.raises(UsageError, match="no such relaxation"):
        relaxations(["ssl"])


def test_loopback_urls() -> None:
    assert is_loopback("http://127.0.0.1:5000/v2/x")
    assert is_loopback("http://[::1]:5000/")
    assert not is_loopback("http://10.0.0.1/")
    assert not is_loopback("http://localhost.example.com/")
