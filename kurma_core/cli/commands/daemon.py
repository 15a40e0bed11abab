"""``kurma daemon run``, which is the program ``kurmad``, and ``kurma daemon reload``."""

from __future__ import annotations

import os

from kurma_core.cli.command_line import FORMAT, GLOBAL_OPTIONS, Option, command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kurma_core.cli.session import Session
    from kurma_core.client import Settings


@command(
    Option(
        "log_format",
        "--log-format",
        "Write log lines in this format.",
        choices=("plain", "json"),
        default="plain",
    ),
    Option(
        "log_level",
        "--log-level",
        "Log messages of this level and above.",
        choices=("debug", "info", "warning", "error"),
        default="info",
    ),
    Option("log_file", "--log-file", "Log to FILE, and rotate it at 4 MiB.", metavar="FILE"),
    Option("idle_timeout", "--idle-timeout", "Exit after TIME without work.", metavar="TIME"),
    Option("stop_pods", "--stop-pods", "Stop kurmad's pods when it ends."),
    root=True,
    here=True,
    makes=True,
    example="kurma daemon run",
)
def run(
    session: Session,
    *,
    log_format: str,
    log_level: str,
    log_file: str | None,
    idle_timeout: str | None,
    stop_pods: bool,
) -> None:
    """Run kurmad in the foreground.

    kurmad serves one state directory: commands for this directory then connect to kurmad. SIGTERM ends kurmad;
    running pods keep running. SIGHUP reloads the configuration, as kurma daemon reload does. kurmad logs to
    standard error. The program kurmad is the same command.
    """
    from kurma_core.cli.values import seconds
    from kurma_core.daemon.process import log
    from kurma_core.daemon.process.lifecycle import reporting_readiness

    with reporting_readiness(os.environ) as ready:
        idle = None if idle_timeout is None else seconds(idle_timeout, "--idle-timeout")
        log.set_up(log_level, log_format, os.environ, log_file)
        settings = _settled(session.settings)
        os.umask(0o022)
        os.chdir("/")

        from kurma_core.daemon.kurmad import Daemon

        Daemon(settings, stop_pods=stop_pods, service=session.service).serve(ready, idle)


@command(FORMAT, example="kurma daemon reload")
def reload(session: Session) -> int:
    """Make kurmad reload its configuration.

    Prints the changes. kurmad also looks for new plugins. If kurma config check would find a problem, kurmad keeps
    its current configuration, and the command prints the problems and exits with 125.
    """
    from kurma_core.api.wire import error_from_json
    from kurma_core.errors import HostError

    if not session.client.remote:
        state_dir = session.client.config.state_dir
        raise HostError(
            f"cannot reload kurmad: it does not run for {state_dir}",
            hint="without kurmad, each command reads the configuration itself",
        )
    report = session.client.reload()
    for problem in report.problems:
        session.problem(error_from_json({"error": problem.to_json()}))
    lines = "\n".join(report.lines()) or "nothing that takes effect is new"
    if report.problems:
        lines = f"kurmad keeps the configuration that it read at {report.in_force}"
    session.show(report, lambda: lines)
    return 125 if report.problems else 0


def _settled(settings: Settings) -> Settings:
    """With absolute paths: kurmad changes its working directory."""
    from kurma_core.client import Settings

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.abspath(path)

    return Settings(
        config_file=absolute(settings.config_file),
        state_dir=absolute(settings.state_dir),
        state_dir_origin=settings.state_dir_origin,
        debug=settings.debug,
    )


def main() -> int:
    """The program; its exit code."""
    from kurma_core.client.remote.start_kurmad import READY

    ready = os.environ.get(READY, "")
    if ready.isdecimal():
        # Descriptors that the starting process has left open by mistake.
        os.closerange(int(ready) + 1, os.sysconf("SC_OPEN_MAX"))
        # kurmad is detached from its parent, and is not a session leader, so that it gets no controlling terminal.
        try:
            if os.fork():
                os._exit(0)
        except OSError as error:
            return _told(error)
    from kurma_core.cli import main as kurma

    return kurma.main(words=None, program=sorted_words)


def _told(error: OSError) -> int:
    """Reports to the command that started kurmad why it ends. :returns: the exit code."""
    from kurma_core.daemon.process.lifecycle import reporting_readiness

    try:
        with reporting_readiness(os.environ):
            raise error
    except OSError:
        return 125


def sorted_words(words: Sequence[str]) -> list[str]:
    """The command line of ``kurmad`` as words of ``kurma``."""
    flags = {flag: option for option in GLOBAL_OPTIONS for flag in option.flags}
    front, rest = [], []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        option = flags.get(word.partition("=")[0])
        if option is None:
            rest.append(word)
            continue
        front.append(word)
        if not option.is_flag and "=" not in word:
            if at == len(words):
                return front  # the error is about the missing value, and not about a missing command
            front.append(words[at])
            at += 1
    return [*front, "daemon", "run", *rest]
