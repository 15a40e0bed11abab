"""``isolators``: what apps and pods may be allowed and given."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.host import IsolatorInfo
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session


@command(FORMAT, NO_LEGEND)
def list_(session: Session, *, format: str, no_legend: bool) -> None:
    """List isolators, and what this host makes of each.

    Here: enforced, modified, ignored or refused, as a common value of it would be. Default: what holds where it is
    not asked for.
    """
    columns: list[Column] = [
        ("ISOLATOR", lambda one: one.name),
        ("OF", lambda one: ",".join(one.scopes)),
        ("PLUGIN", lambda one: one.plugin),
        ("HERE", lambda one: one.outcome),
        ("DEFAULT", _default),
        ("NOTE", lambda one: one.note),
    ]
    session.listing(format, session.client.isolators(), columns, no_legend=no_legend)


def _default(one: IsolatorInfo) -> str:
    from kurma_core.json_text import dumps

    return "" if one.default is None else dumps(one.default)
