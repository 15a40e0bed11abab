"""The command, and the owner of ``example.com`` whom it asks: real HTTPS, real signatures, real discovery."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.fetching.publisher import Publisher, publisher
from tests.kit.command import Kurma
from tests.kit.keys import Signers

Done = subprocess.CompletedProcess[str]


class Shop:
    """:param keys: the keystore that this configuration names; alice's key is in it where she is trusted."""

    def __init__(self, command: Kurma, owner: Publisher, directory: Path) -> None:
        self.owner = owner
        self.keys = directory / "keys"
        self.command = command.configured(directory / "shop.json", trustedkeys=[str(self.keys)])
        self.environment = self.command.environment
        self.environment["SSL_CERT_FILE"] = owner.ca_file
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            self.environment.pop(name, None)
            self.environment.pop(name.upper(), None)
        self.images = command.state / "images"
        self._before = set(self._ids())

    def __call__(self, *words: str, **more: Any) -> Done:
        return self.command(*words, **more)

    def out(self, *words: str) -> str:
        return self.command.out(*words)

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return self.command.popen(*words, **more)

    def trust(self, name: str = "alice", prefix: str = "example.com") -> None:
        self.owner.signers.put(name, self.keys, f"prefix.d/{prefix}")

    def _ids(self) -> list[str]:
        return os.listdir(self.images / "images")

    def new(self) -> set[str]:
        """IDs of the images that came since the test began."""
        return set(self._ids()) - self._before

    def clean(self) -> bool:
        """Nothing came, and nothing half there is left."""
        return not self.new() and not self.leftovers()

    def leftovers(self) -> list[Path]:
        return [
            path
            for name in ("tmp", "partial")
            if (self.images / name).exists()
            for path in (self.images / name).iterdir()
        ]

    def bodies(self, path: str) -> int:
        """How often the server was asked for what stands there."""
        return self.owner.asked(path)


@contextmanager
def open_shop(command: Kurma, signers: Signers, directory: Path) -> Iterator[Shop]:
    """What it brought into the store goes at the end."""
    with publisher(directory / "owner", signers) as owner:
        shop = Shop(command, owner, directory)
        yield shop
        if new := shop.new():
            shop.out("image", "rm", *new)
        for path in shop.leftovers():  # of what was killed; a sweep takes it where others' images do not matter
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def one_line(done: Done, *said: str) -> None:
    """It failed, and told so in one line and a hint."""
    assert done.returncode == 125, done.stderr
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("kurma: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for text in said:
        assert text in errors[0], done.stderr
