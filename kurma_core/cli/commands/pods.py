"""Commands on pods: lists, shows, stops, signals and removes them, and ``kurma inspect`` on anything."""

from __future__ import annotations

from kurma_core.cli.command_line import (
    APP,
    FILTER,
    FORMAT,
    INSPECT_FORMAT,
    MANAGED,
    NO_LEGEND,
    NO_TRUNC,
    TIMEOUT,
    Argument,
    Option,
    command,
)
from kurma_core.models import LIVE_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from kurma_core.api.pods import Collected
    from kurma_core.cli.output import Column, Filters
    from kurma_core.cli.session import Session
    from kurma_core.client.client import Client
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.summary import NetworkSummary, PodSummary


_POD = Argument("pod", "POD", "The pod.")


_QUIET = Option("quiet", "--quiet -q", "Print only full UUIDs, one per line.")


@command(
    Option("all", "--all -a", "Also list prepared and ended pods."),
    _QUIET,
    FILTER,
    FORMAT,
    NO_TRUNC,
    NO_LEGEND,
    example="kurma ps --filter label=tier=front",
)
def ps(session: Session, *, all: bool, quiet: bool, filter: tuple[str, ...]) -> None:
    """List running pods; with -a, all pods.

    Lists pods in the states preparing, starting, running and stopping, or in those that a filter names. Columns
    and filters are those of kurma list.
    """
    by_state = any(text.startswith(("state=", "status=", "exited=")) for text in filter)
    _list(session, () if all or by_state else LIVE_STATES, filter, quiet=quiet)


@command(
    Option("all", "--all -a", "List all pods, as without this option."),
    _QUIET,
    FILTER,
    FORMAT,
    NO_TRUNC,
    NO_LEGEND,
    example="kurma list --format 'table {{.name}}\\t{{.state}}'",
)
def list_(session: Session, *, all: bool, quiet: bool, filter: tuple[str, ...]) -> None:
    """List all pods.

    States: preparing, prepared, starting, running, stopping, stopped, errored. AGE is the time since the pod's end
    or its last start; if it was never started, since it was made. RESTARTS counts the restarts by kurmad. A narrow
    terminal shows fewer columns.
    NAME is the display name of a pod that has one (annotation kurma.io/display-name).
    Keys of --filter: id, name (a part of it), state, status, label (NAME or NAME=VALUE), image, ancestor, network,
    exited (the exit code), health (starting, healthy, unhealthy or none).
    """
    _list(session, (), filter, quiet=quiet)


def _list(session: Session, states: tuple[str, ...], wanted: tuple[str, ...], *, quiet: bool) -> None:
    """:param states: only pods in these; empty: in any. :param wanted: values of ``--filter``."""
    from kurma_core.cli.output import kept

    if session.format != "table" and not quiet:
        from kurma_core.models.pod import PodRecord

        rows = session.client.pods_json()
        found = [row for row in rows if row["state"] in states] if states else rows
        session.listing(kept(found, wanted, _FILTERS), (), PodRecord)
        return
    summaries = session.client.summaries()
    pods = [pod for pod in summaries if pod.state in states] if states else summaries
    pods = list(kept(pods, wanted, _FILTERS))
    if quiet:
        for pod in pods:
            session.line(pod.uuid)
        return
    uuid: Column = "uuid" if session.no_trunc else ("UUID", lambda pod: pod.uuid[:8])
    # A cell that loses its beginning would show the last of several images.
    images: Column = ("IMAGE", _first_image if session.width() else _images, (3, -12))
    session.listing(pods, [uuid, _COLUMNS[0], images, *_COLUMNS[1:]])


_COLUMNS: list[Column] = [
    ("NAME", lambda pod: pod.display_name or pod.name, (5, 12)),
    ("STATE", "condition"),
    ("EXIT", "exit_code"),
    ("AGE", lambda pod: _age(pod)),
    ("RESTARTS", "restarts", (6, 0)),
    ("PORTS", lambda pod: ",".join(port.removesuffix("/tcp") for port in pod.ports), (4, 12)),
    ("NETWORKS", lambda pod: _networks(pod), (2, 0)),
    ("APPS", lambda pod: ",".join(pod.apps), (1, 0)),
]


