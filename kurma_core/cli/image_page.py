"""What ``image show`` prints for people: the image, its app, what it is made of, and where it came from."""

from __future__ import annotations

import shlex

from kurma_core.cli.output import facts, moment, pairs, size, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.appc.image import App, ImageManifest, MountPoint, Port
    from kurma_core.cli.output import Column
    from kurma_core.image_store.validating import ArchiveFacts
    from kurma_core.models.image import ImageRecord, Provenance

    Fact = tuple[str, str | None]


def page(record: ImageRecord, manifest: ImageManifest, trust: str) -> str:
    """The whole page, as paragraphs.

    :param trust: what vouches for it now, in words.
    """
    return "\n\n".join(_paragraphs(record, manifest, trust))


def trust_words(now: str, record: ImageRecord, lapse: str | None) -> str:
    """What vouches for an image, and what did when it came in, where that is another thing.

    :param lapse: why it is, as of :meth:`kurma_core.images.ImageManager.lapse`.
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
            ("DEPENDS ON", lambda one: one.image_name),
            ("LABELS", lambda one: ",".join(f"{label.name}={label.value}" for label in one.labels)),
            ("ID", lambda one: (one.image_id or "")[:20]),
            ("AT", lambda one: one.root),
        ]
        yield "\n".join(table(manifest.dependencies, dependencies))
    if manifest.path_whitelist:
        yield "\n".join(table(manifest.path_whitelist, [("KEEPS ONLY", str)]))
    notes = [note for note in manifest.annotations if note.value]
    if notes:
        yield "\n".join(table(notes, [("ANNOTATION", lambda one: one.name), ("VALUE", lambda one: one.value)]))
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
    """What ``show`` says of an archive that is not in the store."""
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
