"""Chooses and makes the pod's cgroup, at the cgroup that stage1 was started in, on each hierarchy of the host."""

from __future__ import annotations

import os

from kurma_core.linux.cgroups import CgroupTree, Hierarchy, Layout


def planned(name: str) -> CgroupTree:
    """The pod's cgroup of that name, which is not made here.

    It is a child of this process's cgroup. On version 2 it is a sibling, if the parent enables controllers for its
    children: a cgroup that holds processes, such as ours, cannot.
    """
    with open("/proc/self/cgroup") as file:
        ours = [line.rstrip("\n").split(":", 2) for line in file]
    return CgroupTree(name, Layout([_at(hierarchy, ours) for hierarchy in Layout.detect().hierarchies]))


def make(tree: CgroupTree) -> None:
    """Makes the planned cgroup. On version 2, it enables all available controllers from the top down to it, since
    systemd's slices enable few."""
    tops = {one.place: one for one in Layout.detect().hierarchies if one.version == 2}
    for one in tree.layout.hierarchies:
        top = tops.get(one.place)
        if top is not None and one.directory != top.directory:
            CgroupTree(f"{one.directory[len(top.directory) + 1 :]}/{tree.name}", Layout([top])).create()
    tree.create()


def within(tree: CgroupTree) -> Layout:
    """The layout with the pod's cgroup as its root, which shows the controllers that are available in it."""
    return Layout([_moved(one, f"{one.directory}/{tree.name}") for one in tree.layout.hierarchies])


def _at(hierarchy: Hierarchy, ours: list[list[str]]) -> Hierarchy:
    wanted = set(hierarchy.controllers) if hierarchy.version == 1 else {""}
    path = next((path for _, names, path in ours if wanted & set(names.split(","))), "/")
    directory = hierarchy.directory + path.rstrip("/")
    if not os.path.isdir(directory):  # the mount belongs to another cgroup namespace than ours
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
