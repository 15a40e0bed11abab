"""What a stager gets of a pod: its apps, mounts, volumes and namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.pod import PodManifest
    from kurma_core.hookspecs.driver import Json
    from kurma_core.models.image import RenderedLayer
    from kurma_core.models.isolator import IdRange, IsolatorPlan
    from kurma_core.models.network import Attachment
    from kurma_core.models.pod import MountSetup


@frozen
class AppSetup:
    """One app of a pod, as a stager gets it.

    :param layers: its rootfs, top first.
    :param mounts: its volumes, in the order in which they are to be mounted.
    :param environment: added by Kurma for this run (metadata URL, ``-e``), in order, over the manifest's.
    :param interactive: the stager's own standard input belongs to this app.
    :param stdin_open: its standard input stays open for whoever attaches.
    :param terminal: it gets a terminal, which is its standard input, output and error.
    :param make_working_directory: a working directory that the image lacks is made, as for Docker's images.
    :param stop_signal: number of the signal that asks the app to end.
    :param replace_files: of ``hosts``, ``hostname`` and ``resolv.conf`` below ``/etc`` those in which Kurma's
        content takes the place of the image's. Any other that the image has stays, and its ``hosts`` gets the
        pod's own name.
    """

    name: str
    layers: tuple[RenderedLayer, ...]
    mounts: tuple[MountSetup, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    interactive: bool = False
    make_working_directory: bool = False
    stop_signal: int = 15
    stdin_open: bool = False
    terminal: bool = False
    replace_files: tuple[str, ...] = ()


@frozen
class VolumeSetup:
    """One volume of a pod: ``source`` is a path of the host (for an empty volume: in the pod's directory).

    :param tmpfs: it is kept in memory: a new tmpfs with these options, which has no source. None: it is not.

    :param idmap: with a user namespace, its owners are inside as they are outside. An empty volume needs no map:
        what it holds belongs to ids of the namespace.
    """

    name: str
    source: str
    read_only: bool
    recursive: bool = True
    idmap: bool = False
    tmpfs: Mapping[str, str] | None = None


@frozen
class UserNamespace:
    """A pod's user namespace: where it is pinned on the host, and which of the host's ids it has. Of a driver
    with ``joins_networks``, its stager makes it, and there is no ``path``."""

    path: str
    ids: IdRange


@frozen
class PodSetup:
    """Everything that a stager driver needs to know of a pod, whatever its design.

    :param directory: the pod's directory on the host. The driver may keep files under ``directory/stager``;
        ``directory/pod`` is what the stager itself writes.
    :param manifest: reified: every app has an image ID, every mount point a volume.
    :param images: image manifests as JSON values, by layer ID.
    :param network_namespace: path of the pod's; None: the host's.
    :param cgroup: the pod's cgroup, relative to each hierarchy's root, made and empty.
    :param plans: the isolator plan per app; ``pod_plan`` the pod's.
    :param config: the admin's section for this stager.
    :param dns: ``nameservers``, ``search``, ``options``: lists of strings; None: the app keeps its own file.
    :param hosts: all lines of ``/etc/hosts`` that are the pod's own, localhost among them: (address, names).
    :param names: lines of other pods belong there, too, and change: the core keeps every hosts file in
        ``directory/pod/hosts`` up to date with those of ``.names`` there (docs/stager_protocol.md).
    :param volume_links: volume sources may be, or lead over, symbolic links.
    :param userns: the pod's, which its network namespace belongs to, as all other namespaces of its apps must;
        only for a driver with ``user_namespaces``. None: the host's.
    :param keep: it ends only when it is stopped, whatever apps come and go.
    :param metadata_url: of its metadata service, with the token; in every app's environment as well. None: it has
        none.
    :param attachments: the networks that it is to be joined to, loopback first, for a driver with
        ``joins_networks``, which joins them itself. Empty: the host's.
    :param asked: of ``dns`` and ``hosts`` those that somebody has said something of.
    """

    uuid: str
    name: str
    directory: str
    manifest: PodManifest
    images: Mapping[str, Json]
    apps: tuple[AppSetup, ...]
    volumes: tuple[VolumeSetup, ...]
    network_namespace: str | None
    cgroup: str
    plans: Mapping[str, IsolatorPlan]
    pod_plan: IsolatorPlan
    config: Mapping[str, Json]
    hostname: str
    dns: Mapping[str, tuple[str, ...]] | None = None
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    volume_links: bool = False
    userns: UserNamespace | None = None
    keep: bool = False
    metadata_url: str | None = None
    names: bool = False
    attachments: tuple[Attachment, ...] = ()
    asked: tuple[str, ...] = ()
