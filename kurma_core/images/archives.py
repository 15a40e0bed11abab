"""Image archives that people have as files: made, read, signed, checked."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from kurma_core import named_files
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.images import ImageSigned
    from kurma_core.fetching import Fetching, Locator
    from kurma_core.image_store import Limits
    from kurma_core.image_store.validating import ArchiveFacts
    from kurma_core.images.decryption import Decryption
    from kurma_core.images.signing import Signing
    from kurma_core.trust import Trust

Json = Any


def path_of(locator: Locator) -> str:
    """The path that a locator of a file means."""
    from urllib.parse import unquote_to_bytes, urlsplit

    return os.fsdecode(unquote_to_bytes(urlsplit(locator.text).path))


class ArchiveFiles:
    """:param note: tells the user something in one line, on standard error."""

    def __init__(
        self,
        fetching: Fetching,
        trust: Trust,
        limits: Limits,
        decryption: Decryption,
        note: Callable[[str], None],
    ) -> None:
        self._fetching = fetching
        self._trust = trust
        self._limits = limits
        self._decryption = decryption
        self._note = note

    def path(self, reference: str) -> str | None:
        """The path, if the reference is that of an archive file; else it is for the store."""
        try:
            locator = self._fetching.parse(reference)
        except UsageError:
            return None  # which the store says in its own words
        return path_of(locator) if locator.scheme == "file" else None

    def build(
        self,
        rootfs: str | None,
        manifest: Mapping[str, Json],
        path: str,
        *,
        compress: str = "",
        passphrase: bytes | None = None,
        owner: tuple[int, int] | None = None,
    ) -> str:
        """Makes an archive of a directory, reproducibly (A6): whole, or not at all.

        :param rootfs: None: an empty root filesystem.
        :param compress: ``""``, ``gzip``, ``bzip2``, ``xz`` or ``zstd``.
        :param passphrase: encrypts it (A1); the ID is that of the archive in it.
        :param owner: user and group of all its files, in place of whose they are.
        :returns: the image's ID.
        :raises ManifestError: :raises ArchiveError: :raises HostError: the file cannot be written.
        :raises UsageError: it lies in ``rootfs``, or takes another's place than a regular file's.
        """
        from kurma_core.image_store import build_archive

        if rootfs is not None and _is_below(path, rootfs):
            raise UsageError(
                f"{path}: lies in {rootfs}, which is to be packed", hint="name a file outside of it", path=path
            )
        with named_files.written(path) as out:
            if passphrase is None:
                return build_archive(rootfs, manifest, out, compress=compress, warn=self._note, owner=owner)
            with self._trust.encrypting(out, passphrase) as encrypted:
                return build_archive(rootfs, manifest, encrypted, compress=compress, warn=self._note, owner=owner)

    def inspect(self, path: str) -> ArchiveFacts:
        """Reads an archive to its end and checks all of it; what is odd in its manifest is told (T8).

        :returns: everything that it tells of itself. :raises ArchiveError: :raises ManifestError:
        """
        from kurma_core.image_store.validating import inspect

        with named_files.opened(path) as stream, named_files.naming(path):
            facts = inspect(stream, self._limits, self._decryption.of(path))
        for oddity in facts.contents.oddities:
            self._note(f"{path}: {oddity}")
        return facts

    def extract(self, path: str, target: str) -> str:
        """See :meth:`ImageManager.extract`."""
        from kurma_core.image_store.extracting import extract

        with named_files.opened(path) as stream, named_files.naming(path):
            return extract(stream, target, self._limits, decrypt=self._decryption.of(path))

    def sign(
        self,
        path: str,
        *,
        key: str | None = None,
        output: str | None = None,
        early: bool = False,
        force: bool = False,
    ) -> ImageSigned:
        """Writes a detached, armored signature of an archive: whole, or not at all (A6).

        :param key: one of the caller's own GnuPG home; None: this machine's.
        :param output: where to; None: beside it, where fetchers look.
        :param early: over the uncompressed tar.
        :param force: replace what is there.
        :raises ArchiveError: it is no image. :raises TrustError: it cannot be signed.
        :raises UsageError: the signature's file exists. :raises HostError: a file cannot be read or written.
        """
        return self._signing.sign(path, key=key, output=output, early=early, force=force)

    def check_signature(self, path: str, signature: str | None = None) -> ImageSigned:
        """Checks an archive's signature with the keys that are trusted for the image's name (K3).

        :param signature: its file; None: the one beside the archive.
        :raises TrustError: it is not good enough, or there is none. :raises ArchiveError: it is no image.
        """
        return self._signing.check(path, signature)

    @functools.cached_property
    def _signing(self) -> Signing:
        from kurma_core.images.signing import Signing

        return Signing(self._trust, self._fetching, self._limits, self._decryption)


def _is_below(path: str, directory: str) -> bool:
    """Whether a new file there would be one of the directory's, by whatever way it is named."""
    above = os.path.dirname(os.path.realpath(path))
    while os.path.isdir(above):
        if os.path.isdir(directory) and os.path.samefile(above, directory):
            return True
        if above == "/":
            break
        above = os.path.dirname(above)
    return False
