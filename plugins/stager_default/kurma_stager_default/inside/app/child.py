"""Forks a child that becomes a process of an app, and reads the child's report.

The report is a pipe that closes at exec. Lines: ``N text`` a note, ``F name=source …`` the source of the files
below ``/etc``, ``R`` the root is made, ``G`` all but exec is done, ``S text`` the set-up failed, ``X127 text`` the
program cannot be executed.
"""

from __future__ import annotations

import errno
import os
import stat

from kurma_core.linux import clone, mounts, namespaces
from kurma_core.linux.execute import ExecuteError
from kurma_stager_default.inside import user_namespace
from kurma_stager_default.inside.app import app_root, cgroup_view, privileges
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.manifest import POD_PID, App, Pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_core.linux.cgroups import CgroupTree
    from kurma_stager_default.inside.pod.prestarted_root import RootMaker
    from kurma_stager_default.inside.streams.app_terminal import Handover

#: The kinds of children: one that makes the root only, the two event handlers, and the app's main process.
ROOT = "root"
PRE_START = "pre-start"
MAIN = "main"
POST_STOP = "post-stop"

SETUP_FAILED = 125

_NULL_DEVICE = os.makedev(1, 3)
_NULL: list[int] = []


def hold_null() -> None:
    """Opens the null device for the standard input of apps. The stager calls it in its own root; its children
    inherit the descriptor.

    The descriptor is of a read-only mount, so that no app can change the owner or mode of the host's device.

    :raises OSError: the stager's ``/dev/null`` is something else.
    """
    path = "/dev/null"
    fd = mounts.open_tree(mounts.AT_FDCWD, path, recursive=False, follow=False)
    found = os.fstat(fd)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NULL_DEVICE:
        raise OSError(errno.ENODEV, "not the null device", path)
    attributes = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NOEXEC
    mounts.set_attributes(fd, attributes, clear=mounts.ATTR_NODEV, recursive=False)
    _NULL.append(fd)


class Files:
    """Descriptors of one execution of an app.

    :attr:`namespace` is its mount namespace, held for handlers that run before or after main; -1: not held.
    :attr:`handover`: main gets a terminal, and passes its master to the supervisor by this.
    :attr:`sockets`: main's listening sockets, :attr:`names` their ports' names.
    :attr:`ahead`: ``/proc``, ``/sys`` and ``/dev`` were mounted before, for this execution.
    :attr:`maker`: the process that makes the root; None: the child does.
    :attr:`notify`: path of the socket by which main reports its readiness; empty: it does not.
    """

    __slots__ = (
        "ahead",
        "directory",
        "handover",
        "maker",
        "names",
        "namespace",
        "notify",
        "sockets",
        "stderr",
        "stdin",
        "stdout",
    )

    def __init__(self, directory: str, stdout: int, stderr: int, stdin: int) -> None:
        self.directory = directory
        self.stdout = stdout
        self.stderr = stderr
        self.stdin = stdin
        self.namespace = -1
        self.handover: Handover | None = None
        self.sockets: list[int] = []
        self.names: list[str] = []
        self.notify = ""
        self.ahead = False
        self.maker: RootMaker | None = None


class Child:
    """A forked child, seen from the stager."""

    __slots__ = ("_rest", "executing", "failure", "kind", "notes", "own_files", "pid", "ready", "report")

    def __init__(self, pid: int, report: int, kind: str) -> None:
        self.pid = pid
        self.report = report
        self.kind = kind
        self.ready = False
        self.executing = False
        #: exit code and reason, if the child could not be started
        self.failure: tuple[int, str] | None = None
        self.notes: list[str] = []
        #: the source of the files below ``/etc``, by name; empty: not reported yet
        self.own_files: dict[str, str] = {}
        self._rest = b""

    def read_report(self) -> bool:
        """Reads the available lines. :returns: whether the report has ended."""
        while True:
            try:
                data = os.read(self.report, 4096)
            except BlockingIOError:
                return False
            if not data:
                return True
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        kind, _, text = line.partition(" ")
        if kind == "N":
            self.notes.append(text)
        elif kind == "F":
            self.own_files = dict([word.split("=") for word in text.split()])
        elif kind == "R":
            self.ready = True
        elif kind == "G":
            self.executing = True
        elif kind == "S":
            # Keep an earlier failure: the root maker's reason is the more exact one.
            self.failure = self.failure or (SETUP_FAILED, text)
        elif kind.startswith("X"):
            self.failure = (int(kind[1:]), text)

    def close(self) -> None:
        if self.report >= 0:
            os.close(self.report)
            self.report = -1


