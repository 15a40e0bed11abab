"""The ``run`` entrypoint: from what stage0 has laid out to a pod's supervisor, which this process becomes.

It runs on the host's root, as root, in the pod's directory, whose lock it holds by ``RKT_LOCK_FD``. What it makes
on the host is a cgroup. All else is in namespaces of its own.
"""

from __future__ import annotations

import os
import stat
import sys

from kurma_core.linux import links, mounts, namespaces, process
from kurma_stager_default.inside import smalljson
from kurma_stager_default.stage1 import groups, root
from kurma_stager_default.stage1.arguments import NONE, RunArguments
from kurma_stager_default.stage1.document import metadata_url, read
from kurma_stager_default.stage1.place import FAILED, Place, Record, Stage1Error, say, told

#: The descriptor of the pod's directory, as the supervisor has it.
LOCK = 3
#: What the supervisor is executed by, in stage1's own root.
_PROGRAM = ("/opt/stager/bin/python3", "-IS", "/opt/stager/pod")


def main() -> int:
    try:
        wanted = RunArguments(sys.argv[1:])
        if os.geteuid() != 0:
            raise Stage1Error("run: not root")
        place = Place()
        _take_lock(place)
        _run(place, wanted)
    except Stage1Error as error:
        say(str(error))
    except OSError as error:
        say(told(error))
    return FAILED


def _take_lock(place: Place) -> None:
    """:raises Stage1Error: there is no such descriptor, or it is of something else."""
    number = os.environ.get("RKT_LOCK_FD", "")
    try:
        given = os.fstat(int(number))
    except (ValueError, OSError):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not an open descriptor") from None
    if not stat.S_ISDIR(given.st_mode) or not os.path.samestat(given, os.stat(place.path)):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not of the pod's directory, {place.path}")
    if int(number) == LOCK:
        os.set_inheritable(LOCK, True)
    else:
        os.dup2(int(number), LOCK)  # the lock is of what is open, not of its number
    process.close_others({0, 1, 2, LOCK})


def _run(place: Place, wanted: RunArguments) -> None:
    notes: list[str] = []
    tree = groups.planned(f"rkt-{wanted.uuid or place.uuid}")
    # First of all: from here on, gc knows what to look for, whenever this process ends.
    Record(process.ProcessIdentity.current(), tree).write(place)
    try:
        groups.make(tree)
        document = read(place, wanted, groups.within(tree), notes.append)
        url = metadata_url(wanted, notes.append)
        for text in notes:
            say(text)
        os.makedirs(f"{place.rootfs}/rkt/status", exist_ok=True)
        userns = -1 if wanted.users is None else _user_namespace(wanted.users)
        namespaces.unshare(namespaces.CLONE_NEWNS)
        if wanted.network == NONE:
            _network_namespace(userns)
        mounts.make_private("/")
        manifest = smalljson.encode(document.value).encode()
        root.enter(place, document, manifest, tree, userns)
    except BaseException:
        tree.remove()  # nobody is in it yet
        raise
    environment = {"HOSTNAME": document.hostname, **({"AC_METADATA_URL": url} if url else {})}
    os.execve(_PROGRAM[0], [*_PROGRAM, *(["--debug"] if wanted.debug else [])], environment)  # noqa: S606


def _user_namespace(users: tuple[int, int]) -> int:
    """A descriptor of one with these ids; its only process, which it takes to make it, has gone."""
    ready, told_ready = os.pipe()
    go, told_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told_go)
            namespaces.unshare(namespaces.CLONE_NEWUSER)
            os.write(told_ready, b"R")
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(told_ready)
    os.close(go)
    try:
        if not os.read(ready, 1):
            raise Stage1Error("--private-users: this kernel makes no user namespaces here")
        namespaces.write_maps(pid, [(0, *users)], [(0, *users)])
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(told_go)
        os.waitpid(pid, 0)


def _network_namespace(userns: int) -> None:
    """One of its own, with nothing but the loopback interface; it belongs to the pod's user namespace."""
    if userns < 0:
        namespaces.unshare(namespaces.CLONE_NEWNET)
        links.raise_lo()
        return
    made, told_made = os.pipe()
    go, told_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(told_go)
            namespaces.setns(userns, namespaces.CLONE_NEWUSER)
            namespaces.unshare(namespaces.CLONE_NEWNET)
            links.raise_lo()
            os.write(told_made, b"R")
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(told_made)
    os.close(go)
    try:
        if not os.read(made, 1):
            raise Stage1Error("--private-users: no network namespace could be made under it")
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.setns(fd, namespaces.CLONE_NEWNET)
        os.close(fd)
    finally:
        os.close(made)
        os.close(told_go)
        os.waitpid(pid, 0)
