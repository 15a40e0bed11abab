"""``info``, ``version``, ``completion``."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, Argument, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kurma_core.cli.session import Session

_SHELLS = ("bash", "zsh", "fish")


@command(FORMAT)
def info(session: Session, *, format: str) -> None:
    """Show what this host and this installation are."""
    from kurma_core.cli.output import facts

    value = session.client.info().to_json()
    session.show(format, value, lambda: facts([(name, _words(item)) for name, item in value.items()]))


@command()
def version(session: Session) -> None:
    """Print Kurma's version."""
    from kurma_core.version import VERSION

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
    """Of a list: what has a name and a state by these, and by what is wrong."""
    if not isinstance(item, dict):
        return str(item)
    wrong = f" ({item['error']})" if item.get("error") else ""
    return f"{item.get('name')} {item.get('state')}{wrong}"


def _items(value: Mapping[str, object]) -> list[tuple[str, object]]:
    return list(value.items())