def spawn(
    pod: Pod,
    app: App,
    kind: str,
    argv: list[str],
    files: Files,
    tree: CgroupTree,
    main_of: Callable[[str], int],
) -> Child:
    """Forks a child that executes ``argv``; for :data:`ROOT`, one that makes the root and waits to be killed.

    :param files: the child enters its namespace, if there is one; else it makes the root itself.
    :param main_of: the PID of an app's main process, whose PID namespace this app may share.
    :raises SetupError: that app does not run. :raises OSError: no child was made.
    """
    maker = files.maker
    if maker is None:
        report, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(told, True)
    else:
        report, told = maker.report, maker.told
    parent = os.getpid()
    try:
        if app.pid == POD_PID:
            pid = clone.fork_into(tree.directories())
        else:
            from kurma_stager_default.inside.app import pid_namespace

            pid = pid_namespace.fork(app.pid, tree.directories(), main_of)
    except BaseException as error:
        if os.getpid() == parent:
            if maker is None:
                os.close(report)
                os.close(told)
            else:
                maker.drop()
                files.maker = None
            raise
        # A child that could not join must never run on into its parent's code.
        os.write(told, f"S its cgroup cannot be joined: {error}\n".encode())
        os._exit(SETUP_FAILED)
    if pid:
        os.close(told)
        if maker is not None:
            maker.let_go()
            files.maker = None
        return Child(pid, report, kind)
    if kind == MAIN and files.sockets:
        from kurma_stager_default.inside.app import listening_sockets

        told = listening_sockets.above(told, len(files.sockets))

    def tell(word: str, text: str = "") -> None:
        line = f"{word} {text}".replace("\n", " ")
        os.write(told, line.encode(errors="replace")[:2000] + b"\n")

    code = SETUP_FAILED
    try:
        _run(pod, app, kind, argv, files, tree, tell)
    except SetupError as error:
        tell("S", str(error))
    except ExecuteError as error:
        code = error.exit_code
        tell(f"X{code}", str(error))
    except BaseException as error:  # noqa: BLE001 - a forked child must never run on into its parent's code
        tell("S", f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _run(
    pod: Pod,
    app: App,
    kind: str,
    argv: list[str],
    files: Files,
    tree: CgroupTree,
    tell: Callable[..., None],
) -> None:
    """Sets up the child and executes the program. The child begins as the host's root with all capabilities. It
    enters the pod's user namespace, if there is one, and gives up its rights in :func:`.privileges.become`."""
    privileges.clean_process()
    os.setsid()
    if app.pid != POD_PID:
        from kurma_stager_default.inside.app import pid_namespace

        pid_namespace.settle(app, pod.plan.sysctls)
    privileges.apply_limits(app.plan)
    namespace = pod.ids.open()
    secrets: list[tuple[str, str]] = []
    if app.secret_environment and kind != ROOT:
        from kurma_stager_default.inside.app import secret_variables  # not for the supervisor to hold

        secrets = secret_variables.read(app)
    # Before the change of root: after it, the app may have replaced what is at this path.
    null = os.open(f"/proc/self/fd/{_NULL[0]}", os.O_RDONLY | os.O_CLOEXEC)
    if files.namespace >= 0:
        namespaces.setns(files.namespace, namespaces.CLONE_NEWNS)
        os.chdir("/")
    else:
        clones = cgroup_view.clone(tree)
        if files.maker is not None and files.maker.enter():
            app_root.show_cgroup(clones, app)
        else:
            own_files = app_root.enter(
                pod,
                app,
                files.directory,
                lambda text: tell("N", text),
                namespace,
                files.notify,
                ahead=files.ahead,
                clones=clones,
            )
            tell("F", own_files)
    if kind == ROOT:
        if namespace >= 0:
            user_namespace.enter_with_mounts(namespace)
        tell("R")
        while True:
            os.read(os.pipe()[0], 1)  # for ever: the stager takes the namespace and kills us
    identity = privileges.resolve(app.user, app.group, app.groups)
    uid = pod.ids.uid(identity.user.uid)
    if kind == MAIN and files.handover is not None:
        files.handover.show_console(files.handover.give(uid))
    else:
        _connect(files, files.stdin if kind == MAIN else -1, null, uid)
    given = _hand_over(files) if kind == MAIN else []
    given = [*secrets, *given]
    environment = privileges.environment_of(app, identity.user, given, terminal=app.terminal is not None)
    if namespace >= 0:
        pod.ids.check(identity)
        # The mounts of an existing mount namespace belong to the user namespace already.
        (user_namespace.enter if files.namespace >= 0 else user_namespace.enter_with_mounts)(namespace)

    def ready() -> None:
        if files.maker is not None and kind == MAIN:
            files.maker.await_end()
        if app.pid != POD_PID:
            pid_namespace.end_with_stager(app)
        tell("G")

    privileges.become(app, argv, identity, environment, app.working_directory, ready)


def _hand_over(files: Files) -> list[tuple[str, str]]:
    """Gives main the listening sockets. :returns: the environment variables for these and for the readiness
    socket.
    """
    given = []
    if files.notify:
        from kurma_stager_default.inside.app import notify_socket

        given.append(("NOTIFY_SOCKET", notify_socket.PLACE))
    if files.sockets:
        from kurma_stager_default.inside.app import listening_sockets

        given += listening_sockets.hand_over(files.sockets, files.names)
    return given


def _connect(files: Files, stdin: int, null: int, uid: int) -> None:
    """Connects standard input, output and error. The app's user becomes owner of the pipes, so that the app can
    open ``/dev/stdout``.

    :param stdin: -1: the null device.
    """
    for number, fd in ((0, null if stdin < 0 else stdin), (1, files.stdout), (2, files.stderr)):
        os.dup2(fd, number)
    for number in (1, 2) if stdin < 0 else (0, 1, 2):
        os.fchown(number, uid, -1)
