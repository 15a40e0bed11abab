"""Which cgroup hierarchies this host has, and where: v1, v2 or both."""

from __future__ import annotations

from kurma_core.linux import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CGROUP_ROOT = "/sys/fs/cgroup"


class Hierarchy:
    """One mounted hierarchy: version, controllers (v1 only; a named one has just its name), directory.

    :attr:`place` is where it belongs below ``/sys/fs/cgroup``, ``"."`` for that directory itself.
    """

    __slots__ = ("controllers", "directory", "place", "version")

    def __init__(self, version: int, controllers: tuple[str, ...], directory: str, place: str) -> None:
        self.version = version
        self.controllers = controllers
        self.directory = directory
        self.place = place

    def __repr__(self) -> str:
        return f"<Hierarchy v{self.version} {','.join(self.controllers)} {self.directory}>"


class Layout:
    """All hierarchies of a host; :attr:`kind` is ``v1``, ``v2``, ``hybrid`` or ``none``."""

    __slots__ = ("hierarchies", "kind")

    def __init__(self, hierarchies: list[Hierarchy]) -> None:
        self.hierarchies = hierarchies
        versions = {hierarchy.version for hierarchy in hierarchies}
        if versions == {1, 2}:
            self.kind = "hybrid"
        else:
            self.kind = f"v{versions.pop()}" if versions else "none"

    @classmethod
    def detect(cls) -> Layout:
        """The layout that this process sees."""
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            # Asked for several times by every pod's start; most mounts are none of these, and are not looked at.
            mounted = [mounts.Mount(line) for line in file if " - cgroup" in line]
        with open("/proc/self/cgroup") as file:
            return cls.parse(mounted, file)

    @classmethod
    def parse(cls, mounted: Iterable[mounts.Mount], memberships: Iterable[str]) -> Layout:
        """:param memberships: lines of ``/proc/self/cgroup``, which tell controllers from v1's mount options."""
        known: set[str] = set()
        for line in memberships:
            known.update(name for name in line.split(":", 2)[1].split(",") if name)
        found: dict[object, Hierarchy] = {}
        for mount in mounted:
            # A hierarchy may be mounted more than once; the first place below the usual root is the host's own.
            if not (mount.target == CGROUP_ROOT or mount.target.startswith(CGROUP_ROOT + "/")):
                continue
            place = mount.target[len(CGROUP_ROOT) + 1 :] or "."
            if mount.fstype == "cgroup2":
                found.setdefault(2, Hierarchy(2, (), mount.target, place))
            elif mount.fstype == "cgroup":
                controllers = tuple([option for option in mount.super_options if option in known])
                if controllers:
                    found.setdefault(controllers, Hierarchy(1, controllers, mount.target, place))
        return cls(list(found.values()))

    def of(self, controller: str) -> Hierarchy | None:
        """The hierarchy on which ``controller`` is set: its v1 one, else the v2 one if that has it."""
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
        """Version by controller: of each that there is."""
        found: dict[str, int] = {}
        for hierarchy in self.hierarchies:
            # What v1 has taken, v2 does not list.
            names = hierarchy.controllers if hierarchy.version == 1 else controllers(hierarchy.directory)
            found.update(dict.fromkeys(names, hierarchy.version))
        return found


def controllers(directory: str) -> list[str]:
    """What a v2 cgroup can have switched on for its children; none if it is not there, or v1's."""
    try:
        with open(directory + "/cgroup.controllers") as file:
            return file.read().split()
    except FileNotFoundError:
        return []
