"""Mirrors before a real name: asked in order, for the image and for each layer, and left for the next one (R1)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kurma_core.errors import FetchDigestError, FetchNotFoundError, FetchRefusedError
from tests.integration.fetching.front import Front, Tokens, front
from tests.integration.fetching.parts import Bar, MakeMachine
from tests.kit.registry import OciDir, Registry, free_port, layer_tar

pytestmark = pytest.mark.root


@pytest.fixture
def layers(oci: OciDir, registry: Registry) -> list[str]:
    """An image of two layers in the registry, as app:v1; the digests of its layers."""
    tars = [layer_tar({f"file{number}": os.urandom(300_000)}) for number in (1, 2)]
    entry = oci.image("v1", tars, {"Cmd": ["/file1"]})
    registry.push(f"oci:{oci.path}:v1", "app:v1")
    return oci.layers_of(entry)


@pytest.fixture
def mirror(registry: Registry) -> Iterator[Front]:
    with front(registry.host) as found:
        yield found


def mirrored(registry: Registry, *mirrors: str) -> dict[str, Any]:
    return {"registries": {"mirrors": {registry.host: list(mirrors)}}}


def told(notes: list[str], *words: str) -> bool:
    return any(all(word in note for word in words) for note in notes)


def test_each_way_of_failing_falls_to_the_next(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front
) -> None:
    """One that is down, one that has no such image, and one that works: the real name is not asked."""
    down = f"127.0.0.1:{free_port()}"
    with front(registry.host) as empty, front(registry.host) as real:
        empty.fault = lambda path: 404
        here = machine(registries={"mirrors": {real.host: [down, empty.host, mirror.host]}})
        record = here.images.fetch(f"docker://{real.host}/app:v1")
        assert real.asked == []
        assert mirror.of(layers[0])
        assert mirror.of(layers[1])
        assert record.provenance[0].url == f"http://{mirror.host}/v2/app/manifests/v1"
        assert record.name == f"{real.host.replace(':', '_')}/app"
        assert told(here.notes, f"mirror {down} of", "connection refused", f"asking {empty.host}")
        assert told(here.notes, f"mirror {empty.host} of", "not found", f"asking {mirror.host}")


def test_the_same_image_whoever_served_it(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front
) -> None:
    locator = f"docker://{registry.host}/app:v1"
    direct = machine("direct").images.fetch(locator)
    assert machine("mirrored", **mirrored(registry, mirror.host)).images.fetch(locator).id == direct.id


def test_a_mirror_with_another_image_of_that_digest(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front
) -> None:
    locator = f"docker://{registry.host}/app:v1"
    pinned = f"{locator}@{machine('direct').images.fetch(locator).provenance[0].digest}"
    mirror.change = lambda path, body: body + b" " if "/manifests/" in path else body
    here = machine(**mirrored(registry, mirror.host))
    record = here.images.fetch(pinned)
    assert record.trust == "digest"
    assert record.version == "v1"
    assert told(here.notes, f"mirror {mirror.host}", "its digest is", f"asking {registry.host}")


def flipped(body: bytes, place: int) -> bytes:
    return body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]


@pytest.mark.full
@pytest.mark.parametrize("fault", ["missing", "wrong", "wrong at its end", "dead in the middle"])
def test_one_layer_that_a_mirror_fails_on(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front, fault: str
) -> None:
    """The configuration and the other layer come from the mirror, what failed from the registry itself."""
    bad, cuts = layers[1], 0

    def cut(path: str) -> int | None:
        nonlocal cuts
        if not path.endswith(bad):
            return None
        cuts += 1
        return 100_000 if cuts == 1 else 0

    def change(path: str, body: bytes) -> bytes:
        if not path.endswith(bad):
            return body
        return (
            bytes([body[0] ^ 1]) + body[1:] if fault == "wrong" else body[:-9] + bytes([body[-9] ^ 1]) + body[-8:]
        )

    if fault == "missing":
        mirror.fault = lambda path: 404 if path.endswith(bad) else None
    elif fault == "dead in the middle":
        mirror.cut = cut
    else:
        mirror.change = change
    with front(registry.host) as real:
        options = {"fetchers": {"docker": {"config": {"retries": 1}}}}
        here = machine(registries={"mirrors": {real.host: [mirror.host]}}, plugins=options)
        bar = Bar()
        assert here.images.fetch(f"docker://{real.host}/app:v1", progress=bar).trust == "digest"
        assert [(total, bar.finished) for _, total in bar.started] == [(bar.done, 1)], "no byte counts twice"
        assert [asked.path for asked in real.asked if "/v2/app/" in asked.path] == [f"/v2/app/blobs/{bad}"]
        (asked,) = real.of(bad)
        assert asked.start == (100_000 if fault == "dead in the middle" else 0), "what came already is kept"
        assert told(here.notes, "trying the next source")
        assert here.partials() == []


def test_when_nobody_has_the_right_bytes(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front
) -> None:
    def change(path: str, body: bytes) -> bytes:
        return flipped(body, 0) if path.endswith(layers[0]) else body

    mirror.change = change
    with front(registry.host) as real:
        real.change = change
        here = machine(registries={"mirrors": {real.host: [mirror.host]}})
        with pytest.raises(FetchDigestError, match="its digest is"):
            here.images.fetch(f"docker://{real.host}/app:v1")
        assert here.images.list() == ()
        assert here.partials() == []


def test_the_last_word_is_the_real_names(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front, tmp_path: Path
) -> None:
    mirror.fault = lambda path: 403
    here = machine(**mirrored(registry, mirror.host))
    with pytest.raises(FetchNotFoundError, match=f"{registry.host}/v2/app/manifests/none: not found"):
        here.images.fetch(f"docker://{registry.host}/app:none")
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(FetchRefusedError, match=f"{gone}.*connection refused"):
        machine("gone", registries={"mirrors": {gone: [mirror.host]}}).images.fetch(f"docker://{gone}/app:v1")


def test_credentials_are_the_mirrors_own(
    machine: MakeMachine, registry: Registry, layers: list[str], mirror: Front, tmp_path: Path
) -> None:
    """A mirror that asks for credentials does not get those of the name that it stands for."""
    mirror.fault = lambda path: 401
    auth = {"auths": {registry.host: {"auth": "dXNlcjpzZWNyZXQ="}}}
    (tmp_path / "docker.json").write_text(json.dumps(auth))
    options = {"fetchers": {"docker": {"config": {"docker_config": str(tmp_path / "docker.json")}}}}
    mirror.tokens = Tokens()
    here = machine(plugins=options, **mirrored(registry, mirror.host))
    assert here.images.fetch(f"docker://{registry.host}/app:v1")
    assert [asked.authorization for asked in mirror.asked if asked.path == "/token"] == [""]
    assert told(here.notes, f"mirror {mirror.host}", "denies access")
