"""``kurma network``: lists, shows, checks, repairs, creates and removes networks.

``create`` and ``rm`` write one file of ``kurma.d``, which is theirs.
"""

from __future__ import annotations

from kurma_core.cli.command_line import FILTER, FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from kurma_core.cli.output import Column, Filters
    from kurma_core.cli.session import Session
    from kurma_core.config import Config
    from kurma_core.config.files import OwnFile

_COLUMNS: list[Column] = [
    "name",
    "driver",
    "interface",
    "default",
    ("SOURCE", "source", (2, 12, "wraps")),
    ("PROBLEM", "problem", (1, 20, "wraps")),
]

_FINDINGS: list[Column] = [
    "kind",
    "network",
    ("POD", lambda one: (one.pod or "")[:8]),
    ("WHAT", "what", (2, 12, "wraps")),
    ("PROBLEM", "why", (1, 20, "wraps")),
]
_REPAIRED: Column = ("REPAIRED", lambda one: "yes" if one.repaired else "no")


_FILTERS: Filters = {
    "name": lambda network, value: value in network["name"],
    "driver": lambda network, value: network["driver"] == value,
}


@command(FILTER, FORMAT, NO_LEGEND, example="kurma network list --filter name=default")
def list_(session: Session, *, filter: tuple[str, ...]) -> None:
    """List networks.

    Keys of --filter: name (a part of it), driver.
    """
    from kurma_core.cli.output import kept

    session.listing(kept(session.client.networks_list(), filter, _FILTERS), _COLUMNS)


@command(Argument("name", "NETWORK", "The network."), FORMAT, example="kurma network show default")
def show(session: Session, *, name: str) -> None:
    """Show all facts about a network."""
    from kurma_core.cli.output import facts, fields, json_text

    network = session.client.network(name)

    def page() -> str:
        about = fields(network, "name", "driver", "interface", "default", "optional", "source", "problem")
        return facts([*about, ("config", json_text(dict(network.config)))])

    session.show(network, page)


@command(
    Argument("names", "NETWORK", "The networks to check; default: all.", required=False, many=True),
    Option("repair", "--repair", "Repair the problems that can be repaired."),
    FORMAT,
    NO_LEGEND,
    root=True,
    example="kurma network check --repair",
)
def check(session: Session, *, names: tuple[str, ...], repair: bool) -> int:
    """Check networks; with --repair repair them.

    Checks the drivers of networks, and the interfaces and namespaces of running pods. Finds addresses, interfaces,
    rules and namespaces that belong to no pod. --repair removes these, cleans up after dead pods, and restores
    missing interfaces and rules of running pods; networks of other programs stay unchanged. The exit code is 0 if
    no problem is found or all are repaired, and 1 otherwise.
    """
    found = session.client.network_check(names, repair=repair)
    if found or session.format != "table":
        columns = [*_FINDINGS, _REPAIRED] if repair else _FINDINGS
        session.listing(found, columns)
    if all(one.repaired for one in found):
        return 0
    if not repair:
        session.note("problems were found; to repair them: kurma network check --repair")
    return 1


_OWN_FILE = "50-networks.yml"
_OWN_MARK = "written by kurma network create|rm"
_KEY = "container_networks"


@command(
    Argument("name", "NAME", "The network's name."),
    Option(
        "driver",
        "--driver -d",
        "Use this network plugin; default: that of the network that pods join by default.",
        metavar="NAME",
    ),
    Option(
        "subnets", "--subnet", "Use this subnet; default: the plugin chooses.", metavar="ADDRESS/LENGTH", many=True
    ),
    Option("opt", "--opt -o", "Set a key of the plugin's configuration.", metavar="KEY=VALUE", many=True),
    root=True,
    here="it writes kurma.yml",
    example="kurma network create --subnet 10.91.0.0/24 shop",
)
def create(
    session: Session, *, name: str, driver: str | None, subnets: tuple[str, ...], opt: tuple[str, ...]
) -> None:
    """Create a network in kurma.d/50-networks.yml.

    Nothing is made on the host before the first pod joins. A running kurmad reads the configuration again. The
    value of --opt is JSON (1400, true, ["a", "b"]), else text; --subnet is the key `subnets`.
    """
    import json

    from kurma_core.errors import UsageError

    what = f"cannot create network {name}"
    config = session.client.config
    entry: dict[str, Any] = {"name": name, "plugin": driver or _default_driver(config)}
    if not entry["plugin"]:
        raise UsageError(f"{what}: no plugin is named", hint="--driver PLUGIN; see kurma plugins list")
    if subnets:
        entry["subnets"] = list(subnets)
    for text in opt:
        key, equals, value = text.partition("=")
        if not key or not equals or key in entry:
            twice = "given twice" if key in entry else "not KEY=VALUE"
            raise UsageError(f"{what}: --opt {text}: {twice}", hint="write --opt mtu=1400")
        entry[key] = _value(value)
    _check_place(session, what)
    if session.single_file is not None:
        # The error suggests the entry, so it must be one that the file may have.
        _check_new(session, session.single_file, _sections(session.single_file), entry, what)
    with _Changing(session, what, f"{_KEY}: [{json.dumps(entry)}]") as file:
        sections = file.read()
        if entry in sections.get(_KEY, ()):
            session.note(f"the network {name} exists already, with this configuration")
            _reload(session, what)  # an earlier command may have been killed before kurmad knew of it
        else:
            sections[_KEY] = _check_new(session, file.path, sections, entry, what)
            file.write(sections)
            _reload(session, what)
    session.line(name)


