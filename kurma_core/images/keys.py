"""Reads, discovers, adds, lists and removes the keys that are trusted for images.

They let no image run with host privilege: only ``trusted_host_keys`` of ``kurma.yml`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kurma_core.appc.image import host_platform
from kurma_core.errors import FetchError, TrustError, UsageError
from kurma_core.fetching import Fetching
from kurma_core.hookspecs.fetcher import FetchRequest, RemoteArchive
from kurma_core.images.trust_policy import RELAX_HTTP, relaxations, tell_relaxations

if TYPE_CHECKING:
    from kurma_core.api.images import Key, TrustChange, TrustedKey
    from kurma_core.trust import Trust

#: Bytes of a file of keys.
_LARGEST = 1 << 20


class KeyManager:
    """Reads, discovers and manages the keys that are trusted for images.

    :param note: reports one line to the user, on standard error.
    """

    def __init__(self, trust: Trust, fetching: Fetching, note: Callable[[str], None]) -> None:
        self._trust = trust
        self._fetching = fetching
        self._note = note

    def parse(self, data: bytes, source: str) -> tuple[Key, ...]:
        """The public keys in a file that was read already. :raises TrustError: it holds no key."""
        return self._trust.parse_keys(data, source)

    def read(self, source: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        """The public keys in a file, or at an address (:meth:`fetch`).

        :param source: a path, or an address ``SCHEME://…``.
        :raises FetchError: in one of its kinds. :raises HostError: the file cannot be read.
        :raises TrustError: there is no key in it, or a secret one.
        """
        from kurma_core.named_files import content

        path = self._fetching.parse(source if "://" in source or source.startswith("/") else f"./{source}").path
        if path is None:
            return self.fetch(source, insecure)
        return self.parse(content(path, largest=_LARGEST), source)

    def fetch(self, address: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        """The public keys at an address; over plain HTTP only with the relaxation ``http`` or ``pubkey``.

        :raises UsageError: it is not an address, or its fetcher gives an image instead of a file.
        :raises FetchError: in one of its kinds.
        :raises TrustError: there is no key in it, or a secret one.
        """
        locator = self._fetching.parse(address)
        if "://" not in address or locator.path is not None:
            raise UsageError(f"{address} is not the address of a key", hint="the client reads a file itself")
        self._tell(address, insecure)
        remote = self._fetching.resolve(locator, self._request(insecure))
        if not isinstance(remote, RemoteArchive):
            raise UsageError(f"{address}: an image, not the file of a key", hint="name the address of a file")
        return self.parse(self._whole(remote), address)

    def discover(self, name: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        """The keys that the owner of a name publishes for it (``ac-discovery-pubkeys``).

        Published data that is not a key is reported and skipped.

        :raises FetchError: in one of its kinds.
        :raises TrustError: no keys are published.
        """
        self._tell(name, insecure)
        found: dict[str, Key] = {}
        problem: TrustError | None = None
        for published in self._fetching.public_keys(name, self._request(insecure)):
            try:
                for key in self.parse(published.data, published.url):
                    found.setdefault(key.fingerprint, key)
            except TrustError as error:
                problem = error
                self._note(error.message)
        if found:
            return tuple(found.values())
        raise problem or TrustError(
            f"{name}: no keys are published for it", hint="get the key from its owner: kurma trust add … KEYFILE"
        )

    def add(self, key: Key, prefix: str | None) -> TrustChange:
        """Trust it for images of that prefix, or for all; see :meth:`kurma_core.trust.Trust.add_key`."""
        return self._trust.add_key(key, prefix)

    def remove(self, reference: str, prefix: str | None, *, dry_run: bool = False) -> TrustChange:
        """Trust it no longer; see :meth:`kurma_core.trust.Trust.remove_key`."""
        return self._trust.remove_key(reference, prefix, dry_run=dry_run)

    def list(self) -> tuple[TrustedKey, ...]:
        """Every key of the keystores."""
        return self._trust.trusted_keys()

    def _tell(self, what: str, insecure: Collection[str]) -> None:
        tell_relaxations(relaxations(insecure), what, self._note)

    def _whole(self, remote: RemoteArchive) -> bytes:
        """:raises FetchError: it is too large, or in one of its kinds."""
        content = b""
        with self._fetching.download(remote.blob, remote.url, keep=False) as stream:
            while len(content) <= _LARGEST and (piece := stream.read(1 << 16)):
                content += piece
        if len(content) > _LARGEST:
            raise FetchError(f"{remote.url}: larger than a file of keys may be ({_LARGEST} bytes)", url=remote.url)
        return content

    @staticmethod
    def _request(insecure: Collection[str]) -> FetchRequest:
        """Makes the request for keys: ``pubkey`` allows plain http for keys, and for nothing else."""
        allowed = frozenset(insecure)
        return FetchRequest(*host_platform(), allowed | {RELAX_HTTP} if "pubkey" in allowed else allowed)
