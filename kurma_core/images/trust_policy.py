"""Decides whether an image is trusted: what must vouch for it, what does, and what the run allows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from kurma_core.appc.image_name import ImageName
from kurma_core.errors import FetchDigestError, TrustError, UsageError
from kurma_core.fetching import NAMED
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.fetcher import DetachedSignature, RemoteArchive, RemoteLayers
    from kurma_core.hookspecs.renderer import ImageNode
    from kurma_core.image_store.staging import StagedImage
    from kurma_core.models.image import ImageRecord, Provenance
    from kurma_core.trust import Trust


#: Words of :class:`kurma_core.models.image.Provenance` that satisfy a policy, wherever the image came from.
_SATISFIES: Mapping[str, frozenset[str]] = {
    "signed": frozenset(("built", "signed")),
    "digest": frozenset(("built", "signed", "digest")),
}
_ORDER = ("built", "signed", "digest", "local", "unverified")
#: Digits of a truncated ID for which nobody finds another image: what early documents have, 160 bits.
ENOUGH_DIGITS = 40
#: The relaxations there are, and what is said when one is in force.
RELAXATIONS: Mapping[str, str] = {
    "image": "images are not verified",
    "tls": "certificates are not verified",
    "http": "plain http is allowed",
    "pubkey": "keys may be found over plain http",
}


def _any_signer(name: str, provenance: Provenance) -> str | None:
    return None


@frozen
class Policy:
    """One run's rules.

    :param sources: policy word by source: ``named``, ``https``, ``http``, ``docker``, ``file``.
    :param insecure: relaxations of this run.
    :param plain: host[:port] of the registries that are listed as insecure.
    :param lapse: why the key that signed an image of that name when it came in counts for it no longer
        (``unknown``, ``revoked``); None: it does still.
    """

    sources: Mapping[str, str]
    insecure: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    lapse: Callable[[str, Provenance], str | None] = field(default=_any_signer)

    def word(self, source: str) -> str:
        """``signed``, ``digest`` or ``any``."""
        return "any" if "image" in self.insecure else self.sources[source]

    def accepts(self, record: ImageRecord, source: str, locator: str) -> bool:
        """Whether an image of the store is good enough for a locator.

        What came by another locator says nothing: another address may have had another image's name.
        """
        return any(
            self._satisfied(record, provenance, source) or self._excused(provenance, source)
            for provenance in record.provenance
            if provenance.locator == locator
        )

    def trust(self, record: ImageRecord) -> str:
        """The strongest word that vouches for an image of the store now: a signature by a key that was revoked, or
        is not trusted for the name any more, vouches for nothing."""
        return min((self._word_now(record, each) for each in record.provenance), key=_ORDER.index)

    def _word_now(self, record: ImageRecord, provenance: Provenance) -> str:
        stale = provenance.trust == "signed" and self.lapse(record.name, provenance) is not None
        return "unverified" if stale else provenance.trust

    def _satisfied(self, record: ImageRecord, provenance: Provenance, source: str) -> bool:
        word = self.word(source)
        if word == "any":
            # A file that came in by a key which counts no longer is judged anew, as if it had never come.
            return "image" in self.insecure or self._word_now(record, provenance) == provenance.trust
        return provenance.trust in _SATISFIES[word] and self._word_now(record, provenance) in _SATISFIES[word]

    def _excused(self, provenance: Provenance, source: str) -> bool:
        """Images of registries: a file of this machine needs no TLS on its way; and what came over plain HTTP is
        excused for as long as that is allowed."""
        if source != "docker" or self.word(source) != "digest":
            return False
        if provenance.trust == "local":
            return True
        from urllib.parse import urlsplit

        plain = "http" in self.insecure or urlsplit(provenance.url or "").netloc in self.plain
        return plain and provenance.trust == "unverified" and set(provenance.insecure) <= {"http"}

    def accepts_by_name(self, record: ImageRecord) -> bool:
        """Whether an image of the store may stand for its name. What came from a registry does if that source's
        policy is met: its name is the registry's. A local file's name is whatever its maker wrote."""
        if self.word("named") == "any":
            return True
        return any(
            self._satisfied(record, provenance, "docker" if _is_docker(provenance.locator) else "named")
            for provenance in record.provenance
        )


def relaxations(names: Collection[str]) -> frozenset[str]:
    """:raises UsageError: there is no such relaxation."""
    for name in names:
        if name not in RELAXATIONS:
            raise UsageError(f"{name}: no such relaxation", hint=f"there are: {', '.join(RELAXATIONS)}")
    return frozenset(names)


def tell_relaxations(insecure: Collection[str], what: str, note: Callable[[str], None]) -> None:
    """A run with relaxations says so, whether the image is fetched or in the store already."""
    for name in sorted(insecure):
        note(f"{what}: {RELAXATIONS[name]} (--insecure-options={name})")


def at_least(trust: str, other: str) -> bool:
    """Whether the first word vouches for as much as the second."""
    return _ORDER.index(trust) <= _ORDER.index(other)


def refused_by_name(record: ImageRecord, lapse: str | None = None) -> TrustError:
    """The store's image of that name came in with less than the policy wants.

    :param lapse: as of :class:`Policy`, for the last way that it came in.
    """
    version = f":{record.version}" if record.version else ""
    came = record.provenance[-1]
    if came.trust == "signed":
        revoked = lapse == "revoked"
        fault = "was revoked" if revoked else "is not trusted for it"
        advice = (
            "ask for an image that is signed by another key of its owner"
            if revoked
            else f"if you trust that key: kurma trust add --prefix {record.name} [KEYFILE]"
        )
        return TrustError(
            f"{record.name}{version}: the image in the store was signed by a key that {fault} "
            f"(key {came.fingerprint})",
            hint=f"{advice}; or name the image by its ID ({record.id[:19]})",
            image=record.id,
            fingerprint=came.fingerprint,
        )
    return TrustError(
        f"{record.name}{version}: the image in the store came in {_WORDS[came.trust]} (from {came.locator})",
        hint=f"name it by its ID ({record.id[:19]}) or address; or for this run: --insecure-options=image",
        image=record.id,
    )


_WORDS = {
    "local": "from a local file, without a signature",
    "unverified": "unverified",
    "digest": "without a signature",
    "signed": "signed",
    "built": "built here",
}


def _is_docker(locator: str) -> bool:
    return locator.startswith("docker:")


@frozen
class Expectation:
    """:param name: None: nothing was asked for by name, and whatever name the image has is its own.
    :param image_id: whole, or (``sha256-…``, of early documents) the start of one; None: any.
    :param size: bytes of the archive as shipped; None: any.
    """

    name: ImageName | None = None
    image_id: str | None = None
    size: int | None = None

    @classmethod
    def of(cls, locator: Locator) -> Expectation:
        """What a locator asks for."""
        if locator.scheme != NAMED or locator.name is None:
            return cls()
        return cls(ImageName(locator.name, locator.version, locator.labels))

    def fits(self, record: ImageRecord) -> bool:
        """Whether an image of the store, which came by the same locator, will do."""
        return self.image_id is None or _begins(self.image_id, (record.id, record.early_id or ""))

    def check_announced(self, remote: RemoteArchive) -> None:
        """Before a byte is read. :raises FetchDigestError: it is of another size than it should be."""
        if remote.blob.size is not None:
            self._check_size(remote, remote.blob.size)

    def check(self, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]) -> None:
        """Before the image is let in.

        :param platform: os and arch wanted, where the name says nothing of them.
        :raises TrustError: it has another name, or other labels. :raises FetchDigestError: another ID or size.
        """
        if self.name is not None:
            self._check_name(remote, staged, platform)
        self._check_size(remote, os.stat(staged.archive_path).st_size)
        if self.image_id is not None and not _begins(self.image_id, (staged.id, staged.early_id)):
            found = staged.early_id if self.image_id.startswith("sha256-") else staged.id
            raise FetchDigestError(
                f"{remote.locator}: the image at {remote.url} has the ID {found[:19]}…, not {self.image_id[:19]}…",
                hint="what is asked for by its ID is not published there (any more): ask the owner of the name",
                image=staged.id,
            )

    def _check_name(self, remote: RemoteArchive, staged: StagedImage, platform: tuple[str, str]) -> None:
        assert self.name is not None
        manifest = staged.manifest
        labels = {label.name: label.value for label in manifest.labels}
        found = ImageName.of(manifest.name, labels)
        if not self.name.is_met_by(manifest.name, labels):
            raise TrustError(
                f"{remote.locator}: the image at {remote.url} is another one: {found.shown}",
                hint="ask the owner of the name, or name that image itself",
                image=staged.id,
            )
        for label, wanted in zip(("os", "arch"), platform, strict=True):
            if label not in self.name.labels and labels.get(label, wanted) != wanted:
                raise TrustError(
                    f"{remote.locator}: the image at {remote.url} is for {label} {labels[label]}, not {wanted}",
                    hint=f"if that is meant, ask for it: {self.name.shown},{label}={labels[label]}",
                    image=staged.id,
                )

    def _check_size(self, remote: RemoteArchive, size: int) -> None:
        if self.size is not None and size != self.size:
            raise FetchDigestError(
                f"{remote.locator}: the image at {remote.url} has {size} bytes, not {self.size}"
            )


def _begins(wanted: str, ids: tuple[str, str]) -> bool:
    return any(ident.startswith(wanted) for ident in ids)


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
        """:param source: ``named``, ``https``, ``http`` or ``file``, as of :class:`Policy`.
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
    import ipaddress
    from urllib.parse import urlsplit

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


