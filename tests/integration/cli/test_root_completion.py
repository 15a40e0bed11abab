"""Completion of the names of pods, apps and images, from the state directory and by way of a kurmad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.images import archive, busybox_root

pytestmark = pytest.mark.root


def completed(kurma: Any, *words: str) -> list[str]:
    _, *lines = kurma.out("__complete", *words).splitlines()
    return [line.partition("\t")[0] for line in lines]


@pytest.fixture
def pods(kurma: Any, sleeping: Callable[..., Any]) -> dict[str, str]:
    """A pod that runs, and two that do not: UUIDs by name. Two volumes."""
    sleeping("web")
    for volume in ("data", "logs"):
        kurma.out("volume", "create", volume)
    found = {}
    for name in ("done", "database"):
        assert kurma("run", "--name", name, "--net", "none", kurma.image).returncode == 3
    for pod in kurma.json("list"):
        found[pod["name"]] = pod["uuid"]
    return found


LINES = {
    "show ": ["database", "done", "web"],
    "show d": ["database", "done"],
    "stop ": ["web"],
    "logs ": ["database", "done", "web"],
    "exec ": ["web"],
    "rm ": ["database", "done"],
    "rm done ": ["database"],
    "stop d": ["database", "done"],
    "app add w": ["web"],
    "cp w": ["web:"],
    "events --pod=w": ["--pod=web"],
    "logs web/": ["web/busybox"],
    "logs web --app ": ["busybox"],
    "exec web/b": ["web/busybox"],
    "enter --app ": [],
    "cp web/": ["web/busybox:"],
    "ps ": [],
    "inspect d": ["database", "done", "default", "data"],
    "inspect --type pod d": ["database", "done"],
    "network inspect d": ["default"],
    "volume rm ": ["data", "logs"],
    "volume show d": ["data"],
    "volume inspect l": ["logs"],
    "inspect --type volume ": ["data", "logs"],
    "app stop web ": ["busybox"],
    "app stop web busybox ": [],
    "logs nonsense/": [],
}


def test_pods_and_apps(kurma: Any, pods: dict[str, str]) -> None:
    found = {line: completed(kurma, *line.split(" ")) for line in LINES}
    # Images of other tests have names of a registry.
    found["inspect d"] = [name for name in found["inspect d"] if not name.startswith("docker:")]
    assert found == LINES
    # UUIDs, where no name begins so.
    uuid = pods["web"]
    assert completed(kurma, "show", uuid[:9]) == [uuid]
    assert completed(kurma, "logs", f"{uuid[:9]}/") == [f"{uuid[:9]}/busybox"]
    assert completed(kurma, "logs", uuid[:9], "--app", "") == ["busybox"]


def test_images(kurma: Any, tmp_path: Path) -> None:
    root = busybox_root(str(tmp_path / "root"), {"etc/more": "more\n"})
    image = kurma.out("image", "fetch", archive(root, str(tmp_path / "a.aci"), "example.com/completed")).strip()
    try:
        assert completed(kurma, "run", "example.com/c") == ["example.com/completed"]
        assert completed(kurma, "image", "rm", "example.com/completed", "example.com/c") == []
    finally:
        kurma.out("image", "rm", image)
    assert completed(kurma, "run", "example.com/c") == []


@pytest.mark.parametrize("way", ["kurmad"], indirect=True)
def test_by_way_of_a_daemon(kurma: Any, pods: dict[str, str]) -> None:
    """As for a user who may not read the state directory."""
    host = ("--host", f"unix:{kurma.state}/run/kurmad.sock")
    assert completed(kurma, *host, "show", "d") == ["database", "done"]
    assert completed(kurma, *host, "stop", "") == ["web"]
    assert completed(kurma, *host, "show", pods["web"][:9]) == [pods["web"]]
    assert completed(kurma, *host, "logs", "web/") == ["web/busybox"]
    assert completed(kurma, *host, "exec", f"{pods['web'][:9]}/") == [f"{pods['web'][:9]}/busybox"]
    assert completed(kurma, *host, "rmi", "kurma.io/stager/d") == ["kurma.io/stager/default"]
    assert "kurma.io/stager/default" in completed(kurma, *host, "run", "kurma.io")
    assert "default" in completed(kurma, *host, "network", "show", "")
