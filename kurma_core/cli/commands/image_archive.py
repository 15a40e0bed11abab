"""``kurma image build``, ``validate``, ``sign``, ``verify``: image archives in files, and their signatures."""

from __future__ import annotations

import os

from kurma_core.cli import values
from kurma_core.cli.command_line import FORMAT, PASSPHRASE_FILE, Argument, Option, command
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.session import Session

    Json = Any


@command(
    Argument("directory", "DIR", "Holds the image's manifest and rootfs.", required=False),
    Option("output", "--output -o", "The archive to write; its name ends in .aci.", metavar="FILE"),
    Option("from_rootfs", "--from-rootfs", "A root filesystem, in place of DIR.", metavar="DIR"),
    Option("manifest", "--manifest", "The manifest to begin with, as JSON or YAML.", metavar="FILE"),
    Option("name", "--name", "The image's name.", metavar="NAME"),
    Option("version", "--version", "Its version.", metavar="VERSION"),
    Option("label", "--label", "A label of it.", metavar="NAME=VALUE", many=True),
    Option(
        "exec",
        "--exec",
        "The app's command, split into words as by a shell; PATH in the image is searched for it.",
        metavar="COMMAND",
    ),
    Option("user", "--user", "The app's user.", metavar="USER"),
    Option("group", "--group", "The app's group.", metavar="GROUP"),
    Option("workdir", "--workdir", "The app's directory.", metavar="PATH"),
    Option(
        "env",
        "--env -e",
        "A variable of the app; NAME alone takes it from here.",
        metavar="NAME[=VALUE]",
        many=True,
    ),
    Option(
        "compress",
        "--compress",
        "How to compress it.",
        choices=("none", "gzip", "bzip2", "xz", "zstd"),
        default="none",
    ),
    Option("encrypt", "--encrypt", "Encrypt it with a passphrase (OpenPGP, AES-256)."),
    PASSPHRASE_FILE,
    makes=True,
)
def build(session: Session, *, directory: str | None, output: str | None, compress: str, **options: Any) -> None:
    """Build an image archive from a directory.

    Prints the image ID; the same directory and options always give the same ID. The manifest comes from DIR or
    --manifest, and the other options change it. With --from-rootfs alone, the options make the manifest, and os
    and arch are this machine's.
    """
    from kurma_core.named_files import writable

    if output is None:
        raise UsageError("no file to write the image to", hint="-o FILE.aci")
    if session.passphrase_file is not None and not options["encrypt"]:
        raise UsageError("--passphrase-file is given, and --encrypt is not", hint="--encrypt uses it")
    rootfs, base = _sources(directory, options["from_rootfs"], options["manifest"])
    own = None if directory is None else f"{directory}/manifest"
    writable(output, made_of=(options["manifest"], own, session.passphrase_file))
    if not output.endswith(".aci"):
        raise UsageError(f"cannot write an image to {output}: its name must end in .aci", hint=f"-o {output}.aci")
    manifest = _manifest(base, options)
    passphrase = session.passphrases().new(output) if options["encrypt"] else None
    compress = "" if compress == "none" else compress
    session.line(
        session.client.here.images.files.build(rootfs, manifest, output, compress=compress, passphrase=passphrase)
    )


@command(Argument("files", "FILE", "The archives.", many=True), PASSPHRASE_FILE, makes=True)
def validate(session: Session, *, files: tuple[str, ...]) -> int:
    """Check that files are image archives that Kurma accepts."""

    def one(file: str) -> None:
        manifest = session.client.here.images.files.inspect(file).contents.manifest
        session.line(f"{file}: {manifest.name}: a valid image")

    return session.each(files, one)


def _sources(directory: str | None, rootfs: str | None, manifest: str | None) -> tuple[str, dict[str, Json]]:
    """The root filesystem, and the manifest to begin with."""
    if (directory is None) == (rootfs is None):
        raise UsageError("expected either DIR or --from-rootfs DIR")
    found = rootfs if directory is None else os.path.join(directory, "rootfs")
    assert found is not None
    if not os.path.isdir(found):
        other = None if directory is None else f"a root filesystem alone is built by --from-rootfs {directory}"
        raise UsageError(f"{found} is no directory", hint=other)
    if manifest is not None:
        return found, _read(manifest, "--manifest")
    if directory is None:
        return found, _new()
    own = os.path.join(directory, "manifest")
    if not os.path.lexists(own):
        hint = f"name one by --manifest FILE; without any, the image is built by --from-rootfs {found} --name NAME"
        raise UsageError(f"{directory} holds no manifest", hint=hint)
    return found, _read(own)


