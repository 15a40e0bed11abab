"""``kurma plugins`` and ``kurma isolators``: list plugins, their options, isolators, and why one does not work."""

from __future__ import annotations

from kurma_core.cli.command_line import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.api.host import IsolatorInfo, PluginInfo
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.hookspecs.driver import Option as DriverOption


_COLUMNS = ("kind", "name", "distribution", "version", "status", "reason")


@command(FORMAT, NO_LEGEND, Option("no_load", "--no-load", "Do not load them: say only that they are found."))
def list_(session: Session, *, no_load: bool) -> None:
    """List plugins, and why one does not work.

    Status: ok, disabled (by the configuration), skipped (this host lacks something), failed, found (not loaded).
    """
    found = session.client.here.registry.listing(not no_load)
    session.listing(found, _COLUMNS)
    if session.format == "table" and not session.no_legend:
        for info in found:
            if info.enable:
                session.line(f"# to enable it: {info.enable}")


@command(Argument("plugin", "KIND/NAME", "The plugin: networks/cni."), FORMAT)
def show(session: Session, *, plugin: str) -> None:
    """Show a plugin and the options that it takes."""
    from kurma_core.api.host import PluginOption, PluginPage
    from kurma_core.cli.output import facts, fields, json_text, table

    kind, _, name = plugin.removeprefix("kurma.").partition("/")
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
        raise UsageError(f"expected KIND/NAME, found {kind!r}", hint="for instance networks/cni")
    listing = session.client.here.registry.listing(True)
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
