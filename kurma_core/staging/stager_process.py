"""Starts the program of a stager's image, waits until it reports its pod, signals it, finds it by its record."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, StagerError
from kurma_core.hookspecs.stager import RunningStagerHooks
from kurma_core.linux import process
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import DEFAULT_PATH
from kurma_core.linux.programs import HeldProcess, is_exiting
from kurma_core.spawn_plan import SpawnPlan
from kurma_core.staging.stager_root import image_root
from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.appc.image import ImageManifest
    from kurma_core.spawn_plan import RootPlan, Started, Starter
    from kurma_core.staging.relay import CallerRelay


#: The stager's own cgroup below the pod's, on v2: so that it can enable controllers in the pod's, which is its
#: root.
OWN_CGROUP = "stager"
#: Annotation of an image whose stager may be prestarted.
WAITS = "kurma.io/stager/waits"
#: Annotation of an image whose program can be a fork server of stagers.
FORKS = "kurma.io/stager/forks"
#: Annotation of an image: the stager's call-ins of ``app-add,app-start,app-stop,app-rm,app-reopen-log,
#: app-update``.
CALL_INS = "kurma.io/stager/callins"
#: The words of the same annotation by which the stager has a control socket, and by which ``run`` kills a command
#: with all that it has started.
CONTROL, CONTAINS = "control", "run-contained"
_VERBS = ("add", "start", "stop", "rm", "reopen-log", "update")


@frozen
class StagerImage:
    """A verified image of a stager; ``path`` is the path of its tree."""

    id: str
    path: str
    manifest: ImageManifest

    @property
    def waits(self) -> bool:
        """Whether the stager may be prestarted."""
        return self.manifest.annotation(WAITS) == "true"

    @property
    def forks(self) -> bool:
        """Whether its program can be a fork server of stagers."""
        return self.manifest.annotation(FORKS) == "true"

    @property
    def app_verbs(self) -> frozenset[str]:
        """The optional call-ins that the image declares: ``add`` for ``app-add``, and so on."""
        words = {word.strip() for word in (self.manifest.annotation(CALL_INS) or "").split(",")}
        return frozenset(
            [
                *(verb for verb in _VERBS if f"app-{verb}" in words),
                *(word for word in words if word in (CONTAINS, CONTROL)),
            ]
        )


@frozen
class Begun:
    """A started stager. The caller closes the descriptors.

    :param ready: the read end of its descriptor 4.
    :param go: the write end of its descriptor 5; None: it is not prestarted.
    """

    process: Started
    ready: int
    go: int | None


def begin(
    spawner: Starter,
    name: str,
    image: StagerImage,
    *,
    root: RootPlan,
    network_namespace: str | None,
    cgroup: str,
    output: str,
    stdin: int | None = None,
    environment: Mapping[str, str] | None = None,
    waits: bool = False,
) -> Begun:
    """Starts a stager.

    :param name: the stager's name, for messages.
    :param cgroup: the existing cgroup, relative to the hierarchies' roots.
    :param output: the file for its output; it is truncated.
    :param environment: overrides the image's environment.
    :param waits: it is prestarted, and gets a descriptor 5 to wait on.
    :raises StagerError: the image is not a stager's, or its program cannot be executed.
    :raises HostError: the process could not be started.
    """
    argv, found, directory = _command(name, image)
    printed = os.open(
        output,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    ready, running = os.pipe2(os.O_CLOEXEC)
    ours, theirs = [ready], [printed, running]
    fds = {1: printed, 2: printed, 4: running}
    if stdin is not None:
        fds[0] = stdin
    if waits:
        fds[5], go = os.pipe2(os.O_CLOEXEC)
        ours.append(go)
        theirs.append(fds[5])
    try:
        spawned = spawner.start(
            SpawnPlan(
                argv=argv,
                environment={**found, **(environment or {})},
                cwd=directory,
                root=root,
                netns_path=network_namespace,
                cgroup=tuple(CgroupTree(cgroup).leaf(OWN_CGROUP)),
                fds=fds,
                new_session=True,
                fork_server=image.id if image.forks else "",
            )
        )
    except BaseException as error:
        for fd in ours:
            os.close(fd)
        if isinstance(error, (CommandNotFoundError, CommandNotExecutableError)):
            # The exit codes 126 and 127 are for the user's own command.
            raise StagerError(f"stager {name}: {error.message}") from None
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return Begun(spawned, ready, go if waits else None)


def keep_fork_server(spawner: Starter, name: str, image: StagerImage) -> None:
    """Starts the fork server of an image that declares one, from which :func:`begin` then makes its stagers.

    :raises KurmaError: as :func:`begin`.
    """
    if image.forks:
        argv, environment, directory = _command(name, image)
        plan = SpawnPlan(argv=argv, environment=environment, cwd=directory, root=image_root(image.path))
        spawner.keep_fork_server(image.id, plan)


def _command(name: str, image: StagerImage) -> tuple[tuple[str, ...], dict[str, str], str]:
    """The arguments, environment and working directory of the image's manifest."""
    app = image.manifest.app
    if app is None or not app.exec:
        raise StagerError(f"stager {name}: its image {image.manifest.name} gives no command (app.exec)")
    if image.manifest.dependencies:
        raise StagerError(
            f"stager {name}: its image {image.manifest.name} has dependencies, and a stager may have none"
        )
    environment = {"PATH": DEFAULT_PATH, **{pair.name: pair.value for pair in app.environment}}
    return tuple(app.exec), environment, app.working_directory or "/"