def _images(pod: PodSummary) -> str:
    return ",".join(_names(pod))


def _first_image(pod: PodSummary) -> str:
    """The first image, and the number of the others."""
    first, *others = _names(pod) or [""]
    return f"{first},+{len(others)}" if others else first


def _names(pod: PodSummary) -> list[str]:
    from kurma_core.cli.output import without_directory

    return list(dict.fromkeys(map(without_directory, pod.image_names.values())))


def _age(pod: PodSummary) -> str:
    from kurma_core.cli.output import age

    return age(pod.finished_at or pod.started_at or pod.created_at)


def _has_state(pod: Any, wanted: str) -> bool:
    """:param wanted: a state, or podman's word for it."""
    from kurma_core.models.summary import STATES

    states = {"created": ("prepared",), "exited": ("stopped", "errored")}.get(wanted, (wanted,))
    if states[0] not in STATES:
        from kurma_core.errors import UsageError

        raise UsageError(f"--filter: no state {wanted!r}", hint=f"the states are {', '.join(STATES)}")
    return pod["state"] in states


def _has_image(pod: Any, wanted: str) -> bool:
    """:param wanted: the ID or its beginning, or the name; a name may lack its version, and its path before
    the last /."""
    if any(
        one.removeprefix("sha512-").startswith(wanted.removeprefix("sha512-")) for one in pod["images"].values()
    ):
        return True
    names = [name for text in pod["imageNames"].values() for name in (text, text.rpartition("/")[2])]
    return wanted in names or wanted in [name.partition("@")[0].rpartition(":")[0] for name in names]


_FILTERS: Filters = {
    "id": lambda pod, value: pod["uuid"].startswith(value.lower()),
    "name": lambda pod, value: value in pod["name"] or value in (pod.get("displayName") or ""),
    "state": _has_state,
    "status": _has_state,
    "label": lambda pod, value: _has_label(pod, value),
    "image": _has_image,
    "ancestor": _has_image,
    "network": lambda pod, value: value in [one["network"] for one in pod["networks"]],
    "exited": lambda pod, value: str(pod["exitCode"]) == value,
    "health": lambda pod, value: _has_health(pod, value),
}


def _has_health(pod: Any, wanted: str) -> bool:
    """:param wanted: a health, or ``none``."""
    words = ("starting", "healthy", "unhealthy", "none")
    if wanted not in words:
        from kurma_core.errors import UsageError

        raise UsageError(f"--filter: no health {wanted!r}", hint=f"write one of {', '.join(words)}")
    return bool((pod.get("health") or "none") == wanted)


def _has_label(pod: Any, wanted: str) -> bool:
    from kurma_core.cli.output import has_label

    return has_label(pod["labels"], wanted)


@command(_POD, FORMAT, NO_TRUNC, example="kurma show web")
def show(session: Session, *, pod: str) -> None:
    """Show all facts about a pod.

    A narrow terminal shows fewer columns of its tables.
    """
    record = session.client.pod(pod)
    session.show(record, lambda: "\n".join(_page(record, session.width())))


@command(
    Argument("names", "POD|IMAGE|NETWORK|VOLUME", "The pods, images, networks and volumes.", many=True),
    Option("type", "--type -t", "Look only for this type.", choices=("pod", "image", "network", "volume")),
    INSPECT_FORMAT,
    example="kurma inspect --format '{{.state}}' web",
)
def inspect(session: Session, *, names: tuple[str, ...], type: str | None) -> int:
    """Print a pod, an image, a network or a volume as JSON.

    Looks for each name among pods, then images, networks and named volumes. Prints a list with the JSON of kurma
    show, kurma image show, kurma network show or kurma volume show for each name; with a template, one line for
    each name.
    """
    found: list[Any] = []
    code = session.each(names, lambda name: found.append(_inspected(session.client, name, type)))
    if "{{" in session.format:
        for one in found:
            session.listing([one], ())
    else:
        session.listing(found, ())
    return code


