"""``config``: the effective configuration."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kurma_core.cli.session import Session
    from kurma_core.config import Config
    from kurma_core.errors import KurmaError


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
    from kurma_core import config

    problems = [*config.check(session.client.config, session.client.registry)]
    for problem in problems:
        problem.message = _placed(problem, session.client.config)
    problems += _of_networks(session, {problem.data.get("plugin") for problem in problems})
    for problem in problems:
        session.problem(problem)
    if problems:
        return 125
    files = session.client.config.config_files
    session.line("the configuration is right: " + (", ".join(files) or "no file, all defaults"))
    return 0


def _of_networks(session: Session, told: set[Any]) -> Iterator[KurmaError]:
    """What is wrong with configured networks. :param told: plugins that have been told of."""
    from kurma_core.errors import ConfigError

    config = session.client.config
    entries = {entry.name: entry for entry in config.container_networks}
    for network in session.client.networks.configured() if entries else ():
        if network.problem is not None and f"kurma.networks/{entries[network.name].plugin}" not in told:
            key = f"container_networks.{network.name}"
            origin = config.origins[key]
            yield ConfigError(f"{origin}: {key}: {network.problem}", file=origin, path=key)


def _placed(problem: KurmaError, config: Config) -> str:
    """The problem's message, headed by the file and the key that ask for the plugin, unless it names the file."""
    group, _, name = str(problem.data.get("plugin", "")).partition("/")
    keys = {
        "kurma.renderers": ["renderer"] if name == config.renderer else [],
        "kurma.stagers": [f"stagers.{key}.driver" for key, one in config.stagers.items() if one.driver == name],
        "kurma.networks": [
            f"container_networks.{one.name}.plugin" for one in config.container_networks if one.plugin == name
        ],
    }.get(group, [])
    if group == "kurma.stagers" and name == config.stager and name not in config.stagers:
        keys.insert(0, "stager")
    section = f"plugins.{group.removeprefix('kurma.')}.{name}"
    key = next(iter(keys), section)
    origin = _origin(key, config.origins)
    if origin == "default" or origin in problem.message:
        return problem.message
    return f"{origin}: {key}: {problem.message}"


def _leaves(path: str, value: Any, origins: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Dotted path, value as JSON, and origin. A mapping that came as a whole is one row, an empty one too."""
    below = [name for name in origins if name.startswith(f"{path}.")]
    if isinstance(value, dict) and value and (not path or below):
        for name, item in value.items():
            yield from _leaves(f"{path}.{name}" if path else name, item, origins)
        return
    import json

    yield path, json.dumps(value, ensure_ascii=False), _origin(path, origins)


def _origin(path: str, origins: Mapping[str, str]) -> str:
    """Of the value, or of the nearest one that holds it."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return "default"
