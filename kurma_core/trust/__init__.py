"""Trust in keys and signatures: which key may sign which image, whether a signature counts, this machine's key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kurma_core.errors import TrustError
from kurma_core.trust import keystore
from kurma_core.trust.machine_key import MachineKey

if TYPE_CHECKING:
    from kurma_core.api.images import Key, TrustChange, TrustedKey
    from kurma_core.trust.keystore_admin import Enrolment


#: The second key of this machine, as errors call it.
BUILD_KEY = "the key of images built here"
#: Seconds by which the stamp of a file that is changed after a check may seem to come before it.
_CLOCKS = 1.0


class Trust:
    """:param trusted_host_keys: fingerprints whose images may run with host privilege; empty: this machine's key.
    :param key_dirs: keystores, the weakest first: a later one masks an earlier one.
    :param state_dir: this machine's key is kept in ``keys`` under it, the key of images built here in
        ``build_key``, what is known of the others in ``revocations``.
    :ivar build_key: signs the images that ``kurma image build`` puts into the store. It counts for their names
        alone: never for host privilege, for grants, or as a key of a publisher.
    """

    def __init__(
        self,
        trusted_host_keys: Sequence[str],
        key_dirs: Sequence[str],
        state_dir: str,
    ) -> None:
        self._trusted_host_keys = tuple(key.replace(" ", "").upper() for key in trusted_host_keys)
        self._key_dirs = tuple(key_dirs)
        self._machine = MachineKey(f"{state_dir}/keys")
        self.build_key = MachineKey(f"{state_dir}/build_key", BUILD_KEY)
        self._revocations = f"{state_dir}/revocations"

    # --- images --------------------------------------------------------------------------------------------------

    def keys_for(self, name: str) -> Mapping[str, tuple[str, ...]]:
        """Files, by fingerprint (upper case), of the keys that may sign the image of that name. The key of images
        built here is never one of them.

        :raises TrustError: a keystore cannot be read, or others may write it.
        """
        found = keystore.keys_for(self._key_dirs, name)
        if not found or (built := self.build_key.known()) not in found:
            return found
        return {fingerprint: files for fingerprint, files in found.items() if fingerprint != built}

    def lapse(self, name: str, fingerprint: str, since: str) -> str | None:
        """Why a signature that was good once counts no longer: its key is not trusted for the name any more
        (``unknown``), or was ``revoked``. None: the signature counts. A key that has expired meanwhile says
        nothing against what it signed before.

        :param since: RFC 3339, when the signature was verified: a key file that has not changed since is not read
            again. Files' times come some milliseconds late, and verifying takes time: a second is allowed for.
        :raises TrustError: a keystore cannot be read, or others may write it.
        """
        files = self.keys_for(name).get(fingerprint)
        if files is None:
            return "unknown"
        return "revoked" if self._revoked(fingerprint, files, since) else None

    def still_trusts_host_key(self, fingerprint: str, since: str) -> bool:
        """Whether a signature of an image with host privilege still counts; see :meth:`lapse`."""
        if fingerprint not in self.host_keys():
            return False
        return not self._revoked(fingerprint, keystore.find(self._key_dirs, fingerprint), since)

    def _revoked(self, fingerprint: str, files: Sequence[str], since: str) -> bool:
        from datetime import datetime

        seen = datetime.fromisoformat(since).timestamp()
        if all(os.stat(file).st_ctime < seen - _CLOCKS for file in files):
            return False
        from kurma_core.trust.key_files import Revocations

        return Revocations(self._revocations).revoked(fingerprint, files)

    def verify(
        self,
        source: str | Iterable[bytes],
        signature: bytes | None,
        keys: Mapping[str, Sequence[str]],
        *,
        what: str | None = None,
        name: str | None = None,
    ) -> str:
        """Check a detached signature, armored or not, with just these keys.

        :param source: what is signed: a file's path, or its bytes as they come.
        :param signature: None: the image is not signed, which is an error.
        :param keys: key files by fingerprint, as from :meth:`keys_for`.
        :param what: what to call it in errors; a path needs no other name.
        :param name: the image's, for hints.
        :returns: the fingerprint of the signer's primary key (upper case).
        :raises TrustError: ``data["reason"]`` is ``unsigned``, ``unknown``, ``expired``, ``revoked``, ``weak``,
            ``bad`` or ``malformed``; ``data["fingerprint"]`` the signer where the signature tells.
        """
        from kurma_core.trust.signatures import verify

        called = what or (source if isinstance(source, str) else "the image")
        return verify(source, signature, keys, what=called, name=name)

    # --- the keystore --------------------------------------------------------------------------------------------

    def parse_keys(self, data: bytes, source: str) -> tuple[Key, ...]:
        """The public keys in a file. :raises TrustError: it holds no key, or a secret one."""
        from kurma_core.trust.key_files import parse_keys

        return parse_keys(data, source)

    def add_key(self, key: Key, prefix: str | None) -> TrustChange:
        """See :meth:`.keystore_admin.Enrolment.add`.

        :raises TrustError: it is the key of images built here, too.
        """
        if key.fingerprint == self.build_key.known():
            raise TrustError(
                f"cannot trust the key {key.fingerprint}: it is {BUILD_KEY}",
                hint="to publish images, sign them with a key of your own: kurma image sign --key",
                fingerprint=key.fingerprint,
            )
        return self._enrolment().add(key, prefix)

    def remove_key(self, reference: str, prefix: str | None, *, dry_run: bool = False) -> TrustChange:
        """See :meth:`.keystore_admin.Enrolment.remove`."""
        return self._enrolment().remove(reference, prefix, dry_run=dry_run)

    def trusted_keys(self) -> tuple[TrustedKey, ...]:
        """See :func:`.keystore_admin.listing`."""
        from kurma_core.trust.keystore_admin import listing

        return listing(self._key_dirs, self._trusted_host_keys)

    def _enrolment(self) -> Enrolment:
        from kurma_core.trust.keystore_admin import Enrolment

        return Enrolment(self._key_dirs)

    # --- this machine --------------------------------------------------------------------------------------------

    def machine_key(self) -> str:
        """The fingerprint of this machine's signing key; made when it is first asked for. Safe among processes.

        :raises TrustError: it cannot be made.
        """
        return self._machine.fingerprint()

    def sign(self, source: str | Iterable[bytes]) -> bytes:
        """An armored detached signature over a file or over bytes as they come, by this machine's key.

        :raises TrustError: it cannot be made.
        """
        return self._machine.sign(source)

    def verify_own(self, path: str, signature: bytes | None, key: MachineKey | None = None) -> str:
        """:meth:`verify` with nothing but a key of this machine; None: the first one."""
        key = key or self._machine
        return self.verify(path, signature, {key.fingerprint(): (key.public_key(),)})

    # --- images that run with the host's power -------------------------------------------------------------------

    def host_keys(self) -> tuple[str, ...]:
        """Fingerprints of the keys that count for images with host privilege.

        :raises TrustError: the configuration lists the key of images built here.
        """
        if not self._trusted_host_keys:
            return (self.machine_key(),)
        if (built := self.build_key.known()) in self._trusted_host_keys:
            raise TrustError(
                f"trusted_host_keys in kurma.yml lists {built}: it is {BUILD_KEY}, and must not sign for the host",
                hint="remove it from trusted_host_keys; a stager's image is signed with another key",
                fingerprint=built,
            )
        return self._trusted_host_keys

    def verify_host_image(
        self,
        source: str | Iterable[bytes],
        signature: bytes | None,
        *,
        what: str | None = None,
    ) -> str:
        """:meth:`verify` for an image that runs with host privilege. Nothing skips it.

        The files of :meth:`host_keys` are taken from anywhere in the keystores, ``host.d`` among it: their place
        says nothing of what these keys may sign.

        :raises TrustError: as from :meth:`verify`; the hint has the line for ``kurma.yml``.
        """
        fingerprints = self.host_keys()
        found = {fingerprint: self._key_files(fingerprint) for fingerprint in fingerprints}
        keys = {fingerprint: files for fingerprint, files in found.items() if files}
        try:
            return self.verify(source, signature, keys, what=what)
        except TrustError as error:
            missing = [fingerprint for fingerprint in fingerprints if fingerprint not in keys]
            called = what or (source if isinstance(source, str) else "the image")
            raise self._host_error(error, missing, called) from error

    def _key_files(self, fingerprint: str) -> tuple[str, ...]:
        if self._machine.known() == fingerprint:
            return (self._machine.public_key(),)
        return keystore.find(self._key_dirs, fingerprint)

    def _host_error(self, error: TrustError, missing: Sequence[str], what: str) -> TrustError:
        """:param missing: listed keys of which no key file was found."""
        signer = error.data.get("fingerprint")
        if error.data.get("reason") != "unknown" or not isinstance(signer, str):
            return TrustError(f"{error.message} (it would run with host privilege)", hint=error.hint, **error.data)
        if signer in missing:
            message = f"{what}: trusted_host_keys lists its signer {signer}, whose public key is in no keystore"
            return TrustError(message, hint=self._remedy(signer), **error.data)
        hint = f"if you trust that key with this host, add to kurma.yml: trusted_host_keys: [{signer}]"
        if missing:
            # The signature may be by a sub-key of one of them, and names only that.
            hint += f"; of the listed key {missing[0]} the public half is missing: {self._remedy(missing[0])}"
        message = f"{what}: cannot run with host privilege: trusted_host_keys does not list its signer {signer}"
        return TrustError(message, hint=hint, **error.data)

    def _remedy(self, fingerprint: str) -> str:
        directory = self._key_dirs[-1] if self._key_dirs else "/etc/kurma/trustedkeys"
        return f"gpg --armor --export {fingerprint} > {directory}/host.d/{fingerprint}"
