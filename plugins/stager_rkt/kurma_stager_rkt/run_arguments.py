"""Decides what a pod is run with and makes the arguments of stage1's ``run`` entrypoint, by interface version.

It compares the pod's request and the administrator's settings with that version of the interface. A request that
the interface cannot pass is refused if its loss would weaken the isolation, and left out with a note otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import StagerError
from kurma_core.value import frozen
from kurma_stager_rkt import pod_files, settings, stage1_image
from kurma_stager_rkt.records import Note
from kurma_stager_rkt.settings import LIFTED

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import HostTree
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.models.streams import Stdio
    from kurma_stager_rkt.stage1_image import Stage1

_MOST_INTERACTIVE = 1


@frozen
class RunWishes:
    """A pod's wishes of its stage1, whether or not its interface version knows them.

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

    :param note: called with a line for each request that this version of the interface cannot pass.
    :raises StagerError: a request cannot be fulfilled, or its loss would weaken the isolation.
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
        # stage1 would make the URL with the host's address and port 18112, which Kurma's service does not use.
        note("its apps get no AC_METADATA_URL: stage1 images make one of an address that Kurma does not serve")
    found.append(f"--local-config={wishes.local_config}")
    return (*found, *_later(stage1, wishes, note), wishes.uuid)


def _later(stage1: Stage1, wishes: RunWishes, note: Callable[[str], None]) -> list[str]:
    """Arguments of later versions. Those that the user did not ask for are left out, as in rkt: stage1-fly of rkt
    1.30 fails for an image without ``/etc`` when it gets ``--dns-conf-mode``."""
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


#: Networks that stage1s define themselves.
_KNOWN_NETWORKS = ("default", "default-restricted", "none", "host")


@frozen
class Decided:
    """:param storage: how roots are made, as the admin says. :param in_front: the pod runs in the foreground."""

    note: Note
    wishes: RunWishes
    storage: str
    in_front: bool


def decide(
    name: str, pod: PodSetup, tree: HostTree, config: Mapping[str, Any], place: str, stdio: Stdio | None
) -> Decided:
    """Decides how a pod is run.

    :param name: the stager's. :param config: the administrator's settings for it.
    :param place: the pod's directory in rkt's state ``run``.
    :param stdio: None: it is not known yet.
    :raises StagerError: a request cannot be fulfilled, or its loss would weaken the isolation.
    """
    said = settings.read(name, config)
    image = stage1_image.read(name, tree.manifest)
    if pod.userns is not None and said.storage == "overlay":
        raise StagerError(
            f"stager {name}: roots for a pod with a user namespace are copies, whose owners are shifted, and its "
            "configuration demands overlays",
            hint="leave `storage` out there, or run the pod with --userns none",
        )
    if not said.local_config:  # otherwise the administrator's directory defines the networks
        _check_networks(name, pod)
    in_front = stdio is not None and not os.path.samestat(os.fstat(stdio.stdin), os.stat("/dev/null"))
    local = said.local_config or pod_files.LOCAL_CONFIG
    lifted = lifted_of_pod(name, pod, said.lift)
    ids = None if pod.userns is None else (pod.userns.ids.first, pod.userns.ids.count)
    note = Note(
        cgroup=pod.cgroup,
        image=tree.id,
        path=tree.path,
        stage1=image,
        debug=said.debug,
        local_config=local,
        mutable=pod.keep,
        lifted=said.lift,
        private_users=ids,
        patience=said.patience,
    )
    wishes = RunWishes(
        uuid=pod.uuid,
        apps=len(pod.apps),
        networks=pod_files.network_names(pod),
        debug=said.debug,
        interactive=_interactive(pod, image, in_front),
        private_users=ids,
        local_config=os.path.join(place, local),
        hostname="" if pod.hostname == f"rkt-{pod.uuid}" else pod.hostname,
        resolv="stage0" if pod_files.resolv_conf(pod) else "default",
        hosts="stage0" if pod_files.hosts(pod) else "default",
        lifted=lifted,
        mutable=pod.keep,
        ipc=_ipc_of_pod(name, pod, said.ipc),
        metadata=pod.metadata_url is not None and bool(pod.attachments),
    )
    return Decided(note, wishes, said.storage, in_front)


