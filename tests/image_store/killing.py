"""S1 by force: processes at work on one store are killed, again and again, while others read and write it.

Run by hand: ``./dev kill-test [KILLS] [SEED]``. Each worker is killed at a named step of the store, before a call
that changes something on disk (told by Python's audit events), or at some moment. In between, and at the end with
nobody at work, the store is looked at: whatever it lists is wholly there, and a sweep leaves nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from kurma_testing.webserver import Page, web_server

from kurma_core.appc.image import ImageManifest
from kurma_core.errors import ImageError, ImageNotFoundError
from kurma_core.image_store import ImageStore
from kurma_core.image_store.durable import try_lock
from kurma_core.models.image import Provenance
from tests.kit.archives import directory, file, hardlink, image, stage_and_commit, symlink, tar
from tests.kit.client import open_client

#: Audit events that come before something on disk is changed.
_CHANGES = frozenset(
    f"os.{name}"
    for name in ("rename", "mkdir", "remove", "rmdir", "link", "symlink", "utime", "chmod", "chown", "truncate")
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_WORKERS = 3
#: Images that a web server has.
_SERVED = 5
#: Rounds after which nobody is at work and everything is looked at.
_QUIET = 8


def archive(number: int) -> bytes:
    """A small image, of a shape of its own."""
    return image(
        directory("rootfs/d"),
        file("rootfs/d/f", bytes([number]) * 3000),
        hardlink("rootfs/h", "rootfs/d/f"),
        symlink("rootfs/l", "d/f"),
        *[file(f"rootfs/n{count}", b"x" * count) for count in range(number % 12)],
        name=f"example.com/image{number}",
    )


class House:
    """One state directory, what is at work in it, and what must be true of it."""

    def __init__(self, place: str, seed: int, url: str) -> None:
        self.random = random.Random(seed)
        self.place = place
        self.url = url
        config = f"{place}/kurma.json"
        with open(config, "w") as out:
            json.dump({}, out)
        self.client = open_client(config, f"{place}/state", note=lambda text: None)
        self.images = self.client.here.images
        self.store: ImageStore = self.images.store
        # Loaded once, inherited by every worker.
        self.precious = stage_and_commit(self.store, archive(0), provenance(0)).id
        self.images.fetch(f"{url}/0.aci", insecure={"http", "image"})
        self.verbs: list[Callable[[random.Random], object]] = [
            *(self.bring, self.bring, self.bring, self.layered, self.remove, self.remove, self.sweep),
            *(self.tree, self.render, self.fetch, self.fetch, self.same_again),
        ]

    # --- what workers do -----------------------------------------------------------------------------------------

    def bring(self, choice: random.Random) -> None:
        stage_and_commit(self.store, archive(choice.randrange(250)), provenance(choice.randrange(3)))

    def same_again(self, choice: random.Random) -> None:
        stage_and_commit(self.store, archive(0), provenance(choice.randrange(5)))

    def layered(self, choice: random.Random) -> None:
        import hashlib

        layers = [tar([file("a", b"lower"), directory("d")]), tar([file("d/.wh.x"), file("b", b"upper")])]
        digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        keys = []
        with self.store.holds.keeping(used=False):
            for layer, digest in zip(layers, digests, strict=True):
                if not self.store.has_layer(digest):
                    self.store.add_layer(io.BytesIO(layer), digest)
                keys.append(digest.replace(":", "-"))
            document = {
                "acKind": "ImageManifest",
                "acVersion": "0.8.11",
                "name": f"example.com/l{choice.randrange(2)}",
            }
            self.store.add_layered(ImageManifest.parse(document), tuple(keys), provenance(choice.randrange(3)))

    def remove(self, choice: random.Random) -> None:
        others = [ident for ident in self.store.ids() if ident != self.precious]
        if others:
            with contextlib.suppress(ImageNotFoundError, ImageError):
                self.images.remove(choice.choice(others))

    def sweep(self, choice: random.Random) -> None:
        self.images.gc({self.precious}, choice.choice((-1, 0, 3600)), choice.random() < 0.2)

    def tree(self, choice: random.Random) -> None:
        with contextlib.suppress(ImageNotFoundError), self.images.keeping():
            found = choice.choice(self.store.list())
            if not self.store.holds.hold(found.id):
                return
            (*_, layer) = self.store.layers(found.id)

            def build(path: str) -> None:
                for name in os.listdir(layer.path):
                    if os.path.isfile(f"{layer.path}/{name}"):
                        os.link(f"{layer.path}/{name}", f"{path}/{name}", follow_symlinks=False)

            tree = self.store.cache.tree(f"key {found.id}", build)
            self.store.verify(tree.id, deep=True)

    def render(self, choice: random.Random) -> None:
        with contextlib.suppress(ImageNotFoundError):
            self.images.render(choice.choice(self.store.list()).id, choice.choice(("copy", "overlay")))

    def fetch(self, choice: random.Random) -> None:
        number = choice.randrange(_SERVED)
        self.images.fetch(
            f"{self.url}/{number}.aci", pull=choice.choice(("new", "always")), insecure={"http", "image"}
        )

    # --- who is never killed -------------------------------------------------------------------------------------

    def look(self) -> None:
        """All that is listed is whole; what is removed meanwhile is not there, and nothing in between."""
        for found in self.store.scan()[0]:
            with contextlib.suppress(ImageNotFoundError):
                self.store.verify(found.id, deep=True)
                out = io.BytesIO()
                self.store.export(found.id, out)
                assert image_id(out.getvalue()) == found.id, "what is exported has another ID"
        assert self.store.get(self.precious).id == self.precious

    # --- what must be true ---------------------------------------------------------------------------------------

    def check(self) -> None:
        listed, damaged = self.store.scan()
        assert not damaged, damaged
        assert self.precious in {found.id for found in listed}, "an image that nobody removed is lost"
        for found in listed:
            with contextlib.suppress(ImageNotFoundError):
                self.store.verify(found.id, deep=True)

    def check_quiet(self) -> None:
        """With nobody at work."""
        lock = try_lock(self.store.path("lock"))
        assert lock is not None, "a lock is held by nobody alive"
        os.close(lock)
        self.check()
        for tree in os.listdir(self.store.path("trees")):
            self.store.verify(tree, deep=True)
        known = set(self.store.ids())
        self.images.gc(known, -1)
        assert set(self.store.ids()) == known, "a sweep took what is used"
        left = {name: os.listdir(self.store.path(name)) for name in ("tmp", "partial")}
        assert left == {"tmp": [], "partial": []}, left
        assert not [name for name in os.listdir(f"{self.place}/state/locators") if name.endswith(".tmp")]
        assert {name.removesuffix(".aci") for name in os.listdir(self.store.path("archives"))} <= known
        needed = {key for found in self.store.list() for key in found.layers}
        assert set(os.listdir(self.store.path("layers"))) == needed
        for number in range(_SERVED):
            self.images.fetch(f"{self.url}/{number}.aci", insecure={"http", "image"})
        self.check()
        self.images.gc({self.precious}, -1)
        assert self.store.ids() == (self.precious,)


def provenance(number: int) -> Provenance:
    return Provenance(f"file:///{number}.aci", "2026-01-02T00:00:00Z", "local")


def image_id(content: bytes) -> str:
    import hashlib

    return f"sha512-{hashlib.sha512(content).hexdigest()}"


# --- processes ---------------------------------------------------------------------------------------------------


def fork(work: Callable[[], object], report: int | None = None) -> int:
    """A child that does it. Whatever it raises goes to ``report`` in a line, and makes its status 1."""
    pid = os.fork()
    if pid:
        return pid
    status = 0
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
    except BaseException as error:  # noqa: BLE001 - told to the parent
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        os.write(2 if report is None else report, (" ".join(text.split())[:1500] + "\n").encode())
        status = 1
    os._exit(status)


def victim(house: House, seed: int) -> None:
    """Does one thing, and dies of it if it is killed by step or call; else it waits for its parent's signal."""
    choice = random.Random(seed)
    verb = choice.choice(house.verbs)
    way = choice.choice(("step", "step", "call", "moment"))
    left = choice.randrange(10) if way == "step" else choice.randrange(60)

    def step(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, details: Any) -> None:
        if event in _CHANGES or event == "fcntl.flock" or (event == "open" and details[2] & _WRITING):
            step(event)

    if way == "step":
        house.store.step = step
    elif way == "call":
        sys.addaudithook(audit)
    verb(choice)


