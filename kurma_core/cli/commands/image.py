"""``kurma image``: fetches, lists, shows, extracts, exports, renders, removes and garbage-collects images."""

from __future__ import annotations

from kurma_core.cli import values
from kurma_core.cli.command_line import (
    FILTER,
    FORMAT,
    INSECURE_OPTIONS,
    NO_LEGEND,
    NO_TRUNC,
    PASSPHRASE_FILE,
    Argument,
    Option,
    command,
)
from kurma_core.cli.output import ago, facts, has_label, kept, moment, pairs, size, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from kurma_core.api.images import ImageGc, ListedImage, Removal
    from kurma_core.appc.image import App, ImageManifest, MountPoint, Port
    from kurma_core.cli.output import Column, Filters
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
    "The image: its ID or the start of it (6 digits or more), its name, or the address that it was fetched from.",
)
_IMAGE_OR_FILE = Argument(
    "image",
    "IMAGE",
    "The image: its ID or the start of it (6 digits or more), its name, the address that it was "
    "fetched from, or the path of a file.",
)


@command(
    Argument("locators", "LOCATOR", "Addresses, paths or names.", many=True),
    Option(
        "pull",
        "--pull",
        "Fetch images that the store lacks (new), all (always) or none (never).",
        choices=("new", "always", "never"),
        default="new",
    ),
    Option(
        "creds_file",
        "--creds-file",
        "Use the credentials USER:PASSWORD in the first line of FILE for this fetch; - is standard input.",
        metavar="FILE",
    ),
    INSECURE_OPTIONS,
    PASSPHRASE_FILE,
    root=True,
    makes=True,
    example="kurma image fetch example.com/web:1.0",
)
def fetch(
    session: Session,
    *,
    locators: tuple[str, ...],
    pull: str,
    creds_file: str | None,
    insecure_options: tuple[str, ...],
) -> int:
    """Fetch images into the store, and print their IDs.

    A locator is a path, an address (SCHEME:…) that an installed fetcher accepts, or an image's name
    (example.com/app:1.0). Also fetches the image's dependencies that can be found.
    The credentials of --creds-file come before those of kurma login, and are not saved.
    """
    given: dict[str, Any] = {}
    if creds_file is not None:
        if len(locators) > 1:
            from kurma_core.errors import UsageError

            raise UsageError("--creds-file: several images are given", hint="fetch them one by one")
        given["credentials"] = values.credentials(creds_file)
    insecure = values.insecure(insecure_options)
    client = session.client

    def one(locator: str) -> None:
        record = client.image_fetch(locator, pull=pull, insecure=insecure, progress=session.progress(), **given)
        session.line(record.id)

    return session.each(locators, one)


@command(
    Option(
        "sort",
        "--sort",
        "Sort by name, or with the largest, newest or last used image first.",
        choices=("name", "size", "fetched", "used"),
        default="name",
    ),
    Option("all", "--all -a", "List all images, as without this option."),
    Option("quiet", "--quiet -q", "Print only full IDs, one per line."),
    FILTER,
    FORMAT,
    NO_TRUNC,
    NO_LEGEND,
    example="kurma image list --sort size",
)
def list_(session: Session, *, sort: str, all: bool, quiet: bool, filter: tuple[str, ...]) -> None:
    """List stored images.

    NAME is the argument of kurma image fetch for an image of a registry, and the image's own name and version for
    others. SIZE is the size of the extracted image; kurma image show also prints the size of the stored archive.
    Keys of --filter: id, reference (a name; * matches any text), label (NAME or NAME=VALUE), trust, before and
    since (an image that was fetched later or earlier).
    Prints an error on standard error for each image with a damaged record.
    """
    from kurma_core.api.images import ListedImage

    listing = session.client.images_list()
    listed = listing.images
    if sort in _ORDERS:
        listed = tuple(sorted(listed, key=lambda image: _ORDERS[sort](image.record), reverse=True))
    listed = tuple(kept(listed, filter, _filters(listing.images)))
    columns: list[Column] = [
        ("ID", lambda image: image.record.id if session.no_trunc else image.record.id[:20]),
        ("NAME", lambda image: ",".join(image.record.names), (3, -16)),
        ("SIZE", lambda image: size(image.record.size)),
        ("TRUST", "trust", (2, 0)),
        ("FETCHED", lambda image: ago(image.record.fetched_at)),
        ("LAST USED", lambda image: ago(image.record.last_used) or "never", (1, 0)),
    ]
    if any(image.record.managers for image in listed):
        columns.append(("MANAGER", lambda image: ",".join(image.record.managers), (1, 0)))
    if quiet:
        for image in listed:
            session.line(image.record.id)
    else:
        session.listing(listed, columns, ListedImage)
    for error in listing.damaged:
        session.problem(error)


