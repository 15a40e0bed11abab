"""``network``: the networks that pods may join."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, Argument, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_COLUMNS: list[Column] = [
    ("NAME", lambda network: network.name),
    ("DRIVER", lambda network: network.driver),
    ("INTERFACE", lambda network: network.interface),
    ("DEFAULT", lambda network: "yes" if network.default else ""),
    ("SOURCE", lambda network: network.source),
    ("PROBLEM", lambda network: network.problem or ""),
]


@command(FORMAT, NO_LEGEND)
def list_(session: Session, *, format: str, no_legend: bool) -> None:
    """List networks."""
    session.listing(format, session.client.networks.listing(), _COLUMNS, no_legend=no_legend)


@command(Argument("name", "NAME", "The network."), FORMAT)
def show(session: Session, *, name: str, format: str) -> None:
    """Show everything that is known of a network."""
    from kurma_core.cli.output import facts, json_text

    network = session.client.networks.show(name)

    def page() -> str:
        return facts(
            [
                ("name", network.name),
                ("driver", network.driver),
                ("interface", network.interface),
                ("default", "yes" if network.default else "no"),
                ("optional", "yes" if network.optional else "no"),
                ("source", network.source),
                ("problem", network.problem),
                ("config", json_text(dict(network.config))),
            ]
        )

    session.show(format, network.to_json(), page)


@command(Argument("names", "NAME", "The networks.", many=True), root=True)
def rm(session: Session, *, names: tuple[str, ...]) -> int:
    """Take from the host what networks share among pods, such as a bridge.

    Their configuration stays: the next pod makes them again.
    """
    return session.each(names, session.client.network_rm)
