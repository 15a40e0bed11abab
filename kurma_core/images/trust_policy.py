"""Decides whether an image is trusted: what the policy requires, what vouches for the image, and what the run
relaxes.

An image is accepted into the store only with a :class:`Voucher`, whose word is recorded as ``trust`` in its
provenance: ``built`` (by this machine), ``signed``, ``digest`` (a content digest, or TLS in its place), ``local``
(a file of this machine) or ``unverified``. At each later use, the recorded words are compared with the rules of
that run, and with the keys as they are then. :class:`TrustPolicy` has the rules of ``kurma.yml`` for images of
apps, :class:`HostTrustPolicy` those for images that run with host privilege.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import TrustError, UsageError
from kurma_core.fetching import Fetching
from kurma_core.models.image import LOCAL, NAMED, PLAIN, REGISTRY, TLS, TRUST
from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.fetching import Locator
    from kurma_core.hookspecs.fetcher import DetachedSignature, RemoteArchive, RemoteLayers
    from kurma_core.hookspecs.renderer import ImageNode
    from kurma_core.image_store.staging import StagedImage
    from kurma_core.models.image import ImageRecord, Provenance
    from kurma_core.trust import Trust

#: The words that satisfy a policy, wherever the image came from.
_SATISFIES: Mapping[str, frozenset[str]] = {
    "signed": frozenset(("built", "signed")),
    "digest": frozenset(("built", "signed", "digest")),
}
#: The reason of the error for an image that was built here and whose name belongs to a publisher.
BUILT_HERE = "built here"
#: Digits of a truncated ID that is still safe: early documents give 160 bits, too many to find another image for.
ENOUGH_DIGITS = 40
#: The relaxation that allows plain HTTP.
RELAX_HTTP = "http"
#: The known relaxations, each with the warning that is shown while it is in force.
RELAXATIONS: Mapping[str, str] = {
    "image": "images are not verified",
    "tls": "certificates are not verified",
    RELAX_HTTP: "plain http is allowed",
    "pubkey": "keys may be found over plain http",
}


@frozen
class Voucher:
    """The trust word and the facts that vouch for an image; fields of
    :class:`kurma_core.models.image.Provenance`."""

    trust: str
    fingerprint: str | None = None
    digest: str | None = None
    insecure: tuple[str, ...] = ()


@frozen
class TrustPolicy:
    """The rules of one run: ``trust`` of ``kurma.yml`` and the relaxations of the command line.

    :param sources: policy word by source, see :data:`kurma_core.models.image.SOURCES`.
    :param insecure: relaxations of this run.
    :param plain: host[:port] of the registries that are listed as insecure.
    :param keys: the keystores; None: every signature that was verified still counts.
    """

    sources: Mapping[str, str]
    insecure: frozenset[str] = frozenset()
    plain: frozenset[str] = frozenset()
    keys: Trust | None = None

    def word(self, source: str | None) -> str:
        """``signed``, ``digest`` or ``any``. An image without a source was built here, and must be signed."""
        if "image" in self.insecure:
            return "any"
        return "signed" if source is None else self.sources[source]

    # --- new images
    # -----------------------------------------------------------------------------------------------

    def judge_archive(self, remote: RemoteArchive, staged: StagedImage, *, source: str) -> Voucher:
        """Judges an archive that has been read. For an address, which has no content digest, TLS takes the
        digest's place.

        :param source: one of :data:`kurma_core.models.image.SOURCES`.
        :raises TrustError: the archive is not accepted.
        """
        if "image" in self.insecure:
            return Voucher("unverified")
        word = self.word(source)
        tls = remote.transport == TLS and "tls" not in self.insecure
        if word == "signed" or (word == "digest" and not tls):
            return self._verified(remote, staged, required=True)
        if word == "digest":
            return Voucher("digest")
        if remote.transport != LOCAL:
            return Voucher("unverified")
        return self._verified(remote, staged, required=False)

    def judge_layers(self, remote: RemoteLayers) -> Voucher:
        """Judges an image of a registry.

        A content digest vouches for it if it came over TLS, was pinned by the user, or came from a registry on
        this machine's loopback. Nothing vouches for an image that came over plain HTTP.

        :raises TrustError: the image is not accepted.
        """
        if "image" in self.insecure:
            return Voucher("unverified")
        if self.word(REGISTRY) == "signed":
            raise TrustError(
                f"{remote.locator}: the policy requires a signature, and images from registries have none",
                hint="set trust.registry to digest in kurma.yml, or for this run: --insecure-options=image",
            )
        if remote.transport == LOCAL:
            return Voucher("local", digest=remote.digest)
        tls = remote.transport == TLS and "tls" not in self.insecure
        if tls or remote.pinned or is_loopback(remote.url):
            return Voucher("digest", digest=remote.digest)
        relaxed = (RELAX_HTTP,) if remote.transport == PLAIN else ()
        return Voucher("unverified", digest=remote.digest, insecure=relaxed)

    def _verified(self, remote: RemoteArchive, staged: StagedImage, *, required: bool) -> Voucher:
        """:param required: False: a file needs no signature; but if there is one beside it, and keys are trusted
        for the image's name, the signature must be good."""
        assert self.keys is not None
        name = staged.manifest.name
        keys = self.keys.keys_for(name) if not required else {}
        signature = Fetching.signature(remote) if required or keys else None
        if signature is None:
            if not required:
                return Voucher("local")
            raise TrustError(
                f"{remote.locator}: the image {name} is not signed (there is no {remote.url}.asc)",
                hint="for this run alone: --insecure-options=image",
                image=staged.id,
            )
        keys = keys or self.keys.keys_for(name)
        signed = _signed_bytes(staged, signature)
        return Voucher("signed", self.keys.verify(signed, signature.data, keys, what=remote.locator, name=name))

    # --- images of the store -------------------------------------------------------------------------------------

    def accepts(self, record: ImageRecord, locator: Locator) -> bool:
        """Whether an image of the store may be used for the locator; if not, it is fetched and judged anew.

        Arrivals by other locators do not count, since another address may have served a different image under that
        name.
        """
        return any(
            self._satisfied(record, came, came.source) or self._excused(came)
            for came in record.provenance
            if came.locator == locator.text
        )

    def accepts_by_name(self, record: ImageRecord) -> bool:
        """Whether an image of the store may be used for its name. An image from a registry may if the policy of
        that source is satisfied, since its name is the registry's. The name in a local file can be anything. For
        an image that was only built here, see :meth:`accepts_built_here`."""
        if self.word(NAMED) == "any":
            return not is_only_built_here(record)
        return any(
            self._satisfied(record, came, REGISTRY if _is_named_by_registry(came) else NAMED)
            for came in record.provenance
        )

    def accepts_built_here(self, record: ImageRecord) -> bool:
        """Whether an image that ``kurma image build`` put into a store may be used for its name: this state
        directory's key for it signed it, or the policy takes any image; and no key is trusted for the name."""
        if self.keys is None:
            return False
        key, any_key = self.keys.build_key.known(), self.word(NAMED) == "any"
        built = any(is_built_here(came) and (any_key or came.fingerprint == key) for came in record.provenance)
        return built and not self.publishers(record)

    def publishers(self, record: ImageRecord) -> tuple[str, ...]:
        """The keys that are trusted for the image's name. They close it to images that were built here."""
        return () if self.keys is None else tuple(self.keys.keys_for(record.name))

    def accepts_for(self, record: ImageRecord, dependent: ImageRecord) -> bool:
        """Whether an image of the store may be the dependency that an image names without its whole ID: the policy
        accepts it for its name, or it is vouched for as well as the image that names it. A key that is trusted for
        its name closes it to an image that was only built here."""
        if is_only_built_here(record) and self.publishers(record):
            return False
        if self.accepts_by_name(record) or (self.word(NAMED) == "any" and self.accepts_built_here(record)):
            return True
        return TRUST.index(self.trust(record)) <= TRUST.index(self.trust(dependent))

    def must_judge_again(self, record: ImageRecord, remote: RemoteArchive) -> bool:
        """Whether an image that is accepted, and that its source still has, is judged again: a file that came in
        unsigned, and now has a signature beside it, while keys are trusted for its name."""
        if remote.transport != LOCAL or "image" in self.insecure or self.keys is None:
            return False
        if any(one.trust == "signed" and one.locator == remote.locator for one in record.provenance):
            return False  # by a key that still counts: the record was accepted
        return bool(self.keys.keys_for(record.name)) and Fetching.signature(remote) is not None

    def trust(self, record: ImageRecord) -> str:
        """The strongest word that vouches for an image of the store now. A signature does not count if its key was
        revoked, or is no longer trusted for the name."""
        return min((self._word_now(record.name, each) for each in record.provenance), key=TRUST.index)

    def lapse(self, record: ImageRecord) -> str | None:
        """The reason why a signature by which an image was accepted no longer counts: ``unknown`` (its key is not
        trusted for the name) or ``revoked``. None: no signature has lapsed."""
        signed = [one for one in record.provenance if one.trust == "signed"]
        found = {self._lapse(record.name, one) for one in signed} - {None}
        return max(found, default=None, key=lambda word: word == "revoked")

    def refusal_by_name(self, record: ImageRecord) -> TrustError:
        """The error if :meth:`accepts_by_name` is False: the last arrival of the image does not satisfy the
        policy."""
        version = f":{record.version}" if record.version else ""
        came = record.provenance[-1]
        if is_built_here(came):
            publishers = self.publishers(record)
            fault = (
                f"a key is trusted for that name ({publishers[0]})"
                if publishers
                else f"its key is not this state directory's ({came.fingerprint})"
            )
            advice = "" if publishers else "; or build it again"
            return TrustError(
                f"{record.name}{version}: the image in the store was built here, and {fault}",
                hint=f"name it by its ID ({record.id[:19]}){advice}",
                image=record.id,
                fingerprint=came.fingerprint,
                reason=BUILT_HERE,
            )
        if came.trust == "signed":
            revoked = self._lapse(record.name, came) == "revoked"
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
            f"{record.name}{version}: the stored image was fetched {_WORDS[came.trust]} (from {came.locator})",
            hint=f"name it by its ID ({record.id[:19]}) or address; or for this run: --insecure-options=image",
            image=record.id,
        )

    def vouchers(self, record: ImageRecord, parts: tuple[Vouchers, ...] = ()) -> Vouchers:
        """The signatures and digests that presently vouch for an image of the store.

        :raises TrustError: a keystore cannot be read, or other users can write it.
        """
        signers: dict[str, str | None] = {}
        for one in record.provenance:
            # The signature of an encrypted archive is over its encrypted bytes, not over the store's.
            if one.trust == "signed" and one.fingerprint is not None and not one.encrypted:
                signers[one.fingerprint] = self._lapse(record.name, one)
        return Vouchers(
            id=record.id,
            name=record.name,
            signers=tuple(key for key, why in signers.items() if why is None),
            lapsed={key: why for key, why in signers.items() if why is not None},
            digests=frozenset(
                filter(None, [record.id, record.early_id, *(one.digest for one in record.provenance)])
            ),
            parts=parts,
        )

    def _lapse(self, name: str, provenance: Provenance) -> str | None:
        """The reason why the key that signed an image of that name no longer counts: ``unknown``, ``revoked``;
        None: it still counts."""
        if self.keys is None:
            return None
        if provenance.fingerprint is None:
            return "unknown"
        return self.keys.lapse(name, provenance.fingerprint, provenance.fetched_at)

    def _word_now(self, name: str, provenance: Provenance) -> str:
        stale = provenance.trust == "signed" and self._lapse(name, provenance) is not None
        return "unverified" if stale else provenance.trust

    def _satisfied(self, record: ImageRecord, provenance: Provenance, source: str | None) -> bool:
        word = self.word(source)
        if word == "any":
            # A file whose signature has lapsed is judged like a new one.
            return "image" in self.insecure or self._word_now(record.name, provenance) == provenance.trust
        enough = _SATISFIES[word]
        return provenance.trust in enough and self._word_now(record.name, provenance) in enough

    def _excused(self, provenance: Provenance) -> bool:
        """Images of registries: a file of this machine needs no TLS on its way; and an image that came over plain
        HTTP is excused for as long as that is allowed."""
        if provenance.source != REGISTRY or self.word(REGISTRY) != "digest":
            return False
        if provenance.trust == "local":
            return True
        from urllib.parse import urlsplit

        plain = RELAX_HTTP in self.insecure or urlsplit(provenance.url or "").netloc in self.plain
        return plain and provenance.trust == "unverified" and set(provenance.insecure) <= {RELAX_HTTP}


