"""What tests with real parts may leave behind on a host, and whose it is: hierarchies of cgroups are the whole
machine's, and other runs have pods there, too."""

import glob
import os
import time

BASE = "/sys/fs/cgroup"
#: How deep in a run's directory for temporary files a state directory may be.
_LEVELS = 4
#: By directory: when it was changed, and the directories in it then.
_READ = {}
#: Nanoseconds, more than a file system's clock stands still for.
_TICK = 1_000_000_000


def names(directory):
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def mounts():
    """Mount point and file system of every mount of this namespace."""
    found = set()
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            found.add(f"mount {fields[4]} ({fields[fields.index('-') + 1]})")
    # The directory of network namespaces is made a mount of its own once per host, by ip-netns(8), too.
    return {mount for mount in found if not mount.startswith("mount /run/netns (")}


def cgroups():
    """The pods' cgroups on every hierarchy, by pod."""
    found = {}
    for hierarchy in [BASE, *[f"{BASE}/{name}" for name in names(BASE)]]:
        for pod in names(f"{hierarchy}/kurma"):
            if os.path.isdir(f"{hierarchy}/kurma/{pod}"):
                found.setdefault(pod, set()).add(f"{hierarchy}/kurma/{pod}")
    return found


def whose(pod, paths, ours, over=frozenset()):
    """``"ours"``, where this run has such a pod; ``"theirs"``, where a process of it has the pod's directory, and
    that is none of ours; None: nothing tells, as for a moment at each pod's start and end.

    :param paths: of its cgroups.
    :param ours: this run's directory for temporary files.
    :param over: names in it where nobody looks for the pod: there are thousands of directories in those of tests
        that are over.
    """
    # Those to come have another name until then.
    places = _places(ours, over)
    if any(os.path.lexists(f"{place}/{pod}") or glob.glob(f"{place}/.half-{pod}.*") for place in places):
        return "ours"
    directories = [directory for path in paths for directory, _, _ in os.walk(path)]
    pids = {pid for directory in directories for pid in _lines(f"{directory}/cgroup.procs")}
    mounted = [root for pid in pids for root in _mounted(pod, pid)]
    if any(f"{ours}/" in root for root in mounted):
        return "ours"
    return "theirs" if mounted or any(_is_anothers(pid) for pid in pids) else None


def _is_anothers(pid):
    """Whether a process was started by another run, as stagers are that wait for pods to come. Each run has a
    mount namespace of its own (``tests/host``)."""
    if _host(pid) not in (None, _host("self")):
        return True  # it is in that one itself, as a stage1 image's programs may be
    found = False
    while pid not in ("0", "1", None):
        try:
            if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                return False
            with open(f"/proc/{pid}/environ", "rb") as file:
                found = found or b"KURMA_TEST_HOST=1" in file.read().split(b"\0")
        except OSError:
            return False  # it has gone
        pid = next((line.split()[1] for line in _lines(f"/proc/{pid}/status") if line.startswith("PPid:")), None)
    return found


def _host(pid):
    """What tells the host that a process is in; None: in no run's, or it sees nothing of that."""
    found = None
    for line in _lines(f"/proc/{pid}/mountinfo"):
        if " /var/lib " in line and "upperdir=/run/host/upper" in line:
            found = line.split()[2]  # the last one: it covers the others
    return found


def _places(ours, over):
    """Where there are pods' directories, in a few levels of ours."""
    level = [f"{ours}/{name}" for name in _below(ours) if name not in over]
    for number in range(_LEVELS):
        if number:
            level = [f"{directory}/{name}" for directory in level for name in _below(directory)]
        yield from (f"{directory}/pods" for directory in level if os.path.isdir(f"{directory}/pods"))


def _below(directory):
    """Names of the directories in one. It is read again when it has changed: there are whole images among them,
    and every test asks."""
    try:
        changed = os.stat(directory).st_mtime_ns
        if _READ.get(directory, (None,))[0] != changed:
            with os.scandir(directory) as entries:
                found = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
            # A change that follows at once may leave the same time.
            _READ[directory] = changed if time.time_ns() - changed > _TICK else None, found
    except OSError:
        return []  # it has gone
    return _READ[directory][1]


def _mounted(pod, pid):
    """The directories of the pod that the process has mounted, as their file system knows them."""
    roots = [line.split()[3] for line in _lines(f"/proc/{pid}/mountinfo")]
    found = (root for root in roots if f"/pods/{pod}/" in root or f"/pods/.half-{pod}." in root)
    return [root for root in found if not root.endswith("//deleted")]


def _lines(path):
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


class Suspects:
    """Cgroups that somebody has left, and nothing tells who. Another run's will go by themselves; what is still
    there when this run ends is this run's."""

    def __init__(self, ours):
        self._ours = ours
        self._found = {}
        self._over = frozenset()

    def left_since(self, before, test):
        """Cgroups of this run that were not there ``before``; what is doubtful is noted under the test's name."""
        left = set()
        for pod, paths in cgroups().items():
            if pod in before:
                continue
            owner = whose(pod, paths, self._ours, self._over)
            if owner == "ours":
                left |= {f"cgroup {path}" for path in paths}
            elif owner is None:
                self._found.setdefault(pod, test)
            else:
                self._found.pop(pod, None)
        return left

    def test_is_over(self):
        """Whatever comes into the directories that tests have by now is told at the end of the run."""
        self._over = frozenset(name for name in names(self._ours) if name.startswith("test_"))

    def left(self):
        """Those that are there yet, with the test that they came with."""
        now = cgroups()
        return {
            f"cgroup kurma/{pod}, since {test}"
            for pod, test in self._found.items()
            if pod in now and whose(pod, now[pod], self._ours) != "theirs"
        }


def children():
    """Our own children, dead ones too."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {f"child process {pid}" for pid in file.read().split()}


def pods(state_directory):
    """The pods that a state directory has."""
    return {name for name in names(f"{state_directory}/pods") if name.count("-") == 4}


def told(state_directory, pod):
    """A pod in words: its record, and the processes that have its owner lock open."""
    directory = f"{state_directory}/pods/{pod}"
    found = [f"pod {pod}", *_lines(f"{directory}/state.json")]
    for pid in filter(str.isdigit, names("/proc")):
        if any(_target(f"/proc/{pid}/fd/{fd}") == f"{directory}/owner.lock" for fd in names(f"/proc/{pid}/fd")):
            found += [f"owner lock: open in {pid}", *_lines(f"/proc/{pid}/cmdline"), *_lines(f"/proc/{pid}/stack")]
    return "\n".join(found)


def _target(link):
    try:
        return os.readlink(link)
    except OSError:
        return None  # it has gone


def links():
    """The network interfaces of this host."""
    return names("/proc/sys/net/ipv4/conf") - {"all", "default"}


def state():
    """All that a test must leave as it was, cgroups aside, in words."""
    return (
        mounts()
        | {f"network namespace {name}" for name in names("/run/netns")}
        | {f"link {name}" for name in links() if name.startswith(("veth", "kv", "kurma"))}
        | children()
    )
