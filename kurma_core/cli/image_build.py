"""``image build`` and ``image validate``: archives, apart from the store."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.declare import PASSPHRASE_FILE, Argument, Option, command
from kurma_core.cli.image import naming
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.session import Session

    Json = Any


@command(
    Argument("directory", "DIR", "Holds the image's manifest and rootfs.", required=False),
    Option("output", "--output -o", "The archive to write.", metavar="FILE"),
    Option("from_rootfs", "--from-rootfs", "A root filesystem, in place of DIR.", metavar="DIR"),
    Option("manifest", "--manifest", "The manifest to begin with, as JSON or YAML.", metavar="FILE"),
    Option("name", "--name", "The image's name.", metavar="NAME"),
    Option("version", "--version", "Its version.", metavar="VERSION"),
    Option("label", "--label", "A label of it.", metavar="NAME=VALUE", many=True),
    Option("exec", "--exec", "The app's command, split into words as by a shell.", metavar="COMMAND"),
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
    --manifest, changed as the other options say; without one, os and arch are this machine's.
    """
    import os

    rootfs: str | None = options["from_rootfs"]
    if (directory is None) == (rootfs is None):
        raise UsageError("expected either DIR or --from-rootfs DIR")
    if output is None:
        raise UsageError("no file to write the image to", hint="-o FILE")
    base = options["manifest"]
    if directory is not None:
        rootfs = os.path.join(directory, "rootfs")
        base = base or os.path.join(directory, "manifest")
    assert rootfs is not None
    if not os.path.isdir(rootfs):
        raise UsageError(f"{rootfs} is no directory")
    manifest = _manifest(base, options)
    session.passphrase_file = options["passphrase_file"]
    passphrase = session.passphrases().new(output) if options["encrypt"] else None
    compress = "" if compress == "none" else compress
    session.line(session.client.images.build(rootfs, manifest, output, compress=compress, passphrase=passphrase))


@command(Argument("files", "FILE", "The archives.", many=True), PASSPHRASE_FILE)
def validate(session: Session, *, files: tuple[str, ...], passphrase_file: str | None) -> int:
    """Check that files are image archives that Kurma accepts."""
    session.passphrase_file = passphrase_file

    def one(file: str) -> None:
        with naming(file):
            manifest = session.client.images.inspect(file).contents.manifest
        session.line(f"{file}: {manifest.name}: a valid image")

    return session.each(files, one)


def _manifest(base: str | None, options: dict[str, Any]) -> dict[str, Json]:
    manifest = _new() if base is None else _read(base)
    if options["name"] is not None:
        manifest["name"] = options["name"]
    if "name" not in manifest:
        raise UsageError("the image has no name", hint="--name NAME")
    labels = {label["name"]: label["value"] for label in manifest.get("labels", ())}
    if options["version"] is not None:
        labels["version"] = options["version"]
    labels.update(values.pair(text, "--label") for text in options["label"])
    manifest["labels"] = [{"name": name, "value": value} for name, value in labels.items()]
    _change_app(manifest, options)
    return manifest


def _new() -> dict[str, Json]:
    from kurma_core.appc.image import AC_VERSION
    from kurma_core.fetching.locator import host_platform

    os_name, arch = host_platform()
    labels = [{"name": "os", "value": os_name}, {"name": "arch", "value": arch}]
    return {"acKind": "ImageManifest", "acVersion": AC_VERSION, "labels": labels}


def _read(file: str) -> dict[str, Json]:
    from kurma_core.appc.jsonio import loads
    from kurma_core.config_files import read

    if file.endswith((".yml", ".yaml")):
        value = read(file)
    else:
        try:
            with open(file, "rb") as stream:
                value = loads(stream.read(), file)
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
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
