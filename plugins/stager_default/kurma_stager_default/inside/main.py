"""The stager's main program (Kurma Stager Specification, Execution): from exec to the pod's end.

It stays in the host's PID namespace; the pod's own PID namespace is that of its children.
"""

from __future__ import annotations

import gc
import os
import sys

from kurma_core.linux import landlock, mounts, namespaces, process
from kurma_stager_default.inside import approot, become, init, manifest, podgroups, supervisor

#: The descriptor whose closing says that the pod runs (G3).
RUNNING = 4


def main() -> int:
    gc.disable()  # nothing here makes cycles in bulk; collected by hand where an execution has ended
    process.close_others({0, 1, 2, RUNNING})
    try:
        os.set_inheritable(RUNNING, False)
        return _serve()
    except Exception as error:  # noqa: BLE001 - whatever it is, its last word is what the user is shown
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        print(f"kurma stager: {reason}", file=sys.stderr, flush=True)
        return 1


def _serve() -> int:
    pod = manifest.load()
    groups = podgroups.PodGroups()
    groups.make_way()
    groups.apply_pod(pod.plan)
    namespaces.unshare(namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS)
    namespaces.set_hostname(pod.hostname)
    _sysctls(pod.plan.sysctls)
    for directory, mode in (
        ("/pod/logs", 0o755),
        ("/pod/apps", 0o700),
        (approot.PLACE, 0o755),
        (approot.SHM, 0o755),
    ):
        os.makedirs(directory, mode, exist_ok=True)
    _shared_memory(approot.SHM)
    # PID 1 is a copy of this process. What neither of the two writes to again is there once: so now, when all
    # is loaded, and with the collector's marks out of the way.
    gc.freeze()
    requests, stop = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    first, ready = init.start(stop)
    os.close(stop)
    serving = supervisor.Supervisor(pod, groups, RUNNING, first, requests, _take_stdin(pod), _notes(pod))
    init.await_ready(ready)
    code = serving.run()
    init.end(first)
    if serving.broken is not None:
        print(f"kurma stager: {serving.broken}", file=sys.stderr, flush=True)
    return code


def _notes(pod: manifest.Pod) -> list[str]:
    """What holds, and what does not (H2)."""
    notes = [_landlock_note()]
    mounting = [app.name for app in pod.apps if not become.needs_domain(app.plan)]
    return notes + [f"app {name}: no Landlock domain, since it may mount (CAP_SYS_ADMIN)" for name in mounting]


def _landlock_note() -> str:
    if landlock.usable():
        return "landlock: each app has a domain of its own; apps do not reach each other through /proc"
    return "landlock: not on this kernel; apps of the same user and capabilities reach each other through /proc"


def _sysctls(values: dict[str, str]) -> None:
    """They were checked to be the namespaces' own before they came here."""
    for name, value in values.items():
        path = "/proc/sys/" + name.replace(".", "/")
        if ".." in path:
            raise ValueError(f"not a sysctl: {name!r}")
        with open(path, "w") as file:
            file.write(value)


def _shared_memory(place: str) -> None:
    """One ``/dev/shm`` for the pod, as it has one IPC namespace."""
    attributes = mounts.ATTR_NOSUID | mounts.ATTR_NODEV | mounts.ATTR_NOEXEC
    memory = mounts.new_filesystem("tmpfs", {"mode": "1777", "size": "64m"}, attributes)
    mounts.move_mount_to(memory, place)
    os.close(memory)


def _take_stdin(pod: manifest.Pod) -> int:
    """Our standard input, put aside for the app that wants it; ours is empty then, and holds nothing open."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    stdin = -1
    if any(app.stdin for app in pod.apps):
        stdin = os.dup(0)
    os.dup2(null, 0)
    os.close(null)
    return stdin
