"""``kurma list``, ``show``, ``status``, ``wait``, ``stop``, ``kill``, ``rm``, ``gc``, ``cat-manifest``: pods."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.models.pod import PodRecord
    from kurma_core.models.summary import NetworkSummary, PodSummary


_POD = Argument("pod", "POD", "The pod.")


@command(Option("quiet", "--quiet -q", "Print UUIDs only, whole, one a line."), FORMAT, NO_LEGEND)
def list_(session: Session, *, quiet: bool) -> None:
    """List pods.

    States: preparing, prepared, starting, running, stopping, stopped, errored.
    """
    from kurma_core.cli.output import ago

    if session.format != "table" and not quiet:
        session.listing(session.client.pods_json(), ())
        return
    pods = session.client.summaries()
    if quiet:
        for pod in pods:
            session.line(pod.uuid)
        return
    columns: list[Column] = [
        ("UUID", lambda pod: pod.uuid[:8]),
        "name",
        ("APPS", lambda pod: ",".join(pod.apps)),
        "state",
        ("CREATED", lambda pod: ago(pod.created_at)),
        ("NETWORKS", _networks),
    ]
    session.listing(pods, columns)


@command(_POD, FORMAT)
def show(session: Session, *, pod: str) -> None:
    """Show everything that is known of a pod."""
    record = session.client.pod(pod)
    session.show(record.to_json(), lambda: "\n".join(_page(record)))


@command(_POD, Option("wait", "--wait", "Wait for the pod's end first."), FORMAT, NO_LEGEND)
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
        head = f"pod {record.name}: {record.state}" + (f": {record.reason}" if record.reason else "")
        return "\n".join([head, *table(record.apps, _APP_COLUMNS, legend=not session.no_legend)])

    session.show(value, text)


@command(_POD)
def wait(session: Session, *, pod: str) -> int:
    """Wait for a pod's end, and exit with its exit code."""
    from kurma_core.cli.commands.run import exit_code

    return exit_code(session.client.wait(pod))


@command(_POD)
def cat_manifest(session: Session, *, pod: str) -> None:
    """Print a pod's manifest, as it runs."""
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


_APP_COLUMNS: list[Column] = [
    ("APP", "name"),
    "state",
    ("EXIT", "exit_code"),
    "pid",
    ("STARTED", "started_at"),
    ("FINISHED", "finished_at"),
    ("MESSAGE", "says"),
]


#: Of (app, execution) before the last one.
_EARLIER_COLUMNS: list[Column] = [
    ("EARLIER", lambda one: f"{one[0].name} {one[1].instance}"),
    ("STATE", lambda one: one[1].reason or ""),
    ("EXIT", lambda one: one[1].exit_code),
    ("STARTED", lambda one: one[1].started_at),
    ("FINISHED", lambda one: one[1].finished_at),
    ("MESSAGE", lambda one: one[1].told),
]


def _page(record: PodRecord) -> Iterator[str]:
    from kurma_core.cli.output import facts, fields, one_line, table

    owner = f"process {record.owner}" if record.owner is not None else "nobody"
    yield facts(
        [
            *fields(record, "uuid", "name", "state", "reason", "exit_code"),
            ("created", record.created_at),
            ("started", record.started_at),
            ("finished", record.finished_at),
            ("owner", owner),
            ("stager", record.stager + (f" (process {record.stager_pid})" if record.stager_pid else "")),
            *fields(record, "renderer", "network_namespace"),
            ("user namespace", _ids(record)),
            ("metadata service", _metadata(record)),
            ("restart", _restart(record)),
        ]
    )
    yield from ("", *table(record.apps, [_APP_COLUMNS[0], ("IMAGE", _image_of(record)), *_APP_COLUMNS[1:]]))
    earlier = [(app, one) for app in record.apps for one in app.earlier]
    if earlier:
        yield from ("", *table(earlier, _EARLIER_COLUMNS))
    if any(app.files for app in record.apps):
        yield from ("", *table(record.apps, _FILE_COLUMNS))
    if record.attachments:
        yield from ("", *table(record.attachments, _NETWORK_COLUMNS))
    mounts = _mounts(record)
    if mounts:
        yield from ("", *table(mounts, _MOUNT_COLUMNS))
    if record.isolators:
        yield from ("", *table(record.isolators, _ISOLATOR_COLUMNS))
    notes = [*record.notes, *[app.lost for app in record.apps if app.lost]]
    if notes:
        yield from ("", *(f"note: {one_line(note)}" for note in notes))


