"""Fetches or takes an image and puts it into the store: downloads, decrypts, checks trust, commits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import (
    ArchiveError,
    DecryptionError,
    FetchDigestError,
    FetchError,
    FetchNotFoundError,
    ImageError,
    ImageNotFoundError,
    ManifestError,
    TrustError,
    UsageError,
)
from kurma_core.fetching import Fetching, Locator, locator_of
from kurma_core.formats.timestamps import timestamp
from kurma_core.hookspecs.fetcher import (
    DetachedSignature,
    FetchRequest,
    RemoteArchive,
    RemoteBlobHooks,
    RemoteLayers,
)
from kurma_core.images.locator_cache import KnownImage, LocatorCache
from kurma_core.images.trust_policy import HostTrustPolicy, TrustPolicy, Voucher, tell_relaxations
from kurma_core.models.image import LOCAL, NAMED, REGISTRY, Conventions, ImageRecord, Provenance
from kurma_core.value import frozen

if TYPE_CHECKING:
    from typing import BinaryIO, NoReturn

    from kurma_core.api.operations import Progress
    from kurma_core.appc.image import ImageManifest
    from kurma_core.appc.pod import RuntimeImage
    from kurma_core.image_store import ImageStore
    from kurma_core.image_store.archive_stream import Decrypt, Plain
    from kurma_core.image_store.staging import StagedImage
    from kurma_core.journal import Journal
    from kurma_core.models.image import FetchCredentials
    from kurma_core.trust.encryption import Passphrases
    from kurma_core.trust.machine_key import MachineKey

    #: Makes the function that decrypts the archive of that name, if it is encrypted.
    Opener = Callable[[str], Decrypt]


@frozen
class Acquisition:
    """How one run gets images.

    :param insecure: relaxations of this run.
    :param conventions: says what an image with a manifest expects of its executor.
    :param opener: opens encrypted archives.
    :param platform: os and arch wanted, as the App Container specification spells them.
    :param credentials: of the caller, for the sources of this run; None: those of the machine.
    :param build_key: the key of images built here, if this machine has built it; None: the policy judges it.
    """

    store: ImageStore
    fetching: Fetching
    known: LocatorCache
    policy: TrustPolicy | HostTrustPolicy
    insecure: frozenset[str]
    conventions: Callable[[ImageManifest], Conventions]
    platform: tuple[str, str]
    note: Callable[[str], None]
    journal: Journal
    opener: Opener
    progress: Progress | None = None
    credentials: FetchCredentials | None = None
    build_key: MachineKey | None = None

    def get(
        self,
        locator: Locator,
        pull: str,
        expected: Expectation | None = None,
    ) -> ImageRecord:
        """The image, from the store or from its source.

        With ``new``, the source is asked only for an image that is not in the store. A local file, as its fetcher
        said it was, is always compared, since that is cheap. With ``always``, the source is asked each time, but
        nothing is downloaded if nothing has changed.

        A name that ``short_names`` of ``kurma.yml`` expands is the first of the addresses that has an image.

        :param expected: what the image must be, beyond what the locator says.
        :raises FetchError: :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        known = self.known.get(locator.text, self._platform)
        expected = expected or Expectation(locator.name)
        local = known is not None and known.transport == LOCAL
        if known is not None and not (local and pull != "never"):
            stored = self._stored(known, locator, expected)
            # The source decides on each caller's credentials.
            fresh = known.fresh(time.time()) and self.credentials is None
            if stored is not None and (pull != "always" or fresh):
                return stored
        expanded = () if locator.name is None else self.fetching.short_name(locator.text)
        for number, candidate in enumerate(expanded, 1):
            try:
                return self.get(candidate, pull, expected if expected.image_id is not None else None)
            except (FetchNotFoundError, ImageNotFoundError):
                if number == len(expanded):
                    raise
        if pull == "never":
            missing = ImageNotFoundError(
                f"{locator.text}: not in the store, and --pull never forbids fetching",
                hint="fetch it: kurma image fetch " + locator.text,
            )
            if locator.name is not None:
                self.fetching.hint_address(locator.text, missing)
            raise missing
        return self._fetch(locator, known, expected)

    def take(self, locator: Locator, archive: RemoteArchive) -> ImageRecord:
        """The image in an archive that a caller passes in, so that there is no source to ask again.

        :raises TrustError: :raises ArchiveError: …
        """
        tell_relaxations(self.insecure, locator.text, self.note)
        return self._archive(locator, archive, Expectation(locator.name))

    def get_by_id(self, image: RuntimeImage, pull: str) -> ImageRecord:
        """The image that an app names by ID (whole, or the start of an early one) and name. If the store lacks it,
        it is fetched by its name.

        :raises ImageError: the image of that ID has another name, or labels other than those given.
        :raises ImageNotFoundError: the store has no image of that ID, and ``pull`` is ``never``.
        :raises FetchError: :raises TrustError: as :meth:`get`.
        """
        assert image.id is not None
        assert image.name is not None
        wanted = ImageName.of(image.name, {label.name: label.value for label in image.labels}, image.id)
        record = self.store.find_by_id(image.id)
        if record is None:
            try:
                return self.get(locator_of(wanted), pull, Expectation(wanted, image.id))
            except FetchDigestError:
                raise  # names the ID that came instead
            except (FetchError, ImageNotFoundError, UsageError) as error:
                error.message = f"the store holds no image {image.id}; by its name: {error.message}"
                raise
        if not wanted.is_met_by(record.name, record.labels):
            raise ImageError(
                f"the image with the ID {image.id} is {ImageName.of(record.name, record.labels).shown}, "
                f"not {wanted.shown}",
                hint="give the image's own name with its ID, or another ID",
                image=record.id,
            )
        return record

    def is_known(self, locator: Locator) -> bool:
        """Whether the locator has given an image before."""
        return self.known.get(locator.text, self._platform) is not None

    @property
    def _platform(self) -> str:
        return "/".join(self.platform)

    def _stored(self, known: KnownImage, locator: Locator, expected: Expectation) -> ImageRecord | None:
        """An image of the store. None: it is gone, is not the expected one, or was accepted by a weaker policy
        than the present one: then the caller fetches and judges it anew."""
        try:
            record = self.store.get(known.image)
        except ImageNotFoundError:
            return None
        return record if expected.fits(record) and self.policy.accepts(record, locator) else None

    def _fetch(self, locator: Locator, known: KnownImage | None, expected: Expectation) -> ImageRecord:
        system, arch = self.platform
        known = None if self.build_key is not None else known
        stored = self._stored(known, locator, expected) if known is not None else None
        before = known.key if known is not None and stored is not None else None
        request = FetchRequest(system, arch, self.insecure, before, self.credentials)
        remote = self.fetching.resolve(locator, request)
        key = remote.blob.key if isinstance(remote, RemoteArchive) else remote.digest
        again = (
            stored is not None
            and isinstance(remote, RemoteArchive)
            and self.policy.must_judge_again(stored, remote)
        )
        if stored is not None and key is not None and key == before and not again:
            self._remember(locator, stored, key, remote)
            return stored
        if self.build_key is not None and (isinstance(remote, RemoteArchive) or remote.transport != LOCAL):
            raise UsageError(
                f"{locator.text}: cannot have been built here: it is not a file of layers on this machine",
                hint="fetch it: kurma image fetch, without built",
            )
        if isinstance(remote, RemoteArchive):
            record = self._archive(locator, remote, expected)
        else:
            record = self._layers(locator, remote)
            expected.check_layers(remote, record)
        self._remember(locator, record, key, remote)
        self.journal.tell("image", "fetched", record.id, record.name, {"trust": record.provenance[-1].trust})
        return record

    def _remember(
        self, locator: Locator, record: ImageRecord, key: str | None, remote: RemoteArchive | RemoteLayers
    ) -> None:
        if self.build_key is not None:
            return  # the file is removed after this
        found = KnownImage(record.id, key, time.time(), remote.max_age, remote.transport)
        self.known.put(locator.text, self._platform, found)

    # --- archives ------------------------------------------------------------------------------------------------

    def _archive(self, locator: Locator, remote: RemoteArchive, expected: Expectation) -> ImageRecord:
        from urllib.parse import urlsplit

        what = urlsplit(remote.url).path.rpartition("/")[2] or remote.url
        keep = remote.transport != LOCAL
        expected.check_announced(remote)
        with self.fetching.download(remote.blob, what, progress=self.progress, keep=keep) as download:
            if download.waited:
                stored = self._fetched_meanwhile(locator, remote.blob.key, expected)
                if stored is not None:
                    return stored
            try:
                with self.store.stage_archive(cast("BinaryIO", download), self.opener(what)) as staged:
                    download.finish()
                    expected.check(remote, staged, self.platform)
                    source = remote.transport if locator.name is None else NAMED
                    voucher = self.policy.judge_archive(remote, staged, source=source)
                    for oddity in staged.oddities:
                        self.note(f"{locator.text}: {oddity}")
                    return staged.commit(
                        self._provenance(remote, source, voucher, encrypted=staged.encrypted),
                        self.conventions(staged.manifest),
                    )
            except (ArchiveError, ManifestError) as error:
                # the reader cannot know where the archive comes from
                error.message = f"{locator.text}: {error.message}"
                raise

    def _fetched_meanwhile(self, locator: Locator, key: str | None, expected: Expectation) -> ImageRecord | None:
        known = self.known.get(locator.text, self._platform)
        return self._stored(known, locator, expected) if known is not None and known.key == key else None

    # --- layers --------------------------------------------------------------------------------------------------

    def _layers(self, locator: Locator, remote: RemoteLayers) -> ImageRecord:
        from kurma_core.images.layer_fetch import fetch_layers
        from kurma_core.images.user_groups import ImageFiles

        voucher = None if self.build_key is not None else self.policy.judge_layers(remote)
        with self.store.holds.keeping(used=False):
            try:
                keys = fetch_layers(self.store, self.fetching, remote, self.progress)
            except ArchiveError as error:
                error.message = f"{remote.locator}: {error.message}"
                raise
            files = ImageFiles([self.store.layer(key) for key in keys])
            manifest = self.fetching.complete_manifest(locator, remote.manifest, files)
            if voucher is not None:
                provenance = self._provenance(remote, REGISTRY, voucher)
            else:
                key = None if self.build_key is None else self.build_key.fingerprint()
                provenance = Provenance(f"build:{manifest.name}", timestamp(), "local", fingerprint=key)
            return self.store.add_layered(manifest, keys, provenance, self.conventions(manifest))

    def _provenance(
        self, remote: RemoteArchive | RemoteLayers, source: str, voucher: Voucher, *, encrypted: bool = False
    ) -> Provenance:
        return Provenance(
            locator=remote.locator,
            fetched_at=timestamp(),
            trust=voucher.trust,
            source=source,
            transport=remote.transport,
            url=remote.url,
            digest=voucher.digest,
            fingerprint=voucher.fingerprint,
            insecure=tuple(sorted({*self.insecure, *voucher.insecure})),
            encrypted=encrypted,
        )


