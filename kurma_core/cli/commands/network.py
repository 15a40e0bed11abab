"""``kurma network``: lists, shows, checks, repairs and removes networks."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_COLUMNS = ("name", "driver", "interface", "default", "source", "problem")

_FINDINGS: list[Column] = [
    "kind",
    "network",
    ("POD", lambda one: (one.pod or "")[:8]),
    "what",
    ("PROBLEM", "why"),
]
_REPAIRED: Column = ("REPAIRED", lambda one: "yes" if one.repaired else "no")


@command(FORMAT, NO_LEGEND)
def list_(session: Session) -> None:
    """List networks."""
    session.listing(session.client.networks_list(), _COLUMNS)


@command(Argument("name", "NAME", "The network."), FORMAT)
def show(session: Session, *, name: str) -> None:
    """Show everything that is known of a network."""
    from kurma_core.cli.output import facts, fields, json_text

    network = session.client.network(name)

    def page() -> str:
        about = fields(network, "name", "driver", "interface", "default", "optional", "source", "problem")
        return facts([*about, ("config", json_text(dict(network.config)))])

    session.show(network.to_json(), page)


@command(
    Argument("names", "NAME", "Only these networks.", required=False, many=True),
    Option("repair", "--repair", "Repair what can be repaired."),
    FORMAT,
    NO_LEGEND,
    root=True,
)
def check(session: Session, *, names: tuple[str, ...], repair: bool) -> int:
    """Tell what is wrong with networks, and what pods have left.

    Checks whether networks can be used, the interfaces and namespaces of running pods, and looks for addresses,
    interfaces, rules and namespaces that belong to no pod. Only --repair changes anything: it takes down dead
    pods, frees what belongs to no pod, and restores what running pods lack. Networks of other programs are left
    alone. The exit code is 0 if no problem is found or all are repaired, and 1 otherwise.
    """
    found = session.client.network_check(names, repair=repair)
    if found or session.format != "table":
        columns = [*_FINDINGS, _REPAIRED] if repair else _FINDINGS
        session.listing(found, columns)
    if all(one.repaired for one in found):
        return 0
    if not repair:
        session.note("something is wrong: kurma network check --repair repairs what can be repaired")
    return 1


@command(Argument("names", "NAME", "The networks.", many=True), root=True)
def rm(session: Session, *, names: tuple[str, ...]) -> int:
    """Take from the host what networks share among pods, such as a bridge.

    Their configuration stays: the next pod makes them again.
    """
    return session.each(names, session.client.network_rm)