def _inspected(client: Client, name: str, kind: str | None) -> Any:
    from kurma_core import errors

    ways: dict[str, tuple[Callable[[str], Any], tuple[type[errors.KurmaError], ...]]] = {
        "pod": (client.pod, (errors.PodNotFoundError,)),
        "image": (client.image, (errors.ImageNotFoundError,)),
        "network": (client.network, (errors.NetworkNotFoundError,)),
        "volume": (client.volume, (errors.VolumeNotFoundError, errors.UsageError)),
    }
    if kind is not None:
        return ways[kind][0](name)
    for way, missing in ways.values():
        try:
            return way(name)
        except missing:
            continue
    raise errors.KurmaError(
        f"cannot inspect {name}: no pod, image, network or volume has that name",
        hint="kurma list, kurma images, kurma network list and kurma volume list name them",
    )


@command(
    _POD,
    Option("wait", "--wait", "Wait until the pod ends first."),
    FORMAT,
    NO_TRUNC,
    NO_LEGEND,
    example="kurma status web",
)
def status(session: Session, *, pod: str, wait: bool) -> None:
    """Show the state of a pod and of its apps."""
    from kurma_core.cli.output import table

    record = session.client.wait(pod) if wait else session.client.pod(pod)
    value = {
        name: item
        for name, item in record.to_json().items()
        if name in ("uuid", "name", "state", "reason", "exitCode", "startedAt", "finishedAt", "apps")
    }

    def text() -> str:
        name = record.display_name or record.name
        head = f"pod {name}: {record.state}" + (f": {record.reason}" if record.reason else "")
        return "\n".join(
            [head, *table(record.apps, _APP_COLUMNS, legend=not session.no_legend, width=session.width())]
        )

    session.show(value, text)


@command(
    _POD,
    Argument("annotations", "NAME=VALUE|NAME-", "What to set, or to remove.", many=True),
    Option("app", "--app", "Change the annotations of this app.", metavar="APP"),
    MANAGED,
    root=True,
    example="kurma annotate web example.com/owner=lab example.com/old-",
)
def annotate(session: Session, *, pod: str, annotations: tuple[str, ...], app: str | None, force: bool) -> None:
    """Set and remove annotations of a pod or of an app.

    The pod may be in any state. Annotations that Kurma acts on cannot be changed.
    """
    from kurma_core.errors import UsageError

    values: dict[str, str] = {}
    gone = []
    for text in annotations:
        name, equals, value = text.partition("=")
        if equals:
            values[name] = value
        elif text.endswith("-"):
            gone.append(text[:-1])
        else:
            raise UsageError(f"expected NAME=VALUE or NAME-, found {text!r}")
    session.client.pod_annotate(pod, set=values, remove=gone, app=app, managed=force)


@command(
    _POD,
    Option(
        "condition",
        "--condition",
        "Wait for this: the pod's end, or a health of its apps.",
        choices=("ended", "healthy", "unhealthy"),
        default="ended",
    ),
    example="kurma wait web",
)
def wait(session: Session, *, pod: str, condition: str) -> int:
    """Wait until a pod ends or has a health.

    Exits with the pod's exit code, or with 0 once it has that health. The health of a pod is the worst of its
    apps'.
    """
    from kurma_core.cli.commands.run import exit_code

    record = session.client.wait(pod, condition=condition)
    return exit_code(record) if condition == "ended" else 0


@command(_POD, example="kurma cat-manifest web")
def cat_manifest(session: Session, *, pod: str) -> None:
    """Print the manifest of a pod, with all overrides."""
    session.json(dict(session.client.pod(pod).manifest))


def _networks(pod: PodSummary) -> str:
    """The networks that the pod is joined to, with their addresses; without loopback."""
    if not pod.networks:
        return "host"
    shown = [_network(one) for one in pod.networks if not one.base]
    return ",".join(shown) or "none"


def _network(one: NetworkSummary) -> str:
    addresses = [address.split("/")[0] for address in one.addresses]
    return f"{one.network}={'+'.join(addresses)}" if addresses else one.network


