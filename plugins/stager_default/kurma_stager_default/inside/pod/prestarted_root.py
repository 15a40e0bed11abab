"""The root of a pod's first app, made by a process of its own: it waits for the pod as the stager does, and then
both work at once.

It is in the pod's PID namespace and in the stager's cgroup. Its mount namespace, once the root is made, is the
app's; it has gone before the app's program runs. Whatever becomes of the stager or of the app's process, the pipe
that it listens to is closed, and it ends.
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
    """The app whose root it makes: the first, if that is given nothing special and nothing runs before it."""
    if not pod.apps or pod.plan.namespaces or pod.ids.path:
        return None
    app = pod.apps[0]
    special = app.plan.privileged or app.plan.devices or app.notifies or app.pre_start or app.post_stop
    return None if special else app


def directory_of(app: App) -> str:
    """For the changes of its first execution."""
    return f"/pod/apps/{app.name}/0"


class RootMaker:
    """As the stager and the app's process see it.

    :attr:`report` and :attr:`told` are the ends of the report of that process, to which this one adds.
    """

    __slots__ = ("_done", "_go", "_pid", "report", "told")

    def __init__(self, pid: int, go: int, done: int, report: int, told: int) -> None:
        self._pid = pid
        self._go = go
        self._done = done
        self.report = report
        self.told = told

    def begin(self) -> None:
        """The pod's manifest and layers are there."""
        try:  # noqa: SIM105 - contextlib costs every pod's start
            os.write(self._go, b".")
        except BrokenPipeError:
            pass  # the app's process sees that it has ended

    def let_go(self) -> None:
        """Of all but the report, which is another's now: the process that is to have the root has its own."""
        os.close(self._go)
        os.close(self._done)

    def drop(self) -> None:
        """No app is to have what it makes: it ends."""
        self.let_go()
        os.close(self.report)
        os.close(self.told)

    def enter(self) -> bool:
        """In the app's process: the root is ours from here on.

        :returns: False: there is none, for that process has ended before; we make it ourselves.
        :raises SetupError: it cannot be made; that process has told why.
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
        """Until it has gone, which has all rights still. Before the app's program runs."""
        os.read(self._done, 1)
        os.close(self._done)


def start(mounted: bool) -> RootMaker:
    """:param mounted: what the kernel shows was made before, for that app.

    :raises OSError: there may be no more processes or descriptors.
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
