"""Images signed, and signatures of files checked, apart from the store (A6, K3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kurma_core import named_files
from kurma_core.api.images import ImageSigned
from kurma_core.errors import TrustError, UsageError

if TYPE_CHECKING:
    from kurma_core.fetching import Fetching
    from kurma_core.hookspecs.fetcher import DetachedSignature
    from kurma_core.image_store import Limits
    from kurma_core.image_store.stream import Decrypt
    from kurma_core.images.decryption import Opener
    from kurma_core.trust import Trust

_LARGEST_SIGNATURE = 1 << 20
_EVERYTHING = 1 << 62


class Signing:
    """:param opener: opens encrypted archives."""

    def __init__(self, trust: Trust, fetching: Fetching, limits: Limits, opener: Opener) -> None:
        self._trust = trust
        self._fetching = fetching
        self._limits = limits
        self._opener = opener

    def sign(self, path: str, *, key: str | None, output: str | None, early: bool, force: bool) -> ImageSigned:
        """See :meth:`kurma_core.images.ImageManager.sign`."""
        target = output or signature_path(path, early=early)
        named_files.writable(target, made_of=(path,))
        if not force and os.path.lexists(target):
            raise UsageError(f"{target}: exists", hint="--force replaces it")
        opener = self._opener.of(path)
        ident, name = self._examined(path, opener)
        source = self._tar(path, opener) if early else path
        if key is None:
            signature, fingerprint = self._trust.sign(source), self._trust.machine_key()
        else:
            signature, fingerprint = self._trust.sign_as(key, source)
        with named_files.written(target) as out:
            out.write(signature)
        over = "tar" if early else "archive"
        return ImageSigned(file=path, id=ident, name=name, signature=target, over=over, fingerprint=fingerprint)

    def check(self, path: str, signature: str | None) -> ImageSigned:
        """See :meth:`kurma_core.images.ImageManager.check_signature`."""
        found = read_signature(signature) if signature is not None else self._beside(path)
        opener = self._opener.of(path)
        ident, name = self._examined(path, opener)
        if found is None:
            raise TrustError(
                f"{path}: the image {name} is not signed (there is no {path}.asc)",
                hint="name the signature: --signature FILE",
                reason="unsigned",
            )
        keys = self._trust.keys_for(name)
        source = self._tar(path, opener) if found.over == "tar" else path
        try:
            signer = self._trust.verify(source, found.data, keys, what=path, name=name)
        except TrustError as error:
            if error.data.get("reason") == "malformed":  # it is not the archive's fault
                error.message = f"{found.url or signature}: {error.message}"
            raise
        users = self._trust.users_of(signer, keys[signer])
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
        from urllib.parse import quote

        from kurma_core.appc.image import host_platform
        from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive

        locator = "file://" + quote(os.fsencode(os.path.abspath(path)))
        remote = self._fetching.resolve(locator, FetchRequest(*host_platform()))
        assert isinstance(remote, RemoteArchive), "what a file's fetcher gives"
        return remote.signature()

    def _examined(self, path: str, opener: Decrypt) -> tuple[str, str]:
        """ID and name of what must be a whole image."""
        from kurma_core.image_store.validating import inspect

        with named_files.opened(path) as stream, named_files.naming(path):
            facts = inspect(stream, self._limits, opener)
        return facts.id, facts.contents.manifest.name

    def _tar(self, path: str, opener: Decrypt) -> Iterator[bytes]:
        from kurma_core.image_store.stream import ArchiveStream

        with (
            named_files.opened(path) as file,
            named_files.naming(path),
            ArchiveStream(file, self._limits, decrypt=opener) as stream,
        ):
            for piece in stream.pieces(_EVERYTHING):
                yield bytes(piece)


def signature_path(path: str, *, early: bool) -> str:
    """Where fetchers look for the signature first."""
    return path.removesuffix(".aci") + ".sig" if early else f"{path}.asc"


def read_signature(path: str) -> DetachedSignature:
    """A signature that somebody names; one called ``….sig`` is an early one, over the tar.

    :raises HostError: it cannot be read, or is too large.
    """
    from kurma_core.hookspecs.fetcher import DetachedSignature

    data = named_files.content(path, largest=_LARGEST_SIGNATURE)
    return DetachedSignature(data, over="tar" if path.endswith(".sig") else "archive", url=path)
