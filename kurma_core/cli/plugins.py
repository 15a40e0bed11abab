"""``plugins``: what is installed, and why one of them does not work."""

from __future__ import annotations

from kurma_core.cli.declare import FORMAT, NO_LEGEND, Argument, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.cli.output import Column
    from kurma_core.cli.session import Session
    from kurma_core.registry import PluginInfo

_COLUMNS: list[Column] = [
    ("KIND", lambda plugin: plugin.kind),
    ("NAME", lambda plugin: plugin.name),
    ("DISTRIBUTION", lambda plugin: plugin.distribution or ""),
    ("VERSION", lambda plugin: plugin.version or ""),
    ("STATUS", lambda plugin: plugin.status),
    ("REASON", lambda plugin: plugin.reason),
]


@command(FORMAT, NO_LEGEND, Option("no_load", "--no-load", "Do not load them: say only that they are found."))
def list_(session: Session, *, format: str, no_legend: bool, no_load: bool) -> None:
    """List plugins, and why one does not work.

    Status: ok, disabled (by the configuration), skipped (this host lacks something), failed, found (not loaded).
    """
    session.listing(format, session.client.plugins(load=not no_load), _COLUMNS, no_legend=no_legend)


@command(Argument("plugin", "KIND/NAME", "The plugin: networks/cni."), FORMAT)
def show(session: Session, *, plugin: str, format: str) -> None:
    """Show a plugin and the options that it takes."""
    from kurma_core.cli.output import facts, json_text

    kind, _, name = plugin.removeprefix("kurma.").partition("/")
    info = _find(session, kind, name)
    section = session.client.config.plugin(kind, name)
    settings = {"enabled": section.enabled, "required": section.required, "config": dict(section.config)}
    value = {**info.to_json(), "settings": settings}

    def page() -> str:
        return facts(
            [
                ("kind", info.kind),
                ("name", info.name),
                ("distribution", info.distribution),
                ("version", info.version),
                ("status", info.status),
                ("reason", info.reason),
                ("enabled", "yes" if section.enabled else "no"),
                ("required", "yes" if section.required else "no"),
                ("config", json_text(dict(section.config)) if section.config else None),
            ]
        )

    session.show(format, value, page)


def _find(session: Session, kind: str, name: str) -> PluginInfo:
    from kurma_core.errors import PluginNotFoundError, UsageError

    if not name:
        raise UsageError(f"expected KIND/NAME, found {kind!r}", hint="for instance networks/cni")
    listing = session.client.plugins(load=True)
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
