"""The one API that a caller sees: pods, images, networks, stagers, plugins, of one state directory.

It works in process, or by way of the kurmad that serves that directory: the same methods, the same values, the
same errors. :func:`connect` chooses. Importing this is cheap; each way is imported when it is taken.
"""

from __future__ import annotations

from kurma_core.config import Config, load, place
from kurma_core.errors import ConfigError, KurmaError
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.client.local import LocalClient
    from kurma_core.trust.encryption import Passphrases

    Client = LocalClient

#: ``--host`` that means: not by way of a daemon.
LOCAL = "local"
SOCKET = "kurmad.sock"


def _to_stderr(text: str) -> None:
    import sys

    print(f"kurma: {text}", file=sys.stderr)


@frozen
class Settings:
    """:param config_file: None: ``/etc/kurma``.
    :param state_dir: None: as configured.
    :param state_dir_origin: ``command line`` or ``environment``.
    :param host: ``local``: in process; ``unix:PATH`` or a path: by way of the daemon that listens there; None: of
        the daemon that serves the state directory, if one does, else in process.
    :param note: tells the user something in one line.
    :param daemon: this process serves many commands.
    :param signals: whether SIGINT, SIGTERM and SIGHUP are for what is done here: not in a daemon's threads.
    :param service: a service manager's ``NOTIFY_SOCKET``, which is told of a pod in the foreground.
    :param passphrases: who knows the passphrases of encrypted archives, asked for when there is one; None: nobody.
    """

    config_file: str | None = None
    state_dir: str | None = None
    state_dir_origin: str = "command line"
    host: str | None = None
    debug: bool = False
    note: Callable[[str], None] = _to_stderr
    passphrases: Callable[[], Passphrases] | None = None
    service: str | None = None
    signals: bool = True
    daemon: bool = False


def connect(settings: Settings, *, start: bool = False) -> Client:
    """A client: use it as a context manager.

    :param start: it has to go by way of a daemon, for it asks for what outlives this process; where none serves
        the state directory one is started, in the background, and ends when it has had nothing to do for a while.
    :raises ConfigError: the configuration is wrong.
    :raises HostError: nobody listens at ``settings.host``; or the daemon does not start.
    :raises PrivilegeError: a daemon is to be started, and only root can.
    :raises UsageError: there is to be a daemon, and ``settings.host`` wants none.
    """
    try:
        config = load(settings.config_file, settings.state_dir, state_dir_origin=settings.state_dir_origin)
    except ConfigError as error:
        found = _by_daemon(settings, error)
        if found is None:
            raise
        return found
    if settings.host != LOCAL:
        from kurma_core.client.wire import Connection, Refused

        path = socket_path(settings.host, config)
        try:
            connection = Connection.open(path, required=settings.host is not None)
        except Refused:
            if settings.host is not None or start:
                raise
            found = connect_here(settings, config)
            found.refused = path
            return found
        if connection is None and start:
            from kurma_core.client.starting import started

            connection = started(settings, config, path)
        if connection is not None:
            from kurma_core.client.remote import RemoteClient

            return RemoteClient(settings, config, connection)
    elif start:
        from kurma_core.errors import UsageError

        raise UsageError(
            "what outlives its command belongs to a daemon, and --host local goes by way of none",
            hint="leave --host away: a kurmad is started if none runs",
        )
    return connect_here(settings, config)


def _by_daemon(settings: Settings, wrong: ConfigError) -> Client | None:
    """A client by way of a daemon that runs, which goes on with the configuration that it has read: what is wrong
    since is no reason not to list or stop a pod. None: there is none.

    :param wrong: what that is, which whoever asks for something that is done here is told.
    """
    from kurma_core.client.wire import Connection

    if settings.host == LOCAL:
        return None
    try:
        config = place(settings.config_file, settings.state_dir)
        connection = Connection.open(socket_path(settings.host, config), required=False)
    except KurmaError:
        return None
    if connection is None:
        return None
    from kurma_core.client.remote import RemoteClient

    settings.note(f"{wrong.message}; kurmad goes on with the configuration that it has read before")
    found = RemoteClient(settings, config, connection)
    found.wrong = wrong
    return found


def connect_here(settings: Settings, config: Config) -> LocalClient:
    """A client that works in this process, whatever daemon there is: the daemon's own, for one."""
    from kurma_core.client.local import LocalClient

    return LocalClient(settings, config)


def socket_path(host: str | None, config: Config) -> str:
    """Where the daemon listens. :param host: as in :class:`Settings`, but for ``local``.

    :raises UsageError: that is no address.
    """
    if host is None:
        return f"{config.run_dir}/{SOCKET}"
    path = host.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        from kurma_core.errors import UsageError

        raise UsageError(f"{host!r} is no address of a daemon", hint="local, or unix:///run/kurma/kurmad.sock")
    return path


__all__ = ["LOCAL", "SOCKET", "Settings", "connect", "connect_here", "socket_path"]
