"""Makes, reads, kills and removes cgroups, on every hierarchy of the host.

There are three layouts: ``v1`` (a hierarchy per controller), ``v2`` (one hierarchy), ``hybrid`` (v1's controllers,
and a v2 hierarchy, which is used for its ``cgroup.kill``). A :class:`CgroupTree` is the cgroup of one relative
name, such as ``kurma/UUID``, on all hierarchies. Outside of it, only the controllers of its parents are enabled on
v2, missing parents are made, and empty parents that are Kurma's own (``kurma``) are removed. Needs root.
"""

from __future__ import annotations

import errno
import os
import time

from kurma_core.linux import mounts, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Where the host mounts its hierarchies.
CGROUP_ROOT = "/sys/fs/cgroup"


class Hierarchy:
    """One mounted hierarchy: version, controllers (v1 only; a named one has just its name), directory.

    :attr:`place` is its path below ``/sys/fs/cgroup``, ``"."`` for that directory itself.
    """

    __slots__ = ("controllers", "directory", "place", "version")

    def __init__(self, version: int, controllers: tuple[str, ...], directory: str, place: str) -> None:
        self.version = version
        self.controllers = controllers
        self.directory = directory
        self.place = place

    def __repr__(self) -> str:
        return f"<Hierarchy v{self.version} {','.join(self.controllers)} {self.directory}>"


#: The cached result of :meth:`Layout.of_host`, and name, device and inode of each directory of the root then.
_remembered: tuple[list[tuple[str, int, int]], Layout] | None = None


class Layout:
    """All hierarchies of a host; :attr:`kind` is ``v1``, ``v2``, ``hybrid`` or ``none``."""

    __slots__ = ("hierarchies", "kind")

    def __init__(self, hierarchies: Iterable[Hierarchy]) -> None:
        self.hierarchies = tuple(hierarchies)
        versions = {hierarchy.version for hierarchy in self.hierarchies}
        if versions == {1, 2}:
            self.kind = "hybrid"
        else:
            self.kind = f"v{versions.pop()}" if versions else "none"

    @classmethod
    def detect(cls) -> Layout:
        """The layout that this process sees."""
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            # Each start of a pod needs this several times, so other mounts, which are the most, are not parsed.
            mounted = [mounts.Mount(line) for line in file if " - cgroup" in line]
        with open("/proc/self/cgroup") as file:
            return cls.parse(mounted, file)

    @classmethod
    def parse(cls, mounted: Iterable[mounts.Mount], memberships: Iterable[str]) -> Layout:
        """The layout of the given mounts.

        :param mounted: mounts of cgroup file systems.
        :param memberships: lines of ``/proc/self/cgroup``, to tell controllers from other mount options on v1.
        """
        known: set[str] = set()
        for line in memberships:
            known.update(name for name in line.split(":", 2)[1].split(",") if name)
        found: dict[object, Hierarchy] = {}
        for mount in mounted:
            # A hierarchy may be mounted several times; the first mount below the usual root is the host's own.
            if not (mount.target == CGROUP_ROOT or mount.target.startswith(CGROUP_ROOT + "/")):
                continue
            place = mount.target[len(CGROUP_ROOT) + 1 :] or "."
            if mount.fstype == "cgroup2":
                found.setdefault(2, Hierarchy(2, (), mount.target, place))
            elif mount.fstype == "cgroup":
                controllers = tuple([option for option in mount.super_options if option in known])
                if controllers:
                    found.setdefault(controllers, Hierarchy(1, controllers, mount.target, place))
        return cls(found.values())

    @classmethod
    def of_host(cls) -> Layout:
        """As :meth:`detect`, remembered by this process until a hierarchy is mounted or unmounted in the usual
        root, be it on a directory that was there before.
        """
        global _remembered
        try:
            names = [".", *sorted(os.listdir(CGROUP_ROOT))]
            found = [os.stat(f"{CGROUP_ROOT}/{name}") for name in names]
        except OSError:
            return cls.detect()
        # A mounted file system has a device number of its own.
        stamp = [(name, status.st_dev, status.st_ino) for name, status in zip(names, found, strict=True)]
        if _remembered is None or _remembered[0] != stamp:
            _remembered = stamp, cls.detect()
        return _remembered[1]

    def of(self, controller: str) -> Hierarchy | None:
        """The hierarchy of ``controller``: that of v1, else that of v2 if it has the controller."""
        for hierarchy in self.hierarchies:
            if hierarchy.version == 1 and controller in hierarchy.controllers:
                return hierarchy
        for hierarchy in self.hierarchies:
            if hierarchy.version == 2 and (
                controller == "cgroup" or controller in controllers(hierarchy.directory)
            ):
                return hierarchy
        return None

    def versions(self) -> dict[str, int]:
        """The version of cgroups of each available controller; ``cgroup`` stands for the v2 hierarchy itself."""
        found: dict[str, int] = {}
        for hierarchy in self.hierarchies:
            if hierarchy.version == 2:
                found["cgroup"] = 2
            # v2 does not list the controllers that v1 uses.
            names = hierarchy.controllers if hierarchy.version == 1 else controllers(hierarchy.directory)
            found.update(dict.fromkeys(names, hierarchy.version))
        return found