def _second(at: str | None) -> str:
    from kurma_core.cli.output import to_second

    return to_second(at or "")


_APP_COLUMNS: list[Column] = [
    ("APP", "name"),
    ("STATE", "condition"),
    ("EXIT", "exit_code"),
    ("PID", "pid", (2, 0)),
    ("STARTED", lambda app: _second(app.started_at), (4, 0)),
    ("FINISHED", lambda app: _second(app.finished_at), (3, 0)),
    ("MESSAGE", "says", (6, 12)),
]


#: Of (app, execution) before the last one.
_EARLIER_COLUMNS: list[Column] = [
    ("EARLIER", lambda one: f"{one[0].name} {one[1].instance}"),
    ("STATE", lambda one: one[1].reason or ""),
    ("EXIT", lambda one: one[1].exit_code),
    ("STARTED", lambda one: _second(one[1].started_at), (1, 0)),
    ("FINISHED", lambda one: _second(one[1].finished_at)),
    ("MESSAGE", lambda one: one[1].told, (2, 12)),
]


#: Of (app, result of a health check).
_CHECK_COLUMNS: list[Column] = [
    ("CHECK OF", lambda one: one[0].name),
    ("EXIT", lambda one: one[1].exit_code),
    ("STARTED", lambda one: _second(one[1].started_at), (1, 0)),
    ("OUTPUT", lambda one: one[1].output.strip(), (2, 12)),
]


def _page(record: PodRecord, width: int) -> Iterator[str]:
    """:param width: columns of the terminal; 0: no limit."""
    from kurma_core.cli.output import facts, fields, one_line, pairs, table, wrapped

    owner = f"process {record.owner}" if record.owner is not None else "none"
    yield facts(
        [
            *fields(record, "uuid", "name", "display_name", "manager", "state", "reason", "exit_code"),
            ("created", record.created_at),
            ("started", record.started_at),
            ("finished", record.finished_at),
            ("owner", owner),
            ("stager", _stager(record)),
            *fields(record, "renderer", "network_namespace"),
            ("user namespace", _ids(record)),
            ("cgroup", _cgroup(record)),
            ("metadata service", _metadata(record)),
            ("restart", _restart(record)),
            ("labels", pairs(record.labels)),
        ]
    )
    image: list[Column] = [
        ("IMAGE", lambda app: record.image_names.get(app.name), (5, -12)),
        ("IMAGE ID", lambda app: record.images.get(app.name, "")[:20], (1, 0)),
    ]
    yield from ("", *table(record.apps, [_APP_COLUMNS[0], *image, *_APP_COLUMNS[1:]], width=width))
    earlier = [(app, one) for app in record.apps for one in app.earlier]
    if earlier:
        yield from ("", *table(earlier, _EARLIER_COLUMNS, width=width))
    checks = [(app, one) for app in record.apps if app.health is not None for one in app.health.results]
    if checks:
        yield from ("", *table(checks, _CHECK_COLUMNS, width=width))
    if any(app.files for app in record.apps):
        yield from ("", *table(record.apps, _FILE_COLUMNS, width=width))
    if record.attachments:
        yield from ("", *table(record.attachments, _NETWORK_COLUMNS, width=width))
    mounts = _mounts(record)
    if mounts:
        yield from ("", *table(mounts, _MOUNT_COLUMNS, width=width))
    if record.isolators:
        yield from ("", *table(record.isolators, _ISOLATOR_COLUMNS, width=width))
    notes = [*record.notes, *[app.lost for app in record.apps if app.lost]]
    if notes:
        yield from ("", *(line for note in notes for line in wrapped(f"note: {one_line(note)}", width)))


def _stager(record: PodRecord) -> str:
    from kurma_core import VERSION

    version = record.stager_version
    about = [
        f"process {record.stager_pid}" if record.stager_pid else "",
        f"started by Kurma {version}" if version not in (None, VERSION) else "",
    ]
    told = ", ".join(filter(None, about))
    return f"{record.stager} ({told})" if told else record.stager


