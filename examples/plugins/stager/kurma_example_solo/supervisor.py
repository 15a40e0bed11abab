"""The stager ``solo``: the process that stands for the pod.

It runs the app, writes its status down, and ends with its exit code. It is root on the host throughout; the app is
root in its chroot, in mount and PID namespaces of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from kurma_core.linux import namespaces, process
from kurma_core.linux.files import replace_file

#: Seconds between the polite signal and the other one. The app is the first process of its PID namespace: a
#: SIGTERM that it has no handler for does not reach it.
PATIENCE = 1


def main(path: str) -> int:
    # kurmad blocks the signals that end it, and the programs that it starts inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(path) as stream:
        setup = json.load(stream)
    if setup["network"] is not None:
        namespaces.enter_netns(setup["network"])
    namespaces.unshare(namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNS)
    child = os.fork()
    if child == 0:
        run(setup)
    record(setup, child, None)

    def stop(number: int, frame: object) -> None:
        os.kill(child, signal.SIGTERM)
        signal.alarm(PATIENCE)

    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(child, signal.SIGKILL))
    signal.signal(signal.SIGTERM, stop)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = code if code >= 0 else 128 - code
    record(setup, child, code)
    return code


def run(setup: dict[str, Any]) -> None:
    """Becomes the app; never returns. It dies with the supervisor, and its PID namespace with it."""
    process.set_pdeathsig(signal.SIGKILL)
    try:
        os.chroot(setup["root"])
        os.chdir("/")
        os.execve(setup["exec"][0], setup["exec"], setup["environment"])  # noqa: S606 (to become the app is the point)
    except OSError as error:
        os.write(2, f"solo: {setup['exec'][0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def record(setup: dict[str, Any], pid: int, code: int | None) -> None:
    exited = code is not None
    status = {"app": setup["app"], "pid": None if exited else pid, "exited": exited, "exitCode": code}
    replace_file(setup["status"], json.dumps(status).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
