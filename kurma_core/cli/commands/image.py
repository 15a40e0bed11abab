"""``kurma image``: fetches, lists, shows, extracts, exports, renders, removes and garbage-collects images."""

from __future__ import annotations

import shlex

from kurma_core.cli import values
from kurma_core.cli.command_line import (
    FORMAT,
    INSECURE_OPTIONS,
    NO_LEGEND,
    PASSPHRASE_FILE,
    Argument,
    Option,
    command,
)
from kurma_core.cli.output import ago, facts, moment, pairs, size, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from kurma_core.api.images import ImageGc
    from kurma_core.appc.image import App, ImageManifest, MountPoint, Port
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.image_store.archive_layout import ArchiveFacts
    from kurma_core.models.image import ImageRecord, Provenance

    Fact = tuple[str, str | None]


#: Keys of ``--sort``, the greatest first; the store lists by name, and then by age.
_ORDERS: dict[str, Callable[[ImageRecord], Any]] = {
    "size": lambda image: image.size,
    "fetched": lambda image: image.age_order,
    "used": lambda image: image.last_used or "",
}
_IMAGE = Argument(
    "image",
    "IMAGE",
    "The image: its ID, the beginning of it (6 digits or more), its name, or the address it came by.",
)
_IMAGE_OR_FILE = Argument(
    "image",
    "IMAGE",
    "The image: its ID, the start of it (6 digits or more), its name, the address it came by, or a file's path.",
)


@command(
    Argument("locators", "LOCATOR", "Addresses, paths or names.", many=True),
    Option(
        "pull",
        "--pull",
        "Fetch what is not in the store, always, or never.",
        choices=("new", "always", "never"),
        default="new",
    ),
    INSECURE_OPTIONS,
    PASSPHRASE_FILE,
    root=True,
    makes=True,
)
def fetch(
    session: Session,
    *,
    locators: tuple[str, ...],
    pull: str,
    insecure_options: tuple[str, ...],
) -> int:
    """Fetch images into the store, and print their IDs.

    A locator is a path, an address (SCHEME:…) of an installed fetcher, or an image's name (example.com/app:1.0).
    Its dependencies are fetched, too, if they can be found.
    """
    insecure = values.insecure(insecure_options)
    client = session.client

    def one(locator: str) -> None:
        session.line(client.image_fetch(locator, pull=pull, insecure=insecure, progress=session.progress()).id)

    return session.each(locators, one)


@command(
    Option(
        "sort",
        "--sort",
        "By what: the largest, the newest or the last used stands first.",
        choices=("name", "size", "fetched", "used"),
        default="name",
    ),
    Option("quiet", "--quiet -q", "Print IDs only, whole, one a line."),
    FORMAT,
    NO_LEGEND,
)
def list_(session: Session, *, sort: str, quiet: bool) -> None:
    """List the images of the store.

    Errors of images with damaged records are printed on standard error.
    """
    listing = session.client.images_list()
    listed = listing.images
    if sort in _ORDERS:
        listed = tuple(sorted(listed, key=lambda image: _ORDERS[sort](image.record), reverse=True))
    columns: list[Column] = [
        ("ID", lambda image: image.record.id[:20]),
        ("NAME", "record.name"),
        ("VERSION", "record.version"),
        ("SIZE", lambda image: size(image.record.size)),
        "trust",
        ("FETCHED", lambda image: ago(image.record.fetched_at)),
        ("LAST USED", lambda image: ago(image.record.last_used) or "never"),
    ]
    if quiet:
        for image in listed:
            session.line(image.record.id)
    else:
        session.listing(listed, columns)
    for error in listing.damaged:
        session.problem(error)


@command(_IMAGE_OR_FILE, PASSPHRASE_FILE, FORMAT, makes=True)
def show(session: Session, *, image: str) -> None:
    """Show everything that is known of an image.

    For a path, shows the archive in that file, without the store.
    """
    client = session.client
    file = client.archive_path(image)
    if file is not None:
        archive = client.here.images.files.inspect(file)
        session.show(archive.to_json(), lambda: archive_page(archive))
        return
    found = client.image(image)
    words = trust_words(found.trust, found.record, found.lapse)
    session.show(found.to_json(), lambda: page(found.record, found.manifest, words))


