"""Pods under stage1 images that are made here: one that notes how it is called, and what a test adds to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kurma_stager_rkt.unmount import unmount_below
from kurma_testing.stagers import pod_setup

from kurma_core.hookspecs.pod_setup import PodSetup
from kurma_core.linux import mounts
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from tests.integration.stage1.driven import UUID
from tests.kit.command import KURMA, Kurma
from tests.kit.images import archive, busybox_root, image_id

PREFIX = "coreos.com/rkt/stage1/"
#: The entrypoints of every version.
BASIC = ("run", "enter", "gc", "stop")
OF_APPS = ("app/add", "app/rm", "app/start", "app/stop", "attach")

#: What each entrypoint notes of itself: it runs on the host's root, whose programs it may use.
RECORDER = r"""#!/bin/sh
out={record}/{name}.$$; mkdir -p "$out"
for word; do printf '%s\n' "$word"; done > "$out/argv"
printf '%s' "$0" > "$out/program"
tr '\0' '\n' < /proc/$$/environ > "$out/environ"
(find /proc/$$/fd -mindepth 1 -printf '%f %l\n' > "$out/fds")
pwd > "$out/cwd"
find . -print > "$out/tree" 2>/dev/null
if flock -n . true; then echo free; else echo held; fi > "$out/lock"
echo "$PPID" > "$out/parent"
touch "$out/done"
"""


class Recorded:
    """What one call of an entrypoint noted."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __getattr__(self, name: str) -> str:
        return (self._place / name).read_text()

    @property
    def words(self) -> list[str]:
        return self.argv.splitlines()

    @property
    def environment(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.environ.splitlines())

    @property
    def descriptors(self) -> dict[str, str]:
        return dict(line.split(" ", 1) for line in self.fds.splitlines())

    @property
    def files(self) -> set[str]:
        return {line.removeprefix("./") for line in self.tree.splitlines()}


class Stage1Image:
    """A stage1 image, and what its entrypoints have noted."""

    def __init__(self, path: str, record: Path) -> None:
        self.path = path
        self.stager = f"rkt:{path}"
        self._record = record

    def calls(self, entrypoint: str) -> list[Recorded]:
        """What the calls of that entrypoint noted, the first one first."""
        found = [
            each for each in self._record.glob(f"{entrypoint.replace('/', '-')}.*") if (each / "done").exists()
        ]
        return [Recorded(each) for each in sorted(found, key=lambda each: (each / "done").stat().st_mtime_ns)]

    def call(self, entrypoint: str) -> Recorded:
        (found,) = self.calls(entrypoint)
        return found


class Stage1Command(Kurma):
    """``kurma`` on a state directory of its own, and stage1 images for it."""

    def __init__(self, directory: Path, image: str) -> None:
        super().__init__(directory / "state", directory / "kurma.json", image)
        self.config.write_text("{}")
        self._pinned: dict[str, str] = {}
        self._images = 0
        self._configuration: dict[str, Any] = {"daemon": {"prestarted_stagers": 0}}
        self.out("image", "fetch", image)

    @property
    def pods(self) -> Path:
        return self.directory / "state/plugins/kurma.stagers/rkt/pods"

    def place(self, uuid: str) -> str:
        """The directory that the pod is in; empty: in none."""
        found = [each.parent.name for each in self.pods.glob(f"*/{uuid}")]
        assert len(found) <= 1, found
        return found[0] if found else ""

    def configure(self, **more: object) -> None:
        self._configuration.update(more)
        # No stage1 applies Kurma's isolators.
        stagers = {"rkt": {"driver": "rkt"}, **self._configuration.get("stagers", {})}
        allowed = {name: {"without_isolators": True, **section} for name, section in stagers.items()}
        value = {"host_image_digests": self._pinned, **self._configuration, "stagers": allowed}
        (self.directory / "kurma.json").write_text(json.dumps(value))

    def stage1(
        self,
        version: int | None,
        run: str,
        entrypoints: tuple[str, ...] = BASIC,
        *,
        scripts: Mapping[str, str] | None = None,
        pinned: bool = True,
    ) -> Stage1Image:
        """An image that notes its calls.

        :param version: of the interface; None: the image does not say.
        :param run: what its ``run`` does then; ``scripts``: the others.
        """
        self._images += 1
        name = f"stage1-{self._images}"
        record, root = self.directory / f"{name}-record", self.directory / f"{name}-root"
        given = {"run": run, **(scripts or {})}
        for entry in entrypoints:
            file = root / "ex" / entry
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(RECORDER.format(record=record, name=entry.replace("/", "-")) + given.get(entry, ""))
            file.chmod(0o755)
        annotations = [{"name": PREFIX + entry, "value": f"/ex/{entry}"} for entry in entrypoints]
        if version is not None:
            annotations.append({"name": PREFIX + "interface-version", "value": str(version)})
        path = archive(
            str(root), str(self.directory / f"{name}.aci"), f"example.com/{name}", annotations=annotations
        )
        if pinned:
            self._pinned[path] = image_id(path)
        self.configure()
        return Stage1Image(path, record)

    def pin(self, path: str) -> None:
        self._pinned[path] = image_id(path)
        self.configure()

    def show(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out("show", name, "--format", "json"))
        return found


@pytest.fixture(scope="session")
def stage1_app(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("stage1-app"))
    app = {
        "exec": ["/bin/sh", "-c", "echo hello; exit 3"],
        "user": "0",
        "group": "0",
        "environment": [{"name": "OF_IMAGE", "value": "yes"}],
    }
    return archive(busybox_root(f"{directory}/root"), f"{directory}/app.aci", "example.com/app", app=app)


@pytest.fixture(scope="module")
def stage1s(tmp_path_factory: pytest.TempPathFactory, stage1_app: str) -> Stage1Command:
    return Stage1Command(tmp_path_factory.mktemp("stage1"), stage1_app)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The default stager as a stage1 image."""
    directory = tmp_path_factory.mktemp("exported")
    path = f"{directory}/stage1.aci"
    subprocess.run([*KURMA, "--dir", f"{directory}/state", "stager", "export", path], check=True, timeout=300)
    return path


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[PodSetup]:
    """For a driver that is called without the core: a pod, and its cgroup."""
    (tmp_path / "app/bin").mkdir(parents=True)
    found = pod_setup(tmp_path / UUID, tmp_path / "app", ("/bin/true",))
    tree = CgroupTree(found.cgroup)
    tree.create()
    yield found
    tree.kill()
    tree.remove()


class Stacked:
    """Mounts as a host has them: shared, and one upon another at the same place, as /dev/pts often is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for place in (path, path / "pts", path / "pts"):
            self._mount(place)
        self._known = self._ids()

    def cover(self) -> None:
        self._mount(self.path)
        self._known = self._ids()

    def whole(self) -> bool:
        return self._ids() == self._known

    def _mount(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        subprocess.run(["mount", "--make-shared", place], check=True)

    def _ids(self) -> list[int]:
        return [one.id for one in mounts.mounts_at_or_below(str(self.path))]


@pytest.fixture
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacked]:
    found = Stacked(tmp_path_factory.mktemp("stacked"))
    yield found
    unmount_below(str(found.path))


@pytest.fixture
def null() -> Iterator[Stdio]:
    fd = os.open("/dev/null", os.O_RDWR)
    yield Stdio(fd, fd, fd)
    os.close(fd)
