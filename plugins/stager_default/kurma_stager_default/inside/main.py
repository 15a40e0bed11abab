"""The stager's main program (Kurma Stager Specification, Execution): from exec to the pod's end.

It stays in the host's PID namespace; the pod's own PID namespace is that of its children.
"""

from __future__ import annotations

import errno
import gc
import os

from kurma_core.linux import libc, mounts, namespaces, process
from kurma_stager_default.inside import manifest, user_namespace
from kurma_stager_default.inside.app import app_root, child, privileges, proc_sys_dev
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.event_loop import Loop
from kurma_stager_default.inside.pod import (
    control_socket,
    device_cgroup,
    pid1,
    pod_cgroups,
    prestarted_root,
    supervisor,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The descriptor whose closing says that the pod runs (G3).
RUNNING = 4
#: Open where this stager was started before its pod is known; a byte on it says that all is in place (G10).
GO = 5


def main() -> int:
    gc.disable()  # nothing here makes cycles in bulk; collected by hand where an execution has ended
    waits = _is_open(GO)
    process.close_others({0, 1, 2, RUNNING, GO} if waits else {0, 1, 2, RUNNING})
    try:
        os.set_inheritable(RUNNING, False)
        privileges.step_back()
        house = House(user_namespace.find())
        ahead = None
        if waits:
            if _sees_its_pod():
                ahead = _Ahead([])
                ahead.mount()
                ahead.maker = prestarted_root.start(ahead.mounts)
            if not _told_to_go():
                house.end()
                return 0
            if ahead is not None and ahead.maker is not None:
                ahead.maker.begin()
        pod = manifest.load()
        code, serving = serve(pod, house, ahead, supervisor.Supervisor, RUNNING)
        said = last_word(serving)
        if said is not None:
            complain(said)
        return code
    except Exception as error:  # noqa: BLE001 - whatever it is, its last word is what the user is shown
        complain(reason_of(error))
        return 1


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _load_what_is_wanted() -> None:
    """What only some pods need: loaded before PID 1 is forked, it is in memory once, and after that twice."""
    given_input, changes, sockets, notifies = manifest.glance()
    if given_input:
        from kurma_stager_default.inside.streams import attach  # noqa: F401
    if changes:
        from kurma_stager_default.inside.pod import app_changes  # noqa: F401
    if sockets:
        from kurma_stager_default.inside.app import listening_sockets  # noqa: F401
    if notifies:
        from kurma_stager_default.inside.app import notify_socket  # noqa: F401


def _load_for_apps() -> None:
    """What only a child needs on its way to being an app: here, where nobody waits for it."""
    import fcntl  # noqa: F401

    from kurma_core.formats import exec_errors  # noqa: F401
    from kurma_core.trees import mount_targets, overlay, user_database  # noqa: F401
    from kurma_stager_default.inside.app import etc_hosts  # noqa: F401

    privileges.prepare()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _sees_its_pod() -> bool:
    """Whether the pod's directory and its cgroup are there, though nobody knows yet what it runs."""
    return os.stat("/pod").st_dev != os.stat("/").st_dev


def _told_to_go() -> bool:
    """Sleeps until there is a pod. False: there will be none, whoever could have brought one is gone."""
    go = os.read(GO, 1)
    os.close(GO)
    return bool(go)


#: What a pod may share with the host, besides what is the core's to make.
_SHAREABLE = (
    ("ipc", namespaces.CLONE_NEWIPC),
    ("pid", namespaces.CLONE_NEWPID),
    ("uts", namespaces.CLONE_NEWUTS),
)


class House:
    """What every pod has, whatever stands in its manifest: namespaces, PID 1, the pod's ``/dev/shm``.

    :param namespace: a descriptor of the user namespace that they are to belong to; -1: the host's. Closed here.
    :param held: PID 1 is the only child of its parent.
    :attr:`first` is PID 1, :attr:`ours` that one of our own children whose end tells of PID 1's.
    """

    def __init__(self, namespace: int, *, held: bool = False) -> None:
        if _is_open(GO):
            os.set_inheritable(GO, False)
        #: the host's own, held until it is known whether the pod is to share them
        self._hosts = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind, _ in _SHAREABLE]
        child.hold_null()
        if namespace < 0 and not held:
            namespaces.unshare(pid1.SHARED)
        for directory in (app_root.PLACE, app_root.SHM):
            os.makedirs(directory, 0o755, exist_ok=True)
        _shared_memory(app_root.SHM)
        if _is_open(GO):
            _load_for_apps()
        else:
            _load_what_is_wanted()
        # PID 1 is a copy of this process. What neither of the two writes to again is there once: so now, when all
        # is loaded, and with the collector's marks out of the way.
        gc.freeze()
        libc.trim_heap()
        #: becomes readable when somebody asks PID 1 to end
        self.requests, stop = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if held:
            self.first, self._ready, self.ours = pid1.start_held(namespace, stop)
        else:
            start = pid1.start(stop) if namespace < 0 else pid1.start_under(namespace, stop)
            self.first, self._ready = start
            self.ours = self.first
        if namespace >= 0:
            os.close(namespace)
        os.close(stop)

    def share(self, words: dict[str, str]) -> None:
        """Go back to those of the host's namespaces that the pod is to share with it; what is made from now on, an
        app above all, is made there (X6)."""
        for (kind, flag), fd in zip(_SHAREABLE, self._hosts, strict=True):
            if words.get(kind) == "host":
                namespaces.setns(fd, flag)
                if kind == "pid":
                    # The pod's PID 1 gets no orphans then; they are the stager's to wait for, not the host's.
                    process.set_child_subreaper()
            os.close(fd)
        self._hosts = []

    def await_ready(self) -> None:
        """:raises OSError: PID 1 could not be set up."""
        pid1.await_ready(self._ready)

    def end(self) -> None:
        pid1.end(self.first)


