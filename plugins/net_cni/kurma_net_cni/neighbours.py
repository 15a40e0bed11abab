"""Other state directories of this host whose pods may be on a network of the same name.

GC tells a plugin which attachments are to stay, and the plugin takes away all others (CNI specification, GC): all
of the host's have to be told then, and none may be added or deleted meanwhile. So whoever adds to a network with
GC leaves a link to its records in one place of the host, for as long as it is up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from kurma_core.errors import NetworkError
from kurma_core.linux.files import lock_file
from kurma_net_cni.records import Records

#: Where the links are; it is empty after a boot, and so are the networks.
OF_THE_HOST = "/run/kurma/cni"


def enrol(state_dir: str, directory: str = OF_THE_HOST) -> None:
    """Leaves the link. Repeatable.

    :raises NetworkError: it cannot be made.
    """
    place = os.path.realpath(state_dir)
    link = os.path.join(directory, hashlib.sha256(os.fsencode(place)).hexdigest()[:16])
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.symlink(place, link)
    except OSError as error:
        raise NetworkError(f"cannot write {link}: {error.strerror}", path=link, errno=error.errno) from error


@contextmanager
def alone(directory: str = OF_THE_HOST) -> Iterator[None]:
    """Nobody else of this host is in here meanwhile, whatever its state directory.

    :raises NetworkError: the lock cannot be taken.
    """
    path = os.path.join(directory, ".chains")
    try:
        lock = lock_file(path)
    except OSError as error:
        raise NetworkError(f"cannot lock {path}: {error.strerror}", path=path, errno=error.errno) from error
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def everybody(state_dir: str, directory: str = OF_THE_HOST) -> Iterator[list[Records]]:
    """The records of all state directories, the own one first. While they are held nothing is added or deleted."""
    own = os.path.realpath(state_dir)
    places = {own}
    with suppress(FileNotFoundError):
        for name in os.listdir(directory):
            with suppress(OSError):
                places.add(os.readlink(os.path.join(directory, name)))
    with ExitStack() as stack:
        found = {}
        for place in sorted(places):  # always in this order: two that do this do not wait for each other
            if place == own or os.path.isdir(place):
                found[place] = Records(place)
                stack.enter_context(found[place].lock(alone=True))
        yield [found.pop(own), *found.values()]
