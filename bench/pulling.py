"""Images on their way into the store: fetched, stored and rendered, beside ``podman pull``."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import oci
from contents import Content, large_files, small_files
from measuring import BenchError, alternate, peak_memory, run
from runtimes import Kurma, Podman, output

#: Of the image store that is listed.
MANY = 200


@dataclass(frozen=True, slots=True)
class Pulled:
    """An image in the registry. :ivar aim: most that Kurma may take of podman's time."""

    name: str
    what: str
    content: Content
    layers: int
    aim: float


IMAGES = (
    Pulled("small", "20,000 small files, 139 MB, one layer", small_files(), 1, 0.7),
    Pulled("large", "1.1 GB in eight files, one layer", large_files(), 1, 1.0),
    Pulled("large-8", "1.1 GB in eight layers of one file", large_files(), 8, 1.0),
)

Sides = dict[str, tuple[float, ...]]


class Pulling:
    """A registry with the images, and for each run a new, empty store.

    Nothing is left to write when a run begins, and what the registry sends is in memory: neither side reads from,
    or waits for, a disk because of what was before. Stores of many files stay to the end: ext4 gives no inode away
    again for minutes, and looks at each that it must not take, so that whoever makes files after others were
    removed is some times slower.
    """

    def __init__(self, work: str, registry: oci.Registry, rounds: int) -> None:
        self._work = work
        self._registry = registry
        self._rounds = rounds
        self._count = 0
        self._keep = True
        self._id = ""
        self._new()

    def _new(self) -> None:
        """Both stores; and all that was written is on the disk."""
        if self._count and not self._keep:
            subprocess.run(["umount", f"{self.podman.root}/overlay"], stderr=subprocess.DEVNULL, check=False)
            shutil.rmtree(self.podman.root)
            shutil.rmtree(self.kurma.state, ignore_errors=True)
        self._count += 1
        self.kurma = Kurma(self._work, f"fetched/{self._count}")
        self.podman = Podman(self._work, f"pulled/{self._count}")
        os.sync()

    def push(self, image: Pulled) -> str:
        """Builds it, brings it into the registry. :returns: its reference."""
        self._new()
        self._keep = len(image.content.sizes) > 1000
        directory = f"{self._work}/building"
        os.mkdir(directory)
        each = len(image.content.sizes) // image.layers
        layers = []
        for number in range(image.layers):
            path = f"{directory}/{number}"
            layers.append((image.content.write(path, number * each, each), path))
        oci.write_layout_of(f"{directory}/layout", layers, {"Cmd": ["/bin/true"]})
        reference = self._registry.push(f"{directory}/layout", image.name)
        shutil.rmtree(directory)
        return reference

    def times(self, reference: str) -> Sides:
        """Of both sides, ms."""
        sides: dict[str, Callable[[], float]] = {
            "kurma": lambda: self._kurma(f"docker://{reference}"),
            "podman": lambda: self._podman(reference),
        }
        return alternate(sides, self._rounds, warm_up=1)

    def memory(self, reference: str) -> Sides:
        """Of both sides, MiB."""
        self._new()
        ours = peak_memory(self._fetch(f"docker://{reference}"), self.kurma.environment)
        self._fetched(f"docker://{reference}")
        ours = max(ours, peak_memory(self._render(), self.kurma.environment))
        theirs = peak_memory(self._pull(reference), self.podman.environment)
        return {"kurma": (ours,), "podman": (theirs,)}

    def archive(self, reference: str) -> str:
        """The image as an App Container image, compressed; rendered and fetched anew, and at once, are measured
        with it."""
        self._new()
        image = self._fetched(f"docker://{reference}")
        path = f"{self._work}/image.tar"
        output([self.kurma.program, "image", "export", image, path], self.kurma.environment)
        with open(path, "rb") as file, open(f"{path}.gz", "wb") as out:
            subprocess.run(["gzip", "-4"], stdin=file, stdout=out, check=True)
        os.unlink(path)
        return f"{path}.gz"

    def fetching(self, locator: str, *options: str) -> tuple[float, ...]:
        """Of a fetch into an empty store, ms."""
        taken = []
        for _ in range(self._rounds):
            self._new()
            taken.append(run(self._fetch(locator, *options), self.kurma.environment) * 1000)
        return tuple(taken)

    def again(self, reference: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of a fetch of what is there, asking the registry, and of rendering it, ms."""
        self._new()
        self._fetched(f"docker://{reference}")
        sides = {
            "fetch": lambda: run(self._fetch(f"docker://{reference}", "--pull", "always"), self.kurma.environment),
            "render": lambda: run(self._render(), self.kurma.environment),
        }
        taken = alternate(sides, self._rounds)
        return tuple(value * 1000 for value in taken["fetch"]), tuple(value * 1000 for value in taken["render"])

    def listing(self) -> tuple[float, ...]:
        """Of the list of :data:`MANY` images, ms."""
        from io import BytesIO

        from kurma_core.image_store import ImageStore
        from kurma_core.image_store.builder import build_archive
        from kurma_core.models.image import Provenance

        self._new()
        store = ImageStore(f"{self.kurma.state}/images")
        for number in range(MANY):
            archive = BytesIO()
            manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": f"example.com/image-{number}"}
            build_archive(None, manifest, archive)
            archive.seek(0)
            with store.stage_archive(archive) as staged:
                staged.commit(Provenance(f"/image-{number}.aci", "2026-01-01T00:00:00Z", "local"))
        words = [self.kurma.program, "image", "list"]
        taken = tuple(run(words, self.kurma.environment) * 1000 for _ in range(self._rounds))
        return taken

    # --- commands ------------------------------------------------------------------------------------------------

    def _fetch(self, locator: str, *options: str) -> list[str]:
        return [self.kurma.program, "image", "fetch", *options, locator]

    def _render(self) -> list[str]:
        return [self.kurma.program, "image", "render", self._id]

    def _pull(self, reference: str) -> list[str]:
        return self.podman.words("pull", "--quiet", "--tls-verify=false", reference)

    def _fetched(self, locator: str) -> str:
        self._id = output(self._fetch(locator), self.kurma.environment).strip()
        return self._id

    def _kurma(self, locator: str) -> float:
        self._new()
        printed = f"{self._work}/printed"
        taken = run(self._fetch(locator), self.kurma.environment, output=printed)
        with open(printed) as file:
            self._id = file.read().strip()
        return (taken + run(self._render(), self.kurma.environment)) * 1000

    def _podman(self, reference: str) -> float:
        self._new()
        return run(self._pull(reference), self.podman.environment) * 1000


@contextmanager
def served(directory: str) -> Iterator[str]:
    """The directory by plain HTTP. :returns: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", directory, str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                raise BenchError("the HTTP server does not answer")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
