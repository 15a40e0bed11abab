"""``kurma image build``, ``validate``, ``sign``, ``verify``: image archives in files, and their signatures.
``kurma commit`` makes an image of an app's root."""

from __future__ import annotations

import os

from kurma_core.api import pod_file
from kurma_core.cli import values
from kurma_core.cli.command_line import APP, FORMAT, PASSPHRASE_FILE, POD_OR_APP, Argument, Option, command
from kurma_core.errors import ManifestError, PrivilegeError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.session import Session

    Json = Any


#: Options that change a manifest, for :func:`changed_manifest`.
MANIFEST_OPTIONS = (
    Option("name", "--name", "Name the image.", metavar="NAME"),
    Option("version", "--version", "Set the image's version.", metavar="VERSION"),
    Option("label", "--label", "Set a label of the image.", metavar="NAME=VALUE", many=True),
    Option(
        "exec",
        "--exec",
        "Set the app's command; a shell's rules split it into words, and the image's PATH is searched.",
        metavar="COMMAND",
    ),
    Option("user", "--user", "Set the app's user.", metavar="USER"),
    Option("group", "--group", "Set the app's group.", metavar="GROUP"),
    Option("workdir", "--workdir", "Set the app's working directory.", metavar="PATH"),
    Option(
        "env",
        "--env -e",
        "Set an environment variable of the app; NAME alone copies the caller's.",
        metavar="NAME[=VALUE]",
        many=True,
    ),
)


@command(
    Argument("directory", "DIR", "The directory with the image's manifest and rootfs.", required=False),
    Option(
        "output",
        "--output -o",
        "Write an archive to FILE, whose name ends in .aci, instead of into the store.",
        metavar="FILE",
    ),
    Option(
        "from_rootfs", "--from-rootfs", "Take the root filesystem from DIR, without a manifest.", metavar="DIR"
    ),
    Option("manifest", "--manifest", "Begin with this manifest, JSON or YAML.", metavar="FILE"),
    *MANIFEST_OPTIONS,
    Option(
        "compress",
        "--compress",
        "Compress the archive by this format.",
        choices=("none", "gzip", "bzip2", "xz", "zstd"),
        default="none",
    ),
    Option("encrypt", "--encrypt", "Encrypt the archive with a passphrase (OpenPGP, AES-256)."),
    PASSPHRASE_FILE,
    makes=True,
    example="kurma image build --from-rootfs ./tree --name web --exec /bin/web",
)
def build(session: Session, *, directory: str | None, output: str | None, compress: str, **options: Any) -> None:
    """Build an image from a directory.

    Puts the image into the store, where its name finds it; only root can. With -o, writes an archive. Prints the
    image ID; the same directory and options always give the same ID. The manifest comes from DIR or --manifest,
    and the other options change it. With --from-rootfs alone, the manifest consists of the options, and os and
    arch of this machine.
    """
    from kurma_core.named_files import writable

    if session.passphrase_file is not None and not options["encrypt"]:
        raise UsageError("--passphrase-file has no effect without --encrypt", hint="add --encrypt")
    rootfs, base = _sources(directory, options["from_rootfs"], options["manifest"])
    if output is None:
        manifest = changed_manifest(base, options)
        _build_into_store(session, rootfs, manifest, compress=compress, encrypt=options["encrypt"])
        return
    own = None if directory is None else f"{directory}/manifest"
    writable(output, made_of=(options["manifest"], own, session.passphrase_file))
    if not output.endswith(".aci"):
        raise UsageError(f"cannot write an image to {output}: its name must end in .aci", hint=f"-o {output}.aci")
    manifest = changed_manifest(base, options)
    passphrase = session.passphrases().new(output) if options["encrypt"] else None
    compress = "" if compress == "none" else compress
    session.line(
        session.client.here.images.files.build(rootfs, manifest, output, compress=compress, passphrase=passphrase)
    )


def _build_into_store(
    session: Session, rootfs: str, manifest: dict[str, Json], *, compress: str, encrypt: bool
) -> None:
    for option, given in (("--compress", compress != "none"), ("--encrypt", encrypt)):
        if given:
            raise UsageError(f"{option} needs an archive to write", hint="-o FILE.aci")
    here = session.client.here
    try:
        here.need_root("build an image into the store")
    except PrivilegeError as error:
        error.hint = f"build a file: -o FILE.aci; then kurma image fetch ./FILE.aci; or {error.hint}"
        raise
    session.line(here.images.build(rootfs, manifest).id)


@command(
    POD_OR_APP,
    Argument("name", "NAME", "The name of the new image."),
    APP,
    *(option for option in MANIFEST_OPTIONS if option.name != "name"),
    root=True,
    here="it reads the pod's directory and builds into the store by itself, and no kurmad does it for others",
    example="kurma commit shop/web example.com/web --version 2",
)
def commit(session: Session, *, pod: str, app: str | None, **options: Any) -> None:
    """Make an image of an app's kept root.

    The pod has ended and keeps its roots (--keep-root). The image has all files of the root without its volumes,
    and the app as it ran; options change it. Prints the image ID.
    """

    def changed(manifest: dict[str, Any]) -> dict[str, Any]:
        if options["version"] is None:
            manifest["labels"] = [one for one in manifest.get("labels", ()) if one["name"] != "version"]
        return changed_manifest(manifest, options)

    session.line(session.client.commit(*values.pod_and_app(pod, app), changed).id)


