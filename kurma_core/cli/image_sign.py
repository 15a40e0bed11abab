"""``image sign`` and ``image verify``."""

from __future__ import annotations

import os

from kurma_core.cli.declare import FORMAT, PASSPHRASE_FILE, Argument, Option, command
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session


@command(
    Argument("file", "FILE", "The image archive."),
    Option("key", "--key", "A key of your own GnuPG home; this machine's otherwise.", metavar="FPR"),
    Option("output", "--output -o", "The signature's file; FILE.asc otherwise.", metavar="FILE"),
    Option("early", "--early", "Sign the uncompressed tar, as early App Container tools expect it: X.sig."),
    Option("force", "--force", "Replace a signature that is there."),
    PASSPHRASE_FILE,
    FORMAT,
)
def sign(
    session: Session,
    *,
    file: str,
    key: str | None,
    output: str | None,
    early: bool,
    force: bool,
    passphrase_file: str | None,
    format: str,
) -> None:
    """Sign an image archive.

    The signature is detached and ascii-armored. What is no image is not signed.
    """
    from kurma_core.named_files import writable

    session.passphrase_file = passphrase_file
    if output is not None:
        writable(output, made_of=(file, passphrase_file))
    signed = session.client.here.images.files.sign(file, key=key, output=output, early=early, force=force)
    session.show(format, signed.to_json(), lambda: f"{signed.signature}: {signed.name}, by {signed.fingerprint}")


@command(
    Argument("image", "IMAGE|FILE", "An image of the store, or the path of an archive."),
    Option("signature", "--signature", "The signature of FILE; the one beside it otherwise.", metavar="FILE"),
    PASSPHRASE_FILE,
    FORMAT,
)
def verify(
    session: Session, *, image: str, signature: str | None, passphrase_file: str | None, format: str
) -> None:
    """Check an image of the store against what was extracted, or the signature of a file.

    Of an image in the store every file is read, those of the trees rendered from it too; what vouches for it is
    told. Of a file the signature must be by a key that is trusted for the image's name.
    """
    from kurma_core.api.images import ImageVerified
    from kurma_core.cli.image_page import trust_words
    from kurma_core.cli.output import facts, to_second

    session.passphrase_file = passphrase_file
    client = session.client
    path = client.archive_path(image)
    if signature is not None and path is None:
        if not os.path.isfile(image):
            hint = "an image of the store is verified without it; a file is named by its path: ./FILE"
            raise UsageError(f"--signature goes with a file, and {image} is none", hint=hint)
        path = image
    if path is not None:
        found = client.here.images.files.check_signature(path, signature)
        signer = [("signer", found.fingerprint), *(("user", user) for user in found.users)]
        about = [("id", found.id), ("name", found.name), ("signature", found.signature), ("over", found.over)]
        session.show(format, ImageVerified(found, "signed").to_json(), lambda: facts([*about, *signer]))
        return
    checked = client.image_verify(image)
    verified, record = checked.verified, checked.image
    pairs = [
        ("id", record.id),
        ("name", record.name),
        ("files", "as extracted" + (f", in rendered trees too ({verified.trees})" if verified.trees else "")),
        ("trust", trust_words(verified.trust, record, checked.lapse)),
    ]
    for one in record.provenance:
        key = f", by {one.fingerprint}" if one.fingerprint else ""
        relaxed = f", relaxed: {','.join(one.insecure)}" if one.insecure else ""
        pairs.append(("came", f"{one.trust}{key}, {to_second(one.fetched_at)}, from {one.locator}{relaxed}"))
    session.show(format, verified.to_json(), lambda: facts(pairs))