_UPLOAD = "upload"


class _StreamBlob(RemoteBlobHooks):
    """An open file. :param stream: seekable; it stays open."""

    key = None
    digest = None

    def __init__(self, stream: BinaryIO, signature: DetachedSignature | None) -> None:
        self._stream = stream
        self._signature = signature
        self.size = stream.seek(0, os.SEEK_END)

    def open(self, offset: int) -> BinaryIO:
        again = open(os.dup(self._stream.fileno()), "rb")  # noqa: SIM115 - the caller closes it
        again.seek(offset)
        return again

    def signature(self) -> DetachedSignature | None:
        return self._signature


def uploaded(stream: BinaryIO, name: str, signature: bytes | None) -> tuple[Locator, RemoteArchive]:
    """An uploaded archive in the form in which fetchers return theirs. It is judged like a local file.

    :raises UsageError: the name is not a valid file name.
    """
    if not name or "/" in name or "\0" in name:
        raise UsageError(f"{name!r} is not a name for an archive", hint="give it a file's name: app.aci")
    from urllib.parse import quote

    text = f"{_UPLOAD}:{quote(os.fsencode(name))}"
    signed = None if signature is None else DetachedSignature(signature, "archive", f"{text}.asc")
    archive = RemoteArchive(text, text, LOCAL, _StreamBlob(stream, signed))
    return Locator(_UPLOAD, text), archive