#: How many holders of descriptor 4 an error names.
_NAMED = 4
#: Bytes of a process's command line that are read, and characters that an error shows.
_WORDS, _LETTERS = 4096, 80


class StagerProcess(HeldProcess, RunningStagerHooks):  # type: ignore[override]
    """A started stager that is an image.

    :param pidfd: closed by :meth:`close`.
    :param ready: the read end of the pipe whose write end is the stager's descriptor 4; None: the stager was found
        again by its record.
    :param last_output: returns the last lines that the stager printed, for error messages.
    :param image: ID of the image that it runs from.
    :param members: returns the PIDs of all processes of its pod, to find holders of descriptor 4.
    :param unready: returns the apps that should report their readiness, and have not.
    :param pipe: inode of the pipe of ``ready``, from the record of a stager that was found again.
    """

    def __init__(
        self,
        identity: process.ProcessIdentity,
        pidfd: int,
        ready: int | None,
        last_output: Callable[[], str],
        image: str | None = None,
        members: Callable[[], Iterable[int]] = tuple,
        unready: Callable[[], list[str]] = list,
        pipe: int | None = None,
    ) -> None:
        super().__init__(identity, pidfd)
        self._ready = ready
        self._last_output = last_output
        self._image = image
        self._members = members
        self._unready = unready
        self._pipe = pipe if ready is None else os.fstat(ready).st_ino
        #: relays the caller's standard input to an app; :meth:`close` ends it
        self.relay: CallerRelay | None = None

    @property
    def identity(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The process's identity, the ID of the stager's image, which stays in the store while the pod is up, and
        the inode of the pipe of descriptor 4."""
        known = self._identity.to_json()
        if self._pipe is not None:
            known["pipe"] = self._pipe
        return known if self._image is None else {**known, "image": self._image}

    def has_come_up(self) -> bool:
        """Whether the pod runs: no process of the pod holds descriptor 4 open. For a stager that was found again,
        if the process that started it died before the pod ran."""
        return self._pipe is not None and self.alive() and not is_held(self._pipe, {self.pid, *self._members()})

    def wait_running(self, timeout: float) -> bool:
        """Waits until descriptor 4 is closed, which means that the pod runs. :returns: False: it has run and
        ended.

        :raises StagerError: the stager failed, or did not close the descriptor in time.
        """
        if self._ready is None:
            return self.alive()
        closed = self._wait_closed(time.monotonic() + timeout)
        if not closed:
            raise self._still_open(timeout)
        os.close(self._ready)
        self._ready = None
        if not is_exiting(self.pid):
            return True
        status = self.wait()
        if status == 0:
            return False
        said = self._last_output()
        if status == 1 and said:
            # It has ended normally and printed the reason: mostly an error in the pod's documents.
            raise StagerError(f"the pod cannot be started: {said}", status=status, said=said)
        how = "it ended in an unknown way" if status is None else f"it ended with status {status}"
        told = f"; it said: {said}" if said else ""
        raise StagerError(f"the stager failed to start its pod: {how}{told}", status=status, said=said)

    def _still_open(self, timeout: float) -> StagerError:
        """The error for a descriptor 4 that is not closed in time: it names the apps that are not ready, or the
        processes that hold the descriptor."""
        apps = self._unready()
        if apps:
            many = len(apps) > 1
            return StagerError(
                f"the pod does not run within {timeout:g} s: {'apps' if many else 'app'} {_listed(apps)} "
                f"{'have' if many else 'has'} not said {'their' if many else 'its'} READY=1",
                hint="its image says that it tells so (appc.io/executor/supports-systemd-notify); start_timeout "
                "in kurma.yml says how long to wait",
            )
        assert self._ready is not None
        found = list(holders(self._ready, self._members()))
        others = [one for one in found if one.pid != self.pid]
        names = [
            f"process {one.pid} ({'the stager' if one.pid == self.pid else one.program})"
            + ("" if one.descriptor == 4 else f" as descriptor {one.descriptor}")
            for one in found
        ]
        by = f": descriptor 4 is held open by {_listed(names)}" if names else ""
        if others and len(others) == len(found):
            hint = "the stager has closed it, and what it starts must not inherit it: that is the stager's error"
        elif others:
            hint = "the stager must close it once its apps run, and what it starts must not inherit it"
        else:
            hint = "start_timeout in kurma.yml says how long to wait"
        return StagerError(
            f"the stager did not report its pod as running within {timeout:g} s{by}{self._told()}", hint=hint
        )

    def _wait_closed(self, deadline: float) -> bool:
        assert self._ready is not None
        poll = select.poll()
        poll.register(self._ready, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            events = dict(poll.poll(min(left, process.LONGEST_POLL) * 1000))
            if self._ready in events and os.read(self._ready, 4096) == b"":
                return True
            if self._pidfd in events:
                # The stager has ended. A process that it started may hold the descriptor: it counts as closed.
                return True

    def _told(self) -> str:
        text = self._last_output()
        return f"; it said: {text}" if text else ""

    def close(self) -> None:
        super().close()
        if self.relay is not None:
            self.relay.__exit__(None, None, None)
            self.relay = None
        if self._ready is not None:
            os.close(self._ready)
            self._ready = None


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def find_again(
    identity: Mapping[str, Any],
    last_output: Callable[[], str],
    members: Callable[[], Iterable[int]] = tuple,
) -> StagerProcess | None:
    """Finds the stager with that identity; None: it has ended, or the record is damaged."""
    try:
        known = process.ProcessIdentity.from_json(dict(identity))
    except ValueError:
        return None
    fd = known.open()
    if fd is None:
        return None
    pipe, image = identity.get("pipe"), identity.get("image")
    return StagerProcess(
        known, fd, None, last_output, image, members, pipe=pipe if isinstance(pipe, int) else None
    )


class Holder:
    """A process that holds a pipe open; ``descriptor`` is the lowest of its descriptors of the pipe."""

    __slots__ = ("descriptor", "pid", "program")

    def __init__(self, pid: int, descriptor: int, program: str) -> None:
        self.pid = pid
        self.descriptor = descriptor
        self.program = program


def holders(pipe: int, pids: Iterable[int]) -> Iterator[Holder]:
    """The processes of these that hold an end of that pipe.

    It skips processes that end meanwhile, or that we may not inspect.

    :param pipe: our descriptor of either end.
    """
    return _holders(f"pipe:[{os.fstat(pipe).st_ino}]", pids)


def _holders(name: str, pids: Iterable[int]) -> Iterator[Holder]:
    for pid in pids:
        try:
            for number in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
                if _link(f"/proc/{pid}/fd/{number}") == name:
                    yield Holder(pid, number, program(pid))
                    break
        except OSError:
            continue


def is_held(inode: int, pids: Iterable[int]) -> bool:
    """Whether one of these processes holds an end of the pipe with that inode."""
    return any(True for _ in _holders(f"pipe:[{inode}]", pids))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def program(pid: int) -> str:
    """The beginning of a process's command line, or its name if that is empty; only printable characters.

    :raises OSError: the process has ended.
    """
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        text = file.read(_WORDS)
    if not text.strip(b"\0"):
        with open(f"/proc/{pid}/comm", "rb") as file:
            text = file.read(_WORDS)
    words = " ".join(text.decode(errors="replace").replace("\0", " ").split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:_LETTERS]
