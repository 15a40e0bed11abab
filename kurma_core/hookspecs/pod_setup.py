"""The description of a pod for its stager: apps, mounts, volumes and namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
class SecretSetup:
    """One secret of an app. Nothing may record or show its value.

    :param name: of the secret.
    :param value: its value.
    :param path: of its file in the app; None: it is a variable of the app's environment.
    :param variable: name of that variable; None: it is a file.
    :param uid: owner of the file on the host. :param gid: its group. :param mode: its permission bits.
    """

    name: str
    value: bytes
    path: str | None = None
    variable: str | None = None
    uid: int = 0
    gid: int = 0
    mode: int = 0o400

    def __repr__(self) -> str:
        return f"SecretSetup({self.name!r})"


@frozen
class AppSetup:
    """One app of a pod, as a stager gets it.

    :param name: of the app.
    :param layers: its rootfs, top first; never write to them.
    :param mounts: its volumes, in the order in which the stager must mount them: a volume may be mounted below
        another one.
    :param environment: variables that Kurma adds for this run (metadata URL, ``-e``), in order; they override the
        manifest's.
    :param interactive: the stager passes its own standard input to this app.
    :param stdin_open: its standard input stays open for ``kurma attach``.
    :param stdin_ends: when its standard input ends for good: ``last``: when the input of all attached clients has
        ended; ``first``: when that of the first client has ended, or that client has gone; ``never``.
    :param terminal: it gets a terminal as its standard input, output and error.
    :param make_working_directory: the stager makes a working directory that the image lacks.
    :param stop_signal: number of the signal that asks the app to end.
    :param replace_files: those of ``hosts``, ``hostname`` and ``resolv.conf`` below ``/etc`` whose content in the
        image the stager replaces by Kurma's. It keeps the image's other files, and adds the pod's own name to the
        image's ``hosts``.
    :param log_path: path of its log below :attr:`PodSetup.log_directory`; empty: it has no log. None: its log is
        in the pod's directory.
    :param secrets: only for a driver with ``secrets``.
    """

    name: str
    layers: tuple[RenderedLayer, ...]
    mounts: tuple[MountSetup, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    interactive: bool = False
    make_working_directory: bool = False
    stop_signal: int = 15
    stdin_open: bool = False
    stdin_ends: str = "last"
    terminal: bool = False
    replace_files: tuple[str, ...] = ()
    log_path: str | None = None
    secrets: tuple[SecretSetup, ...] = ()


@frozen
class VolumeSetup:
    """One volume of a pod.

    :param name: of the volume.
    :param source: path on the host; of an empty volume, in the pod's directory.
    :param read_only: no app can write to it.
    :param recursive: mounts below ``source`` are part of it.
    :param tmpfs: options of a new tmpfs, which takes the place of ``source``; None: the volume is not in memory.
    :param idmap: the mount is idmapped: files have the same owners inside the user namespace as outside. An empty
        volume needs no map: its files belong to ids of the namespace.
    :param propagation: of later mounts below ``source``: ``private``; ``rslave``: those of the host appear in the
        apps; ``rshared``: and those of the apps on the host.
    :param read_only_submounts: whether ``read_only`` applies to mounts below ``source``, too; None: the user does
        not say, and it does if the stager can do that.
    :param attributes: of the mount: some of ``noexec``, ``nosuid`` and ``nodev``.
    :param image: ID of the image whose files the volume has, read-only; None: it is another volume.
    :param layers: of an image volume, which has no ``source``: its files, top first; never write to them. Empty:
        no app of this setup mounts it.
    :param sub_path: the path in the volume that is mounted, relative; empty: its root. Apps may have changed
        ``source`` below its root: never follow a link on this path.
    """

    name: str
    source: str
    read_only: bool
    recursive: bool = True
    idmap: bool = False
    tmpfs: Mapping[str, str] | None = None
    propagation: str = "private"
    read_only_submounts: bool | None = None
    attributes: tuple[str, ...] = ()
    image: str | None = None
    layers: tuple[RenderedLayer, ...] = ()
    sub_path: str = ""

    @property
    def mounted(self) -> str:
        """The path on the host that is mounted, of a volume with a ``source``."""
        return f"{self.source}/{self.sub_path}" if self.sub_path else self.source


def needed_kind(
    volumes: Mapping[str, VolumeSetup], mounts: Iterable[Iterable[MountSetup]], *, nested: bool = True
) -> str | None:
    """A volume or mount for which a stager must have :attr:`.stager.StagerFeatures.volume_kinds`, in words; None:
    there is none.

    :param volumes: of the pod, by name. :param mounts: of each app.
    :param nested: a volume below another one counts.
    """
    for of_app in mounts:
        paths = [mount.path for mount in of_app]
        for mount in of_app:
            volume = volumes[mount.volume]
            if volume.image:
                return f"volume {volume.name} is of an image"
            if volume.sub_path:
                return f"volume {volume.name} is mounted in part"
            if volume.propagation != "private":
                return f"volume {volume.name} has the propagation {volume.propagation}"
            if volume.read_only_submounts is not None:
                below = "including" if volume.read_only_submounts else "without"
                return f"volume {volume.name} is read-only {below} the mounts below it"
            if volume.attributes:
                return f"volume {volume.name} has the options {', '.join(volume.attributes)}"
            outer = [path for path in paths if mount.path.startswith(f"{path}/")]
            if nested and outer:
                return f"volume {volume.name} is mounted below the one at {outer[0]}"
    return None


@frozen
class UserNamespace:
    """A pod's user namespace.

    :param path: on the host, where it is pinned. If the driver has ``joins_networks``, its stager makes the
        namespace, and the path is empty.
    :param ids: its ids on the host.
    """

    path: str
    ids: IdRange


@frozen
class PodSetup:
    """The complete description of a pod for a stager driver.

    :param uuid: the pod's. :param name: the pod's name.
    :param directory: the pod's directory on the host. The driver may keep files under ``directory/stager``; the
        stager itself writes to ``directory/pod``.
    :param manifest: reified: every app has an image ID, every mount point a volume.
    :param images: image manifests as JSON values, by layer ID.
    :param apps: in the manifest's order. :param volumes: in the manifest's order.
    :param network_namespace: path of the pod's; None: the host's.
    :param cgroup: the pod's cgroup, relative to each hierarchy's root; the core has made it, and it is empty.
    :param plans: the isolator plan per app. :param pod_plan: the pod's own plan.
    :param config: the stager's section of the configuration.
    :param hostname: the pod's host name.
    :param dns: ``nameservers``, ``search``, ``options``: lists of strings; None: the app keeps its own file.
    :param hosts: the pod's own lines of ``/etc/hosts``, localhost among them: (address, names).
    :param names: hosts files also have lines of other pods, which change: the core keeps every hosts file in
        ``directory/pod/hosts`` up to date with the lines of ``.names`` there (docs/reference/stager_protocol.md).
    :param volume_links: volume sources may be symbolic links, or lie behind one.
    :param userns: the pod's user namespace, which owns its network namespace and must own all other namespaces of
        its apps; only for a driver with ``user_namespaces``. None: the host's.
    :param keep: the pod ends only when it is stopped, also if all its apps have ended.
    :param metadata_url: URL of its metadata service, with the token; also in every app's environment. None: it has
        no metadata service.
    :param attachments: the networks that the stager joins, loopback first, for a driver with ``joins_networks``.
        Empty: the host's.
    :param asked: those of ``dns`` and ``hosts`` that the user has set.
    :param log_directory: existing directory of the host that gets the logs of apps with a ``log_path``. The stager
        makes the directories below it, follows no link there, and neither rotates nor removes these logs. Only
        for a driver with ``log_directories``.
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
    log_directory: str | None = None