def _manifest(manifest: dict[str, Json], options: dict[str, Any]) -> dict[str, Json]:
    if options["name"] is not None:
        manifest["name"] = options["name"]
    if "name" not in manifest:
        raise UsageError("the image has no name", hint="--name NAME")
    labels = {label["name"]: label["value"] for label in manifest.get("labels", ())}
    labels.update(_labels(options["version"], options["label"]))
    manifest["labels"] = [{"name": name, "value": value} for name, value in labels.items()]
    _change_app(manifest, options)
    return manifest


def _labels(version: str | None, texts: tuple[str, ...]) -> dict[str, str]:
    """:raises UsageError: one is given twice, be it by ``--version``."""
    labels = {} if version is None else {"version": version}
    for text in texts:
        name, value = values.pair(text, "--label")
        if name in labels:
            also = " by --version, too" if name == "version" and version is not None else " twice"
            raise UsageError(f"--label: {name!r} is given{also}", hint="say it once")
        labels[name] = value
    return labels


def _new() -> dict[str, Json]:
    from kurma_core.appc.image import AC_VERSION, host_platform

    os_name, arch = host_platform()
    labels = [{"name": "os", "value": os_name}, {"name": "arch", "value": arch}]
    return {"acKind": "ImageManifest", "acVersion": AC_VERSION, "labels": labels}


def _read(file: str, option: str = "") -> dict[str, Json]:
    from kurma_core.config.files import value_of
    from kurma_core.named_files import content

    if file.endswith((".yml", ".yaml")):
        try:
            value = value_of(file, content(file, option=option).decode())
        except UnicodeDecodeError:
            raise UsageError(f"{file} is not UTF-8") from None
    else:
        value = values.json_file(file, option)
    if not isinstance(value, dict):
        raise UsageError(f"{file} is no manifest")
    return value


def _change_app(manifest: dict[str, Json], options: dict[str, Any]) -> None:
    import shlex

    changes: dict[str, Json] = {}
    for option, key in (("user", "user"), ("group", "group"), ("workdir", "workingDirectory")):
        if options[option] is not None:
            changes[key] = options[option]
    if options["exec"] is not None:
        try:
            changes["exec"] = shlex.split(options["exec"])
        except ValueError as error:
            raise UsageError(f"--exec: {error}") from None
    environment = values.environment(options["env"])
    app = manifest.get("app")
    if not (changes or environment):
        return
    if app is None:
        if "exec" not in changes:
            raise UsageError("the image has no app to change", hint="--exec COMMAND gives it one")
        app = {"user": "0", "group": "0"}
    merged = {pair["name"]: pair["value"] for pair in app.get("environment", ())} | dict(environment)
    if merged:
        changes["environment"] = [{"name": name, "value": value} for name, value in merged.items()]
    manifest["app"] = {**app, **changes}


@command(
    Argument("file", "FILE", "The image archive."),
    Option("key", "--key", "A key of your own GnuPG home; this machine's otherwise.", metavar="FPR"),
    Option("output", "--output -o", "The signature's file; FILE.asc otherwise.", metavar="FILE"),
    Option("early", "--early", "Sign the uncompressed tar, as early App Container tools expect it: X.sig."),
    Option("force", "--force", "Replace a signature that is there."),
    PASSPHRASE_FILE,
    FORMAT,
    makes=True,
)
def sign(
    session: Session,
    *,
    file: str,
    key: str | None,
    output: str | None,
    early: bool,
    force: bool,
) -> None:
    """Sign an image archive.

    The signature is detached and ascii-armored. Only images are signed.
    """
    from kurma_core.named_files import writable

    if output is not None:
        writable(output, made_of=(file, session.passphrase_file))
    signed = session.client.here.images.files.sign(file, key=key, output=output, early=early, force=force)
    session.show(signed.to_json(), lambda: f"{signed.signature}: {signed.name}, by {signed.fingerprint}")


@command(
    Argument("image", "IMAGE|FILE", "An image of the store, or the path of an archive."),
    Option("signature", "--signature", "The signature of FILE; the one beside it otherwise.", metavar="FILE"),
    PASSPHRASE_FILE,
    FORMAT,
    makes=True,
)
def verify(session: Session, *, image: str, signature: str | None) -> None:
    """Check an image of the store against what was extracted, or the signature of a file.

    For an image of the store, reads all of its files, and those of the trees rendered from it, and prints its
    trust. For a file, the signature must be by a key that is trusted for the image's name.
    """
    from kurma_core.api.images import ImageVerified
    from kurma_core.cli.commands.image import trust_words
    from kurma_core.cli.output import facts, to_second

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
        session.show(ImageVerified(found, "signed").to_json(), lambda: facts([*about, *signer]))
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
    session.show(verified.to_json(), lambda: facts(pairs))