def _check_networks(name: str, pod: PodSetup) -> None:
    theirs = pod_files.networks(pod)
    for one in pod.attachments:
        if one.config.get("isolated") and pod_files.name_of(one) not in theirs:
            raise StagerError(
                f"stager {name}: network {one.network} keeps its pods from each other (`isolated`), and its "
                "stage1 would have another of that name",
                hint="join another --net, or use another --stager",
            )


def _interactive(pod: PodSetup, image: stage1_image.Stage1, in_front: bool) -> bool:
    modes = [pod_files.mode(pod, app, in_front=in_front) for app in pod.apps]
    return pod_files.INTERACTIVE in modes or (not image.attaches and any(app.interactive for app in pod.apps))


def lifted_of_pod(name: str, pod: PodSetup, said: tuple[str, ...]) -> tuple[str, ...]:
    """The restrictions that stage1 does not put on apps: all where they are privileged, which the core has seen
    to be granted.

    :raises StagerError: some are, and some are not: stage1 knows but one word for all that it starts with.
    """
    privileged = [app.name for app in pod.apps if pod.plans[app.name].privileged]
    others = [app.name for app in pod.apps if app.name not in privileged]
    if not privileged:
        return said
    if others and not pod.keep:
        raise StagerError(
            f"stager {name}: a stage1 takes its walls down for all apps of a pod: {privileged[0]} is privileged, "
            f"and {others[0]} is not",
            hint="run them in pods of their own",
        )
    # Apps are added to a mutable pod one by one, each with its own restrictions.
    return said if pod.keep else tuple(LIFTED)


def _ipc_of_pod(name: str, pod: PodSetup, said: str) -> str:
    if pod.pod_plan.namespaces.get("ipc") != "host":
        return said
    if said == "private":
        raise StagerError(
            f"stager {name}: the pod asks for the host's IPC namespace, and the stager's configuration for one of "
            "its own",
            hint="leave os/linux/namespaces out of the pod, or `ipc` out of the stager's configuration",
        )
    return "parent"


def check(name: str, pod: PodSetup, note: Callable[[str], None], local_config: str = "") -> None:
    """Makes notes on requests that the interface cannot pass to any stage1.

    :param local_config: as in :class:`Note`.
    :raises StagerError: the pod must not be run without the request.
    """
    if any(plan.traffic for plan in (pod.pod_plan, *pod.plans.values())):
        raise StagerError(
            f"stager {name}: a pod whose network its stage1 makes cannot be held to limits of traffic",
            hint="leave these isolators out, or use another --stager",
        )
    for text in (*_networks(pod, local_config), *_volumes(pod), *_powers(pod)):
        note(text)


def _networks(pod: PodSetup, local_config: str) -> list[str]:
    found, theirs = [], pod_files.networks(pod)
    for one in pod.attachments:
        if one.request.ips[1:] or one.request.mac or one.request.interface or one.request.args:
            found.append(
                f"network {one.network}: its stage1 is told of one IP address at most, and of no MAC address, "
                "interface or arguments"
            )
        if one.request.optional:
            found.append(f"network {one.network}: its stage1 is not told that the pod may go without it")
        if not one.base and pod_files.name_of(one) not in theirs and one.network not in _KNOWN_NETWORKS:
            found.append(f"network {one.network}: it is Kurma's own, of which its stage1 gets the name alone")
    if local_config.startswith("/"):
        found += [
            f"network {name}: its stage1 looks for it in {local_config}, as it is told to" for name in theirs
        ]
    return found


def _volumes(pod: PodSetup) -> list[str]:
    found = [f"volume {one.name}: its stage1 does not keep it in memory" for one in pod.volumes if one.tmpfs]
    mounted = {mount.volume for app in pod.apps for mount in app.mounts if mount.seed}
    found += [
        f"volume {name}: its stage1 makes an empty one, without what the image has there"
        for name in sorted(mounted)
    ]
    if pod.userns is not None:
        found += [f"volume {one.name}: its stage1 does not map its owners" for one in pod.volumes if one.idmap]
    return found


def _powers(pod: PodSetup) -> list[str]:
    kinds = [kind for kind, whose in pod.pod_plan.namespaces.items() if whose == "host" and kind != "ipc"]
    found = [f"its stage1 is not told that the pod shares the host's {kind} namespace" for kind in kinds]
    with_devices = [app.name for app in pod.apps if pod.plans[app.name].devices]
    found += [f"app {app}: its stage1 is not told of its devices" for app in with_devices]
    return found
