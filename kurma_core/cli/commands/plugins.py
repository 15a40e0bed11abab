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
    from typing import Any

    from kurma_core.api.host import IsolatorInfo, PluginInfo
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.config import Config
    from kurma_core.hookspecs.driver import Option as DriverOption


_COLUMNS = ("kind", "name", "distribution", "version", "status", "reason")


@command(
    FORMAT,
    NO_LEGEND,
    Option("no_load", "--no-load", "Do not load them: say only that they are found."),
    Option("here", "--here", "List those of this command, though kurmad runs."),
)
def list_(session: Session, *, no_load: bool, here: bool) -> None:
    """List plugins, and why one does not work.

    Lists the plugins of kurmad, if it runs; those that it has not loaded yet are tried in this command.
    Status: ok, disabled (by the configuration), skipped (this host lacks something), failed, outdated (another
    version is loaded than is installed), found (not loaded), or the state of a service of kurmad.
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


@command(Argument("plugin", "KIND/NAME", "The plugin, as the listing of plugins names it."), FORMAT)
def show(session: Session, *, plugin: str) -> None:
    """Show a plugin and the options that it takes."""
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
    value = PluginPage(info, settings, tuple(shown)).to_json()

    def page() -> str:
        config = json_text(dict(section.config)) if section.config else None
        own = [*fields(section, "enabled", "required"), ("config", config)]
        head = facts([*fields(info, *_COLUMNS), *own])
        return "\n".join([head, "", *table(options, _OPTION_COLUMNS)] if options else [head])

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
    ("DEFAULT", _default),
    "help",
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

_KIND = Argument("kind", "KIND", "The kind of plugin: networks, services.")


@command(
    _KIND,
    Argument("name", "NAME", "The plugin's name: of a fetcher the scheme, of a command the command."),
    Option("directory", "--directory", "Make DIR, instead of one named as the distribution.", metavar="DIR"),
    Option("distribution", "--distribution", "Name of the distribution (kurma-KIND-NAME).", metavar="NAME"),
)
def new(session: Session, *, kind: str, name: str, directory: str | None, distribution: str | None) -> None:
    """Make the package of a new plugin, which works and has tests.

    It builds, installs, and passes the contract suite of its kind as it is. Its kurma.yml has the lines that
    configure and enable the plugin.
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
_OWN_MARK = "# written by kurma plugins enable|disable\n"
_NAME = Argument("name", "NAME", "The plugin's name.")


@command(_KIND, _NAME, root=True, here="it writes kurma.yml")
def enable(session: Session, *, kind: str, name: str) -> None:
    """Enable a plugin in kurma.d/50-plugins.yml."""
    _write_enabled(session, kind, name, True)


@command(_KIND, _NAME, root=True, here="it writes kurma.yml")
def disable(session: Session, *, kind: str, name: str) -> None:
    """Disable a plugin in kurma.d/50-plugins.yml.

    Pods that use the plugin run on, and can be stopped and removed.
    """
    _write_enabled(session, kind, name, False)


def _write_enabled(session: Session, kind: str, name: str, enabled: bool) -> None:
    import os

    from kurma_core.cli.output import formatted
    from kurma_core.client.local.managers import Managers, problems, problems_of_pods
    from kurma_core.config import CONFIG_DIR, load, origin
    from kurma_core.config.schema import enabling
    from kurma_core.errors import ConfigError, UsageError
    from kurma_core.linux.files import replace_file
    from kurma_core.plugins.problems import left_out

    kind = _known_kind(kind)
    installed = _is_installed(session, kind, name, enabled)
    settings, verb = session.settings, "enable" if enabled else "disable"
    what = f"cannot {verb} {kind}/{name}"
    directory = CONFIG_DIR if settings.config_file is None else os.path.abspath(settings.config_file)
    if settings.config_file is not None and not os.path.isdir(directory):
        hint = f"write there: {enabling(kind, name, enabled)}"
        raise UsageError(f"{what}: the configuration is the single file {directory}", hint=hint)
    file = f"{directory}/kurma.d/{_OWN_FILE}"
    sections = _own_sections(file, what)
    own = sections.setdefault("plugins", {}).setdefault(kind, {})
    before = Managers(settings, session.client.config)

    def read() -> Config:
        directory, given_by = settings.state_dir, settings.state_dir_origin
        return load(settings.config_file, directory, state_dir_origin=given_by, draft=(file, sections))

    if not installed:
        own.pop(name, None)  # a section of a plugin that is not installed is an error
    listed = installed or name in read().plugins.get(kind, {})
    if listed:
        own.setdefault(name, {})["enabled"] = enabled
    config = read()
    if listed and config.plugin(kind, name).enabled != enabled:
        later = config.origins[f"plugins.{kind}.{name}.enabled"]
        raise ConfigError(f"{what}: {later}, which is read later, says otherwise", file=later, path="plugins")
    try:
        os.makedirs(os.path.dirname(file), mode=0o755, exist_ok=True)
        replace_file(file, f"{_OWN_MARK}{formatted('yaml', sections)}\n".encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{what}: {file}: {error.strerror}", file=file, path="") from error
    session.line(f"{verb}d {kind}/{name} in {file}")
    managers = Managers(settings, config)
    known = {problem.message for problem in problems(before)}
    telling = (*problems(managers), *left_out(managers.registry, config), *problems_of_pods(managers, set()))
    for problem in {problem.message: problem for problem in telling}.values():
        if problem.data.get("plugin") == f"kurma.{kind}/{name}" or problem.message not in known:
            session.problem(problem)
    if kind == "fetchers" and not enabled:
        for key in ("paths", "names"):
            used = getattr(config.fetchers, key) == name
            if used and origin(f"fetchers.{key}", config.origins) == "default":
                session.note(f"images that are given as {key} cannot be fetched: fetchers.{key} is {name}")
    if session.client.remote:
        session.note("kurmad has not read it: kurma daemon reload")


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
    raise UsageError(f"no kind of plugin {word!r}", hint=f"{meant}kinds: {', '.join(KINDS)}")


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


def _own_sections(file: str, what: str) -> dict[str, Any]:
    """Reads the sections that these commands have written.

    :raises ConfigError: another program or a person wrote the file.
    """
    import os

    from kurma_core.config.files import text_of, value_of
    from kurma_core.errors import ConfigError

    if not os.path.lexists(file):
        return {}
    text = text_of(file)
    if not text.startswith(_OWN_MARK):
        raise ConfigError(
            f"{what}: {file} was not written by this command",
            hint="rename it; this command writes that file anew",
            file=file,
            path="",
        )
    found: dict[str, Any] = value_of(file, text) or {}
    return found


# --- isolators ---------------------------------------------------------------------------------------------------


@command(FORMAT, NO_LEGEND)
def list_isolators(session: Session) -> None:
    """List isolators, and what this host makes of each.

    HERE is the effect of a common value on this host: enforced, modified, ignored or refused. DEFAULT is the value
    for apps or pods without the isolator.
    """
    columns: list[Column] = [
        ("ISOLATOR", "name"),
        ("OF", lambda one: ",".join(one.scopes)),
        "plugin",
        ("HERE", "outcome"),
        ("DEFAULT", _default_value),
        "note",
    ]
    session.listing(session.client.isolators(), columns)


def _default_value(one: IsolatorInfo) -> str:
    from kurma_core.json_text import dumps

    return "" if one.default is None else dumps(one.default)