def _ids(record: PodRecord) -> str | None:
    ids = record.userns
    return None if ids is None else f"{ids} (ids 0 to {ids.count - 1} are the host's {ids.first} to {ids.last})"


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
            found.append((mount["volume"], app["name"], mount["path"], volume.get("source") or _kind_of(volume)))
    return found


def _kind_of(volume: Mapping[str, Any]) -> str:
    if not volume.get("kurma.io/memory"):
        return str(volume.get("kind", ""))
    size = volume.get("kurma.io/size")
    return f"tmpfs ({size})" if size else "tmpfs"


def _image_of(record: PodRecord) -> Any:
    return lambda app: record.images.get(app.name, "")[:20]


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
    ("PORTS", lambda one: ",".join(_port(port) for port in one.ports)),
]

_MOUNT_COLUMNS: list[Column] = [
    ("VOLUME", lambda one: one[0]),
    ("APP", lambda one: one[1]),
    ("PATH", lambda one: one[2]),
    ("SOURCE", lambda one: one[3]),
]
_ISOLATOR_COLUMNS: list[Column] = [
    ("ISOLATOR", "name"),
    ("APP", "scope"),
    ("VALUE", lambda one: _value(one)),
    ("OUTCOME", lambda one: f"{one.outcome}, default" if one.default else one.outcome),
    "note",
]
_VALUE_WIDTH = 60


def _value(one: Any) -> str:
    """In the user's form, and in base units."""
    from kurma_core.json_text import dumps

    text = dumps(one.value)
    text = text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 1] + "…"
    return f"{text} = {one.amounts}" if one.amounts else text


def _port(port: Any) -> str:
    host = f"{f'[{port.host_ip}]' if ':' in port.host_ip else port.host_ip}:" if port.host_ip else ""
    return f"{host}{port.host_port}:{port.pod_port}/{port.protocol}"


_PODS = Argument("pods", "POD", "The pods.", many=True)


@command(
    _PODS,
    Option("timeout", "--timeout", "How long the apps have before they are ended by force.", metavar="TIME"),
    Option("force", "--force", "End them at once."),
    root=True,
)
def stop(session: Session, *, pods: tuple[str, ...], timeout: str | None, force: bool) -> int:
    """Stop pods."""
    from kurma_core.cli import values

    patience = None if timeout is None else values.seconds(timeout, "--timeout")
    return session.each(pods, lambda pod: session.client.stop(pod, timeout=patience, force=force))


@command(
    Argument("pod", "POD", "The pod."),
    Argument("app", "APP", "Only this app.", required=False),
    Option("signal", "--signal -s", "The signal, by name or number.", metavar="SIGNAL", default="TERM"),
    root=True,
)
def kill(session: Session, *, pod: str, app: str | None, signal: str) -> None:
    """Send a signal to the apps of a pod."""
    from kurma_core.cli import values

    session.client.kill(pod, values.signal_number(signal), app)


@command(_PODS, Option("force", "--force -f", "Stop those that run, at once."), root=True)
def rm(session: Session, *, pods: tuple[str, ...], force: bool) -> int:
    """Remove pods that do not run.

    Removes their logs and empty volumes, too.
    """
    return session.each(pods, lambda pod: session.client.rm(pod, force=force))


@command(
    Option(
        "grace_period",
        "--grace-period",
        "Keep pods that ended less than TIME ago.",
        metavar="TIME",
        default="30m",
    ),
    Option("dry_run", "--dry-run", "Only say what would be done."),
    root=True,
)
def gc(session: Session, *, grace_period: str, dry_run: bool) -> int:
    """Take down what is dead, and remove pods that ended a while ago.

    Remains of killed commands and crashes are removed regardless of their age, also addresses, interfaces, rules
    and namespaces of pods that are gone. The exit code is 125 if an error kept something from being removed.
    """
    from kurma_core.cli import values

    grace = values.seconds(grace_period, "--grace-period")
    collected = session.client.gc(grace=grace, dry_run=dry_run)
    for line in collected.lines:
        session.line(line)
    return 125 if collected.failed else 0
