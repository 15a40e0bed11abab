"""The root maker: a prestarted process that makes the root of a pod's first app, in parallel with the stager.

It is in the pod's PID namespace and in the stager's cgroup. The app enters its mount namespace when the root is
made; the root maker ends before the app's program runs. If the stager or the app's process ends, the pipe that the
root maker reads is closed, and it ends, too.
"""

from __future__ import annotations

import os

from kurma_core.linux import namespaces, process
from kurma_stager_default.inside import manifest
from kurma_stager_default.inside.app import app_root
from kurma_stager_default.inside.errors import SetupError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_stager_default.inside.manifest import App, Pod

#: Bytes of a line of the report of a child, see :mod:`kurma_stager_default.inside.app.child`.
_LINE = 2000
_MADE, _FAILED = b"m", b"f"


def wanted(pod: Pod) -> App | None:
    """The app whose root it makes: the first, if that has no special rights or devices, and no event handler.
    None: it makes none."""
    if not pod.apps or pod.plan.namespaces or pod.ids.path:
        return None
    app = pod.apps[0]
    if app.pid != manifest.POD_PID:
        return None
    plan = app.plan
    special = plan.privileged or plan.devices or plan.own_paths or app.notifies or app.pre_start or app.post_stop
    return None if special else app


def directory_of(app: App) -> str:
    """The directory for the changes of the app's first execution."""
    return f"/pod/apps/{app.name}/0"


class RootMaker:
    """The root maker, seen from the stager and the app's process.

    :attr:`report` and :attr:`told` are the ends of the report pipe, to which the root maker and the app's process
    both write.
    """

    __slots__ = ("_done", "_go", "_pid", "report", "told")

    def __init__(self, pid: int, go: int, done: int, report: int, told: int) -> None:
        self._pid = pid
        self._go = go
        self._done = done
        self.report = report
        self.told = told

    def begin(self) -> None:
        """Tells the root maker that the pod's manifest and layers are in place."""
        try:  # noqa: SIM105 - contextlib costs every pod's start
            os.write(self._go, b".")
        except BrokenPipeError:
            pass  # it has ended: the app's process handles that in enter()

    def let_go(self) -> None:
        """Closes the stager's pipes to the root maker. The app's process has copies, and owns the report."""
        os.close(self._go)
        os.close(self._done)

    def drop(self) -> None:
        """Makes the root maker end, if no app uses its root."""
        self.let_go()
        os.close(self.report)
        os.close(self.told)

    def enter(self) -> bool:
        """Enters the finished root, in the app's process.

        :returns: False: the root maker has ended without a root; the app's process must make it.
        :raises SetupError: the root cannot be made; the root maker has reported the reason.
        """
        word = os.read(self._done, 1)
        if word == _FAILED:
            raise SetupError("its root cannot be made")
        if not word:
            return False
        made = os.open(f"/proc/{self._pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.setns(made, namespaces.CLONE_NEWNS)
        os.close(made)
        os.chdir("/")
        os.close(self._go)
        return True

    def await_end(self) -> None:
        """Waits for the root maker's end, before the app's program runs: it still has all rights."""
        os.read(self._done, 1)
        os.close(self._done)


def start(mounted: bool) -> RootMaker:
    """Forks the root maker. :param mounted: ``/proc``, ``/sys`` and ``/dev`` were mounted before, for that app.

    :raises OSError: the limit of processes or descriptors is reached.
    """
    heard, go = os.pipe2(os.O_CLOEXEC)
    done, ready = os.pipe2(os.O_CLOEXEC)
    report, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(told, True)
    pid = os.fork()
    if pid == 0:
        try:
            process.close_others({0, 1, 2, heard, ready, told})
            _make(heard, ready, told, mounted)
        finally:
            os._exit(0)
    os.close(heard)
    os.close(ready)
    return RootMaker(pid, go, done, report, told)


def _make(heard: int, ready: int, told: int, mounted: bool) -> None:
    def tell(line: str) -> None:
        text = line.replace("\n", " ").encode(errors="replace")
        os.write(told, text[:_LINE] + b"\n")

    if not os.read(heard, 1):
        return
    try:
        pod = manifest.load()
        app = wanted(pod)
        if app is None:
            return
        os.umask(0o022)
        files = app_root.enter(pod, app, directory_of(app), lambda text: tell(f"N {text}"), ahead=mounted)
        tell(f"F {files}")
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        tell(f"S {error}" if isinstance(error, SetupError) else f"S {type(error).__name__}: {error}")
        os.write(ready, _FAILED)
        return
    os.close(told)
    os.write(ready, _MADE)
    os.read(heard, 1)
