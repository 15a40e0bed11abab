"""``kurma info``, ``version``, ``completion``, and the commands below ``config`` and ``system``."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kurma_core.api.host import HostCheckInfo
    from kurma_core.api.pods import Pruned
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session


@command(
    Option("check", "--check", "Check this host for missing features, and print how to add them."),
    FORMAT,
    NO_LEGEND,
    example="kurma info --check",
)
def info(session: Session, *, check: bool) -> int:
    """Show facts about this host and this installation.

    With --check, it asks enabled plugins, too. Below the table stands the command that mends each NO; the exit
    code is 1 if there is one.
    """
    from kurma_core.cli.output import facts

    if check:
        from kurma_core.client.local.host_checks import all_checks

        found = all_checks(session.client)
        columns: list[Column] = ["by", ("CHECK", "name"), ("OK", _yes), ("DETAIL", "detail", (1, 20, "wraps"))]
        session.listing(found, columns)
        if session.format == "table":
            for one in found:
                if one.hint:
                    session.line(f"\n{one.by} {one.name}:\n  {one.hint}")
        return 0 if all(one.ok for one in found) else 1

    host = session.client.info()
    shown = host.to_json()
    if host.daemon is None:
        shown["daemon"] = _why_no_kurmad(session)
    session.show(host, lambda: facts([(name, _words(item)) for name, item in shown.items()]))
    return 0


def _why_no_kurmad(session: Session) -> str:
    if session.host is not None:
        return f"not asked: --host {session.host}"
    if session.client.here.refused is not None:
        return "not asked: this user may not use kurmad"
    return "does not run: nothing restarts pods until it does"


def _yes(check: HostCheckInfo) -> str:
    return "yes" if check.ok else "NO"


@command(example="kurma version")
def version(session: Session) -> None:
    """Print Kurma's version."""
    from kurma_core import VERSION

    session.line(f"kurma {VERSION}")


@command(Argument("shell", "bash|zsh|fish", "The shell."), example="kurma completion bash")
def completion(session: Session, *, shell: str) -> None:
    """Print the completion script for a shell.

    For bash: kurma completion bash > /etc/bash_completion.d/kurma. To try it in this shell: eval "$(kurma
    completion bash)"
    """
    from kurma_core.cli.completion import script

    session.line(script(shell))


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


@command(FORMAT, NO_LEGEND, example="kurma config show")
def show_config(session: Session) -> None:
    """Show the configuration, and the origin of each value.

    --format json and yaml print the values alone, in the form of a configuration file.
    """
    from kurma_core.cli.output import table

    config = session.client.config
    rows = list(_leaves("", config.to_json(), config.origins))
    columns: list[Column] = [
        ("KEY", lambda row: row[0]),
        ("FROM", lambda row: row[2], (2, 12, "wraps")),
        ("VALUE", lambda row: row[1], (1, 20, "wraps")),
    ]
    session.show(
        config.to_json(),
        lambda: "\n".join(table(rows, columns, legend=not session.no_legend, width=session.width())),
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


@command(makes=True, example="kurma config check")
def check_config(session: Session) -> int:
    """Check the configuration and its plugins."""
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
        session.line("the configuration is valid: " + (", ".join(files) or "no file, all defaults"))
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


@command(FORMAT, NO_LEGEND, root=True, example="kurma system df")
def df(session: Session) -> None:
    """Show what Kurma keeps on the disk.

    ACTIVE are those in use. RECLAIMABLE is what kurma system prune --all --volumes would free.
    """
    from kurma_core.cli.output import size

    columns: list[Column] = [
        "kind",
        "count",
        "active",
        ("SIZE", lambda one: size(one.size)),
        ("RECLAIMABLE", lambda one: size(one.reclaimable)),
    ]
    session.listing(session.client.disk_use(), columns)


@command(
    Option("all", "--all -a", "Remove also every image that no pod uses."),
    Option("volumes", "--volumes", "Remove also every named volume that no pod uses, with its files."),
    Option("force", "--force -f", "Remove without a question."),
    Option("dry_run", "--dry-run", "Print what would be removed, and remove nothing."),
    root=True,
    example="kurma system prune --dry-run",
)
def prune(session: Session, *, all: bool, volumes: bool, force: bool, dry_run: bool) -> int:
    """Remove ended pods, and what nothing uses.

    Removes what kurma gc and kurma image gc remove, regardless of its age: ended pods with their logs, what
    crashes left, rendered trees, and unfinished downloads. Of the images that no pod uses, it removes those that
    a newer one has replaced; with --all every one. Named volumes stay, unless --volumes is given. Leaves pods that
    kurmad starts again. At a terminal it lists all of this, asks, and removes no other pod, volume, image, tree or
    download; leftovers of crashes go in any case. Elsewhere it needs --force.
    """
    import time

    from kurma_core.cli.output import size
    from kurma_core.value import replace

    check_prune(session, force=force, dry_run=dry_run)
    grace, only = 0.0, None
    printed: tuple[str, ...] = ()
    if dry_run or not force:
        begun = time.monotonic()
        plan = session.client.prune(all=all, volumes=volumes, dry_run=True)
        _print_pruned(session, plan, dry_run=True)
        nothing = not plan.removed and not plan.pods.lines
        if not wants_prune(session, plan.freed, nothing=nothing, dry_run=dry_run):
            return 0
        # Not what the user has not seen, nor what was used while the user read.
        grace, only = time.monotonic() - begun, [one.key for one in plan.removed]
        printed = plan.pods.left
    done = session.client.prune(all=all, volumes=volumes, grace=grace, only=only)
    if not done.pods.failed:
        left = tuple(line for line in done.pods.left if line not in printed)
        done = replace(done, pods=replace(done.pods, left=left))
    _print_pruned(session, done, dry_run=False)
    session.line(f"{size(done.freed)} freed")
    return 125 if done.pods.failed else 0


def check_prune(session: Session, *, force: bool, dry_run: bool) -> None:
    """:raises UsageError: a command that asks before it removes cannot ask."""
    if not (force or dry_run or session.terminal()):
        from kurma_core.errors import UsageError

        raise UsageError("cannot prune: there is no terminal to ask at", hint="--force removes, --dry-run lists")


def wants_prune(session: Session, freed: int, *, nothing: bool, dry_run: bool) -> bool:
    """Whether to remove what was just listed: asks, unless there is nothing, or it was only to be listed.

    :param freed: bytes that the removal would free.
    """
    from kurma_core.cli.output import size

    if dry_run:
        session.line(f"{size(freed)} would be freed")
        return False
    if nothing:
        session.line("there is nothing to remove")
        return False
    session.flush()
    if not session.ask(f"remove all of this ({size(freed)})?"):
        session.note("nothing was removed")
        return False
    return True


def _print_pruned(session: Session, report: Pruned, *, dry_run: bool) -> None:
    from kurma_core.cli.commands.image import removal_lines
    from kurma_core.cli.commands.pods import collected_lines

    for line in (
        *collected_lines(report.pods, dry_run=dry_run),
        *removal_lines(report.volumes, dry_run=dry_run),
        *removal_lines(report.images.removed, dry_run=dry_run),
    ):
        session.line(line)
