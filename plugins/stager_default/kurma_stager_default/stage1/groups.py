"""The pod's cgroup: at the one that stage1 was started in, on each hierarchy of the host."""

from __future__ import annotations

import os

from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout


def planned(name: str) -> CgroupTree:
    """Of that name, not made yet.

    It is a child of ours; on version 2 rather beside ours, where controllers are switched on: a cgroup that has
    processes, as ours, gives none to its children.
    """
    with open("/proc/self/cgroup") as file:
        ours = [line.rstrip("\n").split(":", 2) for line in file]
    return CgroupTree(name, Layout([_at(hierarchy, ours) for hierarchy in Layout.detect().hierarchies]))


def make(tree: CgroupTree) -> None:
    """What is planned; and on version 2 all controllers switched on that can be, from the top down to it: of those
    of systemd's slices, few are."""
    tops = {one.place: one for one in Layout.detect().hierarchies if one.version == 2}
    for one in tree.layout.hierarchies:
        top = tops.get(one.place)
        if top is not None and one.directory != top.directory:
            CgroupTree(f"{one.directory[len(top.directory) + 1 :]}/{tree.name}", Layout([top])).create()
    tree.create()


def within(tree: CgroupTree) -> Layout:
    """As if that cgroup, which is made, were the root: so one sees which controllers it can be held by."""
    return Layout([_moved(one, f"{one.directory}/{tree.name}") for one in tree.layout.hierarchies])


def _at(hierarchy: Hierarchy, ours: list[list[str]]) -> Hierarchy:
    wanted = set(hierarchy.controllers) if hierarchy.version == 1 else {""}
    path = next((path for _, names, path in ours if wanted & set(names.split(","))), "/")
    directory = hierarchy.directory + path.rstrip("/")
    if not os.path.isdir(directory):  # what is mounted is of another cgroup namespace than ours
        directory = hierarchy.directory
    parent = os.path.dirname(directory)
    if hierarchy.version == 2 and directory != hierarchy.directory and _gives(parent):
        directory = parent
    return _moved(hierarchy, directory)


def _gives(directory: str) -> bool:
    try:
        with open(f"{directory}/cgroup.subtree_control") as file:
            return bool(file.read().split())
    except OSError:
        return False


def _moved(hierarchy: Hierarchy, directory: str) -> Hierarchy:
    return Hierarchy(hierarchy.version, hierarchy.controllers, directory, hierarchy.place)
