"""References: host, name, tag, digest (R1)."""

from __future__ import annotations

import pytest
from kurma_fetch_docker.reference import HUB, Reference, parse_locator, registry_of, short_name

from kurma_core.errors import UsageError
from kurma_core.fetching import parse_locator as core_locator

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("locator", "reference"),
    [
        ("docker:///redis", Reference(HUB, "library/redis", "latest")),
        ("docker://redis", Reference(HUB, "library/redis", "latest")),
        ("docker://redis:7", Reference(HUB, "library/redis", "7")),
        ("docker://grafana/grafana", Reference(HUB, "grafana/grafana", "latest")),
        ("docker://docker.io/redis", Reference("registry-1.docker.io", "library/redis", "latest")),
        ("docker://index.docker.io/a/b:c", Reference(HUB, "a/b", "c")),
        ("docker:///quay.io/x", Reference(HUB, "quay.io/x", "latest")),
        ("docker://quay.io/a/b/c", Reference("quay.io", "a/b/c", "latest")),
        ("docker://localhost/x:1", Reference("localhost", "x", "1")),
        ("docker://127.0.0.1:5000/x", Reference("127.0.0.1:5000", "x", "latest")),
        ("docker://[::1]:5000/x:1", Reference("[::1]:5000", "x", "1")),
        ("docker://Quay.io/x:1", Reference("quay.io", "x", "1")),
        (f"docker://quay.io/a@{DIGEST}", Reference("quay.io", "a", None, DIGEST)),
        (f"docker://quay.io/a:1@{DIGEST}", Reference("quay.io", "a", "1", DIGEST)),
    ],
)
def test_references(locator: str, reference: Reference) -> None:
    assert parse_locator(locator) == reference


@pytest.mark.parametrize(
    "locator",
    [
        "docker:redis",
        "docker://",
        "docker:///",
        "docker://Redis",
        "docker://quay.io/",
        "docker://quay.io/a:",
        "docker://quay.io/a:.x",
        "docker://quay.io/../../v1",
        "docker://quay.io/a@sha256:00",
        "docker://quay.io/a@md5:" + "0" * 32,
        "docker://quay.io/a?x=1",
        "docker://quay.io:port/a",
        "docker://quay.io:99999/a",
        "docker://./a",
        "docker://exa mple.com/a",
        "docker://[::1/a",
        "docker://quay.io/" + "a" * 248,
    ],
)
def test_malformed_references(locator: str) -> None:
    with pytest.raises(UsageError):
        parse_locator(locator)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("docker:redis", "docker://docker.io/library/redis"),
        ("docker:redis:7", "docker://docker.io/library/redis:7"),
        ("docker:/team/app", "docker://docker.io/team/app"),
        ("docker:quay.io/team/app:v1", "docker://quay.io/team/app:v1"),
        ("docker:/127.0.0.1:5000/app", "docker://127.0.0.1:5000/app"),
    ],
)
def test_slashes_that_were_forgotten(written: str, meant: str) -> None:
    """The core hands the locator on as it was written."""
    with pytest.raises(UsageError, match="not an image in a registry") as caught:
        parse_locator(core_locator(written, {"docker": "address"}.get).text)
    assert caught.value.hint == f"did you mean {meant}?"
    assert parse_locator(meant)


def test_credentials_in_an_address() -> None:
    with pytest.raises(UsageError, match="credentials are not allowed in an address") as caught:
        parse_locator("docker://user:secret@quay.io/app")
    assert "secret" not in caught.value.message + (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "registry", "address"),
    [
        ("redis", "", "docker://docker.io/library/redis"),
        ("redis:7", "", "docker://docker.io/library/redis:7"),
        (f"redis@{DIGEST}", "", f"docker://docker.io/library/redis@{DIGEST}"),
        ("team/app", "", "docker://docker.io/team/app"),
        ("docker.io/library/alpine", "", "docker://docker.io/library/alpine"),
        ("docker.io/alpine", "", "docker://docker.io/library/alpine"),
        ("quay.io/team/app:v1", "", "docker://quay.io/team/app:v1"),
        ("localhost/app", "", "docker://localhost/app"),
        ("127.0.0.1:5000/app", "", "docker://127.0.0.1:5000/app"),
        ("example.com/app:1,arch=amd64", "", None),
        ("UPPER", "", None),
        ("example.com:1", "", None),
        ("example.com:1", "docker.io", None),
        ("redis:7", "docker.io", "docker://docker.io/library/redis:7"),
        ("team/app", "quay.io", "docker://quay.io/team/app"),
        ("app", "localhost:5000", "docker://localhost:5000/app"),
        ("quay.io/team/app", "docker.io", None),
        ("quay.io/team/app", "Quay.io", "docker://quay.io/team/app"),
        ("docker.io/alpine", "index.docker.io", "docker://docker.io/library/alpine"),
        ("localhost:5000/x:1", "docker.io", "docker://localhost:5000/x:1"),
        ("example.com/app:1,arch=amd64", "example.com", None),
    ],
)
def test_short_names(name: str, registry: str, address: str | None) -> None:
    """With a registry, names that discovery may find are left to it; for a hint, any host may be a registry."""
    assert short_name(name, registry) == address
    if address is not None:
        assert parse_locator(address)


def test_registries() -> None:
    assert registry_of("docker://Quay.IO/") == "quay.io"
    assert registry_of("docker://docker.io") == HUB
    for locator in ("docker://", "docker://quay.io/app", "docker:quay.io/x", "docker://u:p@quay.io"):
        with pytest.raises(UsageError, match="not the address of a registry"):
            registry_of(locator)
