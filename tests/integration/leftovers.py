"""What tests with real parts may leave behind on a host, and whose it is: hierarchies of cgroups are the whole
machine's, and other runs have pods there, too."""

import glob
import os

BASE = "/sys/fs/cgroup"


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
    # The directories of pinned namespaces are made mounts of their own once per host, as ip-netns(8) does.
    return {mount for mount in found if not mount.startswith(("mount /run/netns (", "mount /run/kurma/userns ("))}


def cgroups(ours):
    """The pods' cgroups on every hierarchy, without those that are known to be another run's.

    :param ours: this run's directory for temporary files.
    """
    found = set()
    for hierarchy in [BASE, *[f"{BASE}/{name}" for name in names(BASE)]]:
        for pod in names(f"{hierarchy}/kurma"):
            path = f"{hierarchy}/kurma/{pod}"
            if os.path.isdir(path) and not _of_another_run(path, pod, ours):
                found.add(f"cgroup {path}")
    return found


def _of_another_run(path, pod, ours):
    """Whether a process of it has the pod's directory, and that is none of ours. What no process tells of is ours:
    so is what is left of a pod whose directory is gone."""
    if any(glob.glob(f"{ours}/{'*/' * depth}pods/{pod}") for depth in range(1, 5)):
        return False
    for directory, _, _ in os.walk(path):
        try:
            with open(f"{directory}/cgroup.procs") as file:
                pids = file.read().split()
        except OSError:
            continue
        for pid in pids:
            try:
                with open(f"/proc/{pid}/mountinfo") as file:
                    roots = [line.split()[3] for line in file]
            except OSError:
                continue
            if any(f"/pods/{pod}/" in root and not root.endswith("//deleted") for root in roots):
                return True
    return False


def children():
    """Our own children, dead ones too."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {f"child process {pid}" for pid in file.read().split()}


def state(ours):
    """All that a test must leave as it was, in words."""
    return (
        mounts()
        | cgroups(ours)
        | {f"network namespace {name}" for name in names("/run/netns")}
        | {f"link {name}" for name in names("/proc/sys/net/ipv4/conf") if name.startswith("veth")}
        | children()
    )


def fewer(left, now):
    """What is still left.

    A cgroup that was not there when the test ended is another run's: for a moment, one has no process that would
    tell. Names of pods are never used again.
    """
    return {one for one in now if one in left or not one.startswith("cgroup ")}
