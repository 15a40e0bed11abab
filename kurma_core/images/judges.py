"""Who decides whether an image may come in, and whether one in the store will do."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from kurma_core.errors import TrustError
from kurma_core.fetching import NAMED
from kurma_core.images.policy import Policy
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.fetcher import DetachedSignature, RemoteArchive, RemoteLayers
    from kurma_core.image_store.staging import StagedImage
    from kurma_core.models.image import ImageRecord, Provenance
    from kurma_core.trust import Trust


@frozen
class Voucher:
    """What vouches for an image: words and facts of :class:`kurma_core.models.image.Provenance`."""

    trust: str
    fingerprint: str | None = None
    digest: str | None = None
    insecure: tuple[str, ...] = ()


class Judge(Protocol):
    """Judges an image that has been read (an archive) or found (layers), and is not in the store yet."""

    def archive(self, remote: RemoteArchive, staged: StagedImage, *, source: str) -> Voucher:
        """:param source: ``named``, ``https``, ``http`` or ``file``, as of :class:`.policy.Policy`.
        :raises TrustError: it is not to come in.
        """
        ...

    def layers(self, remote: RemoteLayers) -> Voucher:
        """:raises TrustError: it is not to come in."""
        ...

    def accepts(self, record: ImageRecord, locator: Locator) -> bool:
        """Whether an image of the store may be used for the locator; if not, it is fetched and judged anew."""
        ...

    def doubts(self, record: ImageRecord, remote: RemoteArchive) -> bool:
        """Whether an image that may be used, and that its source has still, is judged anew all the same."""
        ...


class PolicyJudge:
    """Judges by ``trust`` of ``kurma.yml`` and the relaxations of the run (K4)."""

    def __init__(self, policy: Policy, trust: Trust) -> None:
        self._policy = policy
        self._trust = trust

    def archive(self, remote: RemoteArchive, staged: StagedImage, *, source: str) -> Voucher:
        """TLS stands for the content digest that an archive's address cannot hold."""
        policy = self._policy
        if "image" in policy.insecure:
            return Voucher("unverified")
        word = policy.word(source)
        tls = remote.transport == "https" and "tls" not in policy.insecure
        if word == "signed" or (word == "digest" and not tls):
            return self._verified(remote, staged)
        if word == "digest":
            return Voucher("digest")
        if remote.transport != "file":
            return Voucher("unverified")
        return self._verified_if_signed(remote, staged)

    def layers(self, remote: RemoteLayers) -> Voucher:
        """A content digest that came over TLS, or was pinned by the user, vouches for a registry's image; so does
        one from this machine's own loopback, where nobody stands between. Over plain HTTP nothing does: it comes
        in as unverified, and only where the fetcher may speak plain HTTP at all."""
        policy = self._policy
        if "image" in policy.insecure:
            return Voucher("unverified")
        if policy.word("docker") == "signed":
            raise TrustError(
                f"{remote.locator}: images from registries carry no signatures, and the policy wants one",
                hint="set trust.docker to digest in kurma.yml, or for this run: --insecure-options=image",
            )
        if remote.transport == "file":
            return Voucher("local", digest=remote.digest)
        tls = remote.transport == "https" and "tls" not in policy.insecure
        if tls or remote.pinned or is_loopback(remote.url):
            return Voucher("digest", digest=remote.digest)
        relaxed = ("http",) if remote.transport == "http" else ()
        return Voucher("unverified", digest=remote.digest, insecure=relaxed)

    def accepts(self, record: ImageRecord, locator: Locator) -> bool:
        source = {NAMED: "named"}.get(locator.scheme, locator.scheme)
        if source not in ("named", "http", "https", "file"):
            source = "docker"
        return self._policy.accepts(record, source, locator.text)

    def doubts(self, record: ImageRecord, remote: RemoteArchive) -> bool:
        """A file that came in unsigned, and now has a signature beside it, while keys are trusted for its name."""
        if remote.transport != "file" or "image" in self._policy.insecure:
            return False
        if any(one.trust == "signed" and one.locator == remote.locator for one in record.provenance):
            return False  # by a key that counts still, or it were not accepted
        return bool(self._trust.keys_for(record.name)) and remote.signature() is not None

    def _verified(self, remote: RemoteArchive, staged: StagedImage) -> Voucher:
        name = staged.manifest.name
        signature = remote.signature()
        if signature is None:
            raise TrustError(
                f"{remote.locator}: the image {name} is not signed (there is no {remote.url}.asc)",
                hint="for this run alone: --insecure-options=image",
                image=staged.id,
            )
        keys = self._trust.keys_for(name)
        signed = signed_bytes(staged, signature)
        return Voucher("signed", self._trust.verify(signed, signature.data, keys, what=remote.locator, name=name))

    def _verified_if_signed(self, remote: RemoteArchive, staged: StagedImage) -> Voucher:
        """A file needs no signature; if one is beside it, and keys are trusted for the name, it must be right."""
        name = staged.manifest.name
        keys = self._trust.keys_for(name)
        if not keys or (signature := remote.signature()) is None:
            return Voucher("local")
        signed = signed_bytes(staged, signature)
        return Voucher("signed", self._trust.verify(signed, signature.data, keys, what=remote.locator, name=name))


