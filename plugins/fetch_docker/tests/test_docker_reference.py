"""References: host, name, tag, digest (R1)."""

from __future__ import annotations

import pytest
from kurma_fetch_docker.reference import HUB, Reference, parse_locator

from kurma_core.errors import UsageError

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("locator", "reference"),
    [
        ("docker:///redis", Reference(HUB, "library/redis", "latest")),
        ("docker://redis", Reference(HUB, "library/redis", "latest")),
        ("docker://redis:7", Reference(HUB, "library/redis", "7")),
        ("docker://grafana/grafana", Reference(HUB, "grafana/grafana", "latest")),
        ("docker://docker.io/redis", Reference(HUB, "library/redis", "latest")),
        ("docker://index.docker.io/a/b:c", Reference(HUB, "a/b", "c")),
        ("docker:///quay.io/x", Reference(HUB, "quay.io/x", "latest")),
        ("docker://quay.io/a/b/c", Reference("quay.io", "a/b/c", "latest")),
        ("docker://localhost/x:1", Reference("localhost", "x", "1")),
        ("docker://127.0.0.1:5000/x", Reference("127.0.0.1:5000", "x", "latest")),
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
    ],
)
def test_malformed_references(locator: str) -> None:
    with pytest.raises(UsageError):
        parse_locator(locator)
