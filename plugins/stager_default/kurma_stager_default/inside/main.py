"""The stager's main program (Kurma Stager Specification, Execution): it runs a pod from exec to the pod's end.

The stager stays in the host's PID namespace; its children are in the pod's.
"""

from __future__ import annotations

import errno
import gc
import os

from kurma_core.linux import libc, mounts, namespaces, process
from kurma_stager_default.inside import manifest, user_namespace
from kurma_stager_default.inside.app import app_root, child, privileges, proc_sys_dev
from kurma_stager_default.inside.errors import SetupError, complain
from kurma_stager_default.inside.event_loop import Loop
from kurma_stager_default.inside.pod import (
    control_socket,
    device_cgroup,
    pid1,
    pod_cgroups,
    supervisor,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kurma_stager_default.inside.pod.prestarted_root import RootMaker

#: The stager closes this descriptor when the pod runs.
RUNNING = 4
#: Open in a prestarted stager, one that starts before its pod is known: a byte on it says that the pod is in
#: place.
GO = 5
#: Open in a fork server: the socket with its requests.
REQUESTS = 6


def main() -> int:
    gc.disable()  # the supervisor makes few reference cycles, and collects them after each execution of an app
    if _is_open(REQUESTS):
        from kurma_stager_default.inside import fork_server  # only a fork server needs it

        fork_server.serve(REQUESTS)
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
                from kurma_stager_default.inside.pod import prestarted_root  # only a prestarted stager has one

                ahead.maker = prestarted_root.start(ahead.mounts)
            if not _told_to_go():
                house.end()
                return 0
            if ahead is not None:
                ahead.look_again()
                if ahead.maker is not None:
                    ahead.maker.begin()
        pod = manifest.load()
        code, serving = serve(pod, house, ahead, supervisor.Supervisor, RUNNING)
        said = last_word(serving)
        if said is not None:
            complain(said)
        return code
    except Exception as error:  # noqa: BLE001 - the user sees the stager's last line as the reason
        complain(reason_of(error))
        return 1


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _load_what_is_wanted() -> None:
    """Loads the modules that this pod needs and others do not. Loaded before the fork of PID 1, their memory is
    shared; loaded after it, they would be in memory twice."""
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
    """Loads the modules that only an app's child needs. A prestarted stager does it while no user waits."""
    import fcntl  # noqa: F401

    from kurma_core.linux import exec_errors  # noqa: F401
    from kurma_core.trees import mount_targets, overlay, user_database  # noqa: F401
    from kurma_stager_default.inside.app import etc_hosts, volumes  # noqa: F401

    privileges.prepare()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _sees_its_pod() -> bool:
    """Whether the pod's directory and cgroup exist already, though the pod's manifest does not."""
    return os.stat("/pod").st_dev != os.stat("/").st_dev


def _told_to_go() -> bool:
    """Sleeps until there is a pod. False: there will be none, since the process that would announce it has
    ended."""
    go = os.read(GO, 1)
    os.close(GO)
    return bool(go)


#: Namespaces of the host that a pod may share, besides the network namespace, which the core makes.
_SHAREABLE = (
    ("ipc", namespaces.CLONE_NEWIPC),
    ("pid", namespaces.CLONE_NEWPID),
    ("uts", namespaces.CLONE_NEWUTS),
)


class House:
    """The parts of a pod that do not depend on its manifest: namespaces, PID 1, the pod's ``/dev/shm``.

    :param namespace: a descriptor of the user namespace that shall own the other namespaces; -1: the host's. It is
        closed here.
    :param held: PID 1 is the only child of its parent.
    :attr:`first` is the PID of the pod's PID 1; :attr:`ours` is the child of the stager that ends when PID 1 ends.
    """

    def __init__(self, namespace: int, *, held: bool = False) -> None:
        if _is_open(GO):
            os.set_inheritable(GO, False)
        #: the host's namespaces, held until the manifest says whether the pod shares them
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
        # PID 1 is a fork of this process: they share the pages that neither writes to. So fork when all modules
        # are loaded; freeze() keeps the collector from writing its marks to those pages.
        gc.freeze()
        libc.trim_heap()
        #: becomes readable when PID 1 gets a signal to end
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
        """Joins those namespaces of the host that the pod shares; apps that are made later inherit them."""
        for (kind, flag), fd in zip(_SHAREABLE, self._hosts, strict=True):
            if words.get(kind) == "host":
                namespaces.setns(fd, flag)
                if kind == "pid":
                    # The pod's PID 1 gets no orphans then: the stager must wait for them, not the host's init.
                    process.set_child_subreaper()
            os.close(fd)
        self._hosts = []

    def await_ready(self) -> None:
        """:raises OSError: PID 1 could not be set up."""
        pid1.await_ready(self._ready)

    def end(self) -> None:
        pid1.end(self.first)


class _Ahead:
    """The set-up that is the same for nearly every pod: cgroups, device filter, log directories, control socket.
    It needs the pod's directories, but no manifest: a prestarted stager does it before its pod is known.

    :param wall: the devices that the apps get; see :func:`.device_cgroup.rules`.
    """

    def __init__(self, wall: list[str] | None) -> None:
        self.groups = pod_cgroups.PodGroups()
        self.groups.make_way()
        self.groups.wall = wall
        #: a note for the user on how access to devices is limited
        self.devices = device_cgroup.close(self.groups.layout, wall)
        self._place = self._inodes()
        for directory, mode in (("/pod/logs", 0o755), ("/pod/apps", 0o700)):
            os.makedirs(directory, mode, exist_ok=True)
        self.control = control_socket.Control(Loop())
        #: ``/proc``, ``/sys`` and ``/dev`` are mounted for the first app
        self.mounts = False
        #: makes the root of the first app
        self.maker: RootMaker | None = None

    def mount(self) -> None:
        """Mounts ``/proc``, ``/sys`` and ``/dev`` for the first app. A child does it, since ``/proc`` must show
        the pod's PID namespace. If it fails, the first app mounts them itself, and reports the error."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                proc_sys_dev.make_ahead(app_root.SHM, user_namespace.Ids(None))
                code = 0
            finally:
                os._exit(code)
        self.mounts = os.waitpid(pid, 0)[1] == 0

    def _inodes(self) -> list[int]:
        return [os.stat(hierarchy.directory).st_ino for hierarchy in self.groups.layout.hierarchies]

    def look_again(self) -> None:
        """Sets up the cgroup again, if the core has moved this stager to another one: the pod has a parent for its
        cgroup. :raises OSError: the kernel refuses."""
        if self._inodes() != self._place:
            self.groups.make_way()
            self.devices = device_cgroup.close(self.groups.layout, self.groups.wall)

    def give(self, wall: list[str] | None) -> None:
        """Allows the apps these devices. :raises OSError: the kernel refuses."""
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
    """Runs the pod to its end. :param running: a descriptor that is closed once the pod runs.

    :returns: the stager's exit status, and the supervisor."""
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
        from kurma_stager_default.inside.pod import prestarted_root

        if prestarted_root.wanted(pod) is None:
            ahead.maker.drop()
        else:
            serving.maker = ahead.maker
    if any(app.pid == manifest.HOST_PID for app in pod.apps):
        # PID 1 of the pod gets no orphans of such an app: the stager must wait for them, not the host's init.
        process.set_child_subreaper()
    house.await_ready()
    code = serving.run()
    house.end()
    return code, serving


def last_word(serving: supervisor.Supervisor) -> str | None:
    """The reason of the pod's end, if it is not the end of its apps."""
    return serving.broken or serving.hangs or serving.unsaved


def _notes(pod: manifest.Pod, devices: str) -> list[str]:
    """Notes for the user: which barriers between apps, and to the host, hold on this kernel and for this pod."""
    landlocked, keys = privileges.wall_notes(pod.apps)
    notes = [landlocked, devices, keys, *([pod.ids.note()] if pod.ids.path else [])]
    notes += [_SHARED[kind] for kind in sorted(pod.plan.namespaces)]
    for app in pod.apps:
        note = privileges.power_note(app, pod.ids)
        if note is not None:
            notes.append(note)
        if app.pid != manifest.POD_PID:
            notes += pid_notes(app)
    return notes


def pid_notes(app: manifest.App) -> list[str]:
    from kurma_stager_default.inside.app import pid_namespace

    note = pid_namespace.note(app)
    return [] if note is None else [note]


_SHARED = {
    "ipc": "ipc: the host's shared memory, message queues and semaphores are the pod's, too",
    "pid": "pid: apps see every process of the host, and may signal those of their users and capabilities, their "
    "own stager among them",
    "uts": "uts: the pod has the host's names",
}


#: Sysctls of the namespaces of users and processes, which this process is not in: in it, they are the host's.
_OF_CHILDREN = ("user.", "vm.memfd_noexec")


def _sysctls(values: dict[str, str], ids: user_namespace.Ids) -> None:
    """Sets sysctls. The core has checked that they are limited to the pod's namespaces.

    :raises SetupError: the kernel refuses one."""
    for name, value in values.items():
        # As in sysctl(8), a slash in the name stands for a dot in the path.
        path = "/proc/sys/" + name.translate({ord("."): "/", ord("/"): "."})
        if ".." in path or (name.startswith("user.") and not ids.path):
            raise SetupError(f"not a sysctl of the pod's own: {name!r}")
        if name.startswith(_OF_CHILDREN):
            number = _write_inside(path, value, ids)
        else:
            number = _write(path, value)
            if number in (errno.EACCES, errno.EPERM) and ids.path:
                # Only root of the user namespace that owns an IPC namespace may set its sysctls.
                number = _write_inside(path, value, ids)
        if number:
            raise SetupError(f"sysctl {name}: cannot be set to {value!r}: {os.strerror(number)}")


def _write(path: str, value: str) -> int:
    """:returns: the error's number; 0: it was written."""
    try:
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _write_inside(path: str, value: str, ids: user_namespace.Ids) -> int:
    """Writes as a process of the pod: in its PID namespace, and as root of its user namespace if it has one."""
    pid = os.fork()
    if pid == 0:
        code = errno.EIO
        try:
            if ids.path:
                user_namespace.enter(ids.open())
            code = _write(path, value)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _shared_memory(place: str) -> None:
    """Mounts the pod's ``/dev/shm``: all apps share it, as they share one IPC namespace."""
    attributes = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
    memory = mounts.new_filesystem("tmpfs", {"mode": "1777", "size": "64m"}, attributes)
    mounts.move_mount_to(memory, place)
    os.close(memory)


def _take_stdin(pod: manifest.Pod) -> int:
    """Takes the stager's standard input for the app that wants it, and puts ``/dev/null`` in its place, so that
    the stager does not hold it open. :returns: a descriptor of it; -1: no app wants it."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    stdin = -1
    if any(app.stdin for app in pod.apps):
        stdin = os.dup(0)
    os.dup2(null, 0)
    os.close(null)
    return stdin
