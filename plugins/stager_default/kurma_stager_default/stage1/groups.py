"""The pod's cgroup: below that which stage1 was started in, on each hierarchy of the host."""

from __future__ import annotations

import os

from kurma_core.linux.cgroup_layout import Hierarchy, Layout, controllers
from kurma_core.linux.cgroups import CgroupTree

_OWN = "stager"


def make(name: str) -> CgroupTree:
    """Made, of that name, with this process in it where it would be in the way: a cgroup of version 2 has
    controllers for its children only while no process is in itself.
    """
    layout = Layout([_ours(hierarchy) for hierarchy in Layout.detect().hierarchies])
    tree = CgroupTree(name, layout)
    tree.create()
    v2 = [one for one in layout.hierarchies if one.version == 2 and controllers(one.directory)]
    if v2:
        own = CgroupTree(f"{name}/{_OWN}", Layout(v2))
        own.create()
        own.add(os.getpid())
        tree.create()  # what could not be switched on while we were there
    return tree


def _ours(hierarchy: Hierarchy) -> Hierarchy:
    """As if the cgroup that this process is in were all that there is."""
    wanted = set(hierarchy.controllers) if hierarchy.version == 1 else {""}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            if wanted & set(names.split(",")):
                return _at(hierarchy, path)
    return hierarchy


def _at(hierarchy: Hierarchy, path: str) -> Hierarchy:
    directory = hierarchy.directory + (path if path != "/" else "")
    # In a cgroup namespace, or a container, paths may be of somewhere else.
    return Hierarchy(
        hierarchy.version,
        hierarchy.controllers,
        directory if os.path.isdir(directory) else hierarchy.directory,
        hierarchy.place,
    )
