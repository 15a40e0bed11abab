"""``kurma info``, ``version``, ``completion``, ``config show`` and ``config check``."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kurma_core.api.host import HostCheckInfo
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session


_SHELLS = ("bash", "zsh", "fish")


@command(Option("check", "--check", "Check what this host lacks."), FORMAT, NO_LEGEND)
def info(session: Session, *, check: bool) -> int:
    """Show what this host and this installation are.

    With --check, it asks enabled plugins, too; the exit code is 1 if something is missing.
    """
    from kurma_core.cli.output import facts

    if check:
        found = session.client.host_checks()
        columns: list[Column] = ["by", ("CHECK", "name"), ("OK", _yes), "detail", "hint"]
        session.listing(found, columns)
        return 0 if all(one.ok for one in found) else 1

    value = session.client.info().to_json()
    session.show(value, lambda: facts([(name, _words(item)) for name, item in value.items()]))
    return 0


def _yes(check: HostCheckInfo) -> str:
    return "yes" if check.ok else "NO"


@command()
def version(session: Session) -> None:
    """Print Kurma's version."""
    from kurma_core import VERSION

    session.line(f"kurma {VERSION}")


@command(Argument("shell", "bash|zsh|fish", "The shell."))
def completion(session: Session, *, shell: str) -> None:
    """Print a shell's completion for kurma.

    For bash: kurma completion bash > /etc/bash_completion.d/kurma
    """
    from kurma_core.cli.typer_app import completion_script
    from kurma_core.errors import UsageError

    if shell not in _SHELLS:
        raise UsageError(f"no completion for {shell!r}", hint=f"there is one for {', '.join(_SHELLS)}")
    session.line(completion_script(shell))


def _words(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name.removeprefix('kurma.')} {_words(item)}" for name, item in _items(value) if item)
    if isinstance(value, list | tuple):
        return ", ".join(_one(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _one(item: object) -> str:
    """An item of a list: an object by its name, state and error."""
    if not isinstance(item, dict):
        return str(item)
    wrong = f" ({item['error']})" if item.get("error") else ""
    return f"{item.get('name')} {item.get('state')}{wrong}"


def _items(value: Mapping[str, object]) -> list[tuple[str, object]]:
    return list(value.items())


@command(FORMAT, NO_LEGEND)
def show_config(session: Session) -> None:
    """Show the effective configuration, and where each value comes from.

    As JSON and YAML: the values alone, in the form of a configuration file.
    """
    from kurma_core.cli.output import table

    config = session.client.config
    rows = list(_leaves("", config.to_json(), config.origins))
    session.show(
        config.to_json(),
        lambda: "\n".join(
            table(
                rows,
                [("KEY", lambda row: row[0]), ("VALUE", lambda row: row[1]), ("FROM", lambda row: row[2])],
                legend=not session.no_legend,
            )
        ),
    )
    _ask_kurmad(session)


def _ask_kurmad(session: Session) -> None:
    """Asks a running kurmad something: the client notes it if kurmad works by another configuration."""
    from kurma_core.errors import KurmaError

    if not session.client.remote:
        return
    try:
        session.client.info()
    except KurmaError:
        return  # the command itself does without kurmad


@command(makes=True)
def check_config(session: Session) -> int:
    """Check the configuration, with the plugins that it names."""
    from kurma_core.client.local.managers import problems
    from kurma_core.plugins.problems import left_out

    here = session.client.here
    found = problems(here)
    for problem in found:
        session.problem(problem)
    for error in left_out(here.registry, here.config):
        session.note(f"left out: {error.message}")
    if not found:
        files = session.client.config.config_files
        session.line("the configuration is right: " + (", ".join(files) or "no file, all defaults"))
    _ask_kurmad(session)
    return 125 if found else 0


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
