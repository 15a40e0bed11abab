"""The ``stop`` entrypoint: ``[--force] UUID``, in the pod's directory. It stops or kills a pod."""

from __future__ import annotations

import sys

from kurma_core.linux import process
from kurma_stager_default.stage1.place import Place, Record, Stage1Error, entrypoint, say

_SIGTERM, _SIGKILL = 15, 9
#: Seconds to wait for the end of a killed supervisor.
_PATIENCE = 10.0


@entrypoint
def main() -> int:
    words = sys.argv[1:]
    force = words[:1] == ["--force"]
    if len(words) != 1 + force or words[-1].startswith("-"):
        say("usage: stop [--force] UUID")
        return 2
    record = Record.read(Place())
    fd = None if record is None else record.process.open()
    if record is None or fd is None:
        return 0  # it does not run
    try:
        process.pidfd_send_signal(fd, _SIGKILL if force else _SIGTERM)
    except ProcessLookupError:
        return 0
    if force:
        # The pod's PID 1 ends with the supervisor, and with it all processes of the pod.
        if not process.wait_pidfd(fd, _PATIENCE):
            raise Stage1Error(f"process {record.process.pid} does not die: it hangs in the kernel")
        record.cgroups.kill()
    return 0
