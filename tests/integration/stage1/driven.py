"""The driver alone, as the core has it, on a stage1 that lies in a directory."""

import contextlib
import os

from kurma_stager_rkt.plugin import Stage1Images

from kurma_core.appc.image import ImageManifest
from kurma_core.hookspecs.driver import DriverContext, HostTree
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.spawn_plan import SpawnPlan
from kurma_core.spawner.client import Spawner

#: Of a pod that the core knows nothing of.
UUID = "146d7cef-fbf6-41da-a2f8-eba218597f9c"

PREFIX = "coreos.com/rkt/stage1/"
IMAGE = "sha512-" + "1" * 128


class Driven:
    """:param scripts: of the entrypoints, by name. :param config: of the stager.
    :attr:`driver` is the stager's, :attr:`images` the plugin's, :attr:`root` the stage1; :attr:`notes` is what
    they have told."""

    def __init__(self, directory, scripts, config=None, version=2):
        self.root = root = f"{directory}/stage1"
        for name, text in scripts.items():
            path = f"{root}/ex/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text if text.startswith("#!") else f"#!/bin/sh\n{text}")
            os.chmod(path, 0o755)
        annotations = [{"name": PREFIX + name, "value": f"/ex/{name}"} for name in scripts]
        if version is not None:
            annotations.append({"name": PREFIX + "interface-version", "value": str(version)})
        manifest = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/stage1"}
        tree = HostTree(IMAGE, root, ImageManifest.parse({**manifest, "annotations": annotations}))
        self.notes = []
        self.state = f"{directory}/plugin"
        self._spawner = Spawner()
        self.context = DriverContext(
            config or {},
            self.state,
            note=self.notes.append,
            host_image=lambda locator: tree,
            start_program=self._start,
        )
        self.images = Stage1Images(self.context)
        self.driver = self.images.of_image("mine", root)

    def _start(self, program):
        return self._spawner.start(
            SpawnPlan(
                argv=program.argv,
                environment=program.environment,
                cwd=program.directory,
                cgroup=tuple(CgroupTree(program.cgroup).leaf("own")) if program.cgroup else (),
                fds=program.fds,
                parent_death_signal=program.parent_death_signal,
            )
        )

    def close(self):
        self._spawner.close()


@contextlib.contextmanager
def driven(directory, scripts, **more):
    found = Driven(str(directory), scripts, **more)
    try:
        yield found
    finally:
        found.close()
