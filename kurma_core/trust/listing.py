"""What the keystores hold, for people: every key, and whether it counts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kurma_core.api.images import Key, TrustedKey
from kurma_core.errors import ManifestError, TrustError
from kurma_core.trust import keyfile, keystore, openpgp


def listing(directories: Sequence[str], host_keys: Collection[str]) -> tuple[TrustedKey, ...]:
    """All keys of all keystores, by place. What is broken is in the listing, and hides nothing else.

    :param host_keys: what ``trusted_host_keys`` lists.
    """
    found = sorted(
        {place for directory in directories for place in keystore.places(directory)},
        key=lambda place: (place != keystore.ROOT, place == keystore.HOST, place),
    )
    return tuple(key for place in found for key in _at(directories, place, host_keys))


def _at(directories: Sequence[str], place: str, host_keys: Collection[str]) -> Iterator[TrustedKey]:
    prefix = keystore.prefix_of(place)
    wrong = _no_prefix(prefix)
    scope = "prefix" if prefix is not None else place.removesuffix(".d")
    later: dict[str, str] = {}
    rows: list[TrustedKey] = []
    for directory in reversed(directories):
        try:
            files = list(keystore.files(directory, place))
        except TrustError as error:
            rows.append(TrustedKey(scope, prefix, "", "refused", f"{directory}/{place}", problem=error.message))
            continue
        rows += [
            TrustedKey(scope, prefix, "", "refused", path, problem=f"{path}: {_STRAY}")
            for path in keystore.strays(directory, place)
        ]
        for fingerprint, path, status in files:
            if wrong is not None:
                rows.append(TrustedKey(scope, prefix, fingerprint, "refused", path, problem=f"{path}: {wrong}"))
            elif status is None:
                rows.append(TrustedKey(scope, prefix, fingerprint, "mask", path))
            else:
                try:
                    keystore.check_writers(path, status)
                    key = _described(path, fingerprint)
                except TrustError as error:
                    rows.append(TrustedKey(scope, prefix, fingerprint, "refused", path, problem=error.message))
                else:
                    state = "trusted" if key.state == "valid" else key.state
                    if scope == "host" and fingerprint not in host_keys:
                        state = "unlisted"
                    rows.append(
                        TrustedKey(
                            scope,
                            prefix,
                            fingerprint,
                            later.get(fingerprint, state),
                            path,
                            key.users,
                            key.created,
                            key.expires,
                        )
                    )
            later.setdefault(fingerprint, "masked" if status is None else "replaced")
    yield from sorted(rows, key=lambda row: (row.fingerprint, _directory_of(directories, row.path)))


_STRAY = "counts for nothing: no file named by a key's fingerprint (`kurma trust add` puts keys in place)"


def _no_prefix(prefix: str | None) -> str | None:
    """Why no image's name can start so; None: one can."""
    if prefix is None:
        return None
    from kurma_core.appc.types import ac_identifier

    try:
        ac_identifier(prefix, "")
    except ManifestError:
        return f"no image can be called {prefix}, so it counts for nothing"
    return None


def _directory_of(directories: Sequence[str], path: str) -> int:
    """Which directory the file is in: the weakest first."""
    return next((at for at, one in enumerate(directories) if path.startswith(f"{one}/")), 0)


def _described(path: str, fingerprint: str) -> Key:
    for key in keyfile.parse(openpgp.read_key(path), path):
        if key.fingerprint == fingerprint:
            return key
    raise TrustError(f"{path}: holds another key than its name says")