@command(
    Argument("files", "FILE", "The archives.", many=True),
    PASSPHRASE_FILE,
    makes=True,
    example="kurma image validate web.aci",
)
def validate(session: Session, *, files: tuple[str, ...]) -> int:
    """Check that Kurma accepts image archives."""

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
        raise UsageError(f"{found} is not a directory", hint=other)
    if manifest is not None:
        return found, _read(manifest, "--manifest")
    if directory is None:
        return found, _new()
    own = os.path.join(directory, "manifest")
    if not os.path.lexists(own):
        hint = f"name one by --manifest FILE; without any, the image is built by --from-rootfs {found} --name NAME"
        raise UsageError(f"{directory} holds no manifest", hint=hint)
    return found, _read(own)


def changed_manifest(manifest: dict[str, Json], options: dict[str, Any]) -> dict[str, Json]:
    """The manifest, changed here by :data:`MANIFEST_OPTIONS`. :raises UsageError: it has no name, or one with a
    version; or the name or a label cannot be used to name the image."""
    if options["name"] is not None:
        manifest["name"] = _name(options["name"])
    if "name" not in manifest:
        raise UsageError("the image has no name", hint="--name NAME")
    labels = {label["name"]: label["value"] for label in manifest.get("labels", ())}
    labels.update(_labels(options["version"], options["label"]))
    for label, value in labels.items():
        if isinstance(value, str) and not value.isprintable():
            raise UsageError(
                f"the image's label {label} has a character that cannot be printed: {value[:80]!r}",
                hint="write the value with no line's end, tab or control character",
            )
    manifest["labels"] = [{"name": name, "value": value} for name, value in labels.items()]
    _change_app(manifest, options)
    return manifest


def _name(text: str) -> str:
    """The name of a new image. :raises UsageError: it has a version, or is malformed."""
    from kurma_core.appc.image_name import LONGEST_NAME
    from kurma_core.appc.types import ac_identifier

    name, colon, version = text.partition(":")
    try:
        ac_identifier(name, "$")
        if colon and "/" not in version and version.isprintable():
            raise UsageError(f"{text}: the name of an image has no version", hint=f"{name} --version {version}")
        if not colon and len(name) <= LONGEST_NAME:
            return name
    except ManifestError:
        pass
    raise UsageError(
        f"{text[:80]!r}{'…' * (len(text) > 80)} cannot be the name of an image",
        hint=f"1 to {LONGEST_NAME} lower-case letters and digits, with any of -._~/ between them",
    )


def _labels(version: str | None, texts: tuple[str, ...]) -> dict[str, str]:
    """:raises UsageError: one is given twice, be it by ``--version``; or the version is empty."""
    if version == "":
        raise UsageError("--version: the version is empty", hint="leave it out for an image without a version")
    labels = {} if version is None else {"version": version}
    for text in texts:
        name, value = values.pair(text, "--label")
        if name in labels:
            also = " by --version, too" if name == "version" and version is not None else " twice"
            raise UsageError(f"--label: {name!r} is given{also}", hint="give it once")
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
        raise UsageError(f"{file} is not a manifest")
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
        if not changes["exec"]:
            raise UsageError("--exec: the command is empty")
    environment = pod_file.environment(options["env"])
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
    Option("key", "--key", "Sign with this key of your GnuPG home; default: this machine's key.", metavar="FPR"),
    Option(
        "output",
        "--output -o",
        "Write the signature to FILE; default: the archive's name with .asc.",
        metavar="FILE",
    ),
    Option(
        "early", "--early", "Sign the uncompressed tar, as App Container 0.1.0 does; the signature ends in .sig."
    ),
    Option("force", "--force", "Replace an existing signature."),
    PASSPHRASE_FILE,
    FORMAT,
    makes=True,
    example="kurma image sign web.aci --key you@example.com",
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

    The signature is detached and ASCII-armored. Signs only image archives.
    """
    from kurma_core.named_files import writable

    if output is not None:
        writable(output, made_of=(file, session.passphrase_file))
    signed = session.client.here.images.files.sign(file, key=key, output=output, early=early, force=force)
    session.show(signed, lambda: f"{signed.signature}: {signed.name}, by {signed.fingerprint}")


@command(
    Argument("image", "IMAGE|FILE", "An image of the store, or the path of an archive."),
    Option(
        "signature",
        "--signature",
        "Read the signature from FILE; default: the file beside the archive.",
        metavar="FILE",
    ),
    PASSPHRASE_FILE,
    FORMAT,
    makes=True,
    example="kurma image verify example.com/web",
)
def verify(session: Session, *, image: str, signature: str | None) -> None:
    """Check a stored image, or the signature of a file.

    For a stored image, compares all of its files, and all trees rendered from it, with their digests, and prints
    its trust. For a file, checks that a key that is trusted for the image's name made the signature.
    """
    from kurma_core.api.images import ImageVerified
    from kurma_core.cli.commands.image import trust_words
    from kurma_core.cli.output import facts, to_second

    client = session.client
    path = client.archive_path(image)
    if signature is not None and path is None:
        if not os.path.isfile(image):
            hint = "an image of the store is verified without it; a file is named by its path: ./FILE"
            raise UsageError(f"--signature needs an image file: {image} is not a file", hint=hint)
        path = image
    if path is not None:
        found = client.here.images.files.check_signature(path, signature)
        signer = [("signer", found.fingerprint), *(("user", user) for user in found.users)]
        about = [("id", found.id), ("name", found.name), ("signature", found.signature), ("over", found.over)]
        session.show(ImageVerified(found, "signed"), lambda: facts([*about, *signer]))
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
    session.show(verified, lambda: facts(pairs))