@command(
    _IMAGE_OR_FILE,
    Option("original", "--original", "Of an early image, print its own documents."),
    PASSPHRASE_FILE,
    makes=True,
)
def cat_manifest(session: Session, *, image: str, original: bool) -> None:
    """Print an image's manifest, byte for byte.

    On a terminal, control characters are escaped.

    For an early image (0.1.0), prints the late form that Kurma made of its manifest.
    """
    client = session.client
    file = client.archive_path(image)
    if file is None:
        document = client.image_manifest(image, original=original)
    else:
        contents = client.here.images.files.inspect(file).contents
        document = (b"".join(contents.originals.values()) if original else b"") or contents.manifest_bytes
    session.document(document)


@command(
    _IMAGE_OR_FILE,
    Argument("directory", "DIR", "Where to: an empty directory, or a new one."),
    PASSPHRASE_FILE,
    root=True,
    makes=True,
)
def extract(session: Session, *, image: str, directory: str) -> None:
    """Extract an image's root filesystem, and print the image's ID.

    Owners, modes, times and attributes are the image's. Its dependencies are not in it; render shows the whole.
    """
    session.line(session.client.extract(image, directory))


@command(_IMAGE, Argument("file", "FILE", "Where to; it is replaced if it exists."), root=True)
def export(session: Session, *, image: str, file: str) -> None:
    """Write an image of the store to a file.

    The archive is uncompressed, and has the image's ID as its digest.
    """
    session.client.image_export(image, file, session.progress())


@command(
    _IMAGE,
    Option("renderer", "--renderer", "The renderer; the configured one otherwise.", metavar="NAME"),
    Option("verify", "--verify", "Check the images' content again first."),
    FORMAT,
    root=True,
)
def render(session: Session, *, image: str, renderer: str | None, verify: bool) -> None:
    """Render an image, and print its directories, top first."""
    rendered = session.client.image_render(image, renderer, verify=verify)
    session.show(rendered.to_json(), lambda: "\n".join(layer.path for layer in rendered.layers))


@command(
    Argument("images", "IMAGE", "The images.", many=True),
    Option("dry_run", "--dry-run", "Only say what would be removed."),
    root=True,
)
def rm(session: Session, *, images: tuple[str, ...], dry_run: bool) -> int:
    """Remove images from the store.

    Images that a pod uses are kept.
    """

    def one(image: str) -> None:
        report = session.client.image_rm(image, dry_run=dry_run)
        if dry_run:
            session.line(_removals(report))

    return session.each(images, one)


@command(
    Option(
        "grace_period", "--grace-period", "Keep what was used less than TIME ago.", metavar="TIME", default="24h"
    ),
    Option("dry_run", "--dry-run", "Only say what would be done."),
    FORMAT,
    root=True,
)
def gc(session: Session, *, grace_period: str, dry_run: bool) -> None:
    """Remove images that were not used for a while.

    Also removes rendered trees and unfinished downloads; keeps everything that a pod uses.
    """
    report = session.client.image_gc(grace=values.seconds(grace_period, "--grace-period"), dry_run=dry_run)
    session.show(report.to_json(), lambda: _removals(report))


_CREDENTIALS = "it writes credentials of this machine"
_ADDRESS = Argument("address", "ADDRESS", "The source: SCHEME://HOST.")


@command(
    _ADDRESS,
    Argument("user", "USER", "The user's name there."),
    PASSPHRASE_FILE,
    INSECURE_OPTIONS,
    root=True,
    here=_CREDENTIALS,
)
def login(session: Session, *, address: str, user: str, insecure_options: tuple[str, ...]) -> None:
    """Check credentials with a source of images, and keep them.

    The password is read from the first line of --passphrase-file, else from KURMA_PASSPHRASE, or asked for. Prints
    the file that keeps it, which root alone may read.
    """
    from kurma_core.errors import UsageError

    secret = session.passphrases().get(address, wrong=False)
    if secret is None:
        raise UsageError(
            f"no password for {address}",
            hint="give it by --passphrase-file FILE, in KURMA_PASSPHRASE, or at a terminal",
        )
    insecure = values.insecure(insecure_options)
    text = secret.decode(errors="surrogateescape")
    session.line(session.client.here.images.log_in(address, user, text, insecure))


@command(_ADDRESS, root=True, here=_CREDENTIALS)
def logout(session: Session, *, address: str) -> None:
    """Remove credentials that login keeps.

    Prints the file that kept them.
    """
    session.line(session.client.here.images.log_out(address))


