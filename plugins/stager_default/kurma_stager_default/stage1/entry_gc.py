"""The ``gc`` entrypoint: ``[--debug] [--local-config DIR] UUID``, in the pod's directory. Repeatable."""

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
        del words[:2]  # what it says, run was told, and has written down
    if len(words) != 1 or words[0].startswith("-"):
        say(f"usage: gc [--debug] [{_CONFIG} DIR] UUID")
        return 2
    process.close_others({0, 1, 2})  # the caller's, and no plugin's
    place = Place()
    record = Record.read(place)
    if record is None:
        return 0  # it was never run: there is nothing
    if record.process.alive():
        raise Stage1Error(f"the pod runs: process {record.process.pid}")
    # What was killed before its end has left its cgroups, and may have left somebody in them for a moment.
    failed = False
    try:
        record.cgroups.kill()
        record.cgroups.remove()
        if "--debug" in sys.argv:
            say(f"removed {', '.join(record.cgroups.directories())}")
    except OSError as error:  # its networks are left all the same: the caller may not ask again
        say(told(error))
        failed = True
    joined = Joined.read(place)
    failures = joined.leave() if joined else []
    for text in failures:
        say(text)
    return FAILED if failures or failed else 0
