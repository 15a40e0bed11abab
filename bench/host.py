"""A private host for measurements: mounts, network and processes of its own, all gone with it.

Podman keeps locks and networks below ``/etc`` and ``/var/lib``; both are overlays here, thrown away at the end.
cgroups are the one thing that no namespace takes away: everybody is given a parent of our own, removed outside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

_WORK = "KURMA_BENCH_HOST"
#: Kurma's state directories, in the work directory.
STATES = ("kurma", "crowded", "stage1", "stage1-crowded")
#: Seconds for one whole run; then it is ended.
LIMIT = 1800


def enter() -> str:
    """Goes on in the private host; the first call never returns, the program is run again inside.

    :returns: the work directory, removed at the end.
    """
    work = os.environ.get(_WORK)
    if work is None:
        sys.exit(_outside())
    _become_child()
    _mounts(work)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return work


def cgroup_parent(work: str) -> str:
    """The name of a cgroup, below the root of each hierarchy, for everything that a peer makes."""
    return os.path.basename(work)


def _outside() -> int:
    """Runs the program in the host, and takes away what outlives it."""
    if os.geteuid() != 0:
        print("bench: only root can make namespaces and cgroups: run it as root", file=sys.stderr)
        return 125
    work = tempfile.mkdtemp(prefix="kurma-bench.")
    words = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    words += ["--propagation", "private", "--", sys.executable, *sys.argv]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KURMA_")}
    # As installed: compiled modules are kept. Nothing of the caller's own Python comes in.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME"):
        environment.pop(name, None)
    environment |= {_WORK: work, "LC_ALL": "C.UTF-8"}
    host = subprocess.Popen(words, env=environment)

    def ended(number: int, _: object) -> None:
        host.kill()

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGHUP, ended)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's reaches the inside, too
    try:
        code = host.wait(LIMIT)
        return code if code >= 0 else 128 - code
    except subprocess.TimeoutExpired:
        host.kill()
        host.wait()
        print(f"bench: ended after {LIMIT} s", file=sys.stderr)
        return 124
    finally:
        _remove_cgroups(work)
        shutil.rmtree(work, ignore_errors=True)


def _become_child() -> None:
    """PID 1 only reaps: peers leave orphans behind."""
    child = os.fork()
    if child == 0:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _mounts(work: str) -> None:
    scratch = f"{work}/scratch"
    os.mkdir(scratch)
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", scratch)
    for place in ("/etc", "/var/lib"):
        upper, below = f"{scratch}{place}/upper", f"{scratch}{place}/work"
        os.makedirs(upper)
        os.makedirs(below)
        _mount("-t", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={below}", "overlay", place)
    _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    os.makedirs("/run/lock")


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def _remove_cgroups(work: str) -> None:
    """Those of the peers, and of pods whose kurma was killed; their processes are dead by now."""
    pods: list[str] = []
    for state in STATES:
        with contextlib.suppress(FileNotFoundError):
            pods += os.listdir(f"{work}/{state}/pods")
    for _ in range(50):
        left = [path for path in _cgroups(cgroup_parent(work), pods) if not _removed(path)]
        if not left:
            return
        time.sleep(0.1)
    print(f"bench: cgroups are left: {' '.join(left)}", file=sys.stderr)


def _cgroups(parent: str, pods: list[str]) -> list[str]:
    """Their directories, deepest first."""
    hierarchies = ["/sys/fs/cgroup"]
    hierarchies += [entry.path for entry in os.scandir("/sys/fs/cgroup") if entry.is_dir(follow_symlinks=False)]
    found = []
    for hierarchy in hierarchies:
        for name in (parent, *(f"kurma/{pod}" for pod in pods)):
            for directory, _, _ in os.walk(f"{hierarchy}/{name}", topdown=False):
                found.append(directory)
    return found


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
