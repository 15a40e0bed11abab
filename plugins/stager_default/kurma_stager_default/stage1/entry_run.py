"""The ``run`` entrypoint: from what stage0 has laid out to a pod's supervisor, which this process becomes.

It runs on the host's root, as root, in the pod's directory, whose lock it holds by ``RKT_LOCK_FD``. What it makes
on the host is a cgroup, and by plugins what the pod's networks need. All else is in namespaces of its own.
"""

from __future__ import annotations

import os
import stat
import sys

from kurma_core.formats import small_json
from kurma_core.linux import mounts, namespaces, process
from kurma_stager_default.stage1 import groups, root, spaces
from kurma_stager_default.stage1.arguments import RunArguments
from kurma_stager_default.stage1.document import metadata_url, read
from kurma_stager_default.stage1.joining import Joined
from kurma_stager_default.stage1.networks import choose, publish
from kurma_stager_default.stage1.place import Place, Record, Stage1Error, entrypoint, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from kurma_stager_default.stage1.document import Document

#: The descriptor of the pod's directory, as the supervisor has it.
LOCK = 3
#: What the supervisor is executed by, in stage1's own root.
_PROGRAM = ("/opt/stager/bin/python3", "-IS", "/opt/stager/pod")


@entrypoint
def main() -> int:
    wanted = RunArguments(sys.argv[1:])
    if os.geteuid() != 0:
        raise Stage1Error("run: not root")
    place = Place()
    _take_lock(place)
    _run(place, wanted)


def _take_lock(place: Place) -> None:
    """:raises Stage1Error: there is no such descriptor, or it is of something else."""
    number = os.environ.get("RKT_LOCK_FD", "")
    try:
        given = os.fstat(int(number))
    except (ValueError, OSError):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not an open descriptor") from None
    if not stat.S_ISDIR(given.st_mode) or not os.path.samestat(given, os.stat(place.path)):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not of the pod's directory, {place.path}")
    if int(number) != LOCK:
        os.dup2(int(number), LOCK)  # the lock is of what is open, not of its number
    os.set_inheritable(LOCK, False)  # the supervisor's, and no plugin's
    process.close_others({0, 1, 2, LOCK})


def _run(place: Place, wanted: RunArguments) -> NoReturn:
    notes: list[str] = []
    tree = groups.planned(f"rkt-{wanted.uuid or place.uuid}")
    earlier = Joined.read(place)
    # First of all: from here on, gc knows what to look for, whenever this process ends.
    Record(process.ProcessIdentity.current(), tree).write(place)
    home = _Home()
    joined = None
    gone = False
    try:
        groups.make(tree)
        document = read(place, wanted, groups.within(tree), notes.append)
        userns = -1 if wanted.users is None else spaces.user_namespace(wanted.users)
        netns = -1 if wanted.networks is None else spaces.network_namespace(userns)
        joined = _join(place, wanted, document, netns, earlier)
        document.show_names(joined.dns if joined else {})
        url = metadata_url(wanted, joined.gateway if joined else "", notes.append)
        for text in notes + (joined.told() if joined and wanted.debug else []):
            say(text)
        os.makedirs(f"{place.rootfs}/rkt/status", exist_ok=True)
        gone = True
        namespaces.unshare(namespaces.CLONE_NEWNS)
        if netns >= 0:
            namespaces.setns(netns, namespaces.CLONE_NEWNET)
        mounts.make_private("/")
        manifest = small_json.encode_valid(document.value).encode()
        root.enter(place, document, manifest, tree, userns)
    except BaseException:
        if gone:
            home.enter(place)
        for text in joined.leave() if joined else []:
            say(text)
        tree.remove()  # nobody is in it yet
        raise
    environment = {"HOSTNAME": document.hostname, **({"AC_METADATA_URL": url} if url else {})}
    os.set_inheritable(LOCK, True)
    words = [word for word, said in (("--debug", wanted.debug), ("--all", document.says_its_end)) if said]
    os.execve(_PROGRAM[0], [*_PROGRAM, *words], environment)  # noqa: S606


def _join(
    place: Place, wanted: RunArguments, document: Document, netns: int, earlier: Joined | None
) -> Joined | None:
    """:param earlier: of a ``run`` in this directory that was killed.
    :raises Stage1Error: there is a network that it cannot; it is in none then.
    """
    if earlier is not None and (failures := earlier.leave()):
        raise Stage1Error(failures[0])
    if not wanted.networks:
        return None
    networks = choose(wanted.networks, wanted.local_config)
    publish(networks, document.ports)
    joined = Joined(place, wanted.uuid or place.uuid, wanted.local_config, networks)
    joined.join(netns)
    return joined


class _Home:
    """The namespaces that this process was started in, where what was made can be undone."""

    def __init__(self) -> None:
        self._fds = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]

    def enter(self, place: Place) -> None:
        """:param place: whose directory this process is in then, as it was."""
        for fd in self._fds:
            namespaces.setns(fd)
        os.chdir(place.path)