def _ids(record: PodRecord) -> str | None:
    ids = record.userns
    return None if ids is None else f"{ids} (ids 0 to {ids.count - 1} are the host's {ids.first} to {ids.last})"


def _cgroup(record: PodRecord) -> str | None:
    """The path of the pod's cgroup, if the pod has a parent for it."""
    return None if record.cgroup in ("", f"kurma/{record.uuid}") else f"/{record.cgroup}"


def _restart(record: PodRecord) -> str | None:
    from kurma_core.models.pod import PodRestart

    restart = record.restart
    if restart == PodRestart():
        return None
    at = "" if restart.next is None else f"; the next at {restart.next}"
    return f"{restart.policy}; {restart.count} so far{at}"


def _metadata(record: PodRecord) -> str | None:
    found = record.metadata
    if found is None:
        return None
    if record.owner is None:
        return "none: the process that owned the pod, and served it, is gone"
    return f"{found.address}:{found.port} (token in {found.token_file})"


def _mounts(record: PodRecord) -> list[tuple[str, str, str, str]]:
    """Volume, app, path in the app, and the source of the mount."""
    volumes = {volume["name"]: volume for volume in record.manifest.get("volumes", ())}
    found = []
    for app in record.manifest.get("apps", ()):
        for mount in app.get("mounts", ()):
            volume = mount.get("appVolume") or volumes.get(mount["volume"], {})
            source = volume.get("kurma.io/volume") or volume.get("source") or _kind_of(volume)
            found.append((mount["volume"], app["name"], mount["path"], source))
    return found


def _kind_of(volume: Mapping[str, Any]) -> str:
    if not volume.get("kurma.io/memory"):
        return str(volume.get("kind", ""))
    size = volume.get("kurma.io/size")
    return f"tmpfs ({size})" if size else "tmpfs"


_CONTENTS = {"kurma": "Kurma's", "image": "the image's", "image+name": "the image's, with the pod's name"}


def _content_of(file: str) -> Any:
    """The origin of the file's content in an app; see :data:`kurma_core.models.pod.ETC_CONTENTS`."""
    return lambda app: _CONTENTS.get(app.files.get(file, ""), app.files.get(file, ""))


_FILE_COLUMNS: list[Column] = [
    ("APP", "name"),
    ("/etc/hosts", _content_of("hosts")),
    ("/etc/hostname", _content_of("hostname")),
    ("/etc/resolv.conf", _content_of("resolv.conf")),
]

_NETWORK_COLUMNS: list[Column] = [
    "network",
    "interface",
    ("ADDRESSES", lambda one: "" if one.result is None else ",".join(a.address for a in one.result.addresses)),
    ("PORTS", lambda one: ",".join(port.text for port in one.ports)),
]

_MOUNT_COLUMNS: list[Column] = [
    ("VOLUME", lambda one: one[0]),
    ("APP", lambda one: one[1]),
    ("PATH", lambda one: one[2]),
    ("SOURCE", lambda one: one[3], (1, -16)),
]
_ISOLATOR_COLUMNS: list[Column] = [
    ("ISOLATOR", "name"),
    ("APP", "scope"),
    ("VALUE", lambda one: _value(one), (2, 8)),
    ("OUTCOME", lambda one: f"{one.outcome}, default" if one.default else one.outcome),
    ("NOTE", "note", (1, 20, "wraps")),
]
_VALUE_WIDTH = 60


def _value(one: Any) -> str:
    """In the user's form, and in base units."""
    from kurma_core.json_text import dumps

    text = dumps(one.value)
    text = text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 1] + "…"
    return f"{text} = {one.amounts}" if one.amounts else text


_PODS = Argument("pods", "POD", "The pods.", required=False, many=True)


@command(
    _PODS,
    Option("all", "--all -a", "Stop all pods that run."),
    TIMEOUT,
    Option("force", "--force", "Kill the apps at once, or after --timeout, also if a program manages the pod."),
    root=True,
    example="kurma stop -t 10s web",
)
def stop(session: Session, *, pods: tuple[str, ...], all: bool, timeout: str | None, force: bool) -> int:
    """Stop pods.

    A pod that a program manages is stopped only with --force, and not by --all.
    """
    from kurma_core.cli import values

    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    chosen = _chosen(session, "stop", pods, all, lambda state: state in LIVE_STATES)
    at_once = force and patience is None
    return session.each(
        chosen, lambda pod: session.client.stop(pod, timeout=patience, force=at_once, managed=force)
    )