def is_built_here(came: Provenance) -> bool:
    """Whether ``kurma image build`` put it into the store: a local file without a source, signed with the key for
    such images. Its word of trust is that of other local files, so that it satisfies no policy and no grant."""
    return came.trust == "local" and came.source is None and came.fingerprint is not None


def is_only_built_here(record: ImageRecord) -> bool:
    """Whether nothing else has brought the image into the store: an image of its name that did come from elsewhere
    is used before it."""
    return all(map(is_built_here, record.provenance))


def _is_named_by_registry(came: Provenance) -> bool:
    return came.source == REGISTRY and came.transport != LOCAL


class HostTrustPolicy:
    """The rules for images that run with host privilege. No option relaxes them.

    :param pinned: the digest that ``host_image_digests`` of ``kurma.yml`` pins for the image; None: it must be
        signed by a key that ``trusted_host_keys`` lists.
    """

    def __init__(self, trust: Trust, pinned: str | None) -> None:
        self._trust = trust
        self._keys = trust.host_keys()
        self._pinned = pinned

    def judge_archive(self, remote: RemoteArchive, staged: StagedImage, *, source: str) -> Voucher:
        """See :meth:`TrustPolicy.judge_archive`."""
        if self._pinned is not None:
            self._check_pin(remote.locator, (staged.id, _file_digest(staged.archive_path)))
            return Voucher("digest", digest=self._pinned)
        signature = Fetching.signature(remote)
        if signature is None:
            raise TrustError(
                f"{remote.locator}: cannot run with host privilege: it is not signed (there is no "
                f"{remote.url}.asc)",
                hint=f"sign it, or pin it in kurma.yml: host_image_digests: {{{remote.locator}: {staged.id}}}",
                image=staged.id,
            )
        signed = _signed_bytes(staged, signature)
        return Voucher("signed", self._trust.verify_host_image(signed, signature.data, what=remote.locator))

    def judge_layers(self, remote: RemoteLayers) -> Voucher:
        """See :meth:`TrustPolicy.judge_layers`."""
        if self._pinned is None:
            raise TrustError(
                f"{remote.locator}: cannot run with host privilege: images from registries have no signatures",
                hint=f"pin it in kurma.yml: host_image_digests: {{{remote.locator}: {remote.digest}}}",
            )
        self._check_pin(remote.locator, (remote.digest,))
        return Voucher("digest", digest=remote.digest)

    def accepts(self, record: ImageRecord, locator: Locator) -> bool:
        """See :meth:`TrustPolicy.accepts`."""
        return any(p.locator == locator.text and self.vouches(record, p) for p in record.provenance)

    def must_judge_again(self, record: ImageRecord, remote: RemoteArchive) -> bool:
        """Never: the record was accepted by what vouches for it today."""
        return False

    def vouches(self, record: ImageRecord, provenance: Provenance) -> bool:
        """Whether the image would be accepted today in the same way as at its arrival: keys and pins may have
        changed since."""
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


