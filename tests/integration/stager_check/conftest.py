"""Stagers built as their examples say, some broken on purpose, and what the contract suite says of them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kurma_core.api.host import CheckLine
from kurma_core.image_store.builder import build_archive
from kurma_core.stager_check import check, probe_image
from kurma_core.stager_check.check_services import CheckServices, Patience, WatchedStager
from kurma_core.stager_check.pods import Lab
from kurma_core.stager_check.report import LINES
from kurma_core.staging.callin import StagerTimes
from kurma_core.staging.stager_process import StagerImage
from tests.kit.client import open_client
from tests.kit.images import image_id

if TYPE_CHECKING:
    from kurma_core.client import Client

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass
class Checked:
    """What the suite said of a stager."""

    lines: dict[str, CheckLine]
    told: list[CheckLine] = field(default_factory=list)

    def of(self, outcome: str) -> set[str]:
        return {name for name, line in self.lines.items() if line.outcome == outcome}

    @property
    def failed(self) -> dict[str, str]:
        return {name: line.detail for name, line in self.lines.items() if line.outcome == "fail"}


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checked") / "state"


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., str]:
    """``example("stager_shell", "init", (OLD, NEW), …)``: the archive of an example, with files changed."""

    def build(name: str, *changes: tuple[str, str, str], **manifest: object) -> str:
        source, rootfs = tmp_path / "source", tmp_path / "rootfs"
        shutil.copytree(EXAMPLES, source, dirs_exist_ok=True)
        for file, old, new in changes:
            path = source / name / "opt" / "stager" / file
            text = path.read_text()
            assert old in text, f"{file} has no {old!r} any more"
            path.write_text(text.replace(old, new))
        subprocess.run([source / name / "build", rootfs], check=True)
        document = {**json.loads((source / name / "manifest.json").read_text()), **manifest}
        with open(tmp_path / "stager.aci", "wb") as out:
            build_archive(str(rootfs), document, out)
        return str(tmp_path / "stager.aci")

    return build


@pytest.fixture
def client(tmp_path: Path, state: Path) -> Iterator[Callable[..., Client]]:
    """``client(archive)``: one whose configuration pins that archive's digest."""
    clients = []

    def make(archive: str | None = None, **config: object) -> Client:
        pins = {} if archive is None else {"host_image_digests": {archive: image_id(archive)}}
        (tmp_path / "kurma.json").write_text(json.dumps({**pins, **config}))
        clients.append(open_client(str(tmp_path / "kurma.json"), str(state)))
        return clients[-1]

    yield make
    for each in clients:
        assert each.pods() == []
        each.close()


@pytest.fixture
def checked(client: Callable[..., Client]) -> Callable[..., Checked]:
    """``checked(archive)`` runs the suite, with little patience."""

    def run(archive: str, **config: object) -> Checked:
        told: list[CheckLine] = []
        services = client(archive, **config).here.services
        patience = Patience(start=4.0, stop=1.0, answer=4.0)
        report = check(services, archive, told.append, patience)
        assert set(report.lines) == set(LINES), "every line is told of"
        return Checked(report.lines, told)

    return run


@pytest.fixture
def lab(client: Callable[..., Client]) -> Iterator[Callable[..., Lab]]:
    """``lab(archive)``: what starts pods of the check's app under that stager."""
    with contextlib.ExitStack() as stack:

        def make(archive: str, patience: Patience | None = None) -> Lab:
            services = client(archive).here.services

            def image() -> StagerImage:
                found = services.images.host_image(archive)
                return StagerImage(found.id, found.path, found.manifest)

            patience = patience or Patience()
            driver = WatchedStager("example", image, services.spawner, "test", StagerTimes(stop=2))
            workplace = stack.enter_context(services.store.workplace())
            probes = probe_image.build(workplace)
            rooms = CheckServices(services, driver, {}, probes, patience)
            return Lab(rooms, driver, probes, patience, workplace)

        yield make