class Result:
    def __init__(self) -> None:
        self.kills = self.rounds = self.survivors = 0
        self.looks = 0


def kill_test(kills: int, seed: int, say: Callable[[str], None] = lambda text: None) -> Result:
    """:raises AssertionError: something was lost, half there, held, or left over; says at which seed."""
    place = tempfile.mkdtemp(prefix="kurma-kill-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    server, url = serve()
    result = Result()
    try:
        house = House(place, seed, url)
        while result.kills < kills:
            result.rounds += 1
            one_round(house, result, seed)
            if result.rounds % _QUIET == 0:
                say(f"{result.kills} kills")
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        shutil.rmtree(place)
    return result


def serve() -> tuple[int, str]:
    """A web server in a process of its own."""
    ready, told = os.pipe()

    def work() -> None:
        with web_server() as server:
            for number in range(_SERVED):
                server.pages[f"/{number}.aci"] = Page(archive(number))
            os.write(told, server.url("").rstrip("/").encode())
            os.close(told)
            signal.pause()

    pid = fork(work)
    os.close(told)
    with open(ready) as stream:
        return pid, stream.read()


def one_round(house: House, result: Result, seed: int) -> None:
    """Some are killed at once, one looks on; now and then, all is looked at."""
    said, report = os.pipe()
    stop = time.monotonic() + house.random.uniform(0.005, 0.06)
    looker = fork(house.look, report)
    victims = []
    for _ in range(_WORKERS):
        number = house.random.randrange(1 << 32)
        victims.append(fork(lambda number=number: victim(house, number), report))  # type: ignore[misc]
    time.sleep(max(0.0, stop - time.monotonic()))
    for pid in victims:
        os.kill(pid, signal.SIGKILL)  # a zombie at worst: it is waited for below
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            result.kills += 1
        else:
            result.survivors += 1
    os.waitpid(looker, 0)
    result.looks += 1
    os.close(report)
    with open(said) as stream:
        problems = stream.read()
    try:
        assert not problems, problems
        house.check_quiet() if result.rounds % _QUIET == 0 else house.check()
    except Exception as error:
        raise AssertionError(f"seed {seed}, round {result.rounds}, {result.kills} kills: {error}") from error


def main(arguments: list[str]) -> int:
    kills = int(arguments[0]) if arguments else 2000
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32)
    begun = time.monotonic()
    try:
        result = kill_test(kills, seed, lambda text: print(f"\r{text}", end="", file=sys.stderr))
    except AssertionError as error:
        print(f"\nkill-test: {error}")
        return 1
    took = time.monotonic() - begun
    print(
        f"\nkill-test: {result.kills} kills in {took:.0f} s ({result.kills / took:.0f}/s), {result.survivors} "
        f"workers were faster, {result.looks} looked on; nothing lost, half there, held or left over (seed {seed})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
