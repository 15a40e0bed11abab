"""A running stage1, held by a pidfd: waits until its pod runs, and until it ends."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.errors import StagerError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.stager import RunningStagerHooks
from kurma_core.linux.inotify import Watch
from kurma_core.linux.programs import HeldProcess
from kurma_stager_rkt.entrypoints import said
from kurma_stager_rkt.pod_processes import is_ready, pod_pid

if TYPE_CHECKING:
    from kurma_core.linux.process import ProcessIdentity

#: Seconds between two checks without an inotify event: a process may start after stage1 has written its PID.
_LOOK_AGAIN = 0.1
#: Least seconds for the start of each app that is added to a pod which has just started.
_LEAST = 10.0


class RunningStage1(HeldProcess, RunningStagerHooks):  # type: ignore[override]
    """A started stage1.

    :param place: the pod's directory, in ``run``.
    :param mutable: apps may come and go.
    :param image: ID of the stage1 image.
    :param coming: a file that is there as long as apps of a mutable pod, which starts without, are to be added.
    :param output: the file with its unseen output; empty: none.
    """

    def __init__(
        self,
        known: ProcessIdentity,
        pidfd: int,
        place: str,
        mutable: bool,
        image: str,
        coming: str,
        output: str = "",
    ) -> None:
        super().__init__(known, pidfd)
        self._place = place
        self._mutable = mutable
        self._image = image
        self._output = output
        self._coming = coming
        #: Adds them, in so many seconds; None: there are none, or another process adds them.
        self.add_coming: Callable[[float], None] | None = None

    alive = hookimpl(HeldProcess.alive)
    close = hookimpl(HeldProcess.close)
    fileno = hookimpl(HeldProcess.fileno)
    signal = hookimpl(HeldProcess.signal)
    wait = hookimpl(HeldProcess.wait)
    wait_reaped = hookimpl(HeldProcess.wait_reaped)

    @property
    def identity(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {**self._identity.to_json(), "image": self._image, "mutable": self._mutable}

    @hookimpl
    def has_come_up(self) -> bool:
        """Whether its pod runs."""
        return self.alive() and self._lacks() == "" and not os.path.exists(self._coming)

    @hookimpl
    def wait_running(self, timeout: float) -> bool:
        """The end of the ``run`` entrypoint is the pod's end, and its exit code the pod's."""
        deadline = time.monotonic() + timeout
        watch = Watch(self._place)
        try:
            self._watch_status(watch)
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.register(watch, select.POLLIN)
            while True:
                lacks = self._lacks()
                if not self.alive():
                    return False
                if not lacks:
                    self._add(max(deadline - time.monotonic(), _LEAST))
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StagerError(
                        f"stage1 does not say within {timeout:g} s that its pod runs: {lacks}{self._said()}",
                        hint="start_timeout in kurma.yml says how long to wait",
                    )
                poll.poll(min(left, _LOOK_AGAIN) * 1000)
                watch.drain()
        finally:
            watch.close()

    def _said(self) -> str:
        try:
            fd = os.open(self._output, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            text = said(fd)
        finally:
            os.close(fd)
        return f"; it said{text}" if text else ""

    def _add(self, timeout: float) -> None:
        if self.add_coming is not None:
            self.add_coming(timeout)
            os.unlink(self._coming)
            self.add_coming = None

    def _watch_status(self, watch: Watch) -> None:
        if not self._mutable:
            return
        try:
            watch.add(f"{self._place}/stage1/rootfs/rkt", 0x100 | 0x80)
        except OSError:
            return  # the regular checks will find the link

    def _lacks(self) -> str:
        """The sign of readiness that is still missing; empty: none. Apps are added once stage1 is ready for them;
        of other pods, not every stage1 says so: stage1-fly of rkt 1.30 (interface version 5) never does."""
        if self._mutable and not is_ready(self._place):
            return "no rkt/supervisor-status that is a link to ready"
        return "" if pod_pid(self._place) is not None else f"neither pid nor ppid in {self._place} names a process"
