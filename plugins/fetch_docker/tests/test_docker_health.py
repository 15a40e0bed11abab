"""The health check of a Docker image's configuration (21.5)."""

from __future__ import annotations

import json

import pytest
from kurma_fetch_docker.conversion import conventions
from kurma_fetch_docker.health_check import health_check

from kurma_core.errors import ImageError
from kurma_core.models.health import HealthCheck

Json = object


def docker(*test: str, shell: tuple[str, ...] = (), **more: Json) -> HealthCheck | None:
    return health_check({"Test": list(test), **more}, list(shell))


def test_docker_writes_nanoseconds() -> None:
    assert docker("CMD-SHELL", "curl x", Interval=2_500_000_000, Timeout=0, StartPeriod=10**9, Retries=4) == (
        HealthCheck(command=("/bin/sh", "-c", "curl x"), interval=2.5, start_period=1.0, retries=4)
    )
    assert docker("CMD", "a", "b c") == HealthCheck(command=("a", "b c"))
    assert docker("CMD-SHELL", "x", shell=("/bin/bash", "-ec")) == HealthCheck(command=("/bin/bash", "-ec", "x"))
    assert docker("NONE") is None
    assert docker() is None


def test_an_image_keeps_nothing_busy() -> None:
    assert docker("CMD", "a", Interval=1, Retries=10**9) == HealthCheck(command=("a",), interval=1.0, retries=1000)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"Test": "x"}, "Test"),
        ({"Test": ["SHELL", "x"]}, "NONE, CMD or CMD-SHELL"),
        ({"Test": ["CMD", "x"], "Interval": "3s"}, "a whole number from 0"),
        ({"Test": ["CMD", "x"], "Timeout": -1}, "a whole number from 0"),
        ({"Test": ["CMD", "x"], "Retries": "3"}, "Retries"),
        ({"Test": ["CMD", "x"], "Retries": -3}, "Retries"),
    ],
)
def test_malformed_sections(section: dict[str, Json], why: str) -> None:
    with pytest.raises(ImageError, match=why):
        health_check(section, None)


def test_by_the_annotations_of_an_image() -> None:
    said = {"kurma.io/docker/healthcheck": json.dumps({"Test": ["CMD-SHELL", "x"]})}
    assert conventions(said).health_check == HealthCheck(command=("/bin/sh", "-c", "x"))
    shell = {"kurma.io/docker/shell": json.dumps(["/bin/bash", "-c"])}
    assert conventions({**said, **shell}).health_check == HealthCheck(command=("/bin/bash", "-c", "x"))
    assert conventions({}).health_check is None
    for text in ("{", "5"):
        with pytest.raises(ImageError, match="malformed"):
            conventions({"kurma.io/docker/healthcheck": text})
