"""``image build`` and ``image validate``: archives, apart from the store."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import PASSPHRASE_FILE, Argument, Option, command
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
)
def build(session: Session, *, directory: str | None, output: str | None, compress: str, **options: Any) -> None:
    """Build an image archive from a directory.

    The same directory and options give the same image ID, which is printed. The manifest is that of DIR or of
    --manifest, changed as the other options say; with --from-rootfs alone it is made of them, and os and arch are
    this machine's.
    """
    from kurma_core.named_files import writable

    if output is None:
        raise UsageError("no file to write the image to", hint="-o FILE.aci")
    if options["passphrase_file"] is not None and not options["encrypt"]:
        raise UsageError("--passphrase-file is given, and --encrypt is not", hint="--encrypt uses it")
    rootfs, base = _sources(directory, options["from_rootfs"], options["manifest"])
    own = None if directory is None else f"{directory}/manifest"
    writable(output, made_of=(options["manifest"], own, options["passphrase_file"]))
    if not output.endswith(".aci"):
        raise UsageError(f"cannot write an image to {output}: its name must end in .aci", hint=f"-o {output}.aci")
    manifest = _manifest(base, options)
    session.passphrase_file = options["passphrase_file"]
    passphrase = session.passphrases().new(output) if options["encrypt"] else None
    compress = "" if compress == "none" else compress
    session.line(
        session.client.here.images.files.build(rootfs, manifest, output, compress=compress, passphrase=passphrase)
    )


@command(Argument("files", "FILE", "The archives.", many=True), PASSPHRASE_FILE)
def validate(session: Session, *, files: tuple[str, ...], passphrase_file: str | None) -> int:
    """Check that files are image archives that Kurma accepts."""
    session.passphrase_file = passphrase_file

    def one(file: str) -> None:
        manifest = session.client.here.images.files.inspect(file).contents.manifest
        session.line(f"{file}: {manifest.name}: a valid image")

    return session.each(files, one)


def _sources(directory: str | None, rootfs: str | None, manifest: str | None) -> tuple[str, dict[str, Json]]:
    """The root filesystem, and the manifest to begin with."""
    import os

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