def find_guests(name: str, layout: Layout | None = None) -> list[str]:
    """The names, relative to the hierarchies' roots, of all cgroups whose last part is ``name``.

    It reads the whole tree: use it only if the record of a cgroup's parent is lost.

    :param name: the last part. :param layout: the host's; None: detect it.
    """
    found = set()
    for hierarchy in (Layout.of_host() if layout is None else layout).hierarchies:
        for path in _below(hierarchy.directory):
            if os.path.basename(path) == name:
                found.add(os.path.relpath(path, hierarchy.directory))
    return sorted(found)


def controllers(directory: str) -> list[str]:
    """The controllers that a v2 cgroup, a directory, can switch on for its children; none if it is missing, or
    v1's."""
    try:
        with open(directory + "/cgroup.controllers") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


#: The last part of a cgroup's name begins with this if its parents belong to another program: they are never
#: removed.
GUEST = "kurma-"

_SIGKILL = 9
# Seconds that a kill or a removal may take, and between two attempts.
_PATIENCE = 10.0
_TURN = 0.01
_CREATE_TRIES = 16


class CgroupTree:
    """The cgroup of one relative name on all hierarchies.

    :param name: relative, e.g. ``kurma/UUID``; other trees share all parts but the last.
    :param layout: the host's; None: detect it.
    """

    __slots__ = ("layout", "name")

    def __init__(self, name: str, layout: Layout | None = None) -> None:
        parts = name.split("/")
        if not all(parts) or any(part in (".", "..") or part.startswith("cgroup.") for part in parts):
            raise OSError(errno.EINVAL, "not the name of a cgroup", name)
        self.name = name
        self.layout = Layout.of_host() if layout is None else layout

    def directories(self) -> list[str]:
        """The tree's directory on each hierarchy, existing or not; the v2 one first."""
        return [self._path(hierarchy) for hierarchy in self._ordered()]

    def procs_files(self) -> tuple[str, ...]:
        """The files into which a process writes ``0`` to move itself into the tree."""
        return tuple([path + "/cgroup.procs" for path in self.directories() if os.path.isdir(path)])

    def create(self) -> None:
        """Make the cgroup on every hierarchy; an existing one is kept. After an error, all of it is removed."""
        try:
            for hierarchy in self._ordered():
                for attempt in range(_CREATE_TRIES):
                    try:
                        self._create_on(hierarchy)
                        break
                    except OSError as error:
                        # Another process has removed the empty shared parent meanwhile.
                        if error.errno not in (errno.ENOENT, errno.ENODEV) or attempt == _CREATE_TRIES - 1:
                            raise
        except OSError:
            self.remove()
            raise

    def exists(self) -> bool:
        """Whether it exists on any hierarchy."""
        return any(os.path.isdir(path) for path in self.directories())

    def add(self, pid: int) -> None:
        """Move a process into the tree, on every hierarchy. :param pid: of the process. :raises
        ProcessLookupError: it has ended."""
        for file in self.procs_files():
            _write(file, str(pid))

    def leaf(self, name: str) -> list[str]:
        """The directories for a process that makes cgroups in the tree, on each hierarchy.

        A v2 cgroup that enables controllers for its children must hold no process itself. So on v2 the directory
        is the child ``name``, which is made here. The controllers are enabled now, while the tree has no process:
        to move one later takes the kernel some ten milliseconds. On v1 the directory is the tree itself.
        """
        found = []
        for hierarchy in self._ordered():
            path = self._path(hierarchy)
            if hierarchy.version == 2 and controllers(path):
                _enable_controllers(path)
                path = f"{path}/{name}"
                try:  # noqa: SIM105 - contextlib is not light
                    os.mkdir(path, 0o755)
                except FileExistsError:
                    pass
            found.append(path)
        return found

    def pids(self, controller: str | None = None) -> list[int]:
        """The processes in the tree and below it, each once, by their PIDs in this PID namespace.

        :param controller: look only at the hierarchy with this controller, if the host has it.
        """
        found: set[int] = set()
        hierarchy = None if controller is None else self.layout.of(controller)
        for path in self.directories() if hierarchy is None else [self._path(hierarchy)]:
            for directory in _below(path):
                found.update(_read_pids(directory))
        return sorted(found)

    def write(self, controller: str, file: str, value: str) -> None:
        """Write one setting, e.g. ``("memory", "memory.max", "67108864")``.

        :param controller: the controller of the file; on v1, it selects the hierarchy.
        :param file: the file's name in this host's cgroup version. :param value: the text to write.
        :raises OSError: ``ENOENT`` if the host has no such controller or file; else names the file and the value.
        """
        _write(self.file(controller, file), value)

    def read(self, controller: str, file: str) -> str:
        """Read one file, without its last newline.

        :param controller: as for :meth:`write`. :param file: as for :meth:`write`. :raises OSError: as
            :meth:`write`.
        """
        with open(self.file(controller, file)) as opened:
            return opened.read().rstrip("\n")

    def file(self, controller: str, file: str) -> str:
        """The path of one setting, ``file`` of ``controller``, on its hierarchy.

        :raises OSError: ``ENOENT`` if the host has no such controller.
        """
        if "/" in file:
            raise OSError(errno.EINVAL, "not the name of a cgroup file", file)
        hierarchy = self.layout.of(controller)
        if hierarchy is None:
            raise OSError(errno.ENOENT, f"this host has no cgroup controller {controller!r}", file)
        return f"{self._path(hierarchy)}/{file}"

    def kill(self, patience: float = _PATIENCE) -> None:
        """Kill every process in the tree, and wait until it is empty; succeed if it does not exist.

        :param patience: seconds to wait for that.
        :raises OSError: ``EBUSY``: a process does not die (it hangs in the kernel); names the PIDs.
        """
        end = time.monotonic() + patience
        while True:
            for hierarchy in self._ordered():
                if hierarchy.version == 2:
                    _write_if_there(self._path(hierarchy) + "/cgroup.kill", "1")
            # For hosts without cgroup.kill, and processes that have left the cgroup on v2. Frozen processes cannot
            # fork while they are signalled; they die when thawed.
            self._freeze("FROZEN")
            try:
                left = self._signal_all()
            finally:
                self.thaw()
            if not left:
                return
            if time.monotonic() > end:
                raise OSError(errno.EBUSY, f"processes {left} do not die", self.name)
            time.sleep(_TURN)

    def remove(self) -> None:
        """Remove the tree with its children, and empty parents up to a :data:`GUEST`; succeed if it is missing.

        Its processes must have ended (:meth:`kill`). The kernel frees a cgroup with a delay, so that the removal
        may have to wait.

        :raises OSError: ``EBUSY``: it still holds processes.
        """
        end = time.monotonic() + _PATIENCE
        for hierarchy in self._ordered():
            path = self._path(hierarchy)
            for directory in reversed(list(_below(path))):
                _remove_directory(directory, end)
            # Shared parents go only if they are empty.
            while not os.path.basename(path).startswith(GUEST) and os.path.dirname(path) != hierarchy.directory:
                path = os.path.dirname(path)
                try:
                    os.rmdir(path)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY):
                        raise

    def mount_plan(self) -> list[tuple[str, str]]:
        """The binds, read-write, that show a root its own cgroup and no other.

        :returns: ``(source directory, target relative to /sys/fs/cgroup)``; ``"."`` for the whole (v2).
        """
        return [(self._path(hierarchy), hierarchy.place) for hierarchy in self.layout.hierarchies]

    def links(self) -> list[tuple[str, str]]:
        """The symbolic links beside the binds, ``(name, target)``: one for each of v1's co-mounted controllers."""
        return [
            (controller, hierarchy.place)
            for hierarchy in self.layout.hierarchies
            if hierarchy.version == 1 and len(hierarchy.controllers) > 1
            for controller in hierarchy.controllers
            if controller != hierarchy.place
        ]

    def _ordered(self) -> list[Hierarchy]:
        return sorted(self.layout.hierarchies, key=lambda one: -one.version)

    def _path(self, hierarchy: Hierarchy) -> str:
        return f"{hierarchy.directory}/{self.name}"

    def _create_on(self, hierarchy: Hierarchy) -> None:
        at = hierarchy.directory
        for part in self.name.split("/"):
            if hierarchy.version == 2:
                _enable_controllers(at)
            parent, at = at, f"{at}/{part}"
            made = True
            try:
                os.mkdir(at, 0o755)
            except FileExistsError:
                made = False
            if "cpuset" in hierarchy.controllers and hierarchy.version == 1:
                # Also if it exists: the process that made it may not have filled it yet.
                _fill_cpuset(parent, at)
            if made and "memory" in hierarchy.controllers and hierarchy.version == 1:
                _count_children(parent, at)

    def _freeze(self, state: str) -> None:
        """Freezes the tree by v1's freezer, on hosts without cgroup.kill."""
        if not any(os.path.exists(path + "/cgroup.kill") for path in self.directories()):
            for hierarchy in self.layout.hierarchies:
                if "freezer" in hierarchy.controllers:
                    _write_if_there(self._path(hierarchy) + "/freezer.state", state)

    def thaw(self) -> None:
        """Thaws the tree on v1, where a frozen process does not die. The freezing process may have been killed."""
        for hierarchy in self.layout.hierarchies:
            if hierarchy.version == 1 and "freezer" in hierarchy.controllers:
                for directory in _below(self._path(hierarchy)):
                    _write_if_there(f"{directory}/freezer.state", "THAWED")

    def _signal_all(self) -> list[int]:
        """Sends SIGKILL to all visible processes. :returns: their PIDs."""
        seen: set[int] = set()
        for path in self.directories():
            for directory in _below(path):
                for pid in _read_pids(directory):
                    seen.add(pid)
                    _kill_member(pid, directory)
        return sorted(seen)


