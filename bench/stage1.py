"""Pods under a stage1 image: the small one of the tests, which runs each app in a chroot."""

from __future__ import annotations

import json
import os
from pathlib import Path

from runtimes import Kurma, output

_SMALL = Path(__file__).parents[1] / "tests/integration/stage1/small"
_PREFIX = "coreos.com/rkt/stage1/"


class OfStage1:
    """``kurma run`` by that stager, on a state directory of its own.

    :param name: of the state directory, one of :data:`host.STATES`. :param app: archive of the app's image.
    """

    def __init__(self, work: str, name: str, app: str) -> None:
        kurma = Kurma(work, name)
        archive, manifest, configuration = (f"{work}/{name}.{end}" for end in ("aci", "manifest", "json"))
        annotations = [{"name": _PREFIX + each, "value": f"/ex/{each}"} for each in os.listdir(_SMALL / "ex")]
        annotations.append({"name": f"{_PREFIX}interface-version", "value": "2"})
        value = {"acKind": "ImageManifest", "acVersion": "0.8.11", "name": "example.com/small"}
        Path(manifest).write_text(json.dumps({**value, "annotations": annotations}))
        words = ["image", "build", "--from-rootfs", str(_SMALL), "--manifest", manifest, "-o", archive]
        pinned = {archive: output([kurma.program, *words], kurma.environment).strip()}
        stagers = {"rkt": {"driver": "rkt", "without_isolators": True}}
        Path(configuration).write_text(json.dumps({"host_image_digests": pinned, "stagers": stagers}))
        self.environment = {**kurma.environment, "KURMA_CONFIG": configuration}
        image = output([kurma.program, "image", "fetch", app], self.environment).strip()
        options = ["--stager", f"rkt:{archive}", "--net", "host", "--exec", "/bin/true"]
        self.run = [kurma.program, "run", *options, image]
