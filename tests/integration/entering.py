"""The paths that a process resolves between the entry of an app's root and the drop of its rights (H2)."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

from kurma_core.linux.cgroups import Layout
from tests.kit.waiting import until

#: What takes a path, begins or ends the window, or would carry it on elsewhere.
_CALLS = (
    "%file,openat2,open_tree,move_mount,fspick,mount_setattr,open_by_handle_at,execveat,connect,bind,sendto,sendmsg,"
    "setns,pivot_root,chroot,capset,fork,vfork,clone,clone3"
)
_LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+|\?)(.*)")


#: All that may be resolved there. ``/`` is where it is, whatever the app does.
PERMITTED = {
    'chdir("/")',
    'openat("/")',
    'pivot_root(".", ".")',
    'umount2(".")',
    'openat2("/etc/passwd", RESOLVE_IN_ROOT|RESOLVE_NO_MAGICLINKS)',
    'openat2("/etc/group", RESOLVE_IN_ROOT|RESOLVE_NO_MAGICLINKS)',
    'openat2("dev", RESOLVE_BENEATH|RESOLVE_NO_MAGICLINKS|RESOLVE_NO_SYMLINKS)',
    'openat2("dev/pts/ptmx", RESOLVE_BENEATH|RESOLVE_NO_MAGICLINKS|RESOLVE_NO_SYMLINKS)',
    'openat2("console", RESOLVE_BENEATH|RESOLVE_NO_MAGICLINKS|RESOLVE_NO_SYMLINKS)',
    # A name in a directory that is open; a link of that name is not followed.
    'mknodat("console")',
    # The app's own cgroup: a new tmpfs that no process of the app has seen, with a directory for each hierarchy.
    'openat2("sys/fs/cgroup", RESOLVE_BENEATH|RESOLVE_NO_MAGICLINKS|RESOLVE_NO_SYMLINKS)',
    *(f'fsconfig("{key}", "{value}")' for key, value in (("mode", "0755"), ("nr_inodes", "128"), ("size", "4k"))),
    'fsconfig("source", "tmpfs")',
    *(f'{call}("{one.place}")' for one in Layout.of_host().hierarchies for call in ("mkdirat", "openat")),
    *(f'symlinkat("{one.place}", "{name}")' for one in Layout.of_host().hierarchies for name in one.controllers),
}


class Window:
    """One process from its entry of a root on.

    :attr:`calls`: what it resolved with all its rights; :attr:`program`: what it executed then, empty: nothing.
    """

    def __init__(self):
        self.calls = set()
        self.program = ""

    def __repr__(self):
        return f"<{self.program}: {sorted(self.calls)}>"


def _call(name, words):
    """What matters of a system call; empty: it resolves no path."""
    if '""' in words and "EMPTY_PATH" in words:
        return ""
    if name == "fsconfig" and "FSCONFIG_CMD_CREATE" in words:
        return ""
    if name in ("sendmsg", "sendto") and "sa_family=AF_UNIX" not in words:
        return ""
    paths = re.findall(r'"(?:[^"\\]|\\.)*"(?:\.\.\.)?', words)
    resolve = re.search(r"resolve=([A-Z_|]+)", words)
    rules = [] if resolve is None else ["|".join(sorted(resolve[1].split("|")))]
    return f"{name}({', '.join(paths + rules) or words})"


@contextlib.contextmanager
def traced(directory):
    """Traces this process and all that it starts meanwhile.

    :returns: a function: PIDs and windows of all processes, once it is over.
    """
    file = Path(directory, "trace")
    words = ["-f", "-ff", "-qq", "-s", "400", "-e", "signal=none", "-e", f"trace={_CALLS}"]
    strace = subprocess.Popen(["strace", *words, "-o", file, "-p", str(os.getpid())], stdin=subprocess.DEVNULL)
    try:
        until(lambda: strace.poll() is not None or _tracer() == strace.pid, "strace at this process")
        yield lambda: _windows(file)
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait()


def _tracer():
    text = Path("/proc/self/status").read_text()
    return int(text.partition("TracerPid:")[2].split()[0])


def check(windows, programs):
    """Fails on any path that is not permitted, and where one of the programs was not seen to be executed.

    :param programs: a part of each one's arguments.
    """
    for window in windows:
        # A call-in and the stager itself: their root is the stager's, of which apps have nothing. Their program is
        # looked for there before it is executed.
        looked_for = {call for call in window.calls if '("/opt/stager/' in call}
        own = {'chroot(".")', *looked_for} if '"/opt/stager/' in window.program else set()
        if 'openat("mnt")' in window.calls and not window.program:
            # The spawner's process hands a stager's root and namespaces to the fork server. No app is there yet.
            own = {'openat(".")', 'openat("mnt")', 'openat("net")'}
        assert window.calls <= PERMITTED | own, window
    for program in programs:
        found = [window for window in windows if program in window.program]
        assert found, f"{program} was not executed: {windows}"


def _windows(file):
    found = []
    for each in sorted(file.parent.glob(file.name + ".*")):
        pid = int(each.suffix[1:])
        found += [(pid, window) for window in _of_one(each.read_text(errors="replace").splitlines())]
    return found


def _of_one(lines):
    window, dropped = None, False
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            continue
        name, words, answer, _ = matched.groups()
        if name in ("execve", "execveat"):
            if answer == "0" and window is not None:
                window.program = words
                yield window
                window = None
            continue
        if name == "sendmsg" and 'iov_base="ready"' in words and window is not None:
            # A forked stager: from here on, it is as one that was executed.
            window.program = '"/opt/stager/start", forked'
            yield window
            window = None
            continue
        entered = name in ("pivot_root", "chroot") or (
            name == "setns" and ("CLONE_NEWNS" in words or words.endswith(" 0"))
        )
        if entered and answer == "0":
            if window is None:
                window, dropped = Window(), False
            if name == "setns":
                continue
        if window is None or dropped:
            continue
        if name == "capset":
            dropped = answer == "0"
        elif name != "setns":
            window.calls |= {_call(name, words)} - {""}
    if window is not None:
        yield window
