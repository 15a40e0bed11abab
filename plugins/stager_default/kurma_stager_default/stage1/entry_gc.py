"""The ``gc`` entrypoint: ``[--debug] [--local-config DIR] UUID``, in the pod's directory. It removes a pod's
cgroups and takes the pod out of its networks. It can be repeated."""

from __future__ import annotations

import sys

from kurma_core.linux import process
from kurma_stager_default.stage1.joining import Joined
from kurma_stager_default.stage1.place import FAILED, Place, Record, Stage1Error, entrypoint, say, told

_CONFIG = "--local-config"


@entrypoint
def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--debug" and not word.startswith(f"{_CONFIG}=")]
    if words[:1] == [_CONFIG]:
        del words[:2]  # run has recorded its own value of this option
    if len(words) != 1 or words[0].startswith("-"):
        say(f"usage: gc [--debug] [{_CONFIG} DIR] UUID")
        return 2
    process.close_others({0, 1, 2})  # plugins must not inherit the caller's other descriptors
    place = Place()
    record = Record.read(place)
    if record is None:
        return 0  # the pod was never run: there is nothing to remove
    if record.process.alive():
        raise Stage1Error(f"the pod runs: process {record.process.pid}")
    # A killed pod has left its cgroups, maybe with processes that are still ending.
    failed = False
    try:
        record.cgroups.kill()
        record.cgroups.remove()
        if "--debug" in sys.argv:
            say(f"removed {', '.join(record.cgroups.directories())}")
    except OSError as error:  # go on with the networks: the caller may not call gc again
        say(told(error))
        failed = True
    joined = Joined.read(place)
    failures = joined.leave() if joined else []
    for text in failures:
        say(text)
    return FAILED if failures or failed else 0