def _signed_bytes(staged: StagedImage, signature: DetachedSignature) -> str | Iterator[bytes]:
    """The bytes that were signed: the archive as shipped, by its path, or the tar in it, decompressed."""
    return staged.tar() if signature.over == "tar" else staged.archive_path


def _file_digest(path: str) -> str:
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


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


_WORDS = {
    "local": "from a local file, without a signature",
    "unverified": "unverified",
    "digest": "without a signature",
    "signed": "signed",
    "built": "built here",
}


# --- relaxations of a run ----------------------------------------------------------------------------------------


def relaxations(names: Collection[str]) -> frozenset[str]:
    """:raises UsageError: a word is not a known relaxation."""
    for name in names:
        if name not in RELAXATIONS:
            raise UsageError(f"{name}: unknown check", hint=f"there are: {', '.join(RELAXATIONS)}")
    return frozenset(names)


def tell_relaxations(insecure: Collection[str], what: str, note: Callable[[str], None]) -> None:
    """Notes each relaxation of the run, whether the image is fetched or in the store already."""
    for name in sorted(insecure):
        note(f"{what}: {RELAXATIONS[name]} (--insecure-options={name})")


# --- signatures and digests of an image, for grants ----------------------------------------------------------


@frozen
class Vouchers:
    """The signatures and digests that vouch for an image now; grants are matched with them.

    :param signers: fingerprints of the keys that signed it and are trusted for its name now.
    :param lapsed: of signers that no longer count, with the reason: ``unknown`` or ``revoked``.
    :param digests: its ID, also in the form of early documents, and the digests of the registry manifests by which
        it came.
    :param parts: images that it consists of besides and does not name by their whole ID, so that its own ID does
        not determine their content.
    """

    id: str
    name: str
    signers: tuple[str, ...]
    lapsed: Mapping[str, str]
    digests: frozenset[str]
    parts: tuple[Vouchers, ...] = field(default=())


def loose_parts(node: ImageNode) -> Iterator[str]:
    """IDs of the dependencies, at any depth, that are not named by their whole ID."""
    for wanted, found in zip(node.manifest.dependencies, node.dependencies, strict=True):
        if wanted.image_id is None or len(wanted.image_id.partition("-")[2]) < ENOUGH_DIGITS:
            yield found.id
        yield from loose_parts(found)
