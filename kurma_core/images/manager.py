"""The image manager: finds, fetches, verifies, stores, renders and removes images. Knows no pods."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from kurma_core.api.images import HostImage, ImageChecked, ImageSigned, ImageVerified, check_pull
from kurma_core.appc.image import host_platform
from kurma_core.config.schema import kind_of
from kurma_core.errors import (
    FetchDigestError,
    FetchError,
    ImageNotFoundError,
    KurmaError,
    TrustError,
    UsageError,
)
from kurma_core.fetching import Fetching
from kurma_core.formats.timestamps import timestamp
from kurma_core.hookspecs import implements
from kurma_core.hookspecs.fetcher import FetcherHooks, FetchRequest
from kurma_core.image_store import ImageStore, Limits
from kurma_core.image_store.image_managers import check_name
from kurma_core.images.acquisition import Acquisition, decrypting, uploaded
from kurma_core.images.host_images import HostImages
from kurma_core.images.locator_cache import LocatorCache
from kurma_core.images.trust_policy import (
    BUILT_HERE,
    TrustPolicy,
    loose_parts,
    relaxations,
    tell_relaxations,
)
from kurma_core.journal import Journal
from kurma_core.models.image import Conventions, Provenance
from kurma_core.trust import Trust
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.api.images import DiskUse, ImageChecked, ImageGc, ImagePushed
    from kurma_core.api.operations import Progress
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import RuntimeImage
    from kurma_core.config import Config
    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.renderer import RendererHooks
    from kurma_core.hookspecs.stager import StagerImageHooks
    from kurma_core.image_store.builder import Owner
    from kurma_core.images.archive_files import ArchiveFiles
    from kurma_core.images.garbage_collection import GarbageCollector, Used
    from kurma_core.images.keys import KeyManager
    from kurma_core.images.trust_policy import Vouchers
    from kurma_core.models.image import FetchCredentials, ImageRecord, RenderedImage
    from kurma_core.plugins.registry import PluginRegistry
    from kurma_core.trust.encryption import Passphrases


Json = Any
_FETCHERS: Final = "kurma.fetchers"
_RENDERERS: Final = "kurma.renderers"


class ImageManager:
    """The images of one state directory.

    :param note: reports one line to the user, on standard error.
    :param passphrases: asked when an archive is encrypted; None: there are none.
    :param relative_paths: relative paths in locators start from this process's working directory; False: they are
        refused, since kurmad's directory is not the client's.
    """

    def __init__(
        self,
        config: Config,
        registry: PluginRegistry,
        note: Callable[[str], None] = lambda text: None,
        passphrases: Callable[[], Passphrases] | None = None,
        relative_paths: bool = True,
    ) -> None:
        limits = config.limits
        root = os.path.join(config.state_dir, "images")
        self._config = config
        self._registry = registry
        self._note = note
        self.store = ImageStore(root, limits=Limits(limits.total_size, limits.entries, limits.ratio))
        self._holds = self.store.holds
        self._fetching = Fetching(
            lambda scheme: registry.driver(_FETCHERS, scheme),
            os.path.join(root, "partial"),
            kind=registry.locator_kind,
            examples=registry.locator_examples,
            paths=config.fetchers.paths,
            names=config.fetchers.names,
            short_names=config.short_names,
            having=self._fetchers_having,
            install=self._install_fetcher,
            directory="." if relative_paths else None,
            note=note,
        )
        self._trust = Trust(config.trusted_host_keys, config.trustedkeys, config.state_dir)
        self._opener = decrypting(passphrases)
        self._known = LocatorCache(os.path.join(config.state_dir, "locators"))
        self._journal = Journal(config.state_dir)
        self._host = HostImages(
            self.store, self._trust, self._known, lambda image_id: self.render(image_id).layers, self._journal
        )

    def _fetchers_having(self, hook: str) -> Iterator[str]:
        """Schemes of the enabled fetchers that work and have the hook."""
        for scheme in self._registry.implementing(_FETCHERS, hook):
            with suppress(KurmaError):
                if implements(self._registry.driver(_FETCHERS, scheme), getattr(FetcherHooks, hook)):
                    yield scheme

    def check_short_names(self) -> None:
        """Checks ``short_names`` of ``kurma.yml``. :raises UsageError: no fetcher answers for it."""
        self._fetching.check_short_names()

    def _install_fetcher(self, scheme: str) -> str | None:
        """How to install the fetcher of a scheme; None: it is installed, or no package is known to bring it."""
        installed = (kind_of(_FETCHERS), scheme) in self._registry.installed()
        return None if installed else self._config.install_hint(_FETCHERS, scheme)

    @functools.cached_property
    def keys(self) -> KeyManager:
        """The keys that are trusted for images."""
        from kurma_core.images.keys import KeyManager

        return KeyManager(self._trust, self._fetching, self._note)

    def keeping(self) -> AbstractContextManager[None]:
        """Images and trees that :meth:`resolve` and :meth:`render` find inside are not removed before the block is
        left. By then a pod names them."""
        return self._holds.keeping()

    def log_in(self, address: str, user: str, secret: str, insecure: Collection[str] = frozenset()) -> str:
        """Checks credentials with the source at an address, and keeps them. :returns: the file that keeps them.

        :raises UsageError: it is not an address. :raises FetchError: the source refuses them.
        """
        request = FetchRequest(*host_platform(), relaxations(insecure))
        tell_relaxations(request.insecure, address, self._note)
        return self._fetching.log_in(address, user, secret, request)

    def log_out(self, address: str) -> str:
        """Removes the credentials for an address. :returns: the file that kept them.

        :raises UsageError: it is not an address. :raises FetchError: there are none.
        """
        return self._fetching.log_out(address)

    # --- getting -------------------------------------------------------------------------------------------------

    def fetch(
        self,
        locator: str,
        *,
        pull: str = "new",
        insecure: Collection[str] = frozenset(),
        progress: Progress | None = None,
        credentials: FetchCredentials | None = None,
        manager: str | None = None,
        built: bool = False,
    ) -> ImageRecord:
        """Brings an image and its dependencies into the store, verified by the trust policy.

        :param locator: a path, an address, or a name to be discovered.
        :param pull: ``new`` fetches what is not in the store, ``always`` asks the source each time; ``never``.
        :param insecure: checks relaxed in this run: ``image``, ``tls``, ``http``, ``pubkey``; reported and
            recorded.
        :param credentials: for the image's source, in this run only. Dependencies are fetched without them.
        :param manager: the program that manages the image from now on; None: none is added.
        :param built: a program has built the file on this machine: its name finds it, as after :meth:`build`.
        :raises UsageError: the locator or an option is malformed; ``built``, and it is not a file of layers.
        :raises FetchError: in one of its kinds.
        :raises TrustError: the image is not trusted.
        :raises ArchiveError: the archive is not an image.
        :raises StoreError: the disk is full, …
        """
        acquisition = self._acquisition(self._policy(insecure), progress)
        found = self._fetching.parse(locator)
        checked = check_pull(pull)
        if manager is not None:
            check_name(manager)
        if credentials is not None and found.path is not None:
            raise UsageError(f"{locator}: credentials are of no use for a file", hint="leave them out")
        own = acquisition if credentials is None else replace(acquisition, credentials=credentials)
        if built:
            own = replace(own, build_key=self._trust.build_key)
        # The next file to fetch may be a dependency of this one.
        return self._take(
            found,
            lambda: own.get(found, checked),
            acquisition,
            pull,
            incomplete=found.path is not None,
            manager=manager,
        )

    @contextmanager
    def upload_file(self) -> Iterator[BinaryIO]:
        """An unnamed file on the store's file system, for an archive that arrives in pieces."""
        import tempfile

        from kurma_core.image_store.durable import guard
        from kurma_core.image_store.staging import CANNOT

        root = os.path.join(self._config.state_dir, "images")
        with guard(CANNOT, root):
            os.makedirs(root, mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=root) as stream:
                yield stream

    def upload(
        self,
        stream: BinaryIO,
        name: str,
        *,
        signature: bytes | None = None,
        insecure: Collection[str] = frozenset(),
        progress: Progress | None = None,
    ) -> ImageRecord:
        """Brings an archive that a client uploads into the store, as :meth:`fetch` does with a file.

        :param stream: seekable.
        :param name: what to call it: a file's name; its provenance is ``upload:NAME``.
        :param signature: detached, over the archive as it comes.
        """
        acquisition = self._acquisition(self._policy(insecure), progress)
        locator, archive = uploaded(stream, name, signature)
        return self._take(locator, lambda: acquisition.take(locator, archive), acquisition, "new", incomplete=True)

    def _take(
        self,
        locator: Locator,
        get: Callable[[], ImageRecord],
        acquisition: Acquisition,
        pull: str,
        *,
        incomplete: bool,
        manager: str | None = None,
    ) -> ImageRecord:
        """:param incomplete: keep the image although a dependency cannot be fetched; the user gets a warning now,
        and again at each use.
        :param manager: see :meth:`fetch`.
        """
        with self._holds.keeping(used=False):  # it is fetched, not used
            record = self._holds.found(locator.text, get)
            try:
                self._complete(record, acquisition, pull)
            except FetchError as error:
                if not incomplete or isinstance(error, FetchDigestError):
                    raise
                self._note(f"{locator.text}: the stored image cannot be used yet: {error.message}")
            if record.released or manager not in (None, *record.managers):
                self.store.hold_for(record.id, manager)
                record = self.store.get(record.id)
        return record

    def resolve(
        self,
        reference: str,
        *,
        pull: str = "new",
        insecure: Collection[str] = frozenset(),
        progress: Progress | None = None,
    ) -> ImageRecord:
        """The image that a reference names: from the store, by its ID (or the start of it) or its name, else
        fetched. By its name, the store's image is used only if the trust policy accepts it for that name.

        :raises ImageNotFoundError: ``pull`` is ``never`` and it is not in the store; else as :meth:`fetch`.
        :raises AmbiguousReferenceError: the reference is the start of several IDs.
        """
        pull = check_pull(pull)
        policy = self._policy(insecure)
        acquisition = self._acquisition(policy, progress)
        record = self._holds.found(reference, lambda: self._resolve(reference, pull, policy, acquisition))
        self._complete(record, acquisition, pull)
        return record

    def of_app(
        self,
        image: RuntimeImage,
        *,
        pull: str = "new",
        insecure: Collection[str] = frozenset(),
        progress: Progress | None = None,
    ) -> ImageRecord:
        """The image of an app of a pod: as :meth:`resolve`. If both an ID and a name are given, the image must
        have both; if the store lacks it, it is fetched by its name.

        :raises ImageError: the image of that ID has another name; else as :meth:`resolve`.
        """
        if image.id is None or image.name is None or image.locator is not None:
            from kurma_core.appc.template import locator_of

            return self.resolve(locator_of(image), pull=pull, insecure=insecure, progress=progress)
        pull = check_pull(pull)
        acquisition = self._acquisition(self._policy(insecure), progress)
        record = self._holds.found(image.id, lambda: acquisition.get_by_id(image, pull))
        self._complete(record, acquisition, pull)
        return record

    def _resolve(self, reference: str, pull: str, policy: TrustPolicy, acquisition: Acquisition) -> ImageRecord:
        stored = self._by_id(reference)
        if stored is not None:
            return stored
        locator = self._fetching.parse(reference)
        if locator.name is not None and pull != "always":
            try:
                stored = self._by_name(reference, policy)
            except TrustError as refusal:
                if refusal.data.get("reason") != BUILT_HERE or pull == "never":
                    raise
                try:
                    return acquisition.get(locator, pull)  # the name belongs to a publisher
                except (FetchError, ImageNotFoundError, UsageError):
                    raise refusal from None
            if stored is not None:
                tell_relaxations(policy.insecure, reference, self._note)
                return stored
        return acquisition.get(locator, pull)

    def _complete(self, record: ImageRecord, acquisition: Acquisition, pull: str) -> None:
        """Fetches the dependencies that the store lacks.

        :raises RenderError: with ``never``: which dependency is missing.
        :raises FetchError: :raises TrustError: …
        """
        if b'"dependencies"' not in self.store.manifest_bytes(record.id):
            return  # most images have none, and need no parsing
        from kurma_core.images.dependencies import Graph

        policy = self._policy(acquisition.insecure)
        source = None if pull == "never" else acquisition
        with self.keeping():
            Graph(self.store, policy, self._holds.hold, source, pull).node(record.id)

    def _by_id(self, reference: str) -> ImageRecord | None:
        stored = self.store.find_by_id(reference)
        if stored is None and reference.startswith(("sha512-", "sha256-")):
            return self.store.find(reference)  # raises the error
        return stored

    def _by_name(self, reference: str, policy: TrustPolicy) -> ImageRecord | None:
        """The newest image with that name that the trust policy accepts."""
        named = self.store.named(reference)
        fitting = [record for record in named if policy.accepts_by_name(record)]
        # Of the images that were built here, none comes before an image that others vouch for.
        fitting = fitting or [record for record in named if policy.accepts_built_here(record)]
        if named and not fitting:
            raise policy.refusal_by_name(max(named, key=lambda record: record.age_order))
        return max(fitting, key=lambda record: record.age_order, default=None)

    # --- building ------------------------------------------------------------------------------------------------

    def build(self, rootfs: str, manifest: Mapping[str, Json], *, owner: Owner | None = None) -> ImageRecord:
        """Makes an image of a directory and puts it into the store, signed with the key of images built here. Its
        name finds it there, unless a key is trusted for the name.

        :param owner: see :func:`kurma_core.image_store.builder.build_archive`.
        :raises ManifestError: :raises ArchiveError: the directory holds what an image must not.
        :raises StoreError: the disk is full, …
        :raises TrustError: the key cannot be made.
        """
        from kurma_core.cancellation import phase
        from kurma_core.image_store.builder import build_archive
        from kurma_core.image_store.durable import WorkDirectory, guard
        from kurma_core.image_store.staging import CANNOT
        from kurma_core.images.archive_files import commit_built

        self.store.prepare()
        with (
            phase(f"building {manifest['name']}"),
            guard(CANNOT, self.store.root),
            WorkDirectory(self.store.path("tmp")) as work,
        ):
            archive = f"{work.path}/image.aci"
            with open(archive, "xb") as out:
                build_archive(rootfs, manifest, out, warn=self._note, owner=owner)
            provenance = Provenance(f"build:{manifest['name']}", timestamp(), "local")
            record = commit_built(
                self.store,
                self._trust,
                archive,
                provenance,
                key=self._trust.build_key,
                conventions=self._conventions,
            )
            if record.released:  # its manager has given up an image with this content
                self.store.hold_for(record.id, None)
                record = self.store.get(record.id)
        self._journal.tell("image", "fetched", record.id, record.name, {"trust": "local"})
        return record

    # --- rendering -----------------------------------------------------------------------------------------------

    def render(
        self,
        image_id: str,
        renderer: str | None = None,
        *,
        verify: bool = False,
        insecure: Collection[str] = frozenset(),
    ) -> RenderedImage:
        """The image and its dependencies as read-only directories, top first.

        :param renderer: name of a renderer plugin; None: the configured one.
        :param verify: read and check every file of every image and tree involved first.
        :param insecure: relaxations for this run: with ``image``, dependencies by name are used unverified.
        :raises RenderError: a dependency is missing (named, with the way to fetch it), a cycle, …
        :raises StoreError: ``verify`` found a change; names the file.
        """
        from kurma_core import rendering
        from kurma_core.images.dependencies import Graph

        with self.keeping():
            graph = Graph(self.store, self._policy(insecure), self._holds.hold)
            node = graph.node(image_id)
            if verify:
                for ident in graph.manifests:
                    self.store.verify(ident, deep=True)
            driver = self._registry.driver(_RENDERERS, self._config.renderer if renderer is None else renderer)
            rendered = rendering.render(node, driver, self.store.cache, graph.manifests)
            if verify:
                for layer in rendered.layers:
                    if layer.id not in graph.manifests:
                        self.store.verify(layer.id, deep=True)
        return rendered

    # --- pushing -------------------------------------------------------------------------------------------------

    def push(
        self,
        reference: str,
        destination: str | None = None,
        *,
        insecure: Collection[str] = frozenset(),
        credentials: FetchCredentials | None = None,
    ) -> ImagePushed:
        """Has a fetcher write an image of the store, with its dependencies, to a file or a registry.

        :param destination: an address, or a name that means one; None: the registry that it came from.
        :param insecure: checks relaxed in this run: ``tls``, ``http``.
        :param credentials: for the destination, in this run only.
        :raises ImageNotFoundError: :raises UsageError: it is not a destination for images.
        :raises RenderError: a dependency is missing, …
        :raises FetchError: the destination refuses. :raises HostError: a file cannot be written.
        """
        from kurma_core.api.images import ImagePushed
        from kurma_core.images.dependencies import Graph
        from kurma_core.images.pushing import origin, stored_image

        record = self.get(reference)
        locator = self._fetching.destination(destination or origin(record))
        request = FetchRequest(*host_platform(), relaxations(insecure), credentials=credentials)
        tell_relaxations(request.insecure, locator.text, self._note)
        with self.keeping():
            node = Graph(self.store, self._policy(insecure), self._holds.hold).node(record.id)
            image = stored_image(node, lambda: self.render(record.id, insecure=insecure))
            digest = self._fetching.push(locator, image, request)
        return ImagePushed(record.id, locator.text, digest)

    # --- images with host privilege ------------------------------------------------------------------------------

    def host_image(self, locator: str, *, pull: str = "new", files: bool = True) -> HostImage:
        """The image of a stager or a network plugin, by locator: signed by a key that ``trusted_host_keys`` lists,
        or of the digest that ``host_image_digests`` pins. Both are checked at each use, and so are its files.

        :param files: False: it runs already, and its files were verified at its start.
        :raises TrustError: it is neither signed nor pinned.
        :raises StoreError: a file was changed since.
        :raises FetchError: …
        """
        found = self._fetching.parse(locator)
        acquisition = self._acquisition(self._policy(()), None)
        pinned = self._pinned(locator, found)
        return self._host.by_locator(found, check_pull(pull), acquisition, pinned, files=files)

    def _pinned(self, locator: str, found: Locator) -> str | None:
        """The same image may be named by its path here, and by another path or an address there."""
        pins = self._config.host_image_digests
        exact = pins.get(locator) or pins.get(found.text)
        if exact is not None or found.path is None:
            return exact
        paths = (each for each in pins if each.startswith("/"))
        return next((pins[each] for each in paths if self._fetching.parse(each).text == found.text), None)

    def host_image_from_source(
        self, name: str, source: StagerImageHooks, *, rebuild: bool = False, files: bool = True
    ) -> HostImage:
        """A stager's image that a plugin builds: built and signed with this machine's key once for each
        fingerprint of the source, then checked at each use.

        :param rebuild: build it even if it exists.
        :param files: False: it runs already, and its files were verified at its start.
        :raises TrustError: ``trusted_host_keys`` does not list this machine's key.
        :raises StoreError: a file was changed since.
        :raises StagerError: it cannot be built.
        """
        return self._host.by_source(name, source, rebuild=rebuild, files=files)

    # --- looking -------------------------------------------------------------------------------------------------

    def list(self) -> tuple[ImageRecord, ...]:
        """All images of the store; those whose record is damaged are left out."""
        return self.store.list()

    def scan(self) -> tuple[tuple[ImageRecord, ...], tuple[KurmaError, ...]]:
        """All images of the store, and the errors of damaged ones; see :meth:`ImageStore.scan`."""
        return self.store.scan()

    def last_locators(self, *records: ImageRecord) -> tuple[tuple[str, ...], ...]:
        """For each image, the locators in its provenance that gave this image last."""
        last = self._known.last()
        return tuple(
            tuple(dict.fromkeys(came.locator for came in one.provenance if came.locator in last.get(one.id, ())))
            for one in records
        )

    def get(self, reference: str) -> ImageRecord:
        """By ID, the start of one, name, or the address that it came by. :raises ImageNotFoundError:

        :raises AmbiguousReferenceError: the start of several IDs.

        :raises UsageError: ``reference`` is empty.
        """
        if not reference:
            raise UsageError("an image's name is empty")
        try:
            return self.store.find(reference)
        except ImageNotFoundError as error:
            came = self._by_locator(reference)
            if came is not None:
                return came
            if self.files.path(reference) is not None:
                error.hint = f"a file is brought into the store by: kurma image fetch {reference}"
            elif os.path.isfile(reference):
                error.hint = f"to use the file of that name, write ./{reference}"
            else:
                self._fetching.hint_address(reference, error)
            raise

    def _by_locator(self, reference: str) -> ImageRecord | None:
        """The newest image that was fetched from that address, or from the address that a short name means; None
        for files and other names, which other methods resolve."""
        try:
            locator = self._fetching.parse(reference)
        except UsageError:
            return None
        if locator.path is not None:
            return None
        texts = [reference, locator.text]
        if locator.name is not None:
            texts = [address.text for address in self._fetching.short_name(reference)]
            if not texts or self.store.find_by_id(reference) is not None or self.store.named(reference):
                return None
        found = [one for one in self.store.list() if any(came.locator in texts for came in one.provenance)]
        return max(found, key=lambda record: record.age_order) if found else None

    def manifest(self, image_id: str) -> ImageManifest:
        """:raises ImageNotFoundError:"""
        return self.store.manifest(image_id)

    def groups_of(self, image_id: str, user: str) -> tuple[str, tuple[int, ...]]:
        """The primary group of a user by the image's own files, and the IDs of its further groups."""
        from kurma_core.images.user_groups import ImageFiles

        return ImageFiles(self.store.layers(image_id)).groups_of(user)

    def conventions(self, image_id: str) -> Conventions:
        """Returns the image's conventions. :raises ImageNotFoundError:"""
        return self.store.get(image_id).conventions

    def cat_manifest(self, image_id: str, *, original: bool = False) -> bytes:
        """The manifest as the archive has it; of an early image, its late form.

        :param original: of an early image its own documents, the app manifest first.
        :raises ImageNotFoundError:
        """
        documents = self.store.originals(image_id) if original else {}
        return b"".join(documents.values()) or self.store.manifest_bytes(image_id)

    def verify(self, reference: str) -> ImageChecked:
        """Reads everything of an image, and of the trees rendered from it, and checks it.

        :raises StoreError: names the first file that differs. :raises ImageNotFoundError:
        """
        record = self.get(reference)
        self.store.verify(record.id, deep=True)
        wanted = self.garbage_collector.trees_of({record.id})
        there = [tree for tree in sorted(wanted) if os.path.isdir(self.store.path("trees", tree))]
        for tree in there:
            self.store.verify(tree, deep=True)
        signed = ImageSigned(id=record.id, name=record.name)
        return ImageChecked(ImageVerified(signed, self.trust(record), len(there)), record, self.lapse(record))

    def trust(self, record: ImageRecord) -> str:
        """See :meth:`.trust_policy.TrustPolicy.trust`. ``record.trust`` is what vouched for it when it came in."""
        try:
            return self._policy(()).trust(record)
        except TrustError:
            # other users can write the keystore, or it cannot be read; using the image reports that
            return "unverified"

    def vouchers(self, image_id: str, *, insecure: Collection[str] = frozenset()) -> Vouchers:
        """The signatures and digests that presently vouch for an image of the store, and for the images that it
        consists of.

        :param insecure: checks that are relaxed when its dependencies are looked up.
        :raises TrustError: a keystore cannot be read, or other users can write it.
        :raises RenderError: a dependency is missing, …
        """
        record = self.store.get(image_id)
        policy = self._policy(insecure)
        if b'"dependencies"' not in self.store.manifest_bytes(image_id):
            return policy.vouchers(record)
        from kurma_core.images.dependencies import Graph

        with self.keeping():
            node = Graph(self.store, policy, self._holds.hold).node(image_id)
            parts = [policy.vouchers(self.store.get(part)) for part in set(loose_parts(node))]
        return policy.vouchers(record, tuple(parts))

    def lapse(self, record: ImageRecord) -> str | None:
        """See :meth:`.trust_policy.TrustPolicy.lapse`; also ``unknown`` if the keystore cannot be read."""
        try:
            return self._policy(()).lapse(record)
        except TrustError:
            return "unknown"

    # --- removing ------------------------------------------------------------------------------------------------

    def remove(self, reference: str, used: Used = (), *, dry_run: bool = False, managed: bool = False) -> ImageGc:
        """Takes an image away, damaged or not.

        :param used: IDs of the images that pods name; what those depend on is used as well.
        :param managed: also if a program manages it.
        :raises ImageError: a pod uses it, or a command does just now, or a program manages it.
        :raises ImageNotFoundError:
        """
        came = self._by_locator(reference)
        return self.garbage_collector.remove(
            reference if came is None else came.id, used, dry_run=dry_run, managed=managed
        )

    def release(self, reference: str, manager: str, used_by_others: Used, used: Used) -> ImageGc:
        """Gives an image up for a manager, and removes it unless another manager or a pod needs it.

        :param used_by_others: IDs of the images that pods of others than the manager name.
        :param used: IDs of the images that pods name.
        :raises ImageError: a pod of others uses it. :raises ImageNotFoundError:
        """
        return self.garbage_collector.release(self.get(reference).id, manager, used_by_others, used)

    def gc(
        self,
        used: Used,
        grace: float,
        dry_run: bool = False,
        *,
        replaced: bool = False,
        only: Collection[str] | None = None,
    ) -> ImageGc:
        """Removes images that nothing has used for ``grace`` seconds, trees, leftovers, unfinished downloads.

        :param used: IDs of the images that pods name.
        :param replaced: of the images, only those in whose place each of their locators has given a newer one.
        :param only: keys of a :class:`kurma_core.api.images.Removal`: nothing else is removed.
        """
        return self.garbage_collector.gc(used, grace, dry_run, replaced=replaced, only=only)

    def disk_use(self, used: Used) -> tuple[DiskUse, ...]:
        """The images, layers, archives, trees, downloads and leftovers of the store.

        :param used: IDs of the images that pods name: what they need cannot be reclaimed.
        """
        return self.garbage_collector.disk_use(used)

    @functools.cached_property
    def garbage_collector(self) -> GarbageCollector:
        from kurma_core.images.garbage_collection import GarbageCollector

        # A pod's dependencies may differ by the relaxations that it was run with.
        policies = (self._policy(()), self._policy(("image",)))
        return GarbageCollector(self.store, self._known, policies, self._renderers, self._journal)

    def _renderers(self) -> Mapping[str, RendererHooks]:
        return self._registry.drivers(_RENDERERS)

    # --- archives ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def files(self) -> ArchiveFiles:
        """Archives that people have as files."""
        from kurma_core.images.archive_files import ArchiveFiles

        return ArchiveFiles(self._fetching, self._trust, self.store.limits, self._opener, self._note)

    def extract(self, reference: str, target: str) -> str:
        """Extracts the root filesystem of an image of the store, or of an archive file, with all metadata.

        :param target: an empty directory, or one to be made. Nothing is left in it where that fails.
        :returns: the image's ID.
        :raises HostError: the directory is not empty. :raises ImageNotFoundError: :raises ArchiveError: …
        """
        path = self.files.path(reference)
        if path is not None:
            return self.files.extract(path, target)
        from kurma_core.image_store.extract_image import extract_stored

        record = self.get(reference)
        extract_stored(self.store, record.id, target)
        return record.id

    # --- parts ---------------------------------------------------------------------------------------------------

    def _policy(self, insecure: Collection[str]) -> TrustPolicy:
        plain = frozenset(self._config.registries.insecure)
        return TrustPolicy(self._config.trust, relaxations(insecure), plain, self._trust)

    def _conventions(self, manifest: ImageManifest) -> Conventions:
        """Asks the fetcher that understands the manifest's annotations for the image's conventions."""
        annotations = {pair.name: pair.value for pair in manifest.annotations}
        name = self._registry.annotation_reader(annotations) if annotations else None
        return Conventions() if name is None else self._registry.driver(_FETCHERS, name).conventions(annotations)

    def _acquisition(self, policy: TrustPolicy, progress: Progress | None) -> Acquisition:
        return Acquisition(
            store=self.store,
            fetching=self._fetching,
            known=self._known,
            policy=policy,
            conventions=self._conventions,
            opener=self._opener,
            insecure=policy.insecure,
            platform=host_platform(),
            note=self._note,
            journal=self._journal,
            progress=progress,
        )
