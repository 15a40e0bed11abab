"""``stager``: the programs that run the inside of pods."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_COLUMNS: list[Column] = [
    ("NAME", lambda stager: stager["name"]),
    ("KIND", lambda stager: stager["kind"]),
    ("IMAGE", lambda stager: stager.get("image") or ""),
    ("DEFAULT", lambda stager: "yes" if stager.get("default") else ""),
]


@command(FORMAT, NO_LEGEND)
def list_(session: Session, *, format: str, no_legend: bool) -> None:
    """List the stagers that --stager accepts."""
    session.listing(format, session.client.stagers(), _COLUMNS, no_legend=no_legend)


@command(
    Argument("name", "NAME", "The stager."),
    Option("force", "--force", "Build it anew, even if its image is there."),
    root=True,
)
def build(session: Session, *, name: str, force: bool) -> None:
    """Build, or fetch, and verify a stager's image; print its ID."""
    session.line(session.client.stager_build(name, force=force).id)
