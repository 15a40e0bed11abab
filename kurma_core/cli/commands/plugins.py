"""``kurma plugins`` and ``kurma isolators``: list plugins, their options, isolators, and why one does not work.

``kurma plugins new`` makes the package of a new plugin.

``kurma plugins enable`` and ``disable`` write one file of ``kurma.d``, which is theirs.
"""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command
from kurma_core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.host import IsolatorInfo, PluginInfo
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.hookspecs.driver import Option as DriverOption


_FACTS = ("kind", "name", "distribution", "version", "status", "reason")
_COLUMNS: list[Column] = [
    "kind",
    "name",
    ("DISTRIBUTION", "distribution", (2, 0)),
    "version",
    "status",
    ("REASON", "reason", (1, 20, "wraps")),
]


@command(
    FORMAT,
    NO_LEGEND,
    Option("no_load", "--no-load", "List plugins as found, without loading them."),
    Option("here", "--here", "List this command's plugins, even if kurmad runs."),
    example="kurma plugins list",
)
def list_(session: Session, *, no_load: bool, here: bool) -> None:
    """List plugins, and the reasons of their failures.

    Lists the plugins of kurmad, if it runs; this command loads those that kurmad has not loaded yet. Status: ok,
    disabled (by the configuration), skipped (the host lacks a feature), failed, outdated (the loaded version is
    not the installed one), found (not loaded), or the state of a service of kurmad.
    """
    found = _rows(session, not no_load, here)
    session.listing(found, _COLUMNS)
    if session.format == "table" and not session.no_legend:
        for info in found:
            if info.enable:
                session.line(f"# to enable it: {info.enable}")


def _rows(session: Session, load: bool, here: bool = False) -> list[PluginInfo]:
    """The plugins of the process that does the work: kurmad's, if it runs, else this one's."""
    registry, client = session.client.here.registry, session.client
    if here or not client.remote:
        return list(registry.listing(load))
    from kurma_core.config.schema import KINDS

    ours = {(row.kind, row.name, row.distribution): row for row in registry.listing(False)}
    found = [
        _merged(row, ours.pop((row.kind, row.name, row.distribution), None)) for row in client.plugins(load=False)
    ]
    unseen = "kurmad does not see it: kurma daemon reload"
    found += [
        row if row.status == "failed" else replace(row, status="found", reason=unseen) for row in ours.values()
    ]
    if load:
        found = [
            _tried(row, registry.status) if row.status == "found" and not row.reason else row for row in found
        ]
    order = {kind: number for number, kind in enumerate(KINDS)}
    return sorted(found, key=lambda row: (order.get(row.kind, len(order)), row.kind, row.name))


def _merged(theirs: PluginInfo, ours: PluginInfo | None) -> PluginInfo:
    """kurmad's row of a plugin, with what this command sees of the same plugin."""
    if ours is None:
        if theirs.distribution is None or theirs.status not in ("ok", "found", "outdated"):
            return theirs
        reason = "this command does not see it: it was uninstalled, or kurmad runs another Python"
        return replace(theirs, reason=reason)
    if ours.version == theirs.version:
        return theirs
    if theirs.loaded is None:
        return replace(theirs, reason=f"kurmad does not see {ours.version} yet: kurma daemon reload")
    reason = f"{ours.version} is installed, {theirs.loaded} is loaded: restart kurmad"
    return replace(theirs, version=ours.version, status="outdated", reason=reason)


def _tried(row: PluginInfo, status: Callable[[str, str], tuple[str, str]]) -> PluginInfo:
    """A plugin that kurmad does not use yet, tried in this process: a listing loads nothing into kurmad."""
    state, reason = status(row.kind, row.name)
    if not reason and row.loaded is None:
        reason = "kurmad has not loaded it yet"
    return replace(row, status=state, reason=reason)


@command(
    Argument("plugin", "KIND/NAME", "The plugin, as `kurma plugins list` names it."),
    FORMAT,
    example="kurma plugins show commands/uptime",
)
def show(session: Session, *, plugin: str) -> None:
    """Show a plugin and its options."""
    from kurma_core.api.host import PluginOption, PluginPage
    from kurma_core.cli.output import facts, fields, json_text, table
    from kurma_core.config.schema import kind_of

    word, _, name = kind_of(plugin).partition("/")
    kind = _known_kind(word) if name else word
    info = _find(session, kind, name)
    section = session.client.config.plugin(kind, name)
    settings = {"enabled": section.enabled, "required": section.required, "config": dict(section.config)}
    options = _options(session, info)
    shown = [PluginOption(o.name, o.type.__name__, o.default, o.least, o.most, o.help) for o in options]
    value = PluginPage(info, settings, tuple(shown))

    def page() -> str:
        config = json_text(dict(section.config)) if section.config else None
        own = [*fields(section, "enabled", "required"), ("config", config)]
        head = facts([*fields(info, *_FACTS), *own])
        return "\n".join(
            [head, "", *table(options, _OPTION_COLUMNS, width=session.width())] if options else [head]
        )

    session.show(value, page)


