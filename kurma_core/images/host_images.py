"""Images that run with host privilege (stagers, network plugins): fetched or built, checked at each use.

Whether such an image is fetched or built, two things are checked at each use: that its signature or digest is
still accepted (keys and pins may have changed since), and that its extracted files are the verified ones.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kurma_core import cancellation
from kurma_core.api.images import HostImage
from kurma_core.errors import (
    FetchError,
    ImageError,
    ImageNotFoundError,
    ManifestError,
    StoreError,
    TrustError,
    UsageError,
)
from kurma_core.formats.timestamps import timestamp
from kurma_core.images.acquisition import Acquisition, refusing_encrypted
from kurma_core.images.locator_cache import KnownImage, LocatorCache
from kurma_core.images.trust_policy import RELAX_HTTP, HostTrustPolicy, is_built_here
from kurma_core.linux.files import locked
from kurma_core.models.image import Provenance
from kurma_core.plugins.calls import plugin_error
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.stager import StagerImageHooks
    from kurma_core.image_store import ImageStore
    from kurma_core.journal import Journal
    from kurma_core.models.image import ImageRecord, RenderedLayer
    from kurma_core.trust import Trust


class HostImages:
    """:param flatten: the image's layers as the configured renderer makes them."""

    def __init__(
        self,
        store: ImageStore,
        trust: Trust,
        known: LocatorCache,
        flatten: Callable[[str], Sequence[RenderedLayer]],
        journal: Journal,
    ) -> None:
        self._store = store
        self._trust = trust
        self._known = known
        self._flatten = flatten
        self._journal = journal

    # --- by locator ----------------------------------------------------------------------------------------------

    def by_locator(
        self, locator: Locator, pull: str, acquisition: Acquisition, pinned: str | None, *, files: bool = True
    ) -> HostImage:
        """The image of a locator, verified for use with host privilege.

        :param acquisition: how it is fetched; its policy is replaced.
        :param files: verify its files, too.
        :raises TrustError: no accepted signature or digest vouches for it.
        :raises StoreError: its files in the store were changed.
        :raises FetchError: …
        """
        policy = HostTrustPolicy(self._trust, pinned)
        plain = frozenset({RELAX_HTTP}) if pinned is not None else frozenset()
        strict = replace(
            acquisition, policy=policy, insecure=plain, note=lambda text: None, opener=refusing_encrypted
        )
        if pull == "always":
            self._discard_damaged(self._known.get(locator.text, "/".join(acquisition.platform)))
        with self._store.holds.keeping():
            try:
                record = self._store.holds.found(locator.text, lambda: strict.get(locator, pull))
            except (FetchError, ImageNotFoundError, UsageError) as error:
                refusal = self._refusal_of_built(locator)
                if refusal is None:
                    raise
                raise refusal from error
            fingerprint = next(
                (p.fingerprint for p in reversed(record.provenance) if policy.vouches(record, p)),
                None,
            )
            remedy = f"kurma image fetch {locator.text}"
            return self._use(record, None if pinned is not None else fingerprint, remedy, files=files)

    def _refusal_of_built(self, locator: Locator) -> TrustError | None:
        """The error for a name that was not found elsewhere, if an image was built here under it."""
        named = () if locator.name is None else self._store.named(locator.text)
        built = next((one for one in named if any(map(is_built_here, one.provenance))), None)
        if built is None:
            return None
        return TrustError(
            f"{locator.text}: cannot run with host privilege: the key of images built here does not count for it",
            hint="build it to a file (-o FILE.aci), sign that (kurma image sign FILE.aci), and name the file",
            image=built.id,
        )

    # --- built here ----------------------------------------------------------------------------------------------

    def by_source(self, name: str, source: StagerImageHooks, *, rebuild: bool, files: bool = True) -> HostImage:
        """The image that the source builds, built once for each fingerprint of the source, and signed with this
        machine's key.

        :param rebuild: build it even if it exists.
        :param files: verify its files, too.
        :raises TrustError: ``trusted_host_keys`` does not list this machine's key.
        :raises StoreError: its files in the store were changed.
        :raises StagerError: it cannot be built.
        """
        locator = f"built:{name}"
        with self._store.holds.keeping():
            record = self._store.holds.found(locator, lambda: self._have_built(locator, name, source, rebuild))
            return self._use(record, self._built_by(record, locator), f"kurma stager build {name}", files=files)

    def _have_built(self, locator: str, name: str, source: StagerImageHooks, rebuild: bool) -> ImageRecord:
        wanted = source.fingerprint()
        record = None if rebuild else self._built(locator, wanted)
        if record is None:
            with self._lock(locator):
                # Another process may have built it while this one waited.
                record = None if rebuild else self._built(locator, wanted)
                if record is None:
                    self._discard_damaged(self._known.get(locator, ""))
                    record = self._build(locator, name, source)
                    self._known.put(locator, "", KnownImage(record.id, wanted, time.time()))
                    self._journal.tell("image", "fetched", record.id, record.name, {"trust": "built"})
                    self._archive_was_read(record.id)
        return record

    def _built(self, locator: str, wanted: str) -> ImageRecord | None:
        known = self._known.get(locator, "")
        if known is None or known.key != wanted:
            return None
        try:
            return self._store.get(known.image)
        except ImageNotFoundError:
            return None

    def _built_by(self, record: ImageRecord, locator: str) -> str:
        """The allowed key that signed it. :raises TrustError: no key that did is allowed (any more)."""
        signers = [p.fingerprint for p in record.provenance if p.locator == locator and p.trust == "built"]
        allowed = self._trust.host_keys()
        for signer in reversed(signers):
            if signer is not None and signer in allowed:
                return signer
        signer = signers[-1] if signers else self._trust.machine_key()
        raise TrustError(
            f"{record.name}: cannot run with host privilege: trusted_host_keys does not list its signer {signer}",
            hint=f"add it to trusted_host_keys in kurma.yml: [{signer}]",
            image=record.id,
            fingerprint=signer,
        )

    def _build(self, locator: str, name: str, source: StagerImageHooks) -> ImageRecord:
        from kurma_core.image_store.builder import build_archive
        from kurma_core.image_store.durable import WorkDirectory, guard
        from kurma_core.images.archive_files import commit_built

        self._store.prepare()
        what = f"cannot build the image of stager {name} in {self._store.root}"
        with guard(what, self._store.root), WorkDirectory(self._store.path("tmp")) as work:
            rootfs, archive = f"{work.path}/rootfs", f"{work.path}/image.aci"
            os.mkdir(rootfs, 0o755)
            manifest = source.build(rootfs)
            with open(archive, "xb") as out:
                try:
                    build_archive(rootfs, manifest, out)
                except ManifestError as error:
                    raise plugin_error(source, f"returned for stager {name} an {error.message}") from error
            provenance = Provenance(locator=locator, fetched_at=timestamp(), trust="built", url=f"plugin:{name}")
            return commit_built(self._store, self._trust, archive, provenance)

    # --- at each use ---------------------------------------------------------------------------------------------

    def _use(self, record: ImageRecord, fingerprint: str | None, remedy: str, *, files: bool) -> HostImage:
        manifest = self._store.manifest(record.id)
        if manifest.dependencies:
            raise ImageError(
                f"{record.name}: an image that runs with host privilege must not depend on others", image=record.id
            )
        if files:
            self._check_files(record, remedy)
        layers = self._store.layers(record.id)
        path = layers[0].path
        if len(layers) > 1:
            rendered = self._flatten(record.id)
            if len(rendered) != 1:
                raise ImageError(
                    f"{record.name}: an image that runs with host privilege must be one tree, and the renderer "
                    f"makes {len(rendered)} layers of it",
                    hint="squash it to one layer",
                    image=record.id,
                )
            path = rendered[0].path
        self._store.touch(record.id)
        return HostImage(record.id, path, manifest, fingerprint)

    def _check_files(self, record: ImageRecord, remedy: str) -> None:
        """Compares size, inode and ctime of each file and of the kept archive; the whole content if those differ
        (a copied store, a restored backup)."""
        try:
            self._store.verify(record.id, deep=False)
            if self._archive_is_as_read(record.id):
                return
        except StoreError:
            pass  # the deep check reports the error
        try:
            self._store.verify(record.id, deep=True)
        except StoreError as error:
            raise StoreError(
                f"{record.name}: cannot run the stored image, which was changed: {error}",
                hint=f"remove it and fetch it again: kurma image rm {record.id[:19]} && {remedy}",
                image=record.id,
                **{key: value for key, value in error.data.items() if key != "image"},
            ) from None
        self._archive_was_read(record.id)

    def _archive_is_as_read(self, image_id: str) -> bool:
        """Whether the kept archive is unchanged, by its status, since it was last read completely. True if none is
        kept."""
        path = self._store.archive_path(image_id)
        known = self._known.get(f"archive:{image_id}", "")
        return path is None or (known is not None and known.key == _status(path))

    def _archive_was_read(self, image_id: str) -> None:
        path = self._store.archive_path(image_id)
        if path is not None:
            self._known.put(f"archive:{image_id}", "", KnownImage(image_id, _status(path), time.time()))

    def _discard_damaged(self, known: KnownImage | None) -> None:
        """Discards a damaged image that will be built or fetched anew: otherwise the store would keep the damaged
        copy."""
        if known is None:
            return
        try:
            self._store.verify(known.image, deep=True)
        except ImageNotFoundError:
            return
        except StoreError:
            self._store.remove(known.image)

    def _lock(self, name: str) -> locked:
        file = hashlib.sha256(name.encode()).hexdigest()[:40] + ".lock"
        return locked(os.path.join(self._known.directory, file), flock=cancellation.lock)


def _status(path: str) -> str:
    """Changes whenever the file's content does, as far as its status can tell."""
    found = os.stat(path, follow_symlinks=False)
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"
