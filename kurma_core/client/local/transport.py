"""The transport that does operations in this process; those on images, keys, networks, stagers and the host."""

from __future__ import annotations

import os

from kurma_core import VERSION
from kurma_core.api.operations import Transport
from kurma_core.client.local.managers import Managers
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, BinaryIO

    from kurma_core.api.host import (
        CheckLine,
        Event,
        HostCheckInfo,
        HostInfo,
        IsolatorInfo,
        NetworkFinding,
        NetworkInfo,
        PluginInfo,
        StagerInfo,
        Version,
    )
    from kurma_core.api.images import (
        DiskUse,
        HostImage,
        ImageChecked,
        ImageGc,
        ImageId,
        ImageListing,
        ImagePage,
        ImagePushed,
        ImageRendered,
        Key,
        Removal,
        StoreUse,
        TrustChange,
        TrustedKey,
    )
    from kurma_core.api.operations import Operation, Progress
    from kurma_core.api.pods import Pruned
    from kurma_core.journal import Cursor, Journal
    from kurma_core.models.image import FetchCredentials, ImageRecord

#: Classes of operations by the first part of their paths; all other paths are operations of the host.
_NOUNS = {
    "pods": "pods",
    "listing": "pods",
    "usage": "pods",
    "images": "images",
    "trust": "images",
    "secrets": "secrets",
    "volumes": "volumes",
}
#: Letters of a UUID prefix that are enough to name pods.
_SHORTEST = 4


class Local(Transport):
    """Does operations in this process.

    :param managers: of the state directory.
    """

    def __init__(self, managers: Managers) -> None:
        self.managers = managers

    def close(self) -> None:
        self.managers.close()

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        method = getattr(self.operations(operation), operation.method, None)
        if method is None:
            raise UsageError(
                f"{operation.name} needs kurmad, and none serves {self.managers.config.state_dir}",
                hint="start kurmad",
            )
        return method(**arguments)

    def operations(self, operation: Operation) -> Any:
        """The object that has the operation's method."""
        noun = _NOUNS.get(operation.parts[0], "host")
        if noun == "pods":
            from kurma_core.client.local.pods import LocalPods

            return LocalPods(self.managers)
        if noun == "images":
            return LocalImages(self.managers)
        if noun == "secrets":
            from kurma_core.client.local.secrets import LocalSecrets

            return LocalSecrets(self.managers)
        if noun == "volumes":
            from kurma_core.client.local.volumes import LocalVolumes

            return LocalVolumes(self.managers)
        return LocalHost(self.managers)