def _options(session: Session, info: PluginInfo) -> tuple[DriverOption, ...]:
    """The options of its section; empty if its module cannot be loaded, for which the listing has the reason."""
    from kurma_core.errors import KurmaError

    try:
        return session.client.here.registry.options(f"kurma.{info.kind}", info.name)
    except KurmaError:
        return ()


def _default(option: DriverOption) -> str:
    import json

    return json.dumps(option.default, ensure_ascii=False)


_OPTION_COLUMNS: list[Column] = [
    ("OPTION", "name"),
    ("TYPE", "type.__name__"),
    ("DEFAULT", _default, (2, 8, "wraps")),
    ("HELP", "help", (1, 20, "wraps")),
]


def _find(session: Session, kind: str, name: str) -> PluginInfo:
    from kurma_core.errors import PluginNotFoundError, UsageError

    if not name:
        raise UsageError(f"expected KIND/NAME, found {kind!r}", hint="see kurma plugins list")
    listing = _rows(session, True)
    for info in listing:
        if (info.kind, info.name) == (kind, name):
            return info
    of_kind = ", ".join(f"{info.kind}/{info.name}" for info in listing if info.kind == kind)
    kinds = ", ".join(sorted({info.kind for info in listing}))
    raise PluginNotFoundError(
        f"no plugin {kind}/{name}",
        hint=f"there are: {of_kind}" if of_kind else f"kinds: {kinds}",
        plugin=f"kurma.{kind}/{name}",
    )


# --- a new plugin ------------------------------------------------------------------------------------------------

_KIND = Argument("kind", "KIND", "The kind of plugin, such as networks or services.")


@command(
    _KIND,
    Argument(
        "name", "NAME", "The plugin's name; for a fetcher its scheme, for a command plugin the command's name."
    ),
    Option(
        "directory", "--directory", "Write the package to DIR; default: the distribution's name.", metavar="DIR"
    ),
    Option("distribution", "--distribution", "Name the distribution; default: kurma-KIND-NAME.", metavar="NAME"),
    example="kurma plugins new isolators box",
)
def new(session: Session, *, kind: str, name: str, directory: str | None, distribution: str | None) -> None:
    """Create the package of a new plugin, with tests.

    The package builds, installs, and passes the contract suite of its kind. Its kurma.yml configures and enables
    the plugin.
    """
    import os
    from shlex import quote

    from kurma_core.plugins.scaffold import make_package

    made = make_package(_known_kind(kind), name, directory, distribution)
    for path in made.files:
        session.line(os.path.join(made.directory, path))
    session.line("# next:")
    session.line(f"cd {quote(made.directory)}")
    session.line("pip install --editable . 'kurma-core[testing]'")
    session.line(made.test)
    session.line(f"sudo install -D -m 644 kurma.yml /etc/kurma/kurma.d/{name}.yml")
    session.line("kurma daemon reload  # if kurmad runs")
    session.line("kurma plugins list")


# --- enabling and disabling --------------------------------------------------------------------------------------

_OWN_FILE = "50-plugins.yml"
_OWN_MARK = "written by kurma plugins enable|disable"
_NAME = Argument("name", "PLUGIN", "The plugin's name.")


@command(_KIND, _NAME, root=True, here="it writes kurma.yml", example="kurma plugins enable commands uptime")
def enable(session: Session, *, kind: str, name: str) -> None:
    """Enable a plugin in kurma.d/50-plugins.yml."""
    _write_enabled(session, kind, name, True)


@command(_KIND, _NAME, root=True, here="it writes kurma.yml", example="kurma plugins disable commands uptime")
def disable(session: Session, *, kind: str, name: str) -> None:
    """Disable a plugin in kurma.d/50-plugins.yml.

    Pods that use the plugin keep running, and can be stopped and removed.
    """
    _write_enabled(session, kind, name, False)


