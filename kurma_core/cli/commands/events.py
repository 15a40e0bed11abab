"""``kurma events``: prints events of pods, images and volumes, as they happen."""

from __future__ import annotations

from kurma_core.api.host import KINDS, SUBJECTS
from kurma_core.cli.command_line import FORMAT, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.host import Event
    from kurma_core.cli.session import Session

_KINDS = tuple(dict.fromkeys(kind for kinds in KINDS.values() for kind in kinds))


@command(
    Option("since", "--since", "Begin after event NUMBER; 0 is the oldest kept event.", metavar="NUMBER"),
    Option("no_follow", "--no-follow", "Exit after the last kept event."),
    Option("pod", "--pod", "Print only events of this pod.", metavar="POD"),
    Option("subject", "--subject", "Print only events of this subject.", choices=SUBJECTS, many=True),
    Option("kind", "--kind", "Print only events of this kind.", choices=_KINDS, many=True),
    FORMAT,
    example="kurma events --since 0 --no-follow",
)
def events(
    session: Session,
    *,
    since: str | None,
    no_follow: bool,
    pod: str | None,
    subject: tuple[str, ...],
    kind: tuple[str, ...],
) -> None:
    """Print events of pods, images and volumes as they happen.

    Prints new events; with --since, also the kept events after that number; with --no-follow, kept events only.
    The state directory keeps the events of all processes, with or without a daemon. Event numbers increase; a gap
    means that Kurma has discarded old events.
    """
    from kurma_core.cli.commands.logs import WhileRead
    from kurma_core.errors import UsageError

    if since is not None and not (since.isascii() and since.isdigit() and len(since) < 19):
        raise UsageError(
            f"--since: {since!r} is not an event number",
            hint="0 is the oldest event; each line begins with its number",
        )
    begin = None if since is None else int(since)
    found = session.client.events(
        0 if begin is None and no_follow else begin, follow=not no_follow, pod=pod, subject=subject, kind=kind
    )
    with WhileRead(not no_follow):
        for event in found:
            if "{{" in session.format:
                session.listing([event], ())
            else:
                session.line(_told(event, session.format))
            if not no_follow:
                session.flush()


def _told(event: Event, format: str) -> str:
    from kurma_core.cli import output

    if format == "json":
        import json

        return json.dumps(event.to_json(), ensure_ascii=False)
    if format == "yaml":
        return "---\n" + output.formatted(format, event.to_json())
    return output.printable(_row(event))


def _row(event: Event) -> str:
    from kurma_core.cli import output

    what = event.subject if event.subject == "daemon" else f"{event.subject} {event.name or '-'}"
    short = "" if event.id is None else f" ({event.id[:20] if event.subject == 'image' else event.id[:8]})"
    facts = {key: output.pairs(one) if key == "labels" else one for key, one in event.detail.items()}
    detail = " ".join(f"{key}={value}" for key, value in facts.items())
    return f"{event.seq} {event.at} {what}{short} {event.kind} {detail}".rstrip()