@frozen
class Vouchers:
    """:param signers: fingerprints of the keys that signed it and are trusted for its name now.
    :param lapsed: of those that count no longer, with the reason: ``unknown`` or ``revoked``.
    :param digests: its ID, also as early documents have it, and the digests of the registries' manifests that it
        came as.
    :param parts: images that it is made of besides and that it does not name by their whole ID: their content is
        not settled by its own.
    """

    id: str
    name: str
    signers: tuple[str, ...]
    lapsed: Mapping[str, str]
    digests: frozenset[str]
    parts: tuple[Vouchers, ...] = field(default=())


def vouchers(record: ImageRecord, lapse: Callable[[str, Provenance], str | None]) -> Vouchers:
    """:param lapse: why a signature by which an image of that name came in counts no longer; None: it does.
    :raises TrustError: a keystore cannot be read, or others may write it.
    """
    signers: dict[str, str | None] = {}
    for one in record.provenance:
        # What a signature was over in an encrypted archive is not what is in the store.
        if one.trust == "signed" and one.fingerprint is not None and not one.encrypted:
            signers[one.fingerprint] = lapse(record.name, one)
    return Vouchers(
        id=record.id,
        name=record.name,
        signers=tuple(key for key, why in signers.items() if why is None),
        lapsed={key: why for key, why in signers.items() if why is not None},
        digests=frozenset(filter(None, [record.id, record.early_id, *(one.digest for one in record.provenance)])),
    )


def loose_parts(node: ImageNode) -> Iterator[str]:
    """IDs of the dependencies, at any depth, that are not named by their whole ID."""
    for wanted, found in zip(node.manifest.dependencies, node.dependencies, strict=True):
        if wanted.image_id is None or len(wanted.image_id.partition("-")[2]) < ENOUGH_DIGITS:
            yield found.id
        yield from loose_parts(found)