def _filters(images: tuple[ListedImage, ...]) -> Filters:
    def fetched(reference: str) -> str:
        for image in images:
            if reference in (image.record.name, *image.record.names) or _begins(image.record.id, reference):
                return image.record.fetched_at
        from kurma_core.errors import ImageNotFoundError

        raise ImageNotFoundError(f"the store holds no image {reference}", hint="kurma image list shows its images")

    return {
        "id": lambda image, value: _begins(image["id"], value),
        "reference": _has_name,
        "label": lambda image, value: has_label(image["labels"], value),
        "trust": lambda image, value: image["trust"] == value,
        "before": lambda image, value: image["fetchedAt"] < fetched(value),
        "since": lambda image, value: image["fetchedAt"] > fetched(value),
    }


def _begins(image: str, start: str) -> bool:
    return image.removeprefix("sha512-").startswith(start.removeprefix("sha512-"))


def _has_name(image: Any, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return any(
        fnmatchcase(text, pattern)
        for name in (image["name"], *image["names"])
        for text in (name, name.rpartition("/")[2])
    )


@command(_IMAGE_OR_FILE, PASSPHRASE_FILE, FORMAT, makes=True, example="kurma image show example.com/web")
def show(session: Session, *, image: str) -> None:
    """Show all facts about an image.

    With a path, shows the archive in that file.
    """
    client = session.client
    file = client.archive_path(image)
    if file is not None:
        archive = client.here.images.files.inspect(file)
        session.show(archive, lambda: archive_page(archive))
        return
    found = client.image(image)
    words = trust_words(found.trust, found.record, found.lapse)
    session.show(found, lambda: page(found.record, found.manifest, words))


@command(
    _IMAGE_OR_FILE,
    Option("original", "--original", "Print the original documents of an App Container 0.1.0 image."),
    PASSPHRASE_FILE,
    makes=True,
    example="kurma image cat-manifest example.com/web",
)
def cat_manifest(session: Session, *, image: str, original: bool) -> None:
    """Print an image's manifest, byte for byte.

    Escapes control characters if standard output is a terminal.

    For an image of App Container 0.1.0, prints the converted manifest.
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
    Argument("directory", "DIR", "The target: an empty directory, or a new one."),
    PASSPHRASE_FILE,
    root=True,
    makes=True,
    example="kurma image extract example.com/web ./root",
)
def extract(session: Session, *, image: str, directory: str) -> None:
    """Extract an image's root filesystem.

    Prints the image's ID. Keeps owners, modes, times and attributes. Dependencies are not extracted; kurma image
    render merges them.
    """
    session.line(session.client.extract(image, directory))


@command(
    _IMAGE,
    Argument("file", "FILE", "The file to write; an existing file is replaced."),
    root=True,
    example="kurma image export example.com/web web.aci",
)
def export(session: Session, *, image: str, file: str) -> None:
    """Write a stored image to a file.

    The archive is uncompressed: its SHA-512 digest is the image's ID.
    """
    session.client.image_export(image, file, session.progress())


@command(
    _IMAGE,
    Option("renderer", "--renderer", "Use this renderer; default: the configured one.", metavar="RENDERER"),
    Option("verify", "--verify", "Check the content of the images again first."),
    FORMAT,
    root=True,
    example="kurma image render example.com/web",
)
def render(session: Session, *, image: str, renderer: str | None, verify: bool) -> None:
    """Render an image, and print its layer directories, top first."""
    rendered = session.client.image_render(image, renderer, verify=verify)
    session.show(rendered, lambda: "\n".join(layer.path for layer in rendered.layers))


@command(
    Argument("images", "IMAGE", "The images.", many=True),
    Option("dry_run", "--dry-run", "Print what would be removed, and remove nothing."),
    Option("force", "--force", "Do it also if a program manages the image."),
    root=True,
    example="kurma image rm example.com/web",
)
def rm(session: Session, *, images: tuple[str, ...], dry_run: bool, force: bool) -> int:
    """Remove stored images.

    Refuses to remove an image that a pod uses, and without --force one that a program manages.
    """

    def one(image: str) -> None:
        report = session.client.image_rm(image, dry_run=dry_run, managed=force)
        if dry_run:
            session.line(_removals(report))

    return session.each(images, one)


@command(
    Option(
        "grace_period",
        "--grace-period",
        "Keep images that were used less than TIME ago.",
        metavar="TIME",
        default="24h",
    ),
    Option("dry_run", "--dry-run", "Print what would be done, and change nothing."),
    FORMAT,
    root=True,
    example="kurma image gc --dry-run",
)
def gc(session: Session, *, grace_period: str, dry_run: bool) -> None:
    """Remove images that no pod has used for some time.

    Leaves images that a program manages. Also removes unused rendered trees and unfinished downloads.
    """
    report = session.client.image_gc(grace=values.seconds(grace_period, "--grace-period"), dry_run=dry_run)
    session.show(report, lambda: _removals(report))


_CREDENTIALS = "it writes credentials of this machine"
_REGISTRY = Argument(
    "registry",
    "HOST",
    "The registry: its host, or SCHEME://HOST; else `short_names` of kurma.yml.",
    required=False,
)


@command(
    _REGISTRY,
    Option("user", "--user --username -u", "Log in as this user; default: a prompt asks.", metavar="USER"),
    Option("password_stdin", "--password-stdin", "Read the password from standard input."),
    PASSPHRASE_FILE,
    INSECURE_OPTIONS,
    root=True,
    here=_CREDENTIALS,
    example="kurma login -u USER registry.example.com",
)
def login(
    session: Session,
    *,
    registry: str | None,
    user: str | None,
    password_stdin: bool,
    insecure_options: tuple[str, ...],
) -> None:
    """Check credentials with a registry, and save them.

    Reads the password from standard input (--password-stdin), else from the first line of --passphrase-file, else
    from KURMA_PASSPHRASE, else from a prompt. Prints the file in which the password is saved; only root may read
    it.
    """
    from kurma_core.errors import UsageError

    address = _registry(session, registry, "log in to")
    if password_stdin:
        if session.passphrase_file is not None:
            raise UsageError("--password-stdin and --passphrase-file exclude each other")
        session.passphrase_file = "-"  # noqa: S105 (a path)
    elif user is None and session.terminal():
        user = session.answer(f"user name at {address}:")
    if not user:
        raise UsageError(f"cannot log in to {address}: no user name", hint=f"kurma login -u USER {address}")
    secret = session.passphrases().get(f"{user} at {address}", wrong=False, word="password")
    if secret is None:
        raise UsageError(
            f"cannot log in to {address}: no password",
            hint="give it by --password-stdin, --passphrase-file FILE, in KURMA_PASSPHRASE, or at a terminal",
        )
    insecure = values.insecure(insecure_options)
    text = secret.decode(errors="surrogateescape")
    file = session.client.here.images.log_in(address, user, text, insecure)
    session.line(f"logged in to {address} as {user}: {file}")


@command(_REGISTRY, root=True, here=_CREDENTIALS, example="kurma logout registry.example.com")
def logout(session: Session, *, registry: str | None) -> None:
    """Remove the credentials that login saved.

    Prints the file from which they were removed. Credentials in files of other programs stay.
    """
    address = _registry(session, registry, "log out of")
    file = session.client.here.images.log_out(address)
    session.line(f"logged out of {address}: removed {file}")


def _registry(session: Session, given: str | None, verb: str) -> str:
    from kurma_core.errors import UsageError

    registry = given if given is not None else session.client.config.short_names
    if registry is None:
        raise UsageError(
            f"cannot {verb} a registry: no host is given",
            hint="give its host, or set `short_names` in kurma.yml",
        )
    return registry


def _removals(report: ImageGc) -> str:
    freed = "would be freed" if report.dry_run else "freed"
    return "\n".join([*removal_lines(report.removed, dry_run=report.dry_run), f"{size(report.freed)} {freed}"])


def removal_lines(removed: Iterable[Removal], *, dry_run: bool) -> Iterator[str]:
    """A line for each thing that was removed, or would be: its kind, name, ID and size."""
    word = "would be removed" if dry_run else "removed"
    for one in removed:
        ident = one.name if one.kind == "volume" else one.name[: 8 if one.kind == "pod" else 20]
        named = f"{one.display_name} ({ident})" if one.display_name else ident
        yield f"{one.kind} {named}: {word} ({size(one.size)})"


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
            ("manager", ", ".join(record.managers) or None),
            ("name", record.name),
            ("version", record.version),
            ("labels", pairs(record.labels)),
            ("size", size(record.size)),
            ("archive", size(record.archive_size) if record.archive_size else None),
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
    from shlex import join

    yield ("command", join(app.exec) or "none")
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
