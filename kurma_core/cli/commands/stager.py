"""``kurma stager``: lists, builds, checks and exports stagers."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.host import CheckLine
    from kurma_core.cli.session import Session

_COLUMNS = ("name", "kind", "image", "default")


@command(FORMAT, NO_LEGEND)
def list_(session: Session) -> None:
    """List the stagers that --stager accepts."""
    session.listing(session.client.stagers(), _COLUMNS)


@command(
    Argument("name", "NAME", "The stager."),
    Option("force", "--force", "Build it anew, even if its image is there."),
    root=True,
    makes=True,
)
def build(session: Session, *, name: str, force: bool) -> None:
    """Build, or fetch, and verify a stager's image; print its ID."""
    session.line(session.client.stager_build(name, force=force).id)


@command(
    Argument("image", "IMAGE", "The stager: a name that --stager accepts, or the locator of an image."),
    FORMAT,
    root=True,
    makes=True,
)
def check(session: Session, *, image: str) -> int:
    """Run the contract suite on a stager's image, line by line.

    Starts pods of its own under that stager, and removes them. The exit code is 0 if all checks pass, and 1 if one
    fails. Features that the stager declares as missing are skipped.
    """
    lines = session.client.stager_check(image, _told(session) if session.format == "table" else lambda line: None)
    count = {outcome: sum(line.outcome == outcome for line in lines) for outcome in _MARKS}
    if session.format != "table":
        session.show([line.to_json() for line in lines], str)
    else:
        session.line(f"{count['ok']} hold, {count['fail']} do not, {count['skipped']} were skipped")
    return 1 if count["fail"] else 0


@command(
    Argument("file", "FILE", "The archive to write: an .aci."),
    Option(
        "kind", "--format", "Which of the formats that the stager exports, if there are several.", metavar="FORMAT"
    ),
    Option("stager", "--stager", "The stager; without it, the configured one.", metavar="NAME"),
    makes=True,
)
def export(session: Session, *, file: str, kind: str | None, stager: str | None) -> None:
    """Write a stager as an image for another container engine; print its ID.

    The image is not signed: sign it by kurma image sign. To run it here, list the key's fingerprint in
    trusted_host_keys, or the printed ID in host_image_digests. The stager's documentation describes its formats.
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
