"""From a locator to an image in the store: found, read once, vouched for, put in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from kurma_core.errors import ArchiveError, ImageNotFoundError, ManifestError
from kurma_core.fetching import NAMED, Fetching, Locator
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive, RemoteLayers
from kurma_core.images.expectation import Expectation
from kurma_core.images.judges import Judge, Voucher
from kurma_core.images.known import Known, KnownImages
from kurma_core.images.policy import tell_relaxations
from kurma_core.linux.clock import timestamp
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.value import frozen

if TYPE_CHECKING:
    from typing import BinaryIO

    from kurma_core.image_store import ImageStore
    from kurma_core.images.decryption import Opener
    from kurma_core.journal import Journal
    from kurma_core.progress import Progress


@frozen
class Acquisition:
    """One run's way of getting images.

    :param insecure: relaxations of this run.
    :param platform: os and arch wanted, as the App Container specification spells them.
    """

    store: ImageStore
    fetching: Fetching
    known: KnownImages
    judge: Judge
    insecure: frozenset[str]
    platform: tuple[str, str]
    note: Callable[[str], None]
    journal: Journal
    decryption: Opener
    progress: Progress | None = None

    def get(
        self,
        locator: Locator,
        pull: str,
        expected: Expectation | None = None,
    ) -> ImageRecord:
        """The image, from the store or from its source (S6).

        ``new`` asks the source only for what is not in the store; a file of this machine is always looked at, for
        that costs nothing. ``always`` asks it each time, and reads nothing where it says that nothing changed.

        :param expected: what it must be, more than the locator says; None: what the locator says.
        :raises FetchError: :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        known = self.known.get(locator.text, self._platform)
        expected = expected or Expectation.of(locator)
        local = locator.scheme not in (NAMED, "docker", "http", "https")
        if known is not None and not (local and pull != "never"):
            stored = self._stored(known, locator, expected)
            if stored is not None and (pull != "always" or known.fresh(time.time())):
                return stored
        if pull == "never":
            raise ImageNotFoundError(
                f"{locator.text}: not in the store, and nothing is to be fetched",
                hint="fetch it: kurma image fetch " + locator.text,
            )
        return self._fetch(locator, known, expected)

    def take(self, locator: Locator, archive: RemoteArchive) -> ImageRecord:
        """The image in an archive that was handed over: there is no source that could be asked again.

        :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        return self._archive(locator, archive, Expectation.of(locator))

    def is_known(self, locator: Locator) -> bool:
        """Whether the locator has given an image before."""
        return self.known.get(locator.text, self._platform) is not None

    @property
    def _platform(self) -> str:
        return "/".join(self.platform)

    def _stored(self, known: Known, locator: Locator, expected: Expectation) -> ImageRecord | None:
        """None: it is gone, is not what is expected, or came in with less than is wanted now (S4): then it is
        fetched, and judged, anew."""
        try:
            record = self.store.get(known.image)
        except ImageNotFoundError:
            return None
        return record if expected.fits(record) and self.judge.accepts(record, locator) else None

    def _fetch(self, locator: Locator, known: Known | None, expected: Expectation) -> ImageRecord:
        system, arch = self.platform
        stored = self._stored(known, locator, expected) if known is not None else None
        before = known.key if known is not None and stored is not None else None
        remote = self.fetching.resolve(locator, FetchRequest(system, arch, self.insecure, before))
        key = remote.blob.key if isinstance(remote, RemoteArchive) else remote.digest
        if stored is not None and key is not None and key == before and not self._doubted(stored, remote):
            self._remember(locator, stored, key, _max_age(remote))
            return stored
        if isinstance(remote, RemoteArchive):
            record = self._archive(locator, remote, expected)
        else:
            record = self._layers(remote)
        self._remember(locator, record, key, _max_age(remote))
        self.journal.tell("image", "fetched", record.id, record.name, {"trust": record.provenance[-1].trust})
        return record

    def _doubted(self, stored: ImageRecord, remote: RemoteArchive | RemoteLayers) -> bool:
        return isinstance(remote, RemoteArchive) and self.judge.doubts(stored, remote)

    def _remember(self, locator: Locator, record: ImageRecord, key: str | None, max_age: int) -> None:
        self.known.put(locator.text, self._platform, Known(record.id, key, time.time(), max_age))

    # --- archives ------------------------------------------------------------------------------------------------

    def _archive(self, locator: Locator, remote: RemoteArchive, expected: Expectation) -> ImageRecord:
        what = urlsplit(remote.url).path.rpartition("/")[2] or remote.url
        keep = remote.transport != "file"
        expected.check_announced(remote)
        with self.fetching.download(remote.blob, what, progress=self.progress, keep=keep) as download:
            if download.waited:
                stored = self._fetched_meanwhile(locator, remote.blob.key, expected)
                if stored is not None:
                    return stored
            try:
                with self.store.stage_archive(cast("BinaryIO", download), self.decryption.of(what)) as staged:
                    download.finish()
                    expected.check(remote, staged, self.platform)
                    voucher = self.judge.archive(
                        remote, staged, source="named" if locator.scheme == NAMED else remote.transport
                    )
                    for oddity in staged.oddities:
                        self.note(f"{locator.text}: {oddity}")
                    return staged.commit(self._provenance(remote, voucher, encrypted=staged.encrypted))
            except (ArchiveError, ManifestError) as error:
                error.message = f"{locator.text}: {error.message}"  # what reads it does not know where it is from
                raise

    def _fetched_meanwhile(self, locator: Locator, key: str | None, expected: Expectation) -> ImageRecord | None:
        known = self.known.get(locator.text, self._platform)
        return self._stored(known, locator, expected) if known is not None and known.key == key else None

    # --- layers --------------------------------------------------------------------------------------------------

    def _layers(self, remote: RemoteLayers) -> ImageRecord:
        from kurma_core.images.accounts import complete_groups
        from kurma_core.images.layer_fetch import fetch_layers

        voucher = self.judge.layers(remote)
        with self.store.holding_layers():
            try:
                keys = fetch_layers(self.store, self.fetching, remote, self.progress)
            except ArchiveError as error:
                error.message = f"{remote.locator}: {error.message}"
                raise
            manifest = complete_groups(remote.manifest, [self.store.layer(key) for key in keys])
            return self.store.add_layered(manifest, keys, self._provenance(remote, voucher))

    def _provenance(
        self, remote: RemoteArchive | RemoteLayers, voucher: Voucher, *, encrypted: bool = False
    ) -> Provenance:
        return Provenance(
            locator=remote.locator,
            fetched_at=timestamp(),
            trust=voucher.trust,
            url=remote.url,
            digest=voucher.digest,
            fingerprint=voucher.fingerprint,
            insecure=tuple(sorted({*self.insecure, *voucher.insecure})),
            encrypted=encrypted,
        )


def _max_age(remote: RemoteArchive | RemoteLayers) -> int:
    return remote.max_age if isinstance(remote, RemoteArchive) else 0
