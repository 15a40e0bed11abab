"""``kurma volume``: creates, lists, shows and removes named volumes."""

from __future__ import annotations

from kurma_core.cli.command_line import FILTER, FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.output import Column, Filters
    from kurma_core.cli.session import Session

_COLUMNS: list[Column] = [
    "name",
    ("OWNER", lambda one: f"{one.uid}:{one.gid}"),
    "mode",
    ("PODS", lambda one: ", ".join(one.pods), (2, 12, "wraps")),
    ("CREATED", "created_at"),
    ("LABELS", lambda one: _labels(one.labels), (1, 12, "wraps")),
]


def _labels(labels: object) -> str:
    assert isinstance(labels, dict)
    return ", ".join(f"{name}={value}" if value else name for name, value in labels.items())


def _filters() -> Filters:
    from kurma_core.cli.output import has_label

    return {
        "name": lambda volume, value: value in volume["name"],
        "label": lambda volume, value: has_label(volume["labels"], value),
        "pod": lambda volume, value: value in volume["pods"],
        "used": lambda volume, value: ("true" if volume["pods"] else "false") == value,
    }


@command(
    Option("quiet", "--quiet -q", "Print only names, one per line."),
    FILTER,
    FORMAT,
    NO_LEGEND,
    root=True,
    example="kurma volume list --filter used=false",
)
def list_(session: Session, *, quiet: bool, filter: tuple[str, ...]) -> None:
    """List named volumes.

    Keys of --filter: name (a part of it), label (NAME or NAME=VALUE), pod (the name of one that uses it), used
    (true or false).
    """
    from kurma_core.cli.output import kept

    found = kept(session.client.volumes_list(), filter, _filters())
    if quiet:
        for one in found:
            session.line(one.name)
    else:
        session.listing(found, _COLUMNS)


@command(Argument("name", "VOLUME", "The volume."), FORMAT, root=True, example="kurma volume show data")
def show(session: Session, *, name: str) -> None:
    """Show all facts about a named volume."""
    from kurma_core.cli.output import facts, fields

    volume = session.client.volume(name)

    def page() -> str:
        about = fields(volume, "name", "path", "created_at")
        return facts(
            [
                *about,
                ("owner", f"{volume.uid}:{volume.gid}"),
                ("mode", volume.mode),
                ("pods", ", ".join(volume.pods)),
                ("labels", _labels(volume.labels)),
            ]
        )

    session.show(volume, page)


@command(
    Argument("name", "NAME", "The volume's name."),
    Option("owner", "--owner", "Set the owner of its directory, and the group.", metavar="UID[:GID]"),
    Option("mode", "--mode", "Set the mode of its directory.", metavar="MODE"),
    Option("label", "--label -l", "Add a label.", metavar="NAME[=VALUE]", many=True),
    root=True,
    makes=True,
    example="kurma volume create --owner 70:70 --mode 0700 data",
)
def create(session: Session, *, name: str, owner: str | None, mode: str | None, label: tuple[str, ...]) -> None:
    """Create a named volume, and print its name.

    `-v NAME:PATH` creates a missing volume, too. Without --owner and --mode, the volume gets both, and the files,
    from the directory of the first image that it is mounted over. If the volume exists with this owner, mode and
    labels, nothing is done.
    """
    from kurma_core.cli import values
    from kurma_core.errors import UsageError

    uid, gid = _owner(owner)
    labels = {key: value for key, _, value in (text.partition("=") for text in label)}
    if "" in labels:
        raise UsageError("--label: expected NAME or NAME=VALUE, and the name is empty")
    wanted = None if mode is None else values.mode(mode, "--mode")
    session.line(session.client.volume_create(name, uid=uid, gid=gid, mode=wanted, labels=labels).name)


def _owner(text: str | None) -> tuple[int | None, int | None]:
    """:raises UsageError: it is malformed."""
    from kurma_core.cli import values
    from kurma_core.errors import UsageError

    if text is None:
        return None, None
    numbers = text.split(":")
    if len(numbers) > 2 or not all(map(values.is_id, numbers)):
        raise UsageError(f"--owner: expected UID[:GID], found {text!r}", hint="write numbers, such as 70:70")
    return int(numbers[0]), int(numbers[-1])


@command(
    Argument("names", "VOLUME", "The volumes.", many=True),
    Option("force", "--force -f", "Succeed also if a volume does not exist."),
    root=True,
    example="kurma volume rm data",
)
def rm(session: Session, *, names: tuple[str, ...], force: bool) -> int:
    """Remove named volumes, with their files.

    Refuses a volume that a pod uses, whether it runs or not, and names these pods.
    """
    return session.each(names, lambda name: session.client.volume_rm(name, force=force))


@command(
    Option("force", "--force -f", "Remove without a question."),
    Option("dry_run", "--dry-run", "Print what would be removed, and remove nothing."),
    root=True,
    example="kurma volume prune --dry-run",
)
def prune(session: Session, *, force: bool, dry_run: bool) -> int:
    """Remove all named volumes that no pod uses, with their files.

    At a terminal it lists them and asks. Elsewhere it needs --force.
    """
    from kurma_core.cli.commands.image import removal_lines
    from kurma_core.cli.commands.system import check_prune, wants_prune
    from kurma_core.cli.output import size

    check_prune(session, force=force, dry_run=dry_run)
    only = None
    if dry_run or not force:
        plan = session.client.volume_prune(dry_run=True)
        for line in removal_lines(plan, dry_run=True):
            session.line(line)
        freed = sum([one.size for one in plan])
        if not wants_prune(session, freed, nothing=not plan, dry_run=dry_run):
            return 0
        only = [one.name for one in plan]  # not what the user has not seen
    done = session.client.volume_prune(only=only)
    for line in removal_lines(done, dry_run=False):
        session.line(line)
    session.line(f"{size(sum([one.size for one in done]))} freed")
    return 0
