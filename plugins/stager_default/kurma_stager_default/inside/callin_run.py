"""``/opt/stager/run APP``: a command in an app's namespaces, root and cgroup, with no more power than the app has.

The command comes as JSON on descriptor 3 (Kurma Stager Specification, "run"). The call-in starts in the stager's
mount and network namespaces, as root; it ends as the command ends: with its exit code, 128+N for signal N.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import sys
import time

from kurma_core.linux import birthplace, namespaces, process
from kurma_stager_default.inside import become, manifest, smalljson
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.execpath import ExecError
from kurma_stager_default.inside.podgroups import PodGroups
from kurma_stager_default.inside.statusfile import apps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kurma_core.linux.cgroups import CgroupTree

_DOCUMENT = 3
_DEADLINE = 10.0
_LIMIT = 1 << 20
_USAGE = 2
_FAILED = 125
_PASSED_ON = (
    _signal.SIGTERM,
    _signal.SIGINT,
    _signal.SIGHUP,
    _signal.SIGQUIT,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
    _signal.SIGWINCH,
    _signal.SIGCONT,
)


def read_document() -> dict[str, Any]:
    """:raises SetupError: it is not whole within ten seconds, or is no such document."""
    end = time.monotonic() + _DEADLINE
    poll = select.poll()
    poll.register(_DOCUMENT, select.POLLIN)
    text = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise SetupError(f"the command was not given whole within {_DEADLINE:g} s")
        data = os.read(_DOCUMENT, 65536)
        if not data:
            break
        text += data
        if len(text) > _LIMIT:
            raise SetupError("the command is too long")
    os.close(_DOCUMENT)
    try:
        value = smalljson.decode(text.decode())
    except ValueError as error:
        raise SetupError(f"the command is no JSON: {error}") from None
    if not isinstance(value, dict) or not value.get("exec"):
        raise SetupError("the command has no exec")
    return value


class Command:
    """The document, as far as it is understood; what it leaves out is as the app has it."""

    def __init__(self, value: dict[str, Any], app: manifest.App) -> None:
        try:
            self.argv = [str(word) for word in value["exec"]]
            # Another user does not keep the app's group, unless it says so itself.
            own = "user" not in value
            self.user: str = app.user if own else str(value["user"])
            self.group: str = str(value.get("group", app.group if own else ""))
            self.groups = [int(group) for group in value.get("supplementaryGIDs", app.groups if own else [])]
            self.directory: str = value.get("workingDirectory") or app.working_directory
            self.environment = [(pair["name"], pair["value"]) for pair in value.get("environment") or []]
        except (TypeError, KeyError, ValueError) as error:
            raise SetupError(f"the command is not understood: {error}") from None
        if value.get("tty"):
            raise SetupError("this stager gives no terminals; ask without one")


def hold(name: str) -> int:
    """A pidfd of the app's main process.

    :raises SetupError: it does not run.
    """
    app = apps()[name]
    pid = app.get("pid")
    if pid is None or app.get("startedAt") is None:
        raise SetupError(f"app {name} does not run")
    try:
        fd = process.pidfd_open(pid)
    except ProcessLookupError:
        raise SetupError(f"app {name} does not run any more") from None
    # The supervisor reaps the process before it changes the file: unchanged now, the descriptor is the app's.
    again = apps()[name]
    if again.get("pid") != pid or again.get("startedAt") != app.get("startedAt"):
        os.close(fd)
        raise SetupError(f"app {name} has just ended")
    return fd


def start(app: manifest.App, command: Command, pidfd: int, tree: CgroupTree) -> tuple[int, int]:
    """Fork the child that becomes the command. :returns: its PID and the read end of its report."""
    flags = namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
    report, told = os.pipe2(os.O_CLOEXEC)
    namespaces.setns(pidfd, flags)
    parent = os.getpid()
    try:
        pid = birthplace.fork_into(tree.directories())
    except BaseException:
        if os.getpid() == parent:
            raise
        os.write(told, b"the app's cgroup cannot be joined")
        os._exit(_FAILED)
    if pid:
        os.close(told)
        return pid, report
    code = _FAILED
    try:
        become.clean_process()
        # The caller's terminal must not be the command's own: it could type there what the caller then executes.
        os.setsid()
        process.set_pdeathsig(_signal.SIGKILL)
        become.apply_limits(app.plan)
        namespaces.setns(pidfd, namespaces.CLONE_NEWNS)
        identity = become.resolve(command.user, command.group, command.groups)
        environment = become.environment_of(app, identity.user, command.environment)

        def ready() -> None:
            # Cleared by the change of user; without it, the command would outlive a caller that is killed.
            process.set_pdeathsig(_signal.SIGKILL)

        become.become(app, command.argv, identity, environment, command.directory, ready)
    except ExecError as error:
        code = error.code
        os.write(told, str(error).encode(errors="replace"))
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        os.write(told, str(error).encode(errors="replace"))
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """Passes signals on until the child has ended; its exit code."""

    def forward(number: int, _: object) -> None:
        os.kill(pid, number)

    for number in _PASSED_ON:
        _signal.signal(number, forward)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main() -> int:
    try:
        if len(sys.argv) != 2:
            print("usage: run APP, with the command on descriptor 3", file=sys.stderr, flush=True)
            return _USAGE
        name = sys.argv[1]
        value = read_document()
        app = manifest.load().app(name)
        if app is None:
            print(f"run: the pod has no app {name!r}", file=sys.stderr, flush=True)
            return _USAGE
        command = Command(value, app)
        pidfd = hold(name)
        pid, report = start(app, command, pidfd, PodGroups().app(name))
        code = wait_reported(pid, report)
    except (SetupError, manifest.ManifestError, OSError) as error:
        print(f"run: {error}", file=sys.stderr, flush=True)
        return _FAILED
    return code


def wait_reported(pid: int, report: int) -> int:
    text = os.read(report, 4096).decode(errors="replace")
    os.close(report)
    if text:
        print(f"run: {text}", file=sys.stderr, flush=True)
    return wait(pid)