class _Ahead:
    """What is the same for nearly every pod, once the places are there that are this pod's own: a stager that
    waits has it before the word.

    :param wall: which devices apps are given; see :func:`devicewall.rules`.
    """

    def __init__(self, wall: list[str] | None) -> None:
        self.groups = pod_cgroups.PodGroups()
        self.groups.make_way()
        self.groups.wall = wall
        #: what holds, in words for the user
        self.devices = device_cgroup.close(self.groups.layout, wall)
        for directory, mode in (("/pod/logs", 0o755), ("/pod/apps", 0o700)):
            os.makedirs(directory, mode, exist_ok=True)
        self.control = control_socket.Control(Loop())
        #: what the kernel shows is there for the first app
        self.mounts = False
        #: makes the root of the first app
        self.maker: prestarted_root.RootMaker | None = None

    def mount(self) -> None:
        """By a child, since what ``/proc`` shows is the pod's. Where it fails, the first app tries, and tells."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                proc_sys_dev.make_ahead(app_root.SHM, user_namespace.Ids(None))
                code = 0
            finally:
                os._exit(code)
        self.mounts = os.waitpid(pid, 0)[1] == 0

    def give(self, wall: list[str] | None) -> None:
        """Apps are given other devices. :raises OSError: the kernel refuses."""
        if wall != self.groups.wall:
            self.groups.wall = wall
            self.devices = device_cgroup.close_anew(self.groups.layout, wall)


def serve(
    pod: manifest.Pod,
    house: House,
    ahead: _Ahead | None,
    kind: Callable[..., supervisor.Supervisor],
    running: int,
) -> tuple[int, supervisor.Supervisor]:
    """The pod's life, to its end. :param running: closed once the pod runs. :returns: the stager's exit status."""
    house.share(pod.plan.namespaces)
    wall = device_cgroup.rules(app.plan for app in pod.apps)
    if ahead is None:
        ahead = _Ahead(wall)
    else:
        ahead.give(wall)
    groups = ahead.groups
    groups.apply_pod(pod.plan)
    if pod.plan.namespaces.get("uts") == "host":
        pod.hostname = os.uname().nodename
    else:
        namespaces.set_hostname(pod.hostname)
    _sysctls(pod.plan.sysctls, pod.ids)
    os.chown(app_root.SHM, *pod.ids.root)
    serving = kind(
        pod,
        groups,
        ahead.control,
        running,
        house.ours,
        house.requests,
        _take_stdin(pod),
        _notes(pod, ahead.devices),
    )
    if ahead.mounts:
        serving.made_ahead()
    if ahead.maker is not None:
        if prestarted_root.wanted(pod) is None:
            ahead.maker.drop()
        else:
            serving.maker = ahead.maker
    house.await_ready()
    code = serving.run()
    house.end()
    return code, serving


def last_word(serving: supervisor.Supervisor) -> str | None:
    """Why its pod is over, if that is not its apps' end."""
    return serving.broken or serving.hangs or serving.unsaved


def complain(text: str) -> None:
    try:  # noqa: SIM105 - contextlib costs every pod's start
        os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:
        pass  # a full disk, where our output goes, too: our exit status has to do


def _notes(pod: manifest.Pod, devices: str) -> list[str]:
    """What holds, and what does not (H2)."""
    landlocked, keys = privileges.wall_notes(pod.apps)
    notes = [landlocked, devices, keys, *([pod.ids.note()] if pod.ids.path else [])]
    notes += [_SHARED[kind] for kind in sorted(pod.plan.namespaces)]
    for app in pod.apps:
        note = privileges.power_note(app, pod.ids)
        if note is not None:
            notes.append(note)
    return notes


_SHARED = {
    "ipc": "ipc: the host's shared memory, message queues and semaphores are the pod's, too",
    "pid": "pid: apps see every process of the host, and may signal those of their users and capabilities, their "
    "own stager among them",
    "uts": "uts: the pod has the host's names",
}


def _sysctls(values: dict[str, str], ids: user_namespace.Ids) -> None:
    """They were checked to be the namespaces' own before they came here. :raises SetupError: one is refused."""
    for name, value in values.items():
        # As sysctl(8) has it: a slash in a name is a dot in the path.
        path = "/proc/sys/" + name.translate({ord("."): "/", ord("/"): "."})
        if ".." in path:
            raise SetupError(f"not a sysctl: {name!r}")
        number = _write(path, value)
        if number in (errno.EACCES, errno.EPERM) and ids.path:
            # Those of an IPC namespace are for the root of its user namespace, and for no other.
            number = _write_inside(path, value, ids)
        if number:
            raise SetupError(f"sysctl {name}: cannot be set to {value!r}: {os.strerror(number)}")


def _write(path: str, value: str) -> int:
    """:returns: the number of the error; 0: there was none."""
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _write_inside(path: str, value: str, ids: user_namespace.Ids) -> int:
    pid = os.fork()
    if pid == 0:
        code = errno.EIO
        try:
            user_namespace.enter(ids.open())
            code = _write(path, value)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _shared_memory(place: str) -> None:
    """One ``/dev/shm`` for the pod, as it has one IPC namespace."""
    attributes = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
    memory = mounts.new_filesystem("tmpfs", {"mode": "1777", "size": "64m"}, attributes)
    mounts.move_mount_to(memory, place)
    os.close(memory)


def _take_stdin(pod: manifest.Pod) -> int:
    """Our standard input, put aside for the app that wants it; ours is empty then, and holds nothing open."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    stdin = -1
    if any(app.stdin for app in pod.apps):
        stdin = os.dup(0)
    os.dup2(null, 0)
    os.close(null)
    return stdin
