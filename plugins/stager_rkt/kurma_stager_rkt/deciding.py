"""What a pod is run with: what it asks for, what the admin says, and what its stage1 can be told (Z4)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import StagerError
from kurma_core.value import frozen
from kurma_stager_rkt import contents, settings, stage1
from kurma_stager_rkt.arguments import LIFTED, RunWishes
from kurma_stager_rkt.records import Note

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import HostTree
    from kurma_core.hookspecs.pod_setup import PodSetup
    from kurma_core.models.streams import Stdio

#: Networks that stage1s know by themselves.
_KNOWN_NETWORKS = ("default", "default-restricted", "none", "host")


@frozen
class Decided:
    """:param storage: how roots are made, as the admin says. :param in_front: standard input is somebody's."""

    note: Note
    wishes: RunWishes
    storage: str
    in_front: bool


def decide(
    name: str, pod: PodSetup, tree: HostTree, config: Mapping[str, Any], place: str, stdio: Stdio | None
) -> Decided:
    """:param name: the stager's. :param config: what the admin says of it.
    :param place: the directory of rkt's that the pod will run in.
    :param stdio: None: it is not known yet.
    :raises StagerError: what is asked for cannot be, or leaves walls lower than they are to be.
    """
    said = settings.read(name, config)
    image = stage1.read(name, tree.manifest)
    if pod.userns is not None and said.storage == "overlay":
        raise StagerError(
            f"stager {name}: roots for a pod with a user namespace are copies, whose owners are shifted, and its "
            "configuration demands overlays",
            hint="leave `storage` out there, or run the pod with --userns none",
        )
    if not said.local_config:  # else the networks are what the admin has there
        _check_networks(name, pod)
    in_front = stdio is not None and not os.path.samestat(os.fstat(stdio.stdin), os.stat("/dev/null"))
    local = said.local_config or contents.LOCAL_CONFIG
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
        networks=contents.network_names(pod),
        debug=said.debug,
        interactive=_interactive(pod, image, in_front),
        private_users=ids,
        local_config=os.path.join(place, local),
        hostname="" if pod.hostname == f"rkt-{pod.uuid}" else pod.hostname,
        resolv="stage0" if contents.resolv_conf(pod) else "default",
        hosts="stage0" if contents.hosts(pod) else "default",
        lifted=lifted,
        mutable=pod.keep,
        ipc=_ipc(name, pod, said.ipc),
        metadata=pod.metadata_url is not None and bool(pod.attachments),
    )
    return Decided(note, wishes, said.storage, in_front)


def _check_networks(name: str, pod: PodSetup) -> None:
    theirs = contents.networks(pod)
    for one in pod.attachments:
        if one.config.get("isolated") and one.network not in theirs:
            raise StagerError(
                f"stager {name}: network {one.network} keeps its pods from each other (`isolated`), and its "
                "stage1 would have another of that name",
                hint="join another --net, or use another --stager",
            )


def _interactive(pod: PodSetup, image: stage1.Stage1, in_front: bool) -> bool:
    modes = [contents.mode(pod, app, in_front=in_front) for app in pod.apps]
    return contents.INTERACTIVE in modes or (not image.attaches and any(app.interactive for app in pod.apps))


def lifted_of_pod(name: str, pod: PodSetup, said: tuple[str, ...]) -> tuple[str, ...]:
    """Which restrictions its stage1 does not put on apps: all where they are privileged, which the core has seen
    to be granted (X6).

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
    # Into a mutable pod apps come one by one, each with its own word.
    return said if pod.keep else tuple(LIFTED)


def _ipc(name: str, pod: PodSetup, said: str) -> str:
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
    """Tells what stage1 is not told of.

    :param local_config: as a :class:`Note` has it.
    :raises StagerError: the pod asks for something that no stage1 does, and is not to be run without.
    """
    if any(plan.traffic for plan in (pod.pod_plan, *pod.plans.values())):
        raise StagerError(
            f"stager {name}: a pod whose network its stage1 makes cannot be held to limits of traffic",
            hint="leave these isolators out, or use another --stager",
        )
    for text in (*_networks(pod, local_config), *_volumes(pod), *_powers(pod)):
        note(text)


def _networks(pod: PodSetup, local_config: str) -> list[str]:
    found, theirs = [], contents.networks(pod)
    for one in pod.attachments:
        if one.request.ips[1:] or one.request.mac or one.request.interface:
            found.append(
                f"network {one.network}: its stage1 is told of one IP address at most, and of no MAC address or "
                "interface"
            )
        if one.request.optional:
            found.append(f"network {one.network}: its stage1 is not told that the pod may go without it")
        if one.interface != "lo" and one.network not in theirs and one.network not in _KNOWN_NETWORKS:
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
