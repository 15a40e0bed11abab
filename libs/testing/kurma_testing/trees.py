"""Directory trees as values, for tests: written to disk, read back, merged in memory.

The merge is a second implementation of the specification (App Container Executor, Filesystem Setup), without
files: tests compare a renderer's result with it, entry by entry.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

#: Mode of a directory that no image defines.
IMPLIED_MODE = 0o755


@dataclass(frozen=True)
class Entry:
    """One entry of a tree.

    :param kind: ``d`` directory, ``f`` file, ``l`` symbolic link, ``p`` fifo, ``c`` and ``b`` devices.
    :param mtime: nanoseconds.
    :param content: a file's bytes, a link's target.
    :param identity: equal for names of one file; None: it has no other name. It is not compared.
    """

    kind: str
    mode: int = 0o755
    uid: int = field(default_factory=os.geteuid)
    gid: int = field(default_factory=os.getegid)
    mtime: int = 1_500_000_000_123_456_789
    xattrs: tuple[tuple[str, bytes], ...] = ()
    content: bytes = b""
    rdev: int = 0
    identity: object = field(default=None, compare=False)


#: Entries by relative path; "" is the root, and all parent directories are included.
Tree = Mapping[str, Entry]
Keep = Callable[[str, bool], bool]


def directory(**values: object) -> Entry:
    return replace(Entry("d"), **values)  # type: ignore[arg-type]


def file(content: bytes = b"", **values: object) -> Entry:
    return replace(Entry("f", mode=0o644, content=content), **values)  # type: ignore[arg-type]


def link(target: str) -> Entry:
    return Entry("l", mode=0o777, content=os.fsencode(target))


def tree(entries: Mapping[str, Entry] | None = None, /, **more: Entry) -> dict[str, Entry]:
    """Makes a tree of the given entries; adds missing parent directories."""
    whole: dict[str, Entry] = {"": directory()}
    for path, entry in {**(entries or {}), **more}.items():
        for parent in parents(path):
            whole.setdefault(parent, directory())
        whole[path] = entry
    return whole


def parents(path: str) -> list[str]:
    """Returns the parent directories of a path, the nearest first, "" last."""
    found = []
    while path:
        path = path.rpartition("/")[0]
        found.append(path)
    return found


def write_tree(whole: Tree, top: str) -> None:
    """Writes ``whole`` to the empty directory ``top``. Foreign owners and devices need root."""
    names: dict[object, str] = {}
    for path in sorted(whole, key=lambda path: (path.count("/"), path)):
        entry = whole[path]
        where = os.path.join(top, path)
        if entry.identity is not None and entry.identity in names:
            os.link(names[entry.identity], where, follow_symlinks=False)
            continue
        if path:
            _make(where, entry)
        if entry.identity is not None:
            names[entry.identity] = where
        os.chown(where, entry.uid, entry.gid, follow_symlinks=False)
        if entry.kind != "l":
            os.chmod(where, entry.mode)
    # From the bottom up, after all entries: new entries would inherit a default ACL and change a directory's time.
    for path in sorted(whole, key=lambda path: path.count("/") if path else -1, reverse=True):
        entry = whole[path]
        where = os.path.join(top, path)
        for name, value in entry.xattrs:
            os.setxattr(where, name, value, follow_symlinks=False)
        os.utime(where, ns=(entry.mtime, entry.mtime), follow_symlinks=False)


def _make(where: str, entry: Entry) -> None:
    if entry.kind == "d":
        os.mkdir(where)
    elif entry.kind == "f":
        with open(where, "xb") as out:
            out.write(entry.content)
    elif entry.kind == "l":
        os.symlink(entry.content, os.fsencode(where))
    elif entry.kind == "p":
        os.mkfifo(where)
    else:
        os.mknod(where, (stat.S_IFCHR if entry.kind == "c" else stat.S_IFBLK) | 0o600, entry.rdev)


_KINDS = {
    stat.S_IFDIR: "d",
    stat.S_IFREG: "f",
    stat.S_IFLNK: "l",
    stat.S_IFIFO: "p",
    stat.S_IFCHR: "c",
    stat.S_IFBLK: "b",
}


def read_tree(top: str) -> dict[str, Entry]:
    """Reads the tree at ``top``; the identity of an entry is its file's device and inode."""
    whole = {}
    todo = [""]
    while todo:
        path = todo.pop()
        where = os.path.join(top, path) if path else top
        status = os.lstat(where)
        kind = _KINDS[stat.S_IFMT(status.st_mode)]
        content = b""
        if kind == "f":
            with open(where, "rb") as source:
                content = source.read()
        elif kind == "l":
            content = os.readlink(os.fsencode(where))
        elif kind == "d":
            todo += [os.path.join(path, name) for name in os.listdir(where)]
        whole[path] = Entry(
            kind,
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            tuple(
                (name, os.getxattr(where, name, follow_symlinks=False))
                for name in sorted(os.listxattr(where, follow_symlinks=False))
            ),
            content,
            status.st_rdev if kind in "bc" else 0,
            None if kind == "d" else (status.st_dev, status.st_ino),
        )
    return whole


def shared_names(whole: Tree) -> set[frozenset[str]]:
    """Returns the sets of names that share one file."""
    names = defaultdict(set)
    for path, entry in whole.items():
        if entry.identity is not None:
            names[entry.identity].add(path)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def remove(whole: dict[str, Entry], path: str) -> None:
    """Removes ``path`` and everything below it."""
    for one in [one for one in whole if one == path or one.startswith(path + "/")]:
        del whole[one]


def lay(
    whole: dict[str, Entry],
    upper: Tree,
    root: str = "",
    keep: Keep = lambda path, is_directory: True,
    implied: Collection[str] = (),
) -> None:
    """Merges ``upper`` over ``whole`` at ``root``.

    :param keep: filters by the path in the finished tree, and by whether it is a directory.
    :param implied: directories of ``upper`` that do not change the attributes of an existing directory.
    """
    if not keep(root, True):
        return
    given = set(whole)
    for way in reversed(parents(root)):
        _put_directory(whole, way, Entry("d", IMPLIED_MODE, mtime=0), existing=True)
    for path in sorted(upper, key=lambda path: path.split("/") if path else []):
        entry = upper[path]
        place = "/".join(name for name in (root, path) if name)
        if not keep(place, entry.kind == "d") or any(not keep(parent, True) for parent in parents(place)):
            continue
        if entry.kind == "d":
            _put_directory(whole, place, entry, existing=path in implied and place in given)
        else:
            remove(whole, place)
            whole[place] = entry


def _put_directory(whole: dict[str, Entry], path: str, entry: Entry, *, existing: bool) -> None:
    there = whole.get(path)
    if there is not None and there.kind == "d":
        if not existing:
            whole[path] = entry
        return
    if there is not None:
        remove(whole, path)
    whole[path] = entry


def stacked(layers: Iterable[Tree]) -> dict[str, Entry]:
    """Returns the tree that a union mount of ``layers``, top first, shows."""
    whole: dict[str, Entry] = {}
    for layer in reversed(list(layers)):
        lay(whole, layer)
    return whole