def _chosen(
    session: Session, command: str, pods: tuple[str, ...], all: bool, wanted: Callable[[str], bool]
) -> tuple[str, ...]:
    """The pods that the command line names; with --all those in a wanted state that no program manages, by name.

    :raises UsageError: it names none, or also names some with --all.
    """
    if all == bool(pods):
        from kurma_core.errors import UsageError

        hint = f"name pods, or choose them by --all; see kurma {command} --help"
        raise UsageError(f"{command}: {'pods and --all are given' if all else 'no pod is given'}", hint=hint)
    if not all:
        return pods
    found = [pod for pod in session.client.summaries() if wanted(pod.state) and pod.manager is None]
    return tuple(pod.uuid if pod.name == "-" else pod.name for pod in found)


@command(
    Argument("pods", "POD[/APP]", "The pods, or one app of each.", many=True),
    APP,
    Option("signal", "--signal -s", "Send this signal, by name or number.", metavar="SIGNAL", default="TERM"),
    MANAGED,
    root=True,
    example="kurma kill -s HUP web",
)
def kill(session: Session, *, pods: tuple[str, ...], app: str | None, signal: str, force: bool) -> int:
    """Send a signal to the apps of pods."""
    from kurma_core.cli import values

    number = values.signal_number(signal)

    def one(text: str) -> None:
        pod, named = values.find_pod_and_app(session.client, text, app)
        session.client.kill(pod, number, named, managed=force)

    return session.each(pods, one)


@command(
    _PODS,
    Option("all", "--all -a", "Remove all pods that do not run; with --force, all pods."),
    Option("force", "--force -f", "Kill running pods first; also remove pods that a program manages."),
    Option("yes", "--yes -y", "With --all, do not ask."),
    root=True,
    example="kurma rm web",
)
def rm(session: Session, *, pods: tuple[str, ...], all: bool, force: bool, yes: bool) -> int:
    """Remove pods that do not run.

    Also removes their logs and empty volumes. With --all, names the pods and asks first, and leaves those that a
    program manages.
    """
    chosen = _chosen(session, "rm", pods, all, lambda state: force or state not in LIVE_STATES)
    if all and chosen and not yes:
        names = ", ".join(chosen)
        if not session.terminal():
            from kurma_core.errors import UsageError

            raise UsageError(f"rm: --all removes {names}", hint="--yes removes them without a question")
        if not session.ask(f"remove {names}?"):
            return 1
    return session.each(chosen, lambda pod: session.client.rm(pod, force=force, managed=force))


@command(
    Option(
        "grace_period",
        "--grace-period",
        "Keep pods that ended less than TIME ago.",
        metavar="TIME",
        default="30m",
    ),
    Option("dry_run", "--dry-run", "Print what would be done, and change nothing."),
    root=True,
    example="kurma gc --dry-run",
)
def gc(session: Session, *, grace_period: str, dry_run: bool) -> int:
    """Remove old ended pods, and leftovers of crashes.

    Leaves pods that kurmad starts again, and pods that a program manages. Removes leftovers of killed commands and
    crashes regardless of their age: also addresses, interfaces, rules and namespaces of missing pods. The exit
    code is 125 if a removal fails.
    """
    from kurma_core.cli import values

    grace = values.seconds(grace_period, "--grace-period")
    collected = session.client.gc(grace=grace, dry_run=dry_run)
    for line in collected_lines(collected, dry_run=dry_run):
        session.line(line)
    return 125 if collected.failed else 0


def collected_lines(collected: Collected, *, dry_run: bool) -> list[str]:
    """A line for each thing that was collected, or would be, or is left."""
    from kurma_core.cli.commands.image import removal_lines

    return [*collected.lines, *removal_lines(collected.removed, dry_run=dry_run), *collected.left]
