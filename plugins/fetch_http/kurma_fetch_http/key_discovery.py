"""Discovers the public keys for an image's name, by the ``ac-discovery-pubkeys`` meta tags of its host's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kurma_core.errors import FetchError, UsageError
from kurma_core.hookspecs.fetcher import PublicKey
from kurma_fetch_http.discovery import check_host
from kurma_fetch_http.meta_tags import KEYS
from kurma_fetch_http.transport import shown
from kurma_fetch_http.web_archive import small_body

if TYPE_CHECKING:
    from kurma_fetch_http.discovery import Discovery

#: Most bytes of a file of keys, which has some kilobytes.
_KEYS_LIMIT = 1 << 20


def discover_keys(discovery: Discovery, name: str) -> tuple[PublicKey, ...]:
    """Fetches the keys published for names that begin with ``name``; empty: none are published.

    :raises FetchError: one of its subclasses. :raises UsageError: the name does not begin with a host.
    """
    check_host(name)
    addresses = dict.fromkeys(tag.target for tag in discovery.walk(name, KEYS) if discovery.is_open(tag))
    found = []
    for address in addresses:
        try:
            data = small_body(discovery.transport, address, _KEYS_LIMIT, "keys")
        except FetchError as error:
            discovery.failures.append(error)
            continue
        except UsageError as error:  # the page, not the user, wrote the malformed address
            discovery.failures.append(FetchError(error.message, url=address))
            continue
        discovery.tried.append(address)
        if data is not None:
            found.append(PublicKey(data, shown(address)))
    if not found and (discovery.failures or discovery.tried):
        raise discovery.nothing(name)
    return tuple(found)