@frozen
class Expectation:
    """The name, ID and size that an image must have to be accepted into the store.

    :param name: None: the caller did not ask for a name, and the image may have any.
    :param image_id: whole, or (``sha256-…``, of early documents) the start of one; None: any.
    :param size: bytes of the archive as shipped; None: any.
    """

    name: ImageName | None = None
    image_id: str | None = None
    size: int | None = None

    def fits(self, record: ImageRecord) -> bool:
        """Whether an image of the store, which came by the same locator, will do."""
        return self.image_id is None or record.id.startswith(self.image_id) or self._is_early(record.early_id)

    def check_announced(self, remote: RemoteArchive) -> None:
        """Checks the size before a byte is read. :raises FetchDigestError: it differs from the expected size."""
        if remote.blob.size is not None:
            self._check_size(remote, remote.blob.size)

    def check(self, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]) -> None:
        """Checks an image before it is accepted.

        :param platform: os and arch wanted, if the name does not include them.
        :raises TrustError: it has another name, or other labels.
        :raises FetchDigestError: it has another ID or size.
        """
        if self.name is not None:
            self._check_name(self.name, remote, staged, platform)
        self._check_size(remote, os.stat(staged.archive_path).st_size)
        if self.image_id is None or staged.id.startswith(self.image_id) or self._is_early(staged.early_id):
            return
        self._refuse_id(remote, staged.early_id if self.image_id.startswith("sha256-") else staged.id)

    def check_layers(self, remote: RemoteLayers, record: ImageRecord) -> None:
        """Checks an image of layers. :raises FetchDigestError: it has another ID."""
        if not self.fits(record):
            self._refuse_id(remote, record.id)

    def _refuse_id(self, remote: RemoteArchive | RemoteLayers, found: str) -> NoReturn:
        assert self.image_id is not None
        raise FetchDigestError(
            f"{remote.locator}: the image at {remote.url} has the ID {found[:19]}…, not {self.image_id[:19]}…",
            hint="the image with this ID is not published there: ask the owner of the name",
            image=found,
        )

    def _is_early(self, early_id: str | None) -> bool:
        return self.image_id is not None and (early_id or "").startswith(self.image_id)

    @staticmethod
    def _check_name(
        wanted: ImageName, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]
    ) -> None:
        manifest = staged.manifest
        labels = {label.name: label.value for label in manifest.labels}
        if not wanted.is_met_by(manifest.name, labels):
            raise TrustError(
                f"{remote.locator}: the image at {remote.url} is another one: "
                f"{ImageName.of(manifest.name, labels).shown}",
                hint="ask the owner of the name, or name that image itself",
                image=staged.id,
            )
        for label, value in zip(("os", "arch"), platform, strict=True):
            if label not in wanted.labels and labels.get(label, value) != value:
                raise TrustError(
                    f"{remote.locator}: the image at {remote.url} is for {label} {labels[label]}, not {value}",
                    hint=f"to get that image, write: {wanted.shown},{label}={labels[label]}",
                    image=staged.id,
                )

    def _check_size(self, remote: RemoteArchive, size: int) -> None:
        if self.size is not None and size != self.size:
            raise FetchDigestError(
                f"{remote.locator}: the image at {remote.url} has {size} bytes, not {self.size}"
            )


# --- encrypted archives ------------------------------------------------------------------------------------------


def decrypting(passphrases: Callable[[], Passphrases] | None) -> Opener:
    """Decrypts archives with the passphrases that the user gives; None: there are none."""

    def opener(what: str) -> Decrypt:
        known: list[Plain] = []  # the user is asked once, even if the archive is read several times

        def opened(head: bytes) -> Plain:
            if not known:
                from kurma_core.trust import encryption

                given = _NoPassphrases() if passphrases is None else passphrases()
                known.append(encryption.opened(head, given, what))
            return known[0]

        return opened

    return opener


class _NoPassphrases:
    attempts = 1

    def get(self, what: str, *, wrong: bool) -> bytes | None:
        return None


def refusing_encrypted(what: str) -> Decrypt:
    """Refuses encrypted archives of images with host privilege: their bytes are verified at each use, when no
    user can give a passphrase."""

    def opened(head: bytes) -> Plain:
        raise DecryptionError(
            "the archive is encrypted, and an image that runs with host privilege must not be",
            hint="publish it unencrypted, and restrict who can read it",
            reason="kind",
        )

    return opened
