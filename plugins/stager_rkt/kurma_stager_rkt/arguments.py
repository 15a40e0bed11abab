"""What the ``run`` entrypoint is told on its command line, by the version of its interface (Z4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_stager_rkt.stage1 import Stage1

#: Restrictions that an admin may have lifted: what they are called in the stager's configuration, and on the
#: command line.
LIFTED = {
    "capabilities": "--disable-capabilities-restriction",
    "paths": "--disable-paths",
    "seccomp": "--disable-seccomp",
}
IPC = ("", "auto", "private", "parent")
_MOST_INTERACTIVE = 1


@frozen
class RunWishes:
    """What a pod wants of its stage1, whatever that can be told.

    :param apps: how many it has.
    :param networks: names that stage1 resolves; empty: the host's network.
    :param interactive: the caller's standard input is an app's.
    :param private_users: first id of the host and how many; None: no user namespace.
    :param local_config: directory with ``net.d``.
    :param hostname: empty: the user gave none.
    :param resolv, hosts: where ``/etc/resolv.conf`` and ``/etc/hosts`` come from: ``stage0``, ``default`` …
    :param lifted: of :data:`LIFTED`.
    :param mutable: apps may come and go.
    :param ipc: of :data:`IPC`; empty: as stage1 thinks best.
    :param metadata: the pod has a metadata service of Kurma's.
    """

    uuid: str
    apps: int
    networks: tuple[str, ...]
    debug: bool = False
    interactive: bool = False
    private_users: tuple[int, int] | None = None
    local_config: str = ""
    hostname: str = ""
    resolv: str = "default"
    hosts: str = "default"
    lifted: tuple[str, ...] = ()
    mutable: bool = False
    ipc: str = ""
    metadata: bool = False


def run_arguments(
    stage1: Stage1, wishes: RunWishes, note: Callable[[str], None] = lambda text: None
) -> tuple[str, ...]:
    """All arguments of the ``run`` entrypoint, in the interface's order.

    :param note: told, in a line each, what that version of the interface cannot be told, and is left out.
    :raises StagerError: what cannot be told would leave the pod's walls lower than they were asked to be; or
        cannot be at all.
    """
    if wishes.interactive and wishes.apps > _MOST_INTERACTIVE:
        raise StagerError(
            f"stage1 image {stage1.name}: standard input can be an app's only in a pod of one app, and this "
            f"one has {wishes.apps}",
            hint="leave --interactive out",
        )
    found = ["--debug"] if wishes.debug else []
    found.append("--net=" + (",".join(wishes.networks) or "host"))
    if wishes.interactive:
        found.append("--interactive")
    if wishes.private_users is not None:
        found.append("--private-users={}:{}".format(*wishes.private_users))
    if wishes.metadata:
        # It would be sought at the host's address, port 18112, where Kurma's is not.
        note("its apps get no AC_METADATA_URL: stage1 images make one of an address that Kurma does not serve")
    found.append(f"--local-config={wishes.local_config}")
    return (*found, *_later(stage1, wishes, note), wishes.uuid)


def _later(stage1: Stage1, wishes: RunWishes, note: Callable[[str], None]) -> list[str]:
    """What came after version 1. What the user did not ask for is left out, as rkt does: stage1-fly of rkt 1.30
    fails for an image without ``/etc`` when it gets ``--dns-conf-mode``."""
    found = []
    if wishes.hostname:
        if stage1.version >= 2:
            found.append(f"--hostname={wishes.hostname}")
        else:
            note(_unknown(stage1, f"the hostname {wishes.hostname}", 2))
    if (wishes.resolv, wishes.hosts) == ("default", "default"):
        pass
    elif stage1.version >= 4:
        found.append(f"--dns-conf-mode=resolv={wishes.resolv},hosts={wishes.hosts}")
    else:
        note(_unknown(stage1, "where resolv.conf and hosts come from", 4) + "; the files are there all the same")
    for name, argument in LIFTED.items():
        if name not in wishes.lifted:
            continue
        if stage1.version >= 3:
            found.append(argument)
        else:
            note(_unknown(stage1, f"that restrictions of {name} are lifted", 3) + "; they stay")
    if wishes.mutable:
        if stage1.lacking:
            raise StagerError(
                f"stage1 image {stage1.name}: a pod without apps could never get any: {stage1.lacking}",
                hint="name apps in the pod's file, or use another --stager",
            )
        found.append("--mutable")
    return [*found, *_ipc(stage1, wishes.ipc, note)]


def _ipc(stage1: Stage1, ipc: str, note: Callable[[str], None]) -> list[str]:
    if stage1.version >= 6:
        return [f"--ipc={ipc}"] if ipc else []
    if ipc == "private":
        raise StagerError(
            f"stage1 image {stage1.name} cannot be told to give its pod an IPC namespace of its own: it keeps to "
            f"interface version {stage1.version}, and that came with 6",
            hint="use another stage1 image, or leave `ipc` out of the stager's configuration",
        )
    if ipc == "parent":
        note(_unknown(stage1, "that the pod shares the host's IPC namespace", 6))
    return []


def _unknown(stage1: Stage1, what: str, version: int) -> str:
    return (
        f"stage1 image {stage1.name} is not told {what}: it keeps to interface version {stage1.version}, and that "
        f"came with {version}"
    )
