"""``kurma trust``: adds, lists and removes the keys whose signatures on images are trusted."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command
from kurma_core.errors import ManifestError, TrustError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.api.images import Key, TrustedKey
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_PREFIX = Option("prefix", "--prefix", "Apply to images of this name, and of names below it.", metavar="NAME")
_ROOT = Option("root", "--root", "Apply to all images.")


@command(
    Argument(
        "source",
        "KEYFILE",
        "A file of keys, its https address, or - for standard input; default: found for the prefix.",
        required=False,
    ),
    _PREFIX,
    _ROOT,
    Option(
        "fingerprint",
        "--fingerprint",
        "Add the key with this fingerprint without asking.",
        metavar="FPR",
        many=True,
    ),
    Option("yes", "--yes -y", "Add all keys that are found without asking."),
    Option(
        "insecure_options",
        "--insecure-options",
        "Relax these checks: pubkey or http (accept a key over plain HTTP), tls.",
        metavar="WORD,…",
        many=True,
    ),
    makes=True,
    example="kurma trust add --prefix example.com/ publisher.asc",
)
def add(
    session: Session,
    *,
    source: str | None,
    prefix: str | None,
    root: bool,
    fingerprint: tuple[str, ...],
    yes: bool,
    insecure_options: tuple[str, ...],
) -> int:
    """Trust a key's signatures on images.

    Shows each key that is found, and asks for confirmation: compare the fingerprint with the one that the key's
    owner gave you by another channel. Adds the key to the last directory of trustedkeys. Trusted keys give no
    image power over the host.
    """
    wanted = tuple(_fingerprint(text) for text in fingerprint)
    scope = _scope(prefix, root)
    keys = _find(session, source, scope, values.insecure(insecure_options))
    for key in keys:
        session.note(_described(key))
    if len(keys) > 1:
        session.note(f"{len(keys)} keys were found")
    where = scope or "all images"
    chosen = _chosen(session, keys, wanted, yes, where)
    for key in chosen:
        material = key.material.decode("utf-8", "surrogateescape")
        change = session.client.trust_add(material, source=key.source, prefix=scope)
        session.line(f"{key.fingerprint}: {_DONE[change.action]} for {where} ({change.path})")
        if key.state == "revoked":
            session.note(f"{key.fingerprint} was revoked: its signatures are no longer accepted")
    if not chosen:
        session.note("no key was added")
    return 0 if chosen else 125


_DONE = {
    "added": "trusted",
    "refreshed": "brought up to date",
    "unmasked": "trusted again",
    "removed": "removed",
    "masked": "masked by an empty file",
}


@command(FORMAT, NO_LEGEND, example="kurma trust list")
def list_(session: Session) -> None:
    """List trusted, masked and revoked keys.

    A key in host.d is trusted only if trusted_host_keys in kurma.yml lists it.
    """
    keys = session.client.trust_list()
    session.listing(keys, _COLUMNS)
    if session.format == "table":
        for key in keys:
            if key.problem:
                session.note(key.problem)


def _whole(key: TrustedKey) -> str:
    return {"root": "(all images)", "host": "(host)"}.get(key.scope) or key.prefix or ""


_COLUMNS: list[Column] = [
    ("PREFIX", _whole),
    "fingerprint",
    ("USER", lambda key: key.users[0] if key.users else "", (2, 12)),
    ("CREATED", lambda key: (key.created or "")[:10], (3, 0)),
    ("EXPIRES", lambda key: (key.expires or "")[:10] or ("never" if key.created else "")),
    "state",
    ("SOURCE", "path", (1, -16)),
]


@command(
    Argument("fingerprint", "FPR", "The key: its fingerprint, or the start or end of it."),
    _PREFIX,
    _ROOT,
    Option("dry_run", "--dry-run", "Print what would be done, and change nothing."),
    example="kurma trust rm --dry-run 5A3B8C1D9E0F7A6B",
)
def rm(session: Session, *, fingerprint: str, prefix: str | None, root: bool, dry_run: bool) -> None:
    """Stop trusting a key.

    Removes a key in the last directory of trustedkeys; masks a key of another directory by an empty file. A
    revoked key stays, since its file records the revocation. Prints other places that trust the key. Images that
    this key's signature verified count as unverified.
    """
    scope = _scope(prefix, root)
    change = session.client.trust_rm(fingerprint, scope, dry_run=dry_run)
    word = f"would be {_DONE[change.action]}" if dry_run else _DONE[change.action]
    session.line(f"{change.fingerprint}: {word} for {scope or 'all images'} ({change.path})")
    for other, path in change.still:
        session.note(f"{change.fingerprint}: still trusted for {other or 'all images'} ({path})")


def _scope(prefix: str | None, root: bool) -> str | None:
    """The prefix; None: all images.

    :raises UsageError: neither or both are given, or no name can begin so.
    """
    if (prefix is None) != root:
        raise UsageError("expected either --prefix NAME or --root", hint="--root trusts a key for every image")
    if prefix is None:
        return None
    from kurma_core.appc.types import ac_identifier

    try:
        return ac_identifier(prefix, "$")
    except ManifestError:
        hint = "write example.com or example.com/app"
        raise UsageError(f"--prefix: {prefix!r} is not the start of an image's name", hint=hint) from None


def _fingerprint(text: str) -> str:
    """:raises UsageError: it is not a fingerprint."""
    found = text.replace(" ", "").upper().removeprefix("0X")
    if len(found) not in (40, 64) or found.strip("0123456789ABCDEF"):
        raise UsageError(f"--fingerprint: {text!r} is not a fingerprint", hint="write all 40 hexadecimal digits")
    return found


def _find(session: Session, source: str | None, scope: str | None, insecure: frozenset[str]) -> tuple[Key, ...]:
    client = session.client
    if source == "-":
        import sys

        return client.here.images.keys.parse(sys.stdin.buffer.read((1 << 20) + 1), "standard input")
    if source is not None:
        return client.trust_read(source, insecure)
    if scope is None:
        raise UsageError("cannot look for a key: --root gives no name", hint="name the file of the key")
    return tuple(client.trust_find(name=scope, insecure=insecure))


def _described(key: Key) -> str:
    users = ", ".join(key.users) or "nobody"
    expires = f"expires {key.expires[:10]}" if key.expires else "never expires"
    state = "" if key.state == "valid" else f", {key.state}"
    spaced = " ".join(key.fingerprint[at : at + 4] for at in range(0, len(key.fingerprint), 4))
    return f"key {spaced} of {users}, made {key.created[:10]}, {expires}{state}, from {key.source}"


def _chosen(
    session: Session, keys: Sequence[Key], wanted: tuple[str, ...], yes: bool, where: str
) -> tuple[Key, ...]:
    """:raises TrustError: a requested key is not there.
    :raises UsageError: there is no terminal to ask at, and no option chooses a key.
    """
    if wanted:
        missing = [one for one in wanted if one not in [key.fingerprint for key in keys]]
        if missing:
            raise TrustError(f"{keys[0].source}: holds no key {missing[0]}", fingerprint=missing[0])
        return tuple(key for key in keys if key.fingerprint in wanted)
    if yes:
        return tuple(keys)
    if not session.terminal():
        hint = f"compare the fingerprint, then: --fingerprint {keys[0].fingerprint}, or --yes"
        raise UsageError("cannot ask whether to trust the key: no terminal", hint=hint)
    return tuple(key for key in keys if session.ask(f"trust {key.fingerprint} for {where}?"))
