"""Reads a stage1 image's annotations: its entrypoints, and its version of the interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest

PREFIX = "coreos.com/rkt/stage1/"
OF_APPS = ("app/add", "app/rm", "app/start", "app/stop")
ENTRYPOINTS = ("run", "enter", "gc", "stop", "attach", *OF_APPS)
#: The latest known version. ``run_arguments`` has what came with each.
LATEST = 6
#: The first version in which apps can be added, removed and attached to, if the image has the entrypoints.
MUTABLE = 5


@frozen
class Stage1:
    """:param entrypoints: path in the image, absolute, by the name of the entrypoint (``run``, ``app/add``)."""

    name: str
    version: int
    entrypoints: Mapping[str, str]

    @property
    def attaches(self) -> bool:
        """Whether clients can attach to its apps."""
        return self.version >= MUTABLE and {"attach", "enter"} <= self.entrypoints.keys()

    @property
    def lacking(self) -> str:
        """The reason why apps of its pods cannot be added and removed; empty: they can."""
        if self.version < MUTABLE:
            return f"it keeps to interface version {self.version}, and that came with {MUTABLE}"
        names = [name for name in (*OF_APPS, "enter") if name not in self.entrypoints]
        return f"it has no entrypoint {', '.join(names)}" if names else ""


def read(stager: str, manifest: ImageManifest) -> Stage1:
    """Reads the annotations. :param stager: its name, for messages.

    :raises StagerError: it is not a stage1 image, or of an unknown version.
    """
    found = {}
    for name in ENTRYPOINTS:
        path = manifest.annotation(PREFIX + name)
        if path is None:
            continue
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise StagerError(
                f"stager {stager}: image {manifest.name} is not a stage1 image: its annotation {PREFIX}{name} is "
                f"{path!r:.80}, which is not an absolute path without `..`"
            )
        found[name] = path
    if "run" not in found:
        raise StagerError(
            f"stager {stager}: image {manifest.name} is not a stage1 image: it has no annotation {PREFIX}run",
            hint="an image of the Kurma Stager Specification needs no driver: `stagers: {NAME: {image: …}}`",
        )
    return Stage1(str(manifest.name), _version(stager, manifest), found)


def _version(stager: str, manifest: ImageManifest) -> int:
    text = manifest.annotation(PREFIX + "interface-version")
    if text is None:
        return 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LATEST:
        raise StagerError(
            f"stager {stager}: image {manifest.name} keeps to version {text!r:.20} of the stage1 interface; "
            f"those from 1 to {LATEST} are known"
        )
    return int(text)