class LocalHost:
    """The methods of :class:`kurma_core.api.operations.Api` that are about the host, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    def networks_list(self) -> list[NetworkInfo]:
        return list(self._m.networks.catalog.all())

    def network(self, network: str) -> NetworkInfo:
        """:raises NetworkError: no network has that name."""
        return self._m.networks.show(network)

    def network_rm(self, network: str) -> None:
        """:raises NetworkError: pods are joined to it."""
        self._m.need_root("remove a network")
        self._m.networks.remove(network, self._m.pods.finder.network_users(network))

    def disk_use(self) -> list[DiskUse]:
        """Walks the whole state directory."""
        from kurma_core.client.local.volumes import LocalVolumes

        self._m.need_root("measure what is kept on the disk")
        pods = self._m.pods
        kept, removable = pods.remover.disk_use()
        volumes = LocalVolumes(self._m).disk_use(without=removable)
        return [kept, volumes, *self._m.images.disk_use(lambda: pods.finder.used_images(without=removable))]

    def image_store_use(self) -> StoreUse:
        return self._m.images.store.use()

    def prune(self, all: bool, volumes: bool, grace: float, only: Collection[str] | None, dry_run: bool) -> Pruned:
        """Pods go first: their images and volumes are unused then."""
        import time

        from kurma_core.api.pods import Pruned

        self._m.need_root("prune")
        finder = self._m.pods.finder
        begun = time.monotonic()
        pods = self._m.pods.remover.collect(grace=grace, dry_run=dry_run, only=only)
        gone = {one.name for one in pods.removed}
        if only is not None:
            # A use since the plan was made keeps an image, also a use during the removal of the pods.
            grace += time.monotonic() - begun
        images = self._m.images.gc(
            lambda: finder.used_images(without=gone), grace, dry_run, replaced=not all, only=only
        )
        removed: list[Removal] = []
        if volumes:
            from kurma_core.client.local.volumes import LocalVolumes

            named = None if only is None else [one.removeprefix("volume/") for one in only if one[:7] == "volume/"]
            removed = LocalVolumes(self._m).prune(named, dry_run=dry_run, without=gone if dry_run else ())
        return Pruned(pods, images, tuple(removed))

    def network_check(self, names: Collection[str], repair: bool, usable: bool) -> list[NetworkFinding]:
        """:raises NetworkError: no network has such a name."""
        self._m.need_root("check networks")
        networks, wanted = self._m.pods.finder.network_check, tuple(names)
        if usable:
            return networks.unusable(wanted)
        return networks.repair(wanted) if repair else networks.check(wanted)

    def stagers(self) -> list[StagerInfo]:
        from kurma_core.api.host import StagerInfo

        known, config = self._m.services.stagers, self._m.config
        found = []
        for name in known.names():
            section = config.stagers.get(name)
            image = None if section is None else section.image
            kind = "plugin" if image is None else "image"
            options = dict(known.config(name))
            found.append(StagerInfo(name, kind, image, name == config.stager, options, known.feature_names(name)))
        return found

    def stager_build(self, stager: str, force: bool) -> HostImage:
        self._m.need_root("build a stager")
        return self._m.services.stagers.image(stager, rebuild=force)

    def stager_check(self, image: str, tell: Callable[[CheckLine], None]) -> list[CheckLine]:
        """:raises StagerError: that stager is not an image."""
        self._m.need_root("check a stager")
        from kurma_core.stager_check import check

        self._m.services.spawner.open()
        with self._m.signals() as signals:
            try:
                return list(check(self._m.services, image, tell).ordered())
            finally:
                signals.settle()

    def plugins(self, load: bool) -> list[PluginInfo]:
        return list(self._m.registry.listing(load))

    def isolators(self) -> list[IsolatorInfo]:
        from kurma_core.isolation import host_facts, isolator_list
        from kurma_core.pods.services import Services

        registry, served = self._m.registry, self._m.services.served()
        host = host_facts(Services.cgroup_versions(), frozenset({"user"}), api=served)
        drivers = registry.drivers("kurma.isolators")
        return list(isolator_list(drivers, host, registry.isolator_claims()))

    def version(self) -> Version:
        from kurma_core.api.host import Version

        return Version(VERSION)

    def info(self) -> HostInfo:
        from kurma_core.api.host import HostInfo
        from kurma_core.config.schema import KINDS
        from kurma_core.pods.services import Services

        uname, config = os.uname(), self._m.config
        required = config.required_isolators
        without = [name for name, stager in config.stagers.items() if stager.without_isolators]
        not_required = [name for name, wanted in required.items() if not wanted]
        return HostInfo(
            version=VERSION,
            kernel=uname.release,
            machine=uname.machine,
            state_directory=config.state_dir,
            configuration=tuple(config.config_files),
            cgroups=dict(Services.cgroup_versions()),
            renderer=config.renderer,
            stager=config.stager,
            required_isolators=tuple(name for name, wanted in required.items() if wanted),
            not_required_isolators=(*not_required, *(f"any under stager {name}" for name in without)),
            pods=len(self._m.services.store.uuids()) if os.geteuid() == 0 else None,
            daemon=None,
            plugins={f"kurma.{kind}": self._m.registry.enabled(f"kurma.{kind}") for kind in KINDS},
        )

    def host_checks(self) -> list[HostCheckInfo]:
        from kurma_core.client.local.host_checks import host_checks

        return list(host_checks(self._m))

    def events(
        self, since: int | None, follow: bool, pod: str | None, subject: Collection[str], kind: Collection[str]
    ) -> Iterator[Event]:
        self._m.need_root("see what happens")
        return filter(event_filter(pod, subject, kind), read_events(self._m.journal, since, follow=follow))


class LocalImages:
    """The methods of :class:`kurma_core.api.operations.Api` that are about images and keys, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    def image_fetch(
        self,
        locator: str,
        pull: str,
        insecure: Collection[str],
        credentials: FetchCredentials | None,
        manager: str | None,
        built: bool,
        progress: Progress | None,
    ) -> ImageRecord:
        return self._m.images.fetch(
            locator,
            pull=pull,
            insecure=frozenset(insecure),
            progress=progress,
            credentials=credentials,
            manager=manager,
            built=built,
        )

    def image_upload(
        self, path: str, signature: str | None, insecure: Collection[str], progress: Progress | None
    ) -> ImageRecord:
        """See :meth:`ImageManager.upload`. The file need not be readable for the store itself.

        :raises HostError: a file cannot be read.
        """
        from kurma_core.named_files import LARGEST_SIGNATURE, content, opened

        signed = None if signature is None else content(signature, largest=LARGEST_SIGNATURE)
        with opened(path) as stream:
            return self._m.images.upload(
                stream, os.path.basename(path), signature=signed, insecure=frozenset(insecure), progress=progress
            )

    def images_list(self) -> ImageListing:
        from kurma_core.api.images import ImageListing, ListedImage

        found, damaged = self._m.images.scan()
        images = self._m.images
        last = images.last_locators(*found)
        listed = [ListedImage(one, images.trust(one), each) for one, each in zip(found, last, strict=True)]
        return ImageListing(tuple(listed), damaged)

    def image(self, image: str) -> ImagePage:
        """:raises ImageNotFoundError: :raises AmbiguousReferenceError:"""
        from kurma_core.api.images import ImagePage

        images = self._m.images
        record = images.get(image)
        lapse, manifest = images.lapse(record), images.manifest(record.id)
        (locators,) = images.last_locators(record)
        return ImagePage(record, images.trust(record), lapse, manifest, locators)

    def image_manifest(self, image: str, original: bool) -> bytes:
        return self._m.images.cat_manifest(self._m.images.get(image).id, original=original)

    def image_archive(self, image: str, out: BinaryIO) -> None:
        """:raises ImageNotFoundError: :raises StoreError: the image is damaged, so the bytes written so far are
        not an image."""
        self._m.images.store.export(self._m.images.get(image).id, out)

    def image_extract(self, image: str, directory: str) -> ImageId:
        """Of an image of the store alone: a path is not followed."""
        from kurma_core.api.images import ImageId

        return ImageId(self._m.images.extract(self._m.images.get(image).id, directory))

    def image_push(
        self,
        image: str,
        locator: str | None,
        insecure: Collection[str],
        credentials: FetchCredentials | None,
    ) -> ImagePushed:
        return self._m.images.push(image, locator, insecure=frozenset(insecure), credentials=credentials)

    def image_render(self, image: str, renderer: str | None, verify: bool) -> ImageRendered:
        from kurma_core.api.images import ImageRendered

        found = self._m.images.render(self._m.images.get(image).id, renderer, verify=verify)
        return ImageRendered(found.id, found.layers)

    def image_verify(self, image: str) -> ImageChecked:
        return self._m.images.verify(image)

    def image_rm(self, image: str, dry_run: bool, managed: bool) -> ImageGc:
        """:raises ImageError: a pod uses it, or a program manages it."""
        self._m.need_root("remove an image")
        return self._m.images.remove(image, self._m.pods.finder.used_images, dry_run=dry_run, managed=managed)

    def image_release(self, image: str, manager: str) -> ImageGc:
        self._m.need_root("remove an image")
        finder = self._m.pods.finder

        def used_by_others() -> set[str]:
            own = {pod.uuid for pod in finder.summaries() if pod.manager == manager}
            return finder.used_images(without=own)

        return self._m.images.release(image, manager, used_by_others, finder.used_images)

    def image_gc(self, grace: float, dry_run: bool) -> ImageGc:
        """Images that pods name are kept."""
        self._m.need_root("collect images")
        return self._m.images.gc(self._m.pods.finder.used_images, grace, dry_run)

    # -- keys --

    def trust_list(self) -> list[TrustedKey]:
        return list(self._m.images.keys.list())

    def trust_find(self, address: str | None, name: str | None, insecure: Collection[str]) -> list[Key]:
        """:raises UsageError: neither or both of an address and a name are given."""
        if name is not None and address is None:
            return list(self._m.images.keys.discover(name, frozenset(insecure)))
        if address is None or name is not None:
            raise UsageError("expected either an address or a name")
        return list(self._m.images.keys.fetch(address, frozenset(insecure)))

    def trust_add(self, key: str, source: str | None, prefix: str | None) -> TrustChange:
        """:raises UsageError: it is not one key. :raises TrustError: it cannot be written."""
        material = key.encode("utf-8", "surrogateescape")
        found = self._m.images.keys.parse(material, source or "the request")
        if len(found) != 1:
            raise UsageError(f"expected one key, found {len(found)}")
        return self._m.images.keys.add(found[0], prefix)

    def trust_rm(self, key: str, prefix: str | None, dry_run: bool) -> TrustChange:
        """:raises TrustError: no such key is trusted there."""
        return self._m.images.keys.remove(key, prefix, dry_run=dry_run)


