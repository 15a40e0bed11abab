"""What must vouch for an image before it is used (K4), and whether what is in the store is good enough (S4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from urllib.parse import urlsplit

from kurma_core.errors import TrustError, UsageError
from kurma_core.models.image import ImageRecord, Provenance
from kurma_core.value import field, frozen

#: Words of :class:`kurma_core.models.image.Provenance` that satisfy a policy, wherever the image came from.
_SATISFIES: Mapping[str, frozenset[str]] = {
    "signed": frozenset(("built", "signed")),
    "digest": frozenset(("built", "signed", "digest")),
}
_ORDER = ("built", "signed", "digest", "local", "unverified")
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
