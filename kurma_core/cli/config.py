"""``config``: the effective configuration."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kurma_core.cli.session import Session


@command(FORMAT, NO_LEGEND)
def show(session: Session, *, format: str, no_legend: bool) -> None:
    """Show the effective configuration, and where each value comes from.

    As JSON and YAML: the values alone, as a file could say them.
    """
    from kurma_core.cli.output import table

    config = session.client.config
    rows = list(_leaves("", config.to_json(), config.origins))
    session.show(
        format,
        config.to_json(),
        lambda: "\n".join(
            table(
                rows,
                [("KEY", lambda row: row[0]), ("VALUE", lambda row: row[1]), ("FROM", lambda row: row[2])],
                legend=not no_legend,
            )
        ),
    )


@command()
def check(session: Session) -> int:
    """Check the configuration, with the plugins that it names."""
    from kurma_core.client.local.managers import problems

    found = problems(session.client.here)
    for problem in found:
        session.problem(problem)
    if found:
        return 125
    files = session.client.config.config_files
    session.line("the configuration is right: " + (", ".join(files) or "no file, all defaults"))
    return 0


def _leaves(path: str, value: Any, origins: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Dotted path, value as JSON, and origin. A mapping that came as a whole is one row, an empty one too."""
    below = [name for name in origins if name.startswith(f"{path}.")]
    if isinstance(value, dict) and value and (not path or below):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, item, origins)
        return
    import json

    from kurma_core.config import origin

    yield path, json.dumps(value, ensure_ascii=False), origin(path, origins)
