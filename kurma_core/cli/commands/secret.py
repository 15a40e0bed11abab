"""``kurma secret``: creates, lists, shows and removes secrets. No command prints a secret's value."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, INSPECT_FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session

_SECRETS = Argument("names", "SECRET", "The secrets.", many=True)
_COLUMNS: list[Column] = [
    "name",
    ("CHANGED", "changed_at"),
    ("PODS", lambda secret: " ".join(secret.pods), (1, 12, "wraps")),
]


@command(
    Argument("name", "NAME", "The secret's name."),
    Argument("source", "FILE", "The file with the value; - is standard input."),
    Option("replace", "--replace", "Replace the value of an existing secret."),
    root=True,
    makes=True,
    example="kurma secret create db-password ./password.txt",
)
def create(session: Session, *, name: str, source: str, replace: bool) -> None:
    """Create a secret from a file or from standard input.

    The value is all bytes of the file, at most 512 KiB, and a line's end among them. Kurma keeps it in a file that
    only root can read. Apps get it by --secret of kurma run. A running pod keeps the value of its start: after
    --replace, restart it.
    """
    import base64

    from kurma_core.named_files import content
    from kurma_core.secret_store import LARGEST, check_name

    check_name(name)
    value = content("/dev/stdin" if source == "-" else source, endless=True, largest=LARGEST)
    encoded = base64.b64encode(value).decode()
    session.line(session.client.secret_create(name, encoded, replace=replace).name)


@command(FORMAT, NO_LEGEND, root=True, example="kurma secret list")
def list_(session: Session) -> None:
    """List secrets, without their values."""
    session.listing(session.client.secrets_list(), _COLUMNS)


@command(Argument("name", "SECRET", "The secret."), FORMAT, root=True, example="kurma secret show db-password")
def show(session: Session, *, name: str) -> None:
    """Show a secret, without its value."""
    from kurma_core.cli.output import facts, fields

    secret = session.client.secret(name)
    session.show(secret, lambda: facts([*fields(secret, "name", "changed_at"), ("pods", " ".join(secret.pods))]))


@command(_SECRETS, INSPECT_FORMAT, root=True, example="kurma secret inspect db-password")
def inspect(session: Session, *, names: tuple[str, ...]) -> int:
    """Print secrets as JSON, without their values."""
    found: list[Any] = []
    code = session.each(names, lambda name: found.append(session.client.secret(name)))
    session.listing(found, ())
    return code


@command(
    _SECRETS,
    Option("force", "--force -f", "Do it also if pods name the secret: they cannot start again then."),
    root=True,
    example="kurma secret rm db-password",
)
def rm(session: Session, *, names: tuple[str, ...], force: bool) -> int:
    """Remove secrets that no pod names."""
    return session.each(names, lambda name: session.client.secret_rm(name, force=force))