def _default_driver(config: Config) -> str | None:
    for entry in config.container_networks:
        if entry.name in config.joined_by_default:
            return entry.plugin
    return None


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_place(session: Session, what: str) -> None:
    """:raises ConfigError: kurmad does not read the configuration that this command writes."""
    from kurma_core.client.remote.transport import other_configuration
    from kurma_core.errors import ConfigError

    if not session.client.remote:
        return
    daemon = session.client.info().daemon
    if daemon is not None and (other := other_configuration(session.settings, daemon)):
        raise ConfigError(
            f"{what}: {other}",
            hint=f"add --config {daemon.configuration}; or --host local, for networks that kurmad does not know",
            file=session.settings.config_path,
            path=_KEY,
        )


def _sections(path: str) -> dict[str, Any]:
    from kurma_core.config.files import read

    found: dict[str, Any] = read(path) or {}
    return found


def _check_new(
    session: Session, path: str, sections: dict[str, Any], entry: dict[str, Any], what: str
) -> list[dict[str, Any]]:
    """Checks that a file of the configuration could have the entry besides what it has. :returns: its networks.

    :raises KurmaError: the network exists, is wrong, or has a subnet that is taken.
    """
    from kurma_core.errors import KurmaError, NetworkError

    name, catalog = entry["name"], session.client.here.networks.catalog
    for one in catalog.all():
        if one.name == name:
            where = session.client.config.origins.get(f"{_KEY}.{name}", one.source)
            raise NetworkError(f"{what}: the network exists ({where})", network=name)
    entries = [*(sections.get(_KEY) or ()), entry]
    _check(session, path, {**sections, _KEY: entries}, what)
    try:
        catalog.check_subnets(name, entry.get("subnets"))
    except KurmaError as error:
        error.message = f"{what}: {error.message}"
        raise
    return entries


def _check(session: Session, path: str, sections: dict[str, Any], what: str) -> None:
    """Checks the configuration with these sections. :raises KurmaError: it has a problem that it has not now."""
    from contextlib import closing

    from kurma_core.client.local.managers import Managers, problems
    from kurma_core.errors import KurmaError

    settings, here = session.settings, session.client.here
    known = {problem.message for problem in problems(here)}
    try:
        with closing(Managers(settings, settings.configuration((path, sections)))) as draft:
            for problem in problems(draft):
                if problem.message not in known:
                    raise problem
    except KurmaError as error:
        error.message = f"{what}: {error.message}"
        raise


class _Changing:
    """The file of created networks, as a context manager. If the block fails or is interrupted, the old file is
    put back, and kurmad reads it: it may have read the new one.

    :param instead: what to write into a configuration that is a single file.
    """

    def __init__(self, session: Session, what: str, instead: str = "") -> None:
        self._session = session
        self._what = what
        self._file = session.own_file(_OWN_FILE, _OWN_MARK, what, instead)

    def __enter__(self) -> OwnFile:
        return self._file.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        from contextlib import suppress

        from kurma_core.errors import KurmaError

        try:
            self._file.__exit__(kind, failure, trace)
        finally:
            if failure is not None and self._file.written:
                with suppress(KurmaError):
                    _reload(self._session, self._what)


def _reload(session: Session, what: str) -> None:
    """Has kurmad read the configuration, if one runs. :raises KurmaError: kurmad refuses it."""
    if not session.client.remote:
        return
    from kurma_core.api.wire import error_from_json

    for problem in session.client.reload().problems:
        error = error_from_json({"error": problem.to_json()})
        error.message = f"{what}: kurmad refuses the configuration: {error.message}"
        raise error


@command(Argument("names", "NETWORK", "The networks.", many=True), root=True, example="kurma network rm default")
def rm(session: Session, *, names: tuple[str, ...]) -> int:
    """Remove a network's bridge and rules from the host.

    A network of `kurma network create` is removed from the configuration, too, unless a pod names it. The
    configuration of other networks stays: the next pod creates the bridge again.
    """

    def one(name: str) -> None:
        if not _remove_created(session, name):
            session.client.network_rm(name)

    return session.each(names, one)


def _remove_created(session: Session, name: str) -> bool:
    """Removes a network that ``create`` made, and its entry; False: it has none.

    The entry goes first: a pod that starts meanwhile would make the bridge again. If the command is killed in
    between, ``kurma gc`` removes the bridge, whose network is configured no more.
    """
    import os

    from kurma_core.errors import ConfigError, NetworkError, PrivilegeError

    what = f"cannot remove network {name}"
    try:
        origin = session.settings.configuration().origins.get(f"{_KEY}.{name}", "")
    except ConfigError:
        return False  # kurmad removes networks by the configuration that it has read
    if os.path.basename(origin) != _OWN_FILE:
        return False
    if os.geteuid() != 0:
        raise PrivilegeError(
            f"{what}: only root can write {origin}", hint="run it as root, with sudo for instance"
        )
    _check_place(session, what)
    with _Changing(session, what) as file:
        try:
            sections = file.read()
        except ConfigError:
            return False  # a person wrote the file
        here = session.client.here
        if pods := here.pods.finder.network_users(name, all=True):
            raise NetworkError(
                f"{what}: pods name it: {', '.join(pods)}",
                hint=f"first remove these pods, if you need them no longer: kurma rm {' '.join(pods)}",
                network=name,
            )
        sections[_KEY] = [entry for entry in sections.get(_KEY, ()) if entry["name"] != name]
        _check(session, file.path, sections, what)
        file.write(sections)
        _reload(session, what)
        # In this process: kurmad does not know it any more. A pod may have joined it meanwhile.
        here.networks.remove(name, here.pods.finder.network_users(name, all=True))
    return True
