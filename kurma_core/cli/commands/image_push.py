"""``kurma image save`` and ``push``: write a stored image to a file or a registry that other engines read."""

from __future__ import annotations

import os

from kurma_core.cli import values
from kurma_core.cli.command_line import INSECURE_OPTIONS, Argument, Option, command
from kurma_core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.session import Session

_IMAGE = Argument(
    "image",
    "IMAGE",
    "The image: its ID or the start of it (6 digits or more), its name, or the address that it was fetched from.",
)
_DIGEST_FILE = Option("digest_file", "--digest-file", "Write the digest to FILE, too.", metavar="FILE")


@command(
    _IMAGE,
    Argument("destination", "DESTINATION", "The destination, SCHEME:PATH[:NAME].", required=False),
    Option("output", "--output -o", "Write this file or directory, in the format of --format.", metavar="PATH"),
    Option(
        "format",
        "--format",
        "Write this format: the SCHEME of a fetcher that writes files; default: `fetchers.saves` of kurma.yml.",
        metavar="SCHEME",
    ),
    _DIGEST_FILE,
    root=True,
    example="kurma image save example.com/web -o web.tar",
)
def save(
    session: Session,
    *,
    image: str,
    destination: str | None,
    output: str | None,
    format: str | None,
    digest_file: str | None,
) -> None:
    """Write a stored image to a file for other engines.

    Prints the digest that identifies the image there. Its dependencies are written, too; the same image always
    gives the same layers. kurma plugins list names the schemes of fetchers; kurma image export writes an App
    Container archive.
    """
    from kurma_core.named_files import writable

    if (destination is None) == (output is None):
        raise UsageError("expected either DESTINATION or -o PATH")
    if output is None:
        assert destination is not None
        if format is not None:
            raise UsageError("--format has no effect without -o", hint=f"-o PATH --format {format}")
        if "://" in destination:
            raise UsageError(f"{destination}: not a file", hint=f"kurma image push {image} {destination}")
        if ":" not in destination:
            raise UsageError(f"{destination}: not SCHEME:PATH", hint=f"-o {destination}")
    else:
        if ":" in output:
            hint = "name a file without a colon, or write SCHEME:PATH:NAME without -o"
            raise UsageError(f"{output}: a colon ends the path in a destination", hint=hint)
        if output in ("", "-"):
            writable(output)
        destination = f"{format or session.client.config.fetchers.saves}:{os.path.abspath(output)}"
    _checked(digest_file)
    _tell(session, session.client.image_push(image, destination).digest, digest_file)


@command(
    _IMAGE,
    Argument(
        "destination",
        "DESTINATION",
        "The address to push to, or the name of an image at a registry; default: where the image came from.",
        required=False,
    ),
    Option(
        "creds_file",
        "--creds-file",
        "Use the credentials USER:PASSWORD in the first line of FILE for this push; - is standard input.",
        metavar="FILE",
    ),
    _DIGEST_FILE,
    INSECURE_OPTIONS,
    root=True,
    example="kurma image push example.com/web registry.example.com/team/web:1.0",
)
def push(
    session: Session,
    *,
    image: str,
    destination: str | None,
    creds_file: str | None,
    digest_file: str | None,
    insecure_options: tuple[str, ...],
) -> None:
    """Push a stored image to a registry.

    Prints the digest that identifies the image there. Its dependencies are pushed, too. Layers that the registry
    has are not sent again. The credentials of --creds-file come before those of kurma login, and are not saved.
    """
    insecure = values.insecure(insecure_options)
    given = None if creds_file is None else values.credentials(creds_file)
    _checked(digest_file)
    pushed = session.client.image_push(image, destination, insecure=insecure, credentials=given)
    _tell(session, pushed.digest, digest_file)


def _checked(digest_file: str | None) -> None:
    """:raises UsageError: :raises HostError: the file cannot be written."""
    if digest_file is not None:
        from kurma_core.named_files import writable

        writable(digest_file)


def _tell(session: Session, digest: str, digest_file: str | None) -> None:
    if digest_file is not None:
        from kurma_core.named_files import written

        with written(digest_file) as out:
            out.write(digest.encode())
    session.line(digest)