def _write_enabled(session: Session, kind: str, name: str, enabled: bool) -> None:
    from contextlib import closing

    from kurma_core.client.local.managers import Managers, problems, problems_of_pods
    from kurma_core.config import origin
    from kurma_core.config.schema import enabling
    from kurma_core.errors import ConfigError
    from kurma_core.plugins.problems import left_out

    kind = _known_kind(kind)
    installed = _is_installed(session, kind, name, enabled)
    settings, verb = session.settings, "enable" if enabled else "disable"
    what = f"cannot {verb} {kind}/{name}"
    here = session.client.here
    with session.own_file(_OWN_FILE, _OWN_MARK, what, enabling(kind, name, enabled)) as file:
        sections = file.read()
        own = sections.setdefault("plugins", {}).setdefault(kind, {})
        if not installed:
            own.pop(name, None)  # a section of a plugin that is not installed is an error
        listed = installed or name in settings.configuration((file.path, sections)).plugins.get(kind, {})
        if listed:
            own.setdefault(name, {})["enabled"] = enabled
        config = settings.configuration((file.path, sections))
        if listed and config.plugin(kind, name).enabled != enabled:
            later = config.origins[f"plugins.{kind}.{name}.enabled"]
            raise ConfigError(f"{what}: {later}, which is read later, says otherwise", file=later, path="plugins")
        file.write(sections)
    session.line(f"{verb}d {kind}/{name} in {file.path}")
    known = {problem.message for problem in problems(here)}
    with closing(Managers(settings, config)) as managers:
        telling = (*problems(managers), *left_out(managers.registry, config), *problems_of_pods(managers, set()))
    for problem in {problem.message: problem for problem in telling}.values():
        if problem.data.get("plugin") == f"kurma.{kind}/{name}" or problem.message not in known:
            session.problem(problem)
    if kind == "fetchers" and not enabled:
        for key in ("paths", "names"):
            used = getattr(config.fetchers, key) == name
            if used and origin(f"fetchers.{key}", config.origins) == "default":
                session.note(f"images by {key} cannot be fetched: fetchers.{key} is {name}")
    if session.client.remote:
        session.note("kurmad uses the old setting until: kurma daemon reload")


def _known_kind(word: str) -> str:
    """A kind in the plural. :raises UsageError: there is no such kind."""
    from kurma_core.config.schema import KINDS, kind_of, singular
    from kurma_core.errors import UsageError
    from kurma_core.schema import nearest

    for kind in KINDS:
        if kind_of(word) in (kind, singular(kind)):
            return kind
    near = nearest(word, KINDS, 0.5)
    meant = f"did you mean {near}? " if near else ""
    raise UsageError(f"unknown kind of plugin {word!r}", hint=f"{meant}kinds: {', '.join(KINDS)}")


def _is_installed(session: Session, kind: str, name: str, enabled: bool) -> bool:
    """Whether the plugin is installed. What is only listed in the configuration can be disabled.

    :raises PluginNotFoundError: it is neither.
    """
    from kurma_core.errors import PluginNotFoundError
    from kurma_core.plugins.calls import called
    from kurma_core.schema import nearest

    here = session.client.here
    installed = [info.name for info in here.registry.listing(False) if info.kind == kind and info.distribution]
    known = installed if enabled else [*installed, *here.config.plugins.get(kind, {})]
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"installed: {', '.join(known) or 'none'}"
        what = f"no {called(kind, name)} is installed"
        raise PluginNotFoundError(what, hint=hint, plugin=f"kurma.{kind}/{name}")
    return name in installed


# --- isolators ---------------------------------------------------------------------------------------------------


@command(FORMAT, NO_LEGEND, example="kurma isolators list")
def list_isolators(session: Session) -> None:
    """List isolators, and their effect on this host.

    HERE is the effect of a typical value on this host: enforced, modified, ignored or refused. DEFAULT is the
    value for apps and pods that do not set the isolator.
    """
    columns: list[Column] = [
        ("ISOLATOR", "name"),
        ("OF", lambda one: ",".join(one.scopes), (3, 0)),
        ("PLUGIN", "plugin", (2, 0)),
        ("HERE", "outcome"),
        ("DEFAULT", _default_value, (4, 8, "wraps")),
        ("NOTE", "note", (1, 16, "wraps")),
    ]
    session.listing(session.client.isolators(), columns)


def _default_value(one: IsolatorInfo) -> str:
    from kurma_core.json_text import dumps

    return "" if one.default is None else dumps(one.default)
