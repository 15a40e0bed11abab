"""The ``run`` entrypoint: sets up a pod from stage0's files, and executes the pod's supervisor.

It runs on the host's root, as root, in the pod's directory, whose lock it holds by ``RKT_LOCK_FD``. On the host it
makes a cgroup, and plugins set up the pod's networks. Everything else is in namespaces of the pod.
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

#: The supervisor's descriptor of the pod's directory, which holds the lock.
LOCK = 3
#: The supervisor's command, in stage1's own root.
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
    """Moves the lock's descriptor to :data:`LOCK`. :raises Stage1Error: ``RKT_LOCK_FD`` is not a descriptor of the
    pod's directory."""
    number = os.environ.get("RKT_LOCK_FD", "")
    try:
        given = os.fstat(int(number))
    except (ValueError, OSError):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not an open descriptor") from None
    if not stat.S_ISDIR(given.st_mode) or not os.path.samestat(given, os.stat(place.path)):
        raise Stage1Error(f"RKT_LOCK_FD={number}: not of the pod's directory, {place.path}")
    if int(number) != LOCK:
        os.dup2(int(number), LOCK)  # the lock belongs to the file description, which the copy shares
    os.set_inheritable(LOCK, False)  # plugins must not inherit the lock
    process.close_others({0, 1, 2, LOCK})


def _run(place: Place, wanted: RunArguments) -> NoReturn:
    notes: list[str] = []
    tree = groups.planned(f"rkt-{wanted.uuid or place.uuid}")
    earlier = Joined.read(place)
    # Write the record first, so that gc finds all resources even if this process is killed.
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
        tree.remove()  # no process is in it yet
        raise
    environment = {"HOSTNAME": document.hostname, **({"AC_METADATA_URL": url} if url else {})}
    os.set_inheritable(LOCK, True)
    words = [word for word, said in (("--debug", wanted.debug), ("--all", document.says_its_end)) if said]
    os.execve(_PROGRAM[0], [*_PROGRAM, *words], environment)  # noqa: S606


def _join(
    place: Place, wanted: RunArguments, document: Document, netns: int, earlier: Joined | None
) -> Joined | None:
    """Joins the pod to its networks. :param earlier: the networks of a killed ``run`` in this directory, left
    first.

    :raises Stage1Error: a network cannot be joined; the pod is in none then.
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
    """The namespaces that this process was started in, to which it returns to undo its work."""

    def __init__(self) -> None:
        self._fds = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]

    def enter(self, place: Place) -> None:
        """Returns to the namespaces, and to the pod's directory."""
        for fd in self._fds:
            namespaces.setns(fd)
        os.chdir(place.path)
