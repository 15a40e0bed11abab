"""Adds, removes and lists the keys of the keystores (``kurma trust``)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence

from kurma_core.api.images import Key, TrustChange, TrustedKey
from kurma_core.errors import AmbiguousReferenceError, ManifestError, PrivilegeError, TrustError
from kurma_core.linux.files import replace_file
from kurma_core.trust import key_files, keystore
from kurma_core.trust.gpg import read_key

_SHORTEST = 8  # hex digits of a fingerprint by which a key may be named


class Enrolment:
    """:param directories: the keystores, the weakest first; only the last is written to."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = tuple(directories)

    @property
    def _local(self) -> str:
        if not self._directories:
            raise TrustError("there is no keystore to write to", hint="name one in kurma.yml: trustedkeys: [DIR]")
        return self._directories[-1]

    def add(self, key: Key, prefix: str | None) -> TrustChange:
        """Trust the key for images of that prefix; None: for all images. Of a key that is there already, both
        are kept: what is known of it only grows, so a revocation stays.

        :raises TrustError: it cannot sign: revoked, expired, not for signing. A revoked one is taken all the same
            where it is trusted already: then it is so no longer.
        :raises PrivilegeError: the keystore cannot be written.
        """
        place = keystore.place_of(prefix)
        path = next(iter(self._locals(place, key.fingerprint)), f"{self._local}/{place}/{key.fingerprint}")
        there = self._file(place, key.fingerprint)
        # Masked or not, and whatever it may sign elsewhere: a revocation is of the key itself.
        known = [read_key(file) for file in keystore.find(self._directories, key.fingerprint)]
        if known:
            found = key_files.read_keys([*known, key.material], key.source)
            key = next(one for one in found if one.fingerprint == key.fingerprint)
        if key.state != "valid" and not (key.state == "revoked" and there is not None):
            raise TrustError(_UNFIT[key.state].format(key=key), hint=_ASK, fingerprint=key.fingerprint)
        masked = there is None and os.path.lexists(path)
        try:
            self._make(place)
            replace_file(path, key.material)
            os.chmod(path, 0o644)
            _sync(os.path.dirname(path))
        except OSError as error:
            raise _cannot("add a key to", path, error) from None
        action = "unmasked" if masked else "added" if there is None else "refreshed"
        return TrustChange(action, key.fingerprint, path)

    def remove(self, reference: str, prefix: str | None, *, dry_run: bool = False) -> TrustChange:
        """Trust the key no longer for images of that prefix: a local file is removed; a key of another directory
        is masked by an empty file.

        :param reference: the fingerprint, or its beginning or end (8 digits or more).
        :raises TrustError: it is not trusted there, or was revoked: its file is what tells of that.
        :raises AmbiguousReferenceError: :raises PrivilegeError: the keystore cannot be written.
        """
        place = keystore.place_of(prefix)
        fingerprint = self._named(reference, place, prefix)
        local = self._locals(place, fingerprint)
        self._check_revoked(fingerprint, [path for path in local if os.path.getsize(path)])
        elsewhere = any(
            name == fingerprint and status is not None
            for directory in self._directories[:-1]
            for name, _, status in keystore.files(directory, place)
        )
        path = local[0] if local else f"{self._local}/{place}/{fingerprint}"
        still = self._still(fingerprint, place)
        change = TrustChange("masked" if elsewhere else "removed", fingerprint, path, still)
        if dry_run:
            return change
        try:
            if elsewhere:
                self._make(place)
                replace_file(path, b"")
                os.chmod(path, 0o644)
            for file in local[1:] if elsewhere else local:
                os.unlink(file)
            _sync(os.path.dirname(path))
            self._prune(place)
        except OSError as error:
            raise _cannot("remove a key from", path, error) from None
        return change

    def _check_revoked(self, fingerprint: str, files: Sequence[str]) -> None:
        """:raises TrustError: one of these files says that the key was revoked."""
        for path in files:
            if _is_revoked(path, fingerprint):
                raise TrustError(
                    f"{fingerprint}: was revoked by its owner, and {path} is what says so: it stays",
                    hint="the key counts for nothing as it is; to forget even the revocation, delete that file",
                    fingerprint=fingerprint,
                    path=path,
                )

    def _still(self, fingerprint: str, place: str) -> tuple[tuple[str | None, str], ...]:
        """Other places by whose files the key signs images of this one, or some of them."""
        found = []
        for other in sorted({one for directory in self._directories for one in keystore.places(directory)}):
            wider = other == keystore.ROOT or place.startswith(f"{other}/")
            within = place == keystore.ROOT or other.startswith(f"{place}/")
            if other in (place, keystore.HOST) or not (wider or within):
                continue
            try:
                path = self._file(other, fingerprint)
            except TrustError:
                continue  # nothing is trusted there
            if path is not None and not _is_revoked(path, fingerprint):
                found.append((keystore.prefix_of(other), path))
        return tuple(found)

    def _locals(self, place: str, fingerprint: str) -> list[str]:
        """Files of that name in the local keystore; its letters may be large or small."""
        return [path for name, path, _ in keystore.files(self._local, place) if name == fingerprint]

    def _file(self, place: str, fingerprint: str) -> str | None:
        """The file by which the key is trusted at that place."""
        found = None
        for directory in self._directories:
            for name, path, status in keystore.files(directory, place):
                if name == fingerprint:
                    found = None if status is None else path
        return found

    def _named(self, reference: str, place: str, prefix: str | None) -> str:
        wanted = reference.replace(" ", "").upper().removeprefix("0X")
        where = "all images" if prefix is None else prefix
        if len(wanted) < _SHORTEST:
            raise TrustError(f"{reference}: too short for a fingerprint", hint=f"{_SHORTEST} digits or more")
        there = {
            name: self._file(place, name)
            for directory in self._directories
            for name, _, _ in keystore.files(directory, place)
        }
        found = [
            name
            for name, path in there.items()
            if path is not None and (name.startswith(wanted) or name.endswith(wanted))
        ]
        if len(found) > 1:
            raise AmbiguousReferenceError(f"{reference}: fits several keys for {where}", matches=tuple(found))
        if not found:
            raise TrustError(f"{reference}: no such key is trusted for {where}", hint="see kurma trust list")
        return found[0]

    def _make(self, place: str) -> None:
        """The place's directories: 0755, whatever the umask."""
        os.makedirs(self._local, 0o755, exist_ok=True)
        way = self._local
        for part in ("", *place.split("/")):
            way = f"{way}/{part}" if part else way
            if part:
                try:
                    os.mkdir(way, 0o755)
                    os.chmod(way, 0o755)  # noqa: S103 (public keys: everybody may read them)
                except FileExistsError:
                    pass
            keystore.check_writers(way, os.stat(way))

    def _prune(self, place: str) -> None:
        """Directories of prefixes that hold nothing any more."""
        while keystore.prefix_of(place) is not None:
            try:
                os.rmdir(f"{self._local}/{place}")
            except OSError:
                return  # not empty
            place = place.rpartition("/")[0]


