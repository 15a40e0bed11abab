"""One operation of several is cancelled, and ends at once; the others go on. Threads share a state directory."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pytest

from kurma_core.cancellation import Cancellation, governing
from kurma_core.errors import Cancelled, ImageError, ImageNotFoundError
from kurma_core.models.image import ImageRecord
from tests.integration.fetching.front import Front, Tokens, front
from tests.integration.fetching.parts import Machine, MakeMachine
from tests.kit.command import KURMA
from tests.kit.registry import OciDir, Registry, layer_tar
from tests.kit.waiting import until

pytestmark = pytest.mark.root
#: Seconds in which what was cancelled has ended, on a busy machine.
PROMPT = 1.0


@pytest.fixture
def way(oci: OciDir, registry: Registry) -> Iterator[Front]:
    """To a registry with app:v1, of six layers, and app:v2, which shares four of them."""
    tars = [layer_tar({f"file{number}": os.urandom(700_000)}) for number in range(8)]
    for tag, some in (("v1", tars[:6]), ("v2", tars[2:])):
        oci.image(tag, some, {"Cmd": ["/file1"]})
        registry.push(f"oci:{oci.path}:{tag}", f"app:{tag}")
    with front(registry.host) as found:
        yield found


class Running:
    """A fetch in a thread of its own, as an operation of its own."""

    def __init__(self, here: Machine, locator: str) -> None:
        self.operation = Cancellation()
        self._pool = ThreadPoolExecutor(1)
        self.future: Future[ImageRecord] = self._pool.submit(self._run, here, locator)
        self._pool.shutdown(wait=False)

    def _run(self, here: Machine, locator: str) -> ImageRecord:
        with governing(self.operation):
            return here.images.fetch(locator)

    def cancel(self) -> None:
        self.operation.cancel()
        with pytest.raises(Cancelled):
            self.future.result(PROMPT)


def left(here: Machine) -> list[str]:
    """What lies in the store: of images, and half made."""
    found = []
    for name in ("tmp", "layers", "images", "archives", "trees"):
        place = here.state / "images" / name
        found += sorted(place.iterdir()) if place.exists() else []
    return [str(path) for path in found]


def test_who_waited_for_the_cancelled_one_takes_over(way: Front, machine: MakeMachine) -> None:
    here = machine()
    locator = f"docker://{way.host}/app:v1"
    held = threading.Event()
    asked: list[str] = []

    def hold(path: str) -> None:
        if "/blobs/" in path and len(asked) < 5:  # the configuration, and the layers that one reads at once
            asked.append(path)
            if len(asked) > 1:
                held.wait(20)

    way.fault = hold  # type: ignore[assignment]
    first = Running(here, locator)
    until(lambda: len(asked) == 5)
    second = Running(here, locator)
    until(lambda: any("waiting for another fetch of the same" in note for note in here.notes))
    try:
        first.cancel()
        record = second.future.result(20)
    finally:
        held.set()
    assert len(record.layers) == 6
    assert here.partials() == []
    here.images.store.verify(record.id, deep=True)


@pytest.mark.full
def test_what_the_cancelled_one_has_is_gone_on_with_by_the_other(way: Front, machine: MakeMachine) -> None:
    """The first has most of each layer; the second asks for the rest alone."""
    here = machine()
    stalled: list[str] = []

    def stall(path: str) -> int | None:
        if "/blobs/" not in path or stalled.count(path) or len(stalled) > 4:
            return None
        stalled.append(path)
        return None if len(stalled) == 1 else 600_000

    way.stall = stall
    first = Running(here, f"docker://{way.host}/app:v1")
    until(lambda: sum(file.stat().st_size for file in here.partials()) >= 2_000_000)
    second = Running(here, f"docker://{way.host}/app:v1")
    first.cancel()
    assert len(second.future.result(20).layers) == 6
    assert len([asked for asked in way.asked if asked.start >= 500_000]) == 4


@pytest.mark.full
@pytest.mark.parametrize("where", ["manifest", "configuration", "layers", "token"])
def test_ctrl_c_while_the_registry_withholds_an_answer(way: Front, tmp_path: Path, where: str) -> None:
    """From the command line; nothing is left, and nobody is asked again."""
    asked = threading.Event()

    def hold(path: str) -> int | None:
        if where == "token":
            return 401
        blobs = [one for one in way.asked if "/blobs/" in one.path]
        if where in ("manifest", "configuration"):
            stops = f"/{'blobs' if where == 'configuration' else 'manifests'}/" in path
        else:
            stops = "/blobs/" in path and bool(blobs)
        if stops:
            asked.set()
            way.over.wait(20)
        return None

    way.fault = hold
    if where == "token":
        way.tokens = _Silent(asked, way.over)
    words = [*KURMA, "--dir", str(tmp_path / "state"), "image", "fetch"]
    (tmp_path / "kurma.yml").touch()
    environment = {**os.environ, "KURMA_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    process = subprocess.Popen(
        [*words, f"docker://{way.host}/app:v1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert asked.wait(20), process.communicate()
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    took = time.monotonic() - began
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert took < PROMPT
    store = tmp_path / "state" / "images"
    kept = [path for path in store.glob("*/*") if path.parent.name != "partial"] if store.exists() else []
    assert kept == []
    assert not (store / "partial").exists() or not list((store / "partial").iterdir()), "nothing had come"


class _Silent(Tokens):
    """Gives no token, for as long as the test goes on."""

    def __init__(self, asked: threading.Event, over: threading.Event) -> None:
        super().__init__()
        self._asked = asked
        self._over = over

    def issue(self, scope: str, allowed: bool) -> str | None:
        self._asked.set()
        self._over.wait(20)
        return None


@pytest.mark.full
def test_a_rendering_that_is_cancelled_leaves_nothing(oci: OciDir, machine: MakeMachine) -> None:
    """Of a tree of copies; the next one makes it whole."""
    here = machine()
    files = {f"d{number % 50}/f{number}": os.urandom(2000) for number in range(2500)}
    oci.image("v1", [layer_tar({**{f"d{number}": None for number in range(50)}, **files})], {"Cmd": ["/x"]})
    ident = here.images.fetch(f"oci:{oci.path}:v1").id
    before = left(here)
    operation = Cancellation()
    half = here.state / "images" / "tmp"

    def cancel() -> None:
        until(lambda: len(list(half.glob("*/tree/rootfs/d*/*"))) > 50)
        operation.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with governing(operation), pytest.raises(Cancelled):
        here.images.render(ident, "copy")
    canceller.join()
    assert left(here) == before
    (layer,) = here.images.render(ident, "copy").layers
    assert len(list(Path(layer.path).glob("d*/f*"))) == 2500


@pytest.mark.full
def test_many_threads_share_a_state_directory(way: Front, machine: MakeMachine) -> None:
    """Eight fetch, render, look, remove and collect the same images, and some are cancelled: what they get is
    right, and nothing is left over."""
    here = machine()
    other = machine()  # as a second process would
    locators = [f"docker://{way.host}/app:{tag}" for tag in ("v1", "v2")]
    ids = {locator: here.images.fetch(locator).id for locator in locators}
    descriptors = len(os.listdir("/proc/self/fd"))
    end = time.monotonic() + 6

    def work(number: int) -> dict[str, int]:
        chance = random.Random(number)
        images = (here if number % 2 else other).images
        done: dict[str, int] = {}
        while time.monotonic() < end:
            what = chance.choice(("fetch", "fetch", "render", "list", "remove", "collect", "cancelled"))
            locator = chance.choice(locators)
            try:
                if what == "fetch":
                    assert images.fetch(locator, pull=chance.choice(("new", "always"))).id == ids[locator]
                elif what == "render":
                    with images.keeping():
                        rendered = images.render(images.resolve(locator).id, chance.choice(("copy", "overlay")))
                        for layer in rendered.layers:
                            names = {name for name in os.listdir(layer.path) if name.startswith("file")}
                            assert len(names) == 6
                elif what == "list":
                    assert {record.id for record in images.list()} <= set(ids.values())
                elif what == "remove":
                    images.remove(ids[locator])
                elif what == "collect":
                    images.gc((), 0.0)
                else:
                    operation = Cancellation()
                    threading.Timer(chance.random() * 0.2, operation.cancel).start()
                    with governing(operation):
                        assert images.fetch(locator).id == ids[locator]
                done[what] = done.get(what, 0) + 1
            except ImageNotFoundError:
                assert what in ("remove", "render")
            except ImageError:
                if what != "remove":  # a command uses it just now
                    raise
            except Cancelled:
                assert what == "cancelled"
                done[what] = done.get(what, 0) + 1
        return done

    with ThreadPoolExecutor(8) as pool:
        counts = [each.result() for each in [pool.submit(copy_context().run, work, n) for n in range(8)]]
    assert all(sum(each.get(what, 0) for each in counts) for what in ("fetch", "render", "remove", "collect"))
    time.sleep(0.3)  # the last timers
    for locator in locators:
        assert here.images.fetch(locator).id == ids[locator]
        here.images.store.verify(ids[locator], deep=True)
    assert here.images.store.scan()[1] == ()
    here.images.gc((), 0.0)
    assert left(here) == []
    assert here.partials() == []
    gc.collect()  # connections that were kept for more go with who kept them
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
