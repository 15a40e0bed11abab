"""Images as a network's driver gets them: trees with scripts, without a store."""

import functools
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from kurma_net_aci.plugin import kurma_network

from kurma_core.appc.image import ImageManifest
from kurma_core.hookspecs.driver import DriverContext, HostTree

EXAMPLES = Path(__file__).parents[3] / "examples" / "networks"


class Images:
    """Stands for the core: locator → tree. :attr:`asked` holds what was asked for."""

    def __init__(self, directory):
        self._directory = directory
        self._trees = {}
        self.asked = []
        self.refused = None

    def add(self, locator, scripts, environment=()):
        """An image of busybox with these scripts, by name; replaces the one of that locator."""
        root = self._directory / f"image-{len(list(self._directory.iterdir()))}"
        (root / "opt/network").mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
        (root / "bin/busybox").chmod(0o755)
        listed = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True)
        for applet in listed.stdout.split():
            if applet != "busybox":
                (root / "bin" / applet).symlink_to("busybox")
        for name, text in scripts.items():
            path = root / "opt/network" / name
            path.write_text(text)
            path.chmod(0o755)
        app = {"exec": ["/x"], "user": "0", "group": "0", "environment": [
            {"name": name, "value": value} for name, value in environment]}  # fmt: skip
        manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/net", "app": app}
        return self.use(locator, root, manifest)

    def use(self, locator, root, manifest):
        ident = "sha512-" + hashlib.sha512(str(root).encode()).hexdigest()
        self._trees[locator] = HostTree(ident, str(root), ImageManifest.parse(manifest))
        return root

    def __call__(self, locator):
        self.asked.append(locator)
        if self.refused is not None:
            raise self.refused
        return self._trees[locator]


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images").mkdir()
    return Images(tmp_path / "images")


@pytest.fixture
def new_driver(tmp_path, images):
    """A driver as each new process makes one."""

    def make(timeout=60.0, daemon=False, note=print):
        return kurma_network().create(
            DriverContext(
                config={"timeout": timeout},
                state_dir=str(tmp_path / "aci"),
                host_image=images,
                daemon=daemon,
                note=note,
            )
        )

    return make


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The root filesystem of an example, by its build script, and its manifest."""

    @functools.cache
    def build(name):
        path = tmp_path_factory.mktemp(name) / "rootfs"
        path.mkdir()
        subprocess.run([EXAMPLES / name / "build", path], check=True)
        return path, json.loads((EXAMPLES / name / "manifest.json").read_text())

    return build
