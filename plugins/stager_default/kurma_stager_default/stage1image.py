"""Builds the default stager's stage1 image: a stage1 for rkt, which implements rkt's stage1 interface.

Inside of a pod, the default stager's own modules run. rkt runs the image's entrypoints on the host's root: each is
a shell script that calls the image's own dynamic loader, which loads the image's own interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import kurma_cni

from kurma_stager_default import image

NAME = "kurma.io/stager/stage1"
PREFIX = "coreos.com/rkt/stage1/"
#: Version of rkt's stage1 interface; see docs/decisions.
VERSION = 6
#: The interface's entrypoints, and the module whose ``main`` each calls.
ENTRYPOINTS = {"run": "entry_run", "enter": "entry_enter", "gc": "entry_gc", "stop": "entry_stop"}
#: Programs in the pod: its supervisor, and two of the default stager's call-ins.
INSIDE = {
    "pod": "kurma_stager_default.stage1.pod",
    "run": "kurma_stager_default.inside.callins.run",
    "attach": "kurma_stager_default.inside.callins.attach",
}
#: The directory of the entrypoints, below the image's root.
PLACE = "stage1"
#: Directories for stage0. rkt touches the first once its overlay is mounted, and expects it in the image.
_OF_STAGE0 = ("rkt/status", "rkt/env")

# The script uses shell built-ins only, and no other program of the host. It unsets the loader's variables, which
# the caller has set for programs of the host.
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
