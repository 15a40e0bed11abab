"""The default stager as an image for another host: a stage1, by the interface that rkt has with them (Z9).

What is inside of a pod is the default stager's own. Before it come entrypoints that are run on the host's root: a
shell script each, which calls the image's own loader, and by it the image's own interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import kurma_cni

from kurma_stager_default import image

NAME = "kurma.io/stager/stage1"
PREFIX = "coreos.com/rkt/stage1/"
#: Of the interface; see docs/decisions.
VERSION = 6
#: What the interface calls for, by the module whose ``main`` does it.
ENTRYPOINTS = {"run": "entry_run", "enter": "entry_enter", "gc": "entry_gc", "stop": "entry_stop"}
#: Programs in the pod: its supervisor, and two of the default stager's call-ins.
INSIDE = {
    "pod": "kurma_stager_default.stage1.pod",
    "run": "kurma_stager_default.inside.callins.run",
    "attach": "kurma_stager_default.inside.callins.attach",
}
#: Below the image's root.
PLACE = "stage1"
#: rkt touches the first of these once its overlay is mounted, and takes it for the image's.
_OF_STAGE0 = ("rkt/status", "rkt/env")

# Nothing of the host's is used but the shell, whose own words these all are. What a caller's environment says of
# libraries was meant for the host's programs.
_SCRIPT = """#!/bin/sh
root=${{0%/{place}/{name}}}
case $root in
/*) ;;
*) root=$PWD/$root ;;
esac
unset LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT LD_DEBUG
exec "$root{loader}" --library-path "$root{libraries}" "$root/{python}" -IS "$root/{code}" "$@"
"""


def build(rootfs: str) -> Mapping[str, Any]:
    """Fills the empty directory ``rootfs``; returns the image manifest.

    :raises StagerError: something that the interpreter needs is missing.
    """
    hosts = {f"stage1-{name}": f"kurma_stager_default.stage1.{module}" for name, module in ENTRYPOINTS.items()}
    engine = image.modules_in({"kurma_cni": os.path.dirname(os.path.abspath(kurma_cni.__file__ or ""))})
    sources = [*image.own_modules("inside", "stage1"), *engine]
    loader, libraries = image.fill(rootfs, {**INSIDE, **hosts}, sources)
    for name in INSIDE:
        image.launcher(rootfs, name)
    for path in (PLACE, *_OF_STAGE0):
        os.makedirs(f"{rootfs}/{path}")
    for name in ENTRYPOINTS:
        _script(rootfs, name, loader, libraries)
    image.plain(rootfs)
    notes = {f"{PREFIX}{name}": f"/{PLACE}/{name}" for name in ENTRYPOINTS}
    notes[f"{PREFIX}interface-version"] = str(VERSION)
    return {
        "acKind": "ImageManifest",
        "acVersion": "0.8.11",
        "name": NAME,
        "labels": image.labels(),
        "annotations": [{"name": name, "value": value} for name, value in notes.items()],
    }


def _script(rootfs: str, name: str, loader: str, libraries: str) -> None:
    path = f"{rootfs}/{PLACE}/{name}"
    with open(path, "w") as file:
        file.write(
            _SCRIPT.format(
                place=PLACE,
                name=name,
                loader=loader,
                libraries=libraries,
                python=f"{image.PREFIX}/bin/python3",
                code=image.code_of(f"stage1-{name}"),
            )
        )
    os.chmod(path, 0o755)  # noqa: S103 - a program
