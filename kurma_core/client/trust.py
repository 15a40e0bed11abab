"""Whose signatures count, in process."""

from __future__ import annotations

from kurma_core.client.rooms import Rooms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from kurma_core.api.trust import Key, TrustChange, TrustedKey


class TrustCalls(Rooms):
    def trust_list(self) -> tuple[TrustedKey, ...]:
        """Every key of the keystores."""
        return self.images.keys.list()

    def trust_parse(self, data: bytes, source: str) -> tuple[Key, ...]:
        """The public keys in what the caller has read. :raises TrustError: there is none."""
        return self.images.keys.parse(data, source)

    def trust_read(self, source: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        """See :meth:`KeyManager.read`."""
        return self.images.keys.read(source, insecure)

    def trust_discover(self, name: str, insecure: Collection[str] = frozenset()) -> tuple[Key, ...]:
        """See :meth:`KeyManager.discover`."""
        return self.images.keys.discover(name, insecure)

    def trust_add(self, key: Key, prefix: str | None) -> TrustChange:
        """Trust it for images of that prefix; None: for all. :raises TrustError: it cannot be written."""
        return self.images.keys.add(key, prefix)

    def trust_rm(self, reference: str, prefix: str | None, *, dry_run: bool = False) -> TrustChange:
        """Trust it no longer. :raises TrustError: no such key is trusted there."""
        return self.images.keys.remove(reference, prefix, dry_run=dry_run)


__all__ = ["TrustCalls"]
