"""Layers over connections that break, of a process that is killed, and many at once (R1, S5)."""

from __future__ import annotations

import json
import os
import random
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from kurma_core.errors import ArchiveError, FetchTruncatedError
from tests.integration.fetching.front import Front, front
from tests.integration.fetching.parts import Bar, Machine, MakeMachine
from tests.kit.command import KURMA
from tests.kit.registry import OciDir, Registry, layer_tar, sha256

pytestmark = pytest.mark.root

SIZE = 400_000


@pytest.fixture
def digests(oci: OciDir, registry: Registry) -> list[str]:
    """app:v1, of eight layers of random bytes; the digests of its layers as shipped."""
    tars = [layer_tar({f"file{number}": os.urandom(SIZE)}) for number in range(8)]
    entry = oci.image("v1", tars, {"Cmd": ["/file1"]})
    registry.push(f"oci:{oci.path}:v1", "app:v1")
    return oci.layers_of(entry)


@pytest.fixture
def way(registry: Registry) -> Iterator[Front]:
    with front(registry.host) as found:
        yield found


SCRIPT = """
import sys
from kurma_core.config import load
from kurma_core.images.manager import ImageManager
from kurma_core.plugins.registry import PluginRegistry
config = load(sys.argv[1], sys.argv[2])
ImageManager(config, PluginRegistry(config, print), print).fetch(sys.argv[3])
"""