_UNFIT = {
    "revoked": "{key.source}: the key {key.fingerprint} was revoked by its owner, and is not added",
    "expired": "{key.source}: the key {key.fingerprint} has expired ({key.expires}), and is not added",
    "unusable": "{key.source}: the key {key.fingerprint} is not for signing, and is not added",
}
_ASK = "ask its owner for the key in use now"


def _is_revoked(path: str, fingerprint: str) -> bool:
    try:
        found = key_files.parse_keys(read_key(path), path)
    except TrustError:
        return False  # it holds no key
    return any(key.fingerprint == fingerprint and key.state == "revoked" for key in found)


def _cannot(what: str, path: str, error: OSError) -> TrustError | PrivilegeError:
    import errno

    message = f"cannot {what} the keystore: {path}: {(error.strerror or str(error)).lower()}"
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return PrivilegeError(message, hint="run as root", path=path, errno=error.errno)
    return TrustError(message, path=path, errno=error.errno)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
    """The number of the directory that the file is in, the weakest being 0."""
    return next((at for at, one in enumerate(directories) if path.startswith(f"{one}/")), 0)


def _described(path: str, fingerprint: str) -> Key:
    for key in key_files.parse_keys(read_key(path), path):
        if key.fingerprint == fingerprint:
            return key
    raise TrustError(f"{path}: holds another key than its name says")
