"""The lines of a stager check, their outcomes, and the report that collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kurma_core.api.host import CheckLine
from kurma_core.errors import KurmaError

#: Name and meaning of every line, in the order of the report.
LINES: dict[str, str] = {
    "image.signature": "signed by a key that counts for stagers, or its digest is pinned",
    "image.dependencies": "has no dependencies",
    "image.command": "app.exec names a program of the image",
    "image.places": "holds nothing where Kurma puts the pod's things",
    "start.descriptor-4": "descriptor 4 closes once the apps run",
    "start.descriptors": "apps have descriptors 0, 1 and 2 and no other",
    "start.standard-input": "standard input of an app that asks for none is at its end",
    "app.arguments": "arguments arrive as they are: spaces, quotes, lines, none at all",
    "app.environment": "the environment is the manifest's, with PATH and AC_APP_NAME",
    "app.user": "numeric user and group",
    "app.user-name": "user and group by the names in the image's files",
    "app.user-path": "a path stands for the owner of that file",
    "app.supplementary-gids": "supplementary groups",
    "app.working-directory": "the working directory",
    "app.hostname": "the pod's hostname",
    "app.network": "the network namespace is the pod's",
    "app.cgroup": "every app is in the pod's cgroup",
    "app.walls": "the stager's root is not to be reached, not by /proc either",
    "app.devices": "/dev has null, zero, full, random, urandom and tty, and no disk",
    "layers.order": "layers are stacked with the first one of appImageOrder on top",
    "layers.untouched": "what an app writes does not reach the layers",
    "layers.read-only-root": "readOnlyRootFS",
    "volumes.read-write": "a volume's files are there, and what an app writes is on the host",
    "volumes.read-only": "a read-only volume cannot be written to",
    "handlers.order": "pre-start, the app, post-stop: in that order, as the app's user",
    "handlers.failure": "a pre-start that fails fails the start",
    "handlers.stop": "post-stop runs when the pod is stopped",
    "status.running": "status names each app that runs, by a process of the pod",
    "status.exited": "status has the exit code of an app that ended while others run",
    "status.killed": "an app that a signal ended: 128+N, and the reason killed",
    "status.kept": "how the apps ended is known after the stager's end",
    "logs.output": "what an app writes is in its log, both streams, to the last byte",
    "logs.streams": "standard output and standard error are told apart",
    "logs.call-in": "logs APP writes it to standard output; an unknown app: 2",
    "logs.tail": "--tail",
    "logs.since": "--since",
    "logs.stream": "--stream",
    "logs.follow": "--follow goes on with what comes, until the app ends",
    "run.document": "descriptor 3 is read to its end, however long",
    "run.where": "the command is in the app's root, network, and the pod's cgroup",
    "run.streams": "standard input, output and error are the caller's",
    "run.exit-code": "the exit code is the command's",
    "run.signal": "128+N for signal N",
    "run.user": "user and group",
    "run.supplementary-gids": "supplementary groups",
    "run.environment": "the environment",
    "run.working-directory": "the working directory",
    "run.descriptors": "the command has descriptors 0, 1 and 2 and no other",
    "run.terminal": "tty: a terminal, whose size can be set",
    "run.not-found": "a command that is not there: not 0",
    "run.unknown-app": "an app that is not there: not 0",
    "attach.output": "attach connects the app's output",
    "attach.input": "attach connects the app's standard input",
    "attach.end": "attach ends with the app",
    "end.two-apps": "the pod lives on while one of its apps does",
    "end.exit-code": "once the last has ended the stager exits with 0; the apps' codes are the pod's",
    "end.start-failure": "a command that is not there fails, in words",
    "end.left-behind": "nothing that an app left running survives the pod",
    "stop.signal": "SIGTERM reaches the apps; then the stager exits with 0",
    "stop.bounded": "an app that ignores SIGTERM is killed after stopTimeout",
    "userns.apps": "apps are in the pod's user namespace, and see files of their own ids",
    "userns.run": "so are commands that are run in them",
    "waits.pod": "started before its pod, it waits for the byte, and then runs it like another stager",
    "forks.pod": "its fork server forks a stager, which runs a pod like an executed one",
    "plan.umask": "the app's umask; 022 for an app whose plan has none",
    "plan.limits": "resource limits, of any name of the kernel's",
    "plan.scheduling": "scheduling policy and nice value",
    "plan.io-priority": "I/O priority",
    "plan.memory-policy": "memory policy",
    "plan.cgroup": "settings of the app's cgroup, in any file of it",
    "plan.run": "the plan applies to commands that are run, too",
    "plan.refused": "an app is not run if the kernel refuses a value of its plan",
    "plan.version": "a plan of an unknown version is refused",
    "changing.add": "app-add and app-start: a running pod gets an app",
    "changing.stop": "app-stop ends that app, and no other",
    "changing.start": "app-start starts it again, from a clean root",
    "changing.rm": "app-rm: the pod does not know it any more",
}


class Wrong(Exception):
    """A check failed: the observation differs from the contract."""


class Untidy(KurmaError):
    """A pod of the check cannot be torn down, which ends the check without a line about the stager."""


class NotDone(Exception):
    """The stager reports that it does not support a feature."""


#: Exceptions of failed checks, malformed answers of a stager or its apps included.
SEEN = (Wrong, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, Wrong | OSError) else f"nonsense: {type(error).__name__}: {error}"


def equal(what: str, found: object, wanted: object) -> None:
    """Compares two values. :raises Wrong: they differ."""
    if found != wanted:
        raise Wrong(f"{what}: {shortened(found)}, and not {shortened(wanted)}")


def shortened(value: object) -> str:
    text = value if isinstance(value, str) and value and value.isprintable() else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


class Report:
    """Collects the lines of a check.

    :param tell: called with each line at once.
    """

    def __init__(self, tell: Callable[[CheckLine], None]) -> None:
        self._tell = tell
        self.lines: dict[str, CheckLine] = {}

    def say(self, name: str, outcome: str, detail: str = "") -> None:
        """Records the outcome of a line; later outcomes of the same line are ignored."""
        if name not in self.lines:
            line = CheckLine(name, LINES[name], outcome, " ".join(detail.split()) or None)
            self.lines[name] = line
            self._tell(line)

    @contextmanager
    def line(self, name: str) -> Iterator[None]:
        """Runs a check inside a ``with`` statement: the line is ``ok`` unless an exception is raised."""
        try:
            yield
        except Untidy:
            raise
        except NotDone as error:
            self.say(name, "skipped", str(error))
        except KurmaError as error:
            self.say(name, "fail", error.message)
        except SEEN as error:
            self.say(name, "fail", _words(error))
        else:
            self.say(name, "ok")

    @contextmanager
    def rest(self, prefix: str = "") -> Iterator[None]:
        """Reports an exception outside of all lines as a failure of the first line with that prefix that has no
        outcome yet, so that no error is lost."""
        try:
            yield
        except Untidy:
            raise
        except (KurmaError, *SEEN) as error:
            text = error.message if isinstance(error, KurmaError) else _words(error)
            unsaid = [name for name in LINES if name.startswith(prefix) and name not in self.lines]
            if unsaid:
                self.say(unsaid[0], "fail", text)

    def skip(self, prefix: str, why: str) -> None:
        """Marks every line of that name or prefix without an outcome as skipped."""
        for name in LINES:
            if name == prefix or name.startswith(f"{prefix}.") or prefix == "":
                self.say(name, "skipped", why)

    def ordered(self) -> list[CheckLine]:
        return [self.lines[name] for name in LINES if name in self.lines]

    @property
    def failed(self) -> bool:
        return any(line.outcome == "fail" for line in self.lines.values())
