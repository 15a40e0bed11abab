"""The client of a state directory: pods, images, networks, stagers, plugins.

It works in this process, or by way of the kurmad that serves the directory: the same methods, the same values, the
same errors. :func:`connect` chooses. Importing this is cheap; each transport is imported when it is used.
"""

from __future__ import annotations

import os

from kurma_core.config import CONFIG_DIR, Config, load, place
from kurma_core.errors import ConfigError, KurmaError, UsageError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.api.operations import Progress
    from kurma_core.client.client import Client
    from kurma_core.client.local.managers import Managers
    from kurma_core.client.remote.http import Connection
    from kurma_core.trust.encryption import Passphrases

#: ``--host`` that means: not by way of a daemon.
LOCAL = "local"
SOCKET = "kurmad.sock"


def _to_stderr(text: str) -> None:
    import sys

    print(f"kurma: {text}", file=sys.stderr)


@frozen
class Settings:
    """Where and how a client works.

    :param config_file: None: ``/etc/kurma``.
    :param config_origin: ``--config`` or ``KURMA_CONFIG``.
    :param state_dir: None: as configured.
    :param state_dir_origin: ``command line`` or ``environment``.
    :param host: ``local``: in this process; ``unix:PATH`` or a path: by the daemon that listens there; None: by
        the daemon that serves the state directory, if there is one, else in this process.
    :param note: reports one line to the user.
    :param daemon: this process serves many commands.
    :param signals: whether SIGINT, SIGTERM and SIGHUP apply to this client's operations: not in a daemon's
        threads.
    :param service: a service manager's ``NOTIFY_SOCKET``, for notifications about a pod in the foreground.
    :param passphrases: makes the source of passphrases of encrypted archives; None: there is none.
    :param progress: makes the report of progress to the user of operations that take none; it returns None if the
        user reads none. None: there is no report.
    :param makes: if ``state_dir`` names a missing directory, it is made. False: that is an error.
    """

    config_file: str | None = None
    state_dir: str | None = None
    state_dir_origin: str = "command line"
    host: str | None = None
    debug: bool = False
    note: Callable[[str], None] = _to_stderr
    passphrases: Callable[[], Passphrases] | None = None
    progress: Callable[[], Progress | None] | None = None
    service: str | None = None
    signals: bool = True
    daemon: bool = False
    config_origin: str = "--config"
    makes: bool = True

    def configuration(self, draft: tuple[str, object] | None = None) -> Config:
        """Reads the configuration. :param draft: as of :func:`kurma_core.config.load`, as are the errors."""
        return load(self.config_file, self.state_dir, state_dir_origin=self.state_dir_origin, draft=draft)

    @property
    def config_path(self) -> str:
        """The absolute path of the file or directory that is read."""
        return CONFIG_DIR if self.config_file is None else os.path.abspath(self.config_file)

    def tell_service(self, text: str) -> None:
        """Notifies the service manager, if one has started this process for a pod in the foreground."""
        if self.service is not None:
            from kurma_core.daemon.process import service_manager

            service_manager.tell(self.service, text)


def connect(settings: Settings, *, start: bool = False) -> Client:
    """A client: use it as a context manager.

    :param start: kurmad must do the operations, which leave something running. If no kurmad serves the state
        directory, one is started in the background; it ends after a while without work.
    :raises ConfigError: the configuration is wrong.
    :raises HostError: nothing listens at ``settings.host``; or kurmad does not start.
    :raises PrivilegeError: kurmad is to be started, and only root can.
    :raises UsageError: ``start``, and ``settings.host`` is ``local``.
    """
    try:
        config = settings.configuration()
    except ConfigError as error:
        found = _connect_despite(settings, error)
        if found is None:
            raise
        return found
    refused = None
    if settings.host != LOCAL:
        from kurma_core.client.remote.http import Connection, Refused

        path = socket_path(settings.host, config)
        try:
            connection = Connection.find(path) if settings.host is None else Connection.open(path)
        except Refused:
            if settings.host is not None or start:
                raise
            connection, refused = None, path
        if connection is None and start:
            from kurma_core.client.remote.start_kurmad import started

            connection = started(settings, config, path)
        if connection is not None:
            return _by_kurmad(settings, connection, config)
    elif start:
        raise UsageError(
            "cannot run in the background: --host local excludes kurmad",
            hint="leave --host out: the command starts kurmad if necessary; or run the pod in the foreground: run "
            "without -d, start and restart with -a",
        )
    from kurma_core.client.local.managers import Managers

    return in_process(Managers(settings, config, refused))


def _connect_despite(settings: Settings, wrong: ConfigError) -> Client | None:
    """A client for a running kurmad, which keeps the configuration that it has read: a configuration that was
    broken since then must not keep users from listing or stopping pods. None: no kurmad runs.

    :param wrong: the error of the configuration; raised by operations of this process.
    """
    from kurma_core.client.remote.http import Connection
    from kurma_core.client.remote.transport import Remote

    if settings.host == LOCAL:
        return None
    try:
        config = place(settings.config_file, settings.state_dir)
        connection = Connection.find(socket_path(settings.host, config))
    except KurmaError:
        return None
    if connection is None:
        return None
    found = _by_kurmad(settings, connection, wrong)
    if settings.config_file is not None:
        from os.path import abspath

        # A broken file of another configuration than kurmad's is a mistake of the caller.
        daemon = found.info().daemon
        if daemon is None or daemon.configuration != abspath(settings.config_file):
            found.close()
            raise wrong
    assert isinstance(found.transport, Remote)
    found.transport.wrong = wrong
    return found


def _by_kurmad(settings: Settings, connection: Connection, config: Config | ConfigError) -> Client:
    from kurma_core.client.client import Client
    from kurma_core.client.remote.transport import Remote

    def make() -> Managers:
        from kurma_core.client.local.managers import Managers

        if isinstance(config, ConfigError):
            raise config
        return Managers(settings, config)

    compared = config if settings.host is None and not isinstance(config, ConfigError) else None
    found = Client(settings, Remote(settings, connection, lambda: found.here, compared), make)
    return found


def in_process(managers: Managers) -> Client:
    """A client that works in this process, whether or not kurmad runs; kurmad itself uses one."""
    from kurma_core.client.client import Client
    from kurma_core.client.local.transport import Local

    return Client(managers.settings, Local(managers), lambda: managers)


def socket_path(host: str | None, config: Config) -> str:
    """The path of kurmad's socket. :param host: as in :class:`Settings`, but not ``local``.

    :raises UsageError: it is not such an address.
    """
    if host is None:
        return f"{config.run_dir}/{SOCKET}"
    path = host.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise UsageError(f"{host!r} is not an address of a daemon", hint="local, or unix:///run/kurma/kurmad.sock")
    return path
