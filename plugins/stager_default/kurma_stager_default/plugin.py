"""The plugin of the default stager: builds its image, and exports it as a stage1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kurma_core.errors import PluginSkipped
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver, DriverContext, HostCheck, Option, kernel_hint
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
def kurma_checks() -> Sequence[HostCheck]:
    """Landlock, and the interpreter that the stager's image is made of."""
    from kurma_core.errors import KurmaError
    from kurma_stager_default import image

    found = [_landlock()]
    try:
        image.fingerprint()
    except (KurmaError, OSError) as error:
        why = f"the stager's image cannot be made: {error}"
        found.append(HostCheck("interpreter", False, why, "apt-get install --reinstall libpython3-stdlib"))
    else:
        found.append(HostCheck("interpreter", True))
    return found


def _landlock() -> HostCheck:
    """Landlock: apps that run as the same user cannot reach each other's processes."""
    from kurma_core.linux.programs import find_program
    from kurma_stager_default.inside.app.sandbox import landlock_abi, landlock_usable

    name = "Landlock"
    if landlock_usable():
        return HostCheck(name, True)
    without = "without it, apps of a pod are told apart by users alone"
    if landlock_abi() >= 0:
        lacks = f"the kernel has none, or an old one; {without}; a new kernel takes effect after a reboot"
        return HostCheck(name, False, lacks, kernel_hint())
    try:
        with open("/sys/kernel/security/lsm") as file:
            modules = file.read().strip()
    except OSError:
        lacks = f"the kernel's security modules cannot be read; {without}"
        return HostCheck(name, False, lacks, "mount -t securityfs securityfs /sys/kernel/security")
    lacks = f"the kernel's command line leaves it off; {without}; the hint takes effect after a reboot"
    # The parameter replaces the whole list: a module that it does not name is switched off.
    parameter = f"lsm=landlock,{modules}"
    if find_program("update-grub") is None:
        return HostCheck(name, False, lacks, f"add {parameter} to the kernel's command line")
    line = f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {parameter}"'
    file_name = "/etc/default/grub.d/50-kurma.cfg"
    return HostCheck(
        name, False, lacks, f"mkdir -p /etc/default/grub.d && echo '{line}' > {file_name} && update-grub"
    )


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
