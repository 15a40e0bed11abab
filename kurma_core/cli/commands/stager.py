"""``kurma stager``: lists, builds, checks and exports stagers."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.host import CheckLine
    from kurma_core.cli.session import Session

_COLUMNS = ("name", "kind", "image", "default")


@command(FORMAT, NO_LEGEND, example="kurma stager list")
def list_(session: Session) -> None:
    """List the stagers that --stager accepts."""
    session.listing(session.client.stagers(), _COLUMNS)


@command(
    Argument("name", "STAGER", "The stager."),
    Option("force", "--force", "Build the image again, even if it exists."),
    root=True,
    makes=True,
    example="kurma stager build default",
)
def build(session: Session, *, name: str, force: bool) -> None:
    """Build or fetch a stager's image, and verify it.

    Prints the image's ID.
    """
    session.line(session.client.stager_build(name, force=force).id)


@command(
    Argument("image", "IMAGE", "The stager: a name that --stager accepts, or an image's locator."),
    FORMAT,
    root=True,
    makes=True,
    example="kurma stager check ./stager.aci",
)
def check(session: Session, *, image: str) -> int:
    """Run the contract suite on a stager's image.

    Starts test pods under the stager, and removes them. Skips features that the stager declares as missing. The
    exit code is 0 if all checks pass, and 1 if one fails.
    """
    lines = session.client.stager_check(image, _told(session) if session.format == "table" else lambda line: None)
    count = {outcome: sum(line.outcome == outcome for line in lines) for outcome in _MARKS}
    if session.format != "table":
        session.listing(lines, ())
    else:
        session.line(f"{count['ok']} hold, {count['fail']} do not, {count['skipped']} were skipped")
    return 1 if count["fail"] else 0


@command(
    Argument("file", "FILE", "The archive to write, an .aci file."),
    Option("kind", "--format", "Write this format, if the stager exports several.", metavar="FORMAT"),
    Option("stager", "--stager", "Export this stager; default: the configured one.", metavar="STAGER"),
    makes=True,
    example="kurma stager export stager.aci",
)
def export(session: Session, *, file: str, kind: str | None, stager: str | None) -> None:
    """Write a stager as an image for another engine.

    Prints the image's ID. The image is not signed; kurma image sign signs it. To run it on this host, list the
    key's fingerprint in trusted_host_keys, or the printed ID in host_image_digests. The stager's documentation
    describes its formats.
    """
    from kurma_core.named_files import writable

    writable(file)
    session.line(session.client.stager_export(file, format=kind, name=stager))


_MARKS = {"ok": "ok  ", "fail": "FAIL", "skipped": "--  "}


def _told(session: Session) -> Callable[[CheckLine], None]:
    from kurma_core.cli.output import one_line

    def tell(line: CheckLine) -> None:
        detail = f": {one_line(line.detail)}" if line.detail else ""
        session.line(f"{_MARKS[line.outcome]}  {line.name:<{_WIDTH}}  {line.about}{detail}")
        # People watch it; and what runs so long is read from a file, too.
        session.flush()

    return tell


_WIDTH = 24
