"""The plugin of the default stager: builds its image, and exports it as a stage1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kurma_core.errors import PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, Option
from kurma_core.hookspecs.stager import StagerFeatures, StagerImageHooks


class DefaultStager(StagerImageHooks):
    """Builds the stager's image, and exports it as a stage1."""

    @hookimpl
    def features(self) -> StagerFeatures:
        return StagerFeatures(applies_isolators=True)

    @hookimpl
    def export_formats(self) -> tuple[str, ...]:
        return ("stage1",)

    @hookimpl
    def fingerprint(self) -> str:
        from kurma_stager_default import image

        return image.fingerprint()

    @hookimpl
    def build(self, rootfs: str) -> Mapping[str, Any]:
        from kurma_stager_default import image

        return image.build(rootfs)

    @hookimpl
    def export(self, format: str, rootfs: str) -> Mapping[str, Any]:
        from kurma_stager_default import stage1image

        return stage1image.build(rootfs)


def _create(context: DriverContext) -> StagerImageHooks:
    import os

    if os.uname().machine not in ("x86_64", "aarch64"):
        raise PluginSkipped(f"needs an x86_64 or aarch64 machine, this one is {os.uname().machine}")
    return DefaultStager()


@hookimpl
def kurma_stager() -> Driver:
    """The stager that pods run under unless another is asked for."""
    return Driver(
        create=_create,
        options=(
            Option(
                "graphStorage",
                str,
                "",
                "how an app's root is made: overlay or copy; empty: overlay where it works",
                choices=("", "overlay", "copy", "given"),
            ),
            Option(
                "handlerTimeout", float, 30.0, "seconds that a pre-start or post-stop handler may take", least=0
            ),
        ),
    )
