"""Runs a stage1's entrypoints on the host's root, in the pod's directory, and waits for them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from kurma_core.errors import CommandNotExecutableError, CommandNotFoundError, StagerError
from kurma_core.hookspecs.driver import HostProgram
from kurma_core.linux import process, terminal
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.programs import exit_code, one_line, put_to_death
from kurma_stager_rkt.pod_files import ROOTFS
from kurma_stager_rkt.pod_processes import pod_pid

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Started
    from kurma_core.models.streams import Stdio
    from kurma_stager_rkt.records import Note

    Start = Callable[[HostProgram], Started]

#: Bytes of an entrypoint's output that are shown.
_TOLD = 400
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The exit code of an entrypoint whose own is unknown.
_UNKNOWN = 255
#: Seconds that an entrypoint may take to end after its caller has gone.
_ALONE = 5.0
#: Variables of the caller's environment that are passed on.
_PASSED = ("TERM", "LANG", "COLORTERM")


def begin(
    start: Start,
    note: Note,
    place: str,
    name: str,
    arguments: tuple[str, ...],
    *,
    fds: Mapping[int, int],
    environment: Mapping[str, str] | None = None,
    cgroup: str = "",
    alone: bool = False,
    with_caller: bool = False,
    stdio: Stdio | None = None,
) -> Started:
    """Starts an entrypoint: a child of this process, in the pod's directory.

    :param place: the pod's directory.
    :param alone: it gets no variables of the caller's environment.
    :param with_caller: it gets SIGTERM when this process ends.
    :param stdio: its standard input, output and error.
    :raises StagerError: the image does not have the entrypoint, or it cannot be executed.
    :raises HostError: it cannot be started.
    """
    path = note.stage1.entrypoints.get(name)
    if path is None:
        raise StagerError(f"stage1 image {note.stage1.name} has no entrypoint {name}")
    passed = {key: os.environ[key] for key in _PASSED if key in os.environ and not alone}
    try:
        return start(
            HostProgram(
                argv=(f"{place}/{ROOTFS}{path}", *arguments),
                environment={"PATH": _PATH, **passed, **(environment or {})},
                directory=place,
                cgroup=cgroup,
                fds=fds if stdio is None else {**descriptors(stdio), **fds},
                new_session=stdio is not None and stdio.relayed,
                controlling_tty=stdio is not None and stdio.relayed and stdio.terminal,
                parent_death_signal=signal.SIGTERM if with_caller else None,
            )
        )
    except (CommandNotFoundError, CommandNotExecutableError) as error:
        # The exit codes 126 and 127 are for the user's own command.
        raise StagerError(f"stage1 image {note.stage1.name}: entrypoint {name}: {error.message}") from None


def cross(
    start: Start,
    note: Note,
    place: str,
    name: str,
    arguments: tuple[str, ...],
    *,
    fds: Mapping[int, int],
    cgroup: str,
    with_caller: bool = False,
    stdio: Stdio | None = None,
) -> Started:
    """Starts an entrypoint that enters the pod by ``enter`` and the pod's first process: ``attach``, ``app/…``.

    :param cgroup: its cgroup: see :func:`home`.
    :raises StagerError: as :func:`begin`; or the pod has no first process.
    :raises HostError: it cannot be started.
    """
    enter = note.stage1.entrypoints.get("enter")
    if enter is None:
        raise StagerError(f"stage1 image {note.stage1.name} has no entrypoint enter, by which {name} would go")
    pid = pod_pid(place)
    if pid is None:
        raise StagerError(f"the pod has no process that entrypoint {name} could go to")
    environment = {"RKT_STAGE1_ENTERCMD": f"{place}/{ROOTFS}{enter}", "RKT_STAGE1_ENTERPID": str(pid)}
    return begin(
        start,
        note,
        place,
        name,
        arguments,
        fds=fds,
        environment=environment,
        cgroup=cgroup,
        alone=True,
        with_caller=with_caller,
        stdio=stdio,
    )


@contextlib.contextmanager
def home(cgroup: str) -> Iterator[CgroupTree]:
    """A cgroup for an entrypoint that enters the pod. After an error in the block, its processes are killed; else
    they belong to the pod, and live on.

    :param cgroup: below the pod's. Processes that are in it already were left by a killed caller, and are killed.
    """
    tree = CgroupTree(cgroup)
    tree.kill()
    tree.create()
    try:
        yield tree
    except BaseException:
        tree.kill()
        raise
    finally:
        if not tree.pids():
            with contextlib.suppress(OSError):
                tree.remove()


def ask(
    start: Start, note: Note, place: str, name: str, arguments: tuple[str, ...], timeout: float, cgroup: str
) -> None:
    """Runs an entrypoint that enters the pod, to its end; an error shows its output.

    :param timeout: seconds; then it is killed. If it fails, its descendants are killed, too.
    :param cgroup: its cgroup: see :func:`home`.
    :raises StagerError: it does not end in time, or fails (``status``); and as :func:`cross`.
    :raises HostError: it cannot be started.
    """
    output = os.memfd_create("said", os.MFD_CLOEXEC)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        with home(cgroup):
            fds = {0: null, 1: output, 2: output}
            code = finish(cross(start, note, place, name, arguments, fds=fds, cgroup=cgroup), timeout)
            if code != 0:
                how = f"did not end within {timeout:g} s" if code is None else f"ended with status {code}"
                raise StagerError(
                    f"stage1 image {note.stage1.name}: entrypoint {name} {how}{said(output)}", status=code
                )
    finally:
        os.close(null)
        os.close(output)


def said(output: int) -> str:
    """The end of an entrypoint's output, as one line after a colon; empty: it has printed nothing."""
    size = os.lseek(output, 0, os.SEEK_END)
    text = os.pread(output, _TOLD, max(0, size - _TOLD)).decode("utf-8", "replace")
    lines = one_line(" / ".join(line.strip() for line in text.splitlines() if line.strip()))
    return f": {lines}" if lines else ""


def finish(started: Started, timeout: float | None = None, signals: int = -1) -> int | None:
    """Waits for its end. :returns: its exit code, 128+N for signal N; None: it was killed after the timeout.

    :param signals: see :class:`kurma_core.models.streams.Stdio`. When they are closed, it gets SIGTERM, and some
        time to end.
    """
    try:
        if not _wait(started.pidfd, timeout, signals):
            return None
        status = process.exit_status(started.pidfd)
        return _UNKNOWN if status is None else exit_code(status)
    finally:
        put_to_death(started.pidfd)
        os.close(started.pidfd)


def _wait(pidfd: int, timeout: float | None, signals: int) -> bool:
    if signals < 0:
        return process.wait_pidfd(pidfd, timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(signals, select.POLLIN)
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
        ready = [fd for fd, _ in poll.poll(left)]
        if pidfd in ready or not ready:
            return bool(ready)
        numbers = os.read(signals, 64)
        if not numbers:  # the caller has gone
            poll.unregister(signals)
            numbers = bytes([signal.SIGTERM])
            deadline = time.monotonic() + _ALONE
        for number in numbers:
            try:
                process.pidfd_send_signal(pidfd, number)
            except ProcessLookupError:
                return True


def descriptors(stdio: Stdio) -> dict[int, int]:
    """Descriptors 0, 1 and 2 of an entrypoint. The entrypoint executes the program, so a terminal of Kurma is all
    three, and in line mode, as programs expect."""
    if stdio.relayed and stdio.terminal:
        terminal.cook(stdio.stdin)
        return dict.fromkeys((0, 1, 2), stdio.stdin)
    return {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr}
