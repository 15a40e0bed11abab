"""What must vouch for an image, and whether one of the store will do (K4, S4)."""

from __future__ import annotations

import pytest

from kurma_core.errors import UsageError
from kurma_core.fetching import Locator
from kurma_core.images.trust_policy import TrustPolicy, is_loopback, relaxations
from kurma_core.models.image import ImageRecord, Provenance

DEFAULTS = {"named": "signed", "https": "signed", "http": "signed", "registry": "digest", "file": "any"}
WEB = "https://example.com/a.aci"
DOCKER = "docker://example.com/a"


LAYOUT = "oci:/a"
FILE = "file:///a"
#: A stranger's scheme, whose fetcher gives an archive over TLS, and one whose fetcher gives layers.
VAULT, SHELF = "vault:a", "shelf:a"
#: (source, transport) as the fetcher said.
CAME = {
    WEB: ("https", "https"),
    DOCKER: ("registry", "https"),
    LAYOUT: ("registry", "file"),
    FILE: ("file", "file"),
    VAULT: ("https", "https"),
    SHELF: ("registry", "https"),
}


def named(text: str) -> Locator:
    return Locator(text.partition(":")[0], text)


def record(*provenance: tuple[str, str], insecure: tuple[str, ...] = (), url: str = "") -> ImageRecord:
    return ImageRecord(
        id="sha512-" + "0" * 128,
        name="example.com/a",
        version=None,
        labels={},
        size=0,
        layers=(),
        provenance=tuple(
            Provenance(
                locator, "2026-01-01T00:00:00Z", trust, *CAME.get(locator, CAME[WEB]), url=url, insecure=insecure
            )
            for locator, trust in provenance
        ),
    )


@pytest.mark.parametrize(
    ("locator", "trust", "accepted"),
    [
        (WEB, "signed", True),
        (WEB, "unverified", False),
        (WEB, "digest", False),
        (DOCKER, "digest", True),
        (DOCKER, "unverified", False),
        (LAYOUT, "local", True),
        (FILE, "local", True),
        (FILE, "unverified", True),
        (VAULT, "signed", True),
        (VAULT, "digest", False),
        (SHELF, "digest", True),
        (SHELF, "unverified", False),
    ],
)
def test_defaults(locator: str, trust: str, accepted: bool) -> None:
    assert TrustPolicy(DEFAULTS).accepts(record((locator, trust)), named(locator)) is accepted


def test_only_what_came_by_that_locator_vouches() -> None:
    known = record(("https://other.example/a.aci", "signed"), (WEB, "unverified"))
    assert not TrustPolicy(DEFAULTS).accepts(known, named(WEB))
    assert TrustPolicy(DEFAULTS, frozenset({"image"})).accepts(known, named(WEB))


def test_plain_http_is_excused_for_as_long_as_it_is_listed() -> None:
    url = "http://10.0.0.1:5000/v2/a/manifests/latest"
    known = record((DOCKER, "unverified"), insecure=("http",), url=url)
    assert TrustPolicy(DEFAULTS, plain=frozenset({"10.0.0.1:5000"})).accepts(known, named(DOCKER))
    assert TrustPolicy(DEFAULTS, frozenset({"http"})).accepts(known, named(DOCKER))
    assert not TrustPolicy(DEFAULTS, plain=frozenset({"10.0.0.2:5000"})).accepts(known, named(DOCKER))
    worse = record((DOCKER, "unverified"), insecure=("http", "image"), url=url)
    assert not TrustPolicy(DEFAULTS, plain=frozenset({"10.0.0.1:5000"})).accepts(worse, named(DOCKER))


@pytest.mark.parametrize(
    ("provenance", "accepted"),
    [
        ((WEB, "signed"), True),
        ((DOCKER, "digest"), True),
        ((WEB, "digest"), False),
        ((FILE, "local"), False),
        ((LAYOUT, "local"), False),
        ((WEB, "unverified"), False),
        ((SHELF, "digest"), True),
        ((VAULT, "digest"), False),
    ],
)
def test_what_may_stand_for_a_name(provenance: tuple[str, str], accepted: bool) -> None:
    assert TrustPolicy(DEFAULTS).accepts_by_name(record(provenance)) is accepted
    assert TrustPolicy({**DEFAULTS, "named": "any"}).accepts_by_name(record(provenance))


def test_the_refusal_says_what_to_do() -> None:
    error = TrustPolicy(DEFAULTS).refusal_by_name(record((FILE, "local")))
    assert "example.com/a" in error.message
    assert "sha512-0000" in (error.hint or "")


@pytest.mark.parametrize(
    ("trust", "dependent", "accepted"),
    [("signed", "local", True), ("local", "local", True), ("unverified", "local", False)],
)
def test_a_dependency_is_vouched_for_as_well_as_what_depends_on_it(
    trust: str, dependent: str, accepted: bool
) -> None:
    found = TrustPolicy(DEFAULTS).accepts_for(record((FILE, trust)), record(("file:///b", dependent)))
    assert found is accepted


def test_relaxations() -> None:
    assert relaxations(["tls", "http"]) == {"tls", "http"}
    with pytest.raises(UsageError, match="unknown check"):
        relaxations(["ssl"])


def test_loopback_urls() -> None:
    assert is_loopback("http://127.0.0.1:5000/v2/x")
    assert is_loopback("http://[::1]:5000/")
    assert not is_loopback("http://10.0.0.1/")
    assert not is_loopback("http://localhost.example.com/")