def event_filter(pod: str | None, subjects: Collection[str], kinds: Collection[str]) -> Callable[[Event], bool]:
    """:param pod: name, UUID or prefix of one: the pod itself may be removed already."""

    def fits(event: Event) -> bool:
        if subjects and event.subject not in subjects:
            return False
        if kinds and event.kind not in kinds:
            return False
        if pod is None:
            return True
        if event.subject not in ("pod", "app"):
            return False
        begins = len(pod) >= _SHORTEST and (event.id or "").startswith(pod.lower())
        return begins or pod == (event.name if event.subject == "pod" else event.detail.get("pod"))

    return fits


def read_events(journal: Journal, since: int | None, *, follow: bool) -> Iterator[Event]:
    """Yields the events from this call on, or those behind the number ``since``.

    :raises HostError: the kernel allows no more watches. :raises Cancelled: while it waits for new events.
    """
    from kurma_core.journal import Cursor

    return _read_events(journal, Cursor(journal, since if follow or since is not None else 0), follow=follow)


def _read_events(journal: Journal, cursor: Cursor, *, follow: bool) -> Iterator[Event]:
    try:
        if not follow:
            yield from cursor.read()
            return
        from kurma_core.cancellation import CancellationFd, wait_readable

        watch = journal.watch()
        try:
            while True:
                yield from cursor.read()
                with CancellationFd() as cancelled:
                    wait_readable(None, watch, cancelled)
                watch.drain()
        finally:
            watch.close()
    finally:
        cursor.close()