def _kill_member(pid: int, directory: str) -> None:
    """Kill ``pid`` if it is still in ``directory`` after its pidfd was opened: the PID may have been reused."""
    if pid == 0:
        return  # a process of a PID namespace that we cannot see; cgroup.kill reaches it
    try:
        pidfd = process.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if pid in _read_pids(directory):
            process.pidfd_send_signal(pidfd, _SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # AppArmor may forbid signals; cgroup.kill, or the end of its PID 1, kills it all the same
    finally:
        os.close(pidfd)


def _enable_controllers(directory: str) -> None:
    """Enable all available controllers for the children of a v2 cgroup, except those that the kernel refuses.

    It refuses them in a container whose own processes are in ``directory`` (EBUSY), or for real-time tasks
    (EINVAL). There it accepts some (cpu, pids), but then no process can join a child (EOPNOTSUPP): so none is
    enabled.
    """
    try:
        with open(f"{directory}/cgroup.subtree_control") as file:
            enabled = file.read().split()
    except FileNotFoundError:
        return
    missing = [controller for controller in controllers(directory) if controller not in enabled]
    # Only the hierarchy's root, which has no such file, may hold processes.
    if missing and os.path.exists(f"{directory}/cgroup.type") and _read_pids(directory):
        return
    for controller in missing:
        try:
            _write(f"{directory}/cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
                raise


def _fill_cpuset(parent: str, at: str) -> None:
    """Copies the parent's CPUs and memory nodes to a new v1 cpuset: without any, it takes no process."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        with open(f"{at}/{file}") as opened:
            if opened.read().strip():
                continue
        with open(f"{parent}/{file}") as opened:
            value = opened.read().strip()
        if not value:
            raise OSError(errno.ENODEV, "made anew by somebody else a moment ago", parent)
        _write(f"{at}/{file}", value)


def _count_children(parent: str, at: str) -> None:
    """Makes a v1 memory cgroup count its children's use. Newer kernels always do; older ones refuse the setting
    once there are children."""
    try:
        with open(f"{at}/memory.use_hierarchy") as file:
            if file.read().strip() == "1":
                return
    except FileNotFoundError:
        return
    try:
        _write(f"{at}/memory.use_hierarchy", "1")
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EINVAL):
            raise OSError(error.errno, error.strerror, parent) from None


def _below(path: str) -> Iterator[str]:
    """``path`` and the cgroups below it, parents first; empty if it is missing."""
    waiting = [path]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                waiting.extend([entry.path for entry in entries if entry.is_dir(follow_symlinks=False)])
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield directory


def _read_pids(directory: str) -> list[int]:
    try:
        with open(f"{directory}/cgroup.procs") as file:
            return [int(line) for line in file]
    except OSError as error:
        # Gone in between; or a v2 threaded cgroup, whose processes show in its domain's
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return []
        raise


def _remove_directory(directory: str, end: float) -> None:
    while True:
        try:
            os.rmdir(directory)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or time.monotonic() > end:
                raise
        time.sleep(_TURN)


def _write(file: str, value: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    except OSError as error:
        raise OSError(error.errno, f"cannot write {value!r}: {error.strerror}", file) from None
    finally:
        os.close(fd)


def _write_if_there(file: str, value: str) -> None:
    try:
        _write(file, value)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise
