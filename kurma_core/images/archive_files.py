"""Builds, inspects, extracts and signs image archives that are files, and checks their signatures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core import named_files
from kurma_core.api.images import ImageSigned
from kurma_core.errors import TrustError, UsageError
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.fetching import Fetching
    from kurma_core.hookspecs.fetcher import DetachedSignature
    from kurma_core.image_store import ImageStore, Limits
    from kurma_core.image_store.archive_layout import ArchiveFacts
    from kurma_core.image_store.archive_stream import Decrypt
    from kurma_core.image_store.builder import Owner
    from kurma_core.images.acquisition import Opener
    from kurma_core.models.image import Conventions, ImageRecord, Provenance
    from kurma_core.trust import Trust
    from kurma_core.trust.machine_key import MachineKey


Json = Any
#: Bytes.
_LARGEST_SIGNATURE = 1 << 20
_EVERYTHING = 1 << 62


class ArchiveFiles:
    """Builds, inspects and signs archives that are files of the caller.

    :param opener: decrypts encrypted archives.
    :param note: reports one line to the user, on standard error.
    """

    def __init__(
        self,
        fetching: Fetching,
        trust: Trust,
        limits: Limits,
        opener: Opener,
        note: Callable[[str], None],
    ) -> None:
        self._fetching = fetching
        self._trust = trust
        self._limits = limits
        self._opener = opener
        self._note = note

    def path(self, reference: str) -> str | None:
        """The path, if the reference names an archive file; None: it is a reference for the store."""
        try:
            locator = self._fetching.parse(reference)
        except UsageError:
            return None  # the store's own check reports the error
        return locator.path

    def build(
        self,
        rootfs: str | None,
        manifest: Mapping[str, Json],
        path: str,
        *,
        compress: str = "",
        passphrase: bytes | None = None,
        owner: Owner | None = None,
    ) -> str:
        """Makes an archive of a directory, reproducibly. A failure leaves no file.

        :param rootfs: None: an empty root filesystem.
        :param compress: ``""``, ``gzip``, ``bzip2``, ``xz`` or ``zstd``.
        :param passphrase: encrypts it; the ID is that of the archive before encryption.
        :param owner: see :func:`kurma_core.image_store.builder.build_archive`.
        :returns: the image's ID.
        :raises ManifestError: :raises ArchiveError: :raises HostError: the file cannot be written.
        :raises UsageError: the file is inside of ``rootfs``, or would replace a file that is not regular.
        """
        from kurma_core.image_store.builder import build_archive

        if rootfs is not None and _is_below(path, rootfs):
            raise UsageError(
                f"{path}: is inside {rootfs}, the directory to pack", hint="name a file outside it", path=path
            )
        with named_files.written(path) as out:
            if passphrase is None:
                return build_archive(rootfs, manifest, out, compress=compress, warn=self._note, owner=owner)
            from kurma_core.trust.encryption import encrypting

            with encrypting(out, passphrase) as encrypted:
                return build_archive(rootfs, manifest, encrypted, compress=compress, warn=self._note, owner=owner)

    def inspect(self, path: str) -> ArchiveFacts:
        """Reads an archive to its end and checks all of it; adds notes on anomalies of its manifest.

        :returns: what the archive contains. :raises ArchiveError: :raises ManifestError:
        """
        from kurma_core.image_store.archive_layout import inspect

        with named_files.opened(path) as stream, named_files.naming(path):
            facts = inspect(stream, self._limits, self._opener(path))
        for oddity in facts.contents.oddities:
            self._note(f"{path}: {oddity}")
        return facts

    def extract(self, path: str, target: str) -> str:
        """See :meth:`ImageManager.extract`."""
        from kurma_core.image_store.extract_image import extract

        with named_files.opened(path) as stream, named_files.naming(path):
            return extract(stream, target, self._limits, decrypt=self._opener(path))

    def sign(
        self,
        path: str,
        *,
        key: str | None = None,
        output: str | None = None,
        early: bool = False,
        force: bool = False,
    ) -> ImageSigned:
        """Writes a detached, armored signature of an archive. A failure leaves no file.

        :param key: a key of the caller's own GnuPG home; None: this machine's.
        :param output: path of the signature; None: beside the archive, where fetchers look first.
        :param early: sign the uncompressed tar.
        :param force: replace an existing file.
        :raises ArchiveError: the archive is not an image.
        :raises TrustError: it cannot be signed.
        :raises UsageError: the signature's file exists.
        :raises HostError: a file cannot be read or written.
        """
        target = output or (path.removesuffix(".aci") + ".sig" if early else f"{path}.asc")
        named_files.writable(target, made_of=(path,))
        if not force and os.path.lexists(target):
            raise UsageError(f"{target}: exists", hint="replace it by --force")
        decrypt = self._opener(path)
        ident, name = self._examined(path, decrypt)
        source = self._tar(path, decrypt) if early else path
        if key is None:
            signature, fingerprint = self._trust.sign(source), self._trust.machine_key()
        else:
            from kurma_core.trust.signatures import sign_as

            signature, fingerprint = sign_as(key, source)
        with named_files.written(target) as out:
            out.write(signature)
        over = "tar" if early else "archive"
        return ImageSigned(file=path, id=ident, name=name, signature=target, over=over, fingerprint=fingerprint)

    def check_signature(self, path: str, signature: str | None = None) -> ImageSigned:
        """Checks an archive's signature with the keys that are trusted for the image's name.

        :param signature: its file; None: the one beside the archive.
        :raises TrustError: the signature is missing, or is not good enough.
        :raises ArchiveError: the archive is not an image.
        """
        found = _read_signature(signature) if signature is not None else self._beside(path)
        decrypt = self._opener(path)
        ident, name = self._examined(path, decrypt)
        if found is None:
            raise TrustError(
                f"{path}: the image {name} is not signed (there is no {path}.asc)",
                hint="name the signature: --signature FILE",
                reason="unsigned",
            )
        keys = self._trust.keys_for(name)
        source = self._tar(path, decrypt) if found.over == "tar" else path
        try:
            signer = self._trust.verify(source, found.data, keys, what=path, name=name)
        except TrustError as error:
            if error.data.get("reason") == "malformed":  # not an error of the archive
                error.message = f"{found.url or signature}: {error.message}"
            raise
        from kurma_core.trust.gpg import read_key
        from kurma_core.trust.key_files import read_keys

        known = read_keys([read_key(file) for file in keys[signer]], keys[signer][0])
        users = next((key.users for key in known if key.fingerprint == signer), ())
        return ImageSigned(
            file=path,
            id=ident,
            name=name,
            signature=found.url or "",
            over=found.over,
            fingerprint=signer,
            users=users,
        )

    def _beside(self, path: str) -> DetachedSignature | None:
        from kurma_core.appc.image import host_platform
        from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive

        remote = self._fetching.resolve(os.path.abspath(path), FetchRequest(*host_platform()))
        assert isinstance(remote, RemoteArchive), "what a file's fetcher gives"
        return self._fetching.signature(remote)

    def _examined(self, path: str, decrypt: Decrypt) -> tuple[str, str]:
        """ID and name of what must be a whole image."""
        from kurma_core.image_store.archive_layout import inspect

        with named_files.opened(path) as stream, named_files.naming(path):
            facts = inspect(stream, self._limits, decrypt)
        return facts.id, facts.contents.manifest.name

    def _tar(self, path: str, decrypt: Decrypt) -> Iterator[bytes]:
        from kurma_core.image_store.archive_stream import ArchiveStream

        with (
            named_files.opened(path) as file,
            named_files.naming(path),
            ArchiveStream(file, self._limits, decrypt=decrypt) as stream,
        ):
            for piece in stream.pieces(_EVERYTHING):
                yield bytes(piece)


def commit_built(
    store: ImageStore,
    trust: Trust,
    archive: str,
    provenance: Provenance,
    *,
    key: MachineKey | None = None,
    conventions: Callable[[ImageManifest], Conventions] | None = None,
) -> ImageRecord:
    """Signs an archive that was built on this machine, and puts it into the store.

    :param key: the key of this machine that signs it; None: the first one.
    :param provenance: gets the key's fingerprint.
    """
    signature = trust.sign(archive) if key is None else key.sign(archive)
    with open(archive, "rb") as stream, store.stage_archive(stream) as staged:
        # The same check as for a fetched image: it proves that the stored bytes are the signed ones.
        fingerprint = trust.verify_own(staged.archive_path, signature, key)
        return staged.commit(
            replace(provenance, fingerprint=fingerprint), conventions and conventions(staged.manifest)
        )


def _read_signature(path: str) -> DetachedSignature:
    """A signature's file; one called ``….sig`` is an early one, over the tar.

    :raises HostError: it cannot be read, or is too large.
    """
    from kurma_core.hookspecs.fetcher import DetachedSignature

    data = named_files.content(path, largest=_LARGEST_SIGNATURE)
    return DetachedSignature(data, over="tar" if path.endswith(".sig") else "archive", url=path)


def _is_below(path: str, directory: str) -> bool:
    """Whether a new file with that path would be inside of the directory, through any symbolic link or mount."""
    above = os.path.dirname(os.path.realpath(path))
    while os.path.isdir(above):
        if os.path.isdir(directory) and os.path.samefile(above, directory):
            return True
        if above == "/":
            break
        above = os.path.dirname(above)
    return False