def fetching_process(tmp_path: Path, state: Path, locator: str) -> subprocess.Popen[bytes]:
    """Another process that fetches into a machine's store."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "state.json"), str(state), locator]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for_partials(here: Machine, process: subprocess.Popen[bytes], size: int, files: int = 1) -> None:
    """Until so many bytes of layers have come, and something of as many layers."""
    deadline = time.monotonic() + 20
    while sum(sizes := [file.stat().st_size for file in here.partials()]) < size or files > len(
        list(filter(None, sizes))
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.full
def test_cut_at_random(machine: MakeMachine, way: Front, digests: list[str]) -> None:
    """One bar, begun once with the size of all layers, which ends at that size however often it was cut."""
    numbers = random.Random(7)
    way.cut = lambda path: numbers.choice((None, 1, 70_000, 250_000)) if "/blobs/" in path else None
    bar = Bar()
    record = machine().images.fetch(f"docker://{way.host}/app:v1", progress=bar)
    assert len(record.layers) == 8
    asked = [asked for digest in digests for asked in way.of(digest)]
    assert len(asked) > 8
    ((_, total),) = bar.started
    assert bar.done == total, "each byte was counted once"
    assert sum(each.sent for each in asked) == total, "each byte came once"
    assert bar.finished == 1


def test_layers_come_at_the_same_time(machine: MakeMachine, way: Front, digests: list[str]) -> None:
    """None of four is answered before all four were asked for (R1)."""
    meeting = threading.Barrier(4, timeout=20)
    met: list[str] = []

    def together(path: str) -> None:
        digest = path.rpartition("/")[2]
        if digest in digests:
            meeting.wait()
            met.append(digest)

    way.fault = together
    machine().images.fetch(f"docker://{way.host}/app:v1")
    assert sorted(met) == sorted(digests)


@pytest.mark.full
def test_only_the_rest_is_asked_for_after_a_kill(
    machine: MakeMachine, registry: Registry, way: Front, digests: list[str], tmp_path: Path
) -> None:
    way.pace = 0.1
    here = machine()
    process = fetching_process(tmp_path, here.state, f"docker://{way.host}/app:v1")
    wait_for_partials(here, process, 600_000)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = [file.stat().st_size for file in here.partials()]
    assert sum(kept) >= 600_000
    assert here.images.list() == ()
    bar = Bar()
    with front(registry.host) as again:  # what the first still sends to nobody must not be counted
        assert here.images.fetch(f"docker://{again.host}/app:v1", progress=bar)
        asked = [asked for digest in digests for asked in again.of(digest)]
    ((_, total),) = bar.started
    assert total is not None
    assert sorted(each.start for each in asked if each.start) == [size for size in sorted(kept) if size]
    assert sum(each.sent for each in asked) == total - sum(kept)
    assert bar.done == total, "what was there already counts as done"
    assert bar.skipped == sum(kept), "and says nothing of the speed"
    assert here.partials() == []


@pytest.mark.full
def test_ctrl_c_ends_it_at_once(machine: MakeMachine, way: Front, digests: list[str], tmp_path: Path) -> None:
    """With all layers' threads in the middle of a read; what came is kept, and nothing else."""
    way.pace = 0.3
    here = machine()
    command = [*KURMA, "--dir", str(here.state)]
    command += ["--config", str(tmp_path / "state.json"), "image", "fetch", f"docker://{way.host}/app:v1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for_partials(here, process, 1, files=4)
    way.pace = 60.0  # what is to come takes longer than anybody waits here
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert here.images.list() == ()
    assert not list((here.state / "images" / "tmp").iterdir())
    assert here.partials()


@pytest.mark.full
def test_a_connection_that_only_breaks_is_given_up_and_gone_on_with_later(
    machine: MakeMachine, way: Front, digests: list[str]
) -> None:
    here = machine(plugins={"fetchers": {"docker": {"config": {"retries": 1}}}})
    broken = digests[3]
    way.cut = lambda path: 0 if path.endswith(broken) and len(way.of(broken)) else 100_000
    with pytest.raises(FetchTruncatedError, match=broken[7:19]):
        here.images.fetch(f"docker://{way.host}/app:v1")
    assert here.images.list() == ()
    assert here.partials()
    way.cut = lambda path: None
    way.asked.clear()
    here.images.fetch(f"docker://{way.host}/app:v1")
    assert [asked.start for asked in way.of(broken)] == [100_000]
    assert here.partials() == []


def test_a_layer_that_is_not_what_the_configuration_says(
    machine: MakeMachine, registry: Registry, oci: OciDir
) -> None:
    """The blob is the one that the manifest names; unpacked it has another digest than the configuration's."""
    layer, other = layer_tar({"file": b"one"}), layer_tar({"file": b"two"})
    entry = oci.image(None, [layer], {"Cmd": ["x"]})
    manifest = json.loads((oci.path / "blobs/sha256" / entry["digest"][7:]).read_bytes())
    config = (oci.path / "blobs/sha256" / manifest["config"]["digest"][7:]).read_bytes()
    lying = config.replace(sha256(layer).encode(), sha256(other).encode())
    assert lying != config
    manifest["config"] = {**manifest["config"], **oci.blob(lying)}
    oci.enter({"mediaType": manifest["mediaType"], **oci.blob(json.dumps(manifest).encode())}, "lying")
    here = machine()
    with pytest.raises(ArchiveError, match="the layer is not the one asked for"):
        here.images.fetch(f"oci:{oci.path}:lying")
    assert here.images.list() == ()


@pytest.mark.full
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_interrupted_while_nothing_comes(
    machine: MakeMachine, registry: Registry, digests: list[str], tmp_path: Path, tls: bool
) -> None:
    """Ctrl-C ends it at once, not at the end of the time-out; what came is kept."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    here = machine(plugins={"fetchers": {"docker": {"config": {"ca_file": str(tmp_path / "ca.pem")}}}})
    with front(registry.host, context if tls else None) as way:
        way.stall = lambda path: 300_000 if any(path.endswith(digest) for digest in digests) else None
        process = fetching_process(tmp_path, here.state, f"docker://{way.host}/app:v1")
        wait_for_partials(here, process, 4 * (1 << 18))
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)  # the time-out is 30
    assert sum(file.stat().st_size for file in here.partials()) >= 4 * (1 << 18)
    assert list((here.state / "images" / "tmp").iterdir()) == []
