"""Commands of plugins (group ``kurma.commands``), below ``kurma``."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from kurma_core.cli.command_line import GLOBAL_OPTIONS
from kurma_core.cli.session import OutputClosed
from kurma_core.errors import KurmaError
from kurma_core.value import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kurma_core.cli.session import Session
    from kurma_core.hookspecs.command import CommandHooks
    from kurma_core.plugins.registry import PluginRegistry

GROUP = "kurma.commands"
#: The default of ``state_dir``.
_STATE_DIR = "/var/lib/kurma"


class PluginCommands:
    """The commands of installed plugins, for one command line.

    :param make_session: makes a session of the options before the command.
    :param options: those of the command line, by name; those left out have their defaults.
    """

    def __init__(self, make_session: Callable[[Mapping[str, Any]], Session], options: Mapping[str, Any]) -> None:
        self._make_session = make_session
        self._options = {**{option.name: option.default for option in GLOBAL_OPTIONS}, **options}

    @kept
    def _session(self) -> Session:
        return self._make_session(self._options)

    @kept
    def _registry(self) -> PluginRegistry | None:
        """The registry of plugins; None: no plugin with a command is installed.

        :raises ConfigError: the configuration is wrong.
        """
        from kurma_core.plugins.index import NAME, PluginIndex

        session = self._session
        # Any index knows what is installed, and is read in less time than the configuration.
        usual = session.state_dir or _STATE_DIR
        if os.path.exists(f"{usual}/{NAME}") and GROUP not in PluginIndex(usual).find():
            return None
        from kurma_core.config import load

        config = load(session.config_file, session.state_dir, state_dir_origin=session.state_dir_origin)
        if GROUP not in PluginIndex(config.state_dir).find():
            return None
        from kurma_core.plugins.registry import PluginRegistry

        return PluginRegistry(config, session.note)

    def names(self) -> tuple[str, ...]:
        """The names of the enabled commands. None is imported, and no error is raised."""
        try:
            enabled = self._registry.enabled(GROUP) if self._registry is not None else ()
        except KurmaError:
            return ()  # the configuration is wrong: the command itself says so
        if not enabled:
            return ()
        from kurma_core.hookspecs.command import RESERVED

        return tuple(dict.fromkeys(name for name in enabled if name not in RESERVED))

    def listing(self) -> list[tuple[str, str]]:
        """Each command with its line of help."""
        registry = self._registry if self.names() else None
        return [] if registry is None else [(name, _help(registry, name)) for name in self.names()]

    def get(self, name: str) -> click.Command | None:
        """The command; None: no plugin has it.

        :raises ConfigError: the configuration is wrong.
        :raises KurmaError: the plugin that has it is disabled, or does not work.
        """
        registry = self._registry
        if registry is None or ("commands", name) not in registry.installed():
            return None
        from typer.main import get_command

        from kurma_core.plugins.calls import source_of

        with redirect_stdout(sys.stderr):
            driver: CommandHooks = registry.driver(GROUP, name)
            application = driver.application(self._session)
            try:
                command = get_command(application)
            except Exception as error:  # typer raises several for an application without a command, or a wrong one
                if (source := source_of(driver)) is None:
                    raise
                raise source.failed("application", error) from error
        command.name = name
        invoke = command.invoke

        def run(context: click.Context) -> Any:
            try:
                with self._session as session, redirect_stdout(session.out):
                    return invoke(context)
            except (KurmaError, click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except BrokenPipeError as error:
                raise OutputClosed from error
            except Exception as error:
                source = source_of(driver)
                if source is None:
                    raise
                raise source.failed(name, error) from error

        guarded: Any = run
        command.invoke = guarded  # type: ignore[method-assign]
        return command


def _help(registry: PluginRegistry, name: str) -> str:
    try:
        with redirect_stdout(sys.stderr):
            declared = registry.declaration(GROUP, name)
    except KurmaError:
        return "(does not work: see kurma plugins list)"
    return declared.help
