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

_PREFIX = Option("prefix", "--prefix", "Images of that name, and all below it.", metavar="NAME")
_ROOT = Option("root", "--root", "All images.")


@command(
    Argument(
        "source",
        "KEYFILE",
        "A file of keys, its https address, or - for standard input. Without it, the prefix says where to look.",
        required=False,
    ),
    _PREFIX,
    _ROOT,
    Option(
        "fingerprint", "--fingerprint", "Add the key with that fingerprint, unasked.", metavar="FPR", many=True
    ),
    Option("yes", "--yes -y", "Add every key found, unasked."),
    Option(
        "insecure_options",
        "--insecure-options",
        "Checks to relax: pubkey or http (the key may come over plain http), tls.",
        metavar="WORD,…",
        many=True,
    ),
    makes=True,
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

    Shows every key found, and asks for confirmation: compare the fingerprint with one that its owner gave you
    elsewhere. The key is added to the last directory of trustedkeys. It does not change which images may run with
    the host's power.
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
            session.note(f"{key.fingerprint} was revoked: nothing that it signed is accepted any more")
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


@command(FORMAT, NO_LEGEND)
def list_(session: Session) -> None:
    """List trusted keys, and keys that are no longer trusted.

    Keys in host.d are not trusted by being there, but by trusted_host_keys in kurma.yml.
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
    ("USER", lambda key: key.users[0] if key.users else ""),
    ("CREATED", lambda key: (key.created or "")[:10]),
    ("EXPIRES", lambda key: (key.expires or "")[:10] or ("never" if key.created else "")),
    "state",
    ("SOURCE", "path"),
]


@command(
    Argument("fingerprint", "FPR", "The key: its fingerprint, or the beginning or end of it."),
    _PREFIX,
    _ROOT,
    Option("dry_run", "--dry-run", "Only say what would be done."),
)
def rm(session: Session, *, fingerprint: str, prefix: str | None, root: bool, dry_run: bool) -> None:
    """Trust a key no longer.

    A key in the last directory of trustedkeys is removed; one of another directory is masked by an empty file. A
    revoked key stays, since its file records the revocation. Other places that trust the key are printed.
    Images that were accepted by its signature no longer count as verified.
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
        raise UsageError(f"--prefix: {prefix!r} begins no image's name", hint=hint) from None


def _fingerprint(text: str) -> str:
    """:raises UsageError: it is not a fingerprint."""
    found = text.replace(" ", "").upper().removeprefix("0X")
    if len(found) not in (40, 64) or found.strip("0123456789ABCDEF"):
        raise UsageError(f"--fingerprint: {text!r} is none", hint="the whole of it: 40 hexadecimal digits")
    return found


def _find(session: Session, source: str | None, scope: str | None, insecure: frozenset[str]) -> tuple[Key, ...]:
    client = session.client
    if source == "-":
        import sys

        return client.here.images.keys.parse(sys.stdin.buffer.read((1 << 20) + 1), "standard input")
    if source is not None:
        return client.trust_read(source, insecure)
    if scope is None:
        raise UsageError("no key is named, and --root has no name to look for one by", hint="name its file")
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
        raise UsageError("there is no terminal to ask at whether the key is to be trusted", hint=hint)
    return tuple(key for key in keys if session.ask(f"trust {key.fingerprint} for {where}?"))