def _removals(report: ImageGc) -> str:
    word, freed = ("would be removed", "would be freed") if report.dry_run else ("removed", "freed")
    lines = [f"{one.kind} {one.name[:20]}: {word} ({size(one.size)})" for one in report.removed]
    return "\n".join([*lines, f"{size(report.freed)} {freed}"])


def page(record: ImageRecord, manifest: ImageManifest, trust: str) -> str:
    """The whole page, as paragraphs.

    :param trust: the image's trust now, in words.
    """
    return "\n\n".join(_paragraphs(record, manifest, trust))


def trust_words(now: str, record: ImageRecord, lapse: str | None) -> str:
    """An image's trust now, and its trust at its arrival if that was different.

    :param lapse: the reason for the change, as from :meth:`kurma_core.images.ImageManager.lapse`.
    """
    why = "was revoked" if lapse == "revoked" else "is not trusted for it"
    return now if now == record.trust else f"{now} (it came in {record.trust}, by a key that {why})"


def _paragraphs(record: ImageRecord, manifest: ImageManifest, trust: str) -> Iterator[str]:
    yield facts(
        [
            ("id", record.id),
            ("early id", record.early_id),
            ("name", record.name),
            ("version", record.version),
            ("labels", pairs(record.labels)),
            ("size", size(record.size)),
            ("trust", trust),
            ("fetched", moment(record.fetched_at)),
            ("last used", moment(record.last_used) if record.last_used else "never"),
        ]
    )
    yield facts(_app(manifest.app)) if manifest.app is not None else "no app: an image for others to depend on"
    if manifest.dependencies:
        dependencies: list[Column] = [
            ("DEPENDS ON", "image_name"),
            ("LABELS", lambda one: ",".join(f"{label.name}={label.value}" for label in one.labels)),
            ("ID", lambda one: (one.image_id or "")[:20]),
            ("AT", "root"),
        ]
        yield "\n".join(table(manifest.dependencies, dependencies))
    if manifest.path_whitelist:
        yield "\n".join(table(manifest.path_whitelist, [("KEEPS ONLY", str)]))
    notes = [note for note in manifest.annotations if note.value]
    if notes:
        yield "\n".join(table(notes, [("ANNOTATION", "name"), "value"]))
    layers: list[Column] = [("LAYERS, LOWEST FIRST", str)]
    yield "\n".join(table(record.layers, layers)) if record.layers else "no layers"
    for one in reversed(record.provenance):
        yield facts(_came(one))


def _app(app: App) -> Iterator[Fact]:
    yield ("command", shlex.join(app.exec) or "none")
    yield ("user", f"{app.user}:{app.group}")
    yield ("directory", app.working_directory)
    yield ("environment", "\n".join(f"{one.name}={one.value}" for one in app.environment))
    yield ("ports", ", ".join(map(_port, app.ports)))
    yield ("volumes", ", ".join(map(_volume, app.mount_points)))
    yield ("isolators", ", ".join(one.name for one in app.isolators))


def _port(port: Port) -> str:
    last = f"-{port.port + port.count - 1}" if port.count > 1 else ""
    return f"{port.name} ({port.port}{last}/{port.protocol})"


def _volume(one: MountPoint) -> str:
    return f"{one.name} ({one.path}{', read-only' if one.read_only else ''})"


def _came(one: Provenance) -> Iterator[Fact]:
    yield ("came from", one.locator)
    yield ("url", one.url if one.url != one.locator else None)
    yield ("at", moment(one.fetched_at))
    yield ("trust", one.trust)
    yield ("digest", one.digest)
    yield ("key", one.fingerprint)
    yield ("encrypted", "yes" if one.encrypted else None)
    yield ("relaxed", ", ".join(one.insecure))


def archive_page(archive: ArchiveFacts) -> str:
    """The page of ``show`` about an archive that is not in the store."""
    value = archive.to_json()
    app = archive.contents.manifest.app
    head = facts(
        [
            ("id", archive.id),
            ("early id", archive.early_id),
            ("name", value["name"]),
            ("version", value["version"]),
            ("labels", pairs(value["labels"])),
            ("size", size(archive.shipped)),
            ("tar", f"{size(archive.size)}, {archive.entries} entries"),
            ("encrypted", "yes" if archive.encrypted else "no"),
            ("layout", "early" if value["early"] else "late"),
        ]
    )
    return head if app is None else f"{head}\n\n{facts(_app(app))}"