class HostJudge:
    """Judges images that run with host privilege (K5): no option skips it.

    :param keys: fingerprints that ``kurma.yml`` lists for the purpose, or this machine's own.
    :param digests: what ``kurma.yml`` pins, by locator.
    """

    def __init__(self, trust: Trust, keys: Collection[str], pinned: str | None) -> None:
        self._trust = trust
        self._keys = tuple(keys)
        self._pinned = pinned

    def archive(self, remote: RemoteArchive, staged: StagedImage, *, source: str) -> Voucher:
        if self._pinned is not None:
            self._check_pin(remote.locator, (staged.id, _file_digest(staged.archive_path)))
            return Voucher("digest", digest=self._pinned)
        signature = remote.signature()
        if signature is None:
            raise TrustError(
                f"{remote.locator}: runs with host privilege, and is not signed (there is no {remote.url}.asc)",
                hint=f"sign it, or pin it in kurma.yml: host_image_digests: {{{remote.locator}: {staged.id}}}",
                image=staged.id,
            )
        signed = signed_bytes(staged, signature)
        fingerprint = self._trust.verify_host_image(signed, signature.data, what=remote.locator)
        return Voucher("signed", fingerprint)

    def layers(self, remote: RemoteLayers) -> Voucher:
        if self._pinned is None:
            raise TrustError(
                f"{remote.locator}: runs with host privilege, and an image from a registry cannot be signed",
                hint=f"pin it in kurma.yml: host_image_digests: {{{remote.locator}: {remote.digest}}}",
            )
        self._check_pin(remote.locator, (remote.digest,))
        return Voucher("digest", digest=remote.digest)

    def accepts(self, record: ImageRecord, locator: Locator) -> bool:
        return any(p.locator == locator.text and self.vouches(record, p) for p in record.provenance)

    def doubts(self, record: ImageRecord, remote: RemoteArchive) -> bool:
        return False  # it was accepted by what vouches for it today

    def vouches(self, record: ImageRecord, provenance: Provenance) -> bool:
        """Whether it would come in today as it came in then: keys and pins may have changed since."""
        if provenance.encrypted:
            return False
        if self._pinned is not None:
            return self._pinned in (record.id, provenance.digest)
        signer = provenance.fingerprint
        if provenance.trust == "built":
            return signer in self._keys
        return (
            provenance.trust == "signed"
            and signer is not None
            and self._trust.still_trusts_host_key(signer, provenance.fetched_at)
        )

    def _check_pin(self, locator: str, found: tuple[str, ...]) -> None:
        if self._pinned not in found:
            raise TrustError(
                f"{locator}: its digest is {found[-1]}, and kurma.yml pins {self._pinned}",
                hint="if the new image is meant, change host_image_digests in kurma.yml",
            )


def signed_bytes(staged: StagedImage, signature: DetachedSignature) -> str | Iterator[bytes]:
    """What the signature is over: the archive as shipped, by its path, or the tar in it, unpacked (K3)."""
    return staged.tar() if signature.over == "tar" else staged.archive_path


def is_loopback(url: str) -> bool:
    """Whether the address is on this machine by its loopback interface."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _file_digest(path: str) -> str:
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
