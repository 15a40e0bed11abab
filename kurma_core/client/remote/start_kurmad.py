"""Starts kurmad for a state directory, for a command that leaves something running.

A lock serializes commands that need one at the same time: the first starts it and waits until it answers or
reports an error; the others find it running. An idle daemon that is about to end takes the same lock
(:mod:`kurma_core.daemon.process.lifecycle`), so that no command connects to a daemon that is ending.
"""

from __future__ import annotations

import os
import sys

from kurma_core.client.remote.http import Connection
from kurma_core.errors import HostError, PrivilegeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.client import Settings
    from kurma_core.config import Config

#: Held while the daemon is started, and by an idle daemon that ends; in the run directory.
LOCK = "kurmad.start"
LOG = "kurmad.log"
#: Held by the kurmad that serves the state directory, also before it has a socket; in the run directory.
SERVES = "kurmad.lock"
#: Seconds to wait for a kurmad that serves the state directory and has no socket yet.
_PATIENCE = 30.0
#: Environment variable of the started daemon: the descriptor to which it reports that it is ready, or its error.
READY = "KURMAD_READY_FD"
#: Time without work after which it ends.
IDLE = "60s"
_READY_FD = 3
_PROGRAM = "from kurma_core.cli.program import kurmad; import sys; sys.exit(kurmad())"
#: SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGCHLD: reset, for the caller may ignore them (nohup).
_SIGNALS = (1, 2, 3, 13, 15, 17)
#: Variables of the caller's environment that the daemon gets: places of programs, proxies and certificates.
_KEPT = ("HOME", "LANG", "LANGUAGE", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ")
_KEPT_BEGINNINGS = ("LC_", "PYTHON", "XDG_")
_KEPT_ENDS = ("_proxy", "_PROXY")


def started(settings: Settings, config: Config, path: str) -> Connection:
    """A connection to the daemon of this state directory, which is started unless it runs already.

    :param path: of its socket.
    :raises PrivilegeError: we may not start it.
    :raises KurmaError: it failed to start.
    """
    if os.geteuid() != 0:
        raise PrivilegeError(
            f"cannot reach a kurmad for {config.state_dir}, and only root can start one",
            hint="run the command as root, for example by sudo; or let root start kurmad, and join the group "
            "kurma",
        )
    from kurma_core.linux.files import locked

    _make(config)
    try:
        with locked(f"{config.run_dir}/{LOCK}"):
            return _found_or_started(settings, config, path)
    except OSError as error:
        raise _cannot(config, str(error.strerror), error) from None


def _found_or_started(settings: Settings, config: Config, path: str) -> Connection:
    """Waits for a kurmad that has no socket yet: the command that started it may have been killed meanwhile."""
    from time import monotonic, sleep

    end = monotonic() + _PATIENCE
    while True:
        connection = Connection.find(path)
        if connection is not None:
            return connection
        try:
            _start(settings, config)
            return Connection.open(path)
        except HostError as error:
            if error.data.get("path") != f"{config.run_dir}/{SERVES}" or monotonic() >= end:
                raise
        sleep(0.1)


def _make(config: Config) -> None:
    run_dir = config.run_dir
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
    except OSError as error:
        from kurma_core.client.local.managers import run_dir_hint

        raise HostError(
            f"cannot make the run directory {run_dir}: {error.strerror}",
            hint=run_dir_hint(config),
            errno=error.errno,
            path=run_dir,
        ) from None


def _start(settings: Settings, config: Config) -> None:
    """Starts the daemon, and returns once it answers."""
    log = f"{config.run_dir}/{LOG}"
    words = ["--log-file", log, "--idle-timeout", IDLE]
    if settings.state_dir is not None:
        words = ["--dir", os.path.abspath(settings.state_dir), *words]
    if settings.config_file is not None:
        words = ["--config", os.path.abspath(settings.config_file), *words]
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        with open(ours, "rb") as answer:
            try:
                _spawn(words, theirs, log)
            finally:
                os.close(theirs)
            said = answer.read()
    except OSError as error:
        raise _cannot(config, str(error.strerror), error) from None
    _understand(said, config, log)


def _spawn(words: list[str], ready: int, log: str) -> None:
    """Starts it in a session of its own, without our descriptors except the one by which it reports."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    # In this order: the copy of the log to 2 is made while 3 may still be a descriptor of ours.
    actions = [
        (os.POSIX_SPAWN_DUP2, ready, _READY_FD),
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_OPEN, 2, log, flags, 0o600),
    ]
    # -P: files in the caller's directory must not be imported as modules.
    argv = [sys.executable, "-P", "-c", _PROGRAM, *words]
    environment = {**{name: value for name, value in os.environ.items() if _is_kept(name)}, READY: str(_READY_FD)}
    pid = os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_SIGNALS
    )
    try:  # noqa: SIM105 - as light as the rest
        os.waitpid(pid, 0)  # its child is the daemon
    except ChildProcessError:
        pass  # the caller reaps all its children, or ignores SIGCHLD


def _is_kept(name: str) -> bool:
    return name in _KEPT or name.startswith(_KEPT_BEGINNINGS) or name.endswith(_KEPT_ENDS)


def _understand(said: bytes, config: Config, log: str) -> None:
    """:raises KurmaError: the daemon reports that it failed to start."""
    import json

    try:
        answer = json.loads(said)
    except ValueError:
        raise HostError(
            f"kurmad for {config.state_dir} ended before it was ready", hint=f"its log: {log}", path=log
        ) from None
    if "error" in answer:
        from kurma_core.api.wire import error_from_json

        raise error_from_json(answer)


def _cannot(config: Config, why: str, error: OSError) -> HostError:
    return HostError(f"cannot start kurmad for {config.state_dir}: {why}", errno=error.errno, path=error.filename)
