"""The whole life of many pods, some at a time: started, entered, their logs read, stopped, removed. The machine is
looked at before and after. By hand: ``./dev soak pods [N]``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from tests.kit.waiting import until

#: Pods at a time.
ABREAST = 10
_SCRIPT = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.1; done"


def machine(state):
    """What there is of pods on this machine, and what this process holds: text lines, each a thing.

    :param state: the state directory.
    """
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if not fields[4].startswith("/run/netns"):
                found.append(f"mount {fields[4]} {fields[fields.index('-') + 1]}")
    found += [f"network namespace {name}" for name in _listed("/run/netns")]
    for hierarchy in ["/sys/fs/cgroup", *[f"/sys/fs/cgroup/{name}" for name in _listed("/sys/fs/cgroup")]]:
        found += [f"cgroup {hierarchy} {name}" for name in _listed(f"{hierarchy}/kurma") if name in _made]
    found += [f"link {line.split(':')[1].strip().split('@')[0]}" for line in _said("ip", "-o", "link")]
    found += [f"address {line.split('    ')[1].split(' brd')[0]}" for line in _said("ip", "-o", "-4", "addr")]
    found += [f"rule {line}" for line in _said("iptables-save") if line.startswith("-A")]
    found += [f"lease {name}" for name in _listed("/var/lib/cni/networks/default") if name[:1].isdigit()]
    found += [f"pod {name}" for name in _listed(f"{state}/pods")]
    found += [f"name {name}" for name in _listed(f"{state}/pods/names")]
    found += [f"process {line}" for line in _processes(state)]
    return sorted(found)


def _processes(state):
    """Stagers, and what is below them: whoever has a root that is mounted from this state directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/mountinfo") as file:
                if f"{state}/" in file.read() and not _is_of_us(int(pid)):
                    with open(f"/proc/{pid}/comm") as comm:
                        found.append(f"{pid} {comm.read().strip()}")
        except OSError:
            continue
    return found


def _is_of_us(pid):
    return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")


def _listed(path):
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def held():
    """Descriptors and kilobytes of this process."""
    with open("/proc/self/smaps_rollup") as file:
        private = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return len(os.listdir("/proc/self/fd")), private


_launching = threading.Lock()
#: UUIDs of our pods: cgroups are shared by the whole machine.
_made: set[str] = set()


def whole_life(house, net):
    """Of one pod, each command by a process or a client of its own."""
    with _launching:  # the house numbers its commands
        run = house.launch(_SCRIPT, net=net, wait=None)
    _made.add(run.uuid)
    run.wait_state("running")
    run.wait_output("up")
    with house.connect() as client:
        null = os.open("/dev/null", os.O_RDWR)
        try:
            from kurma_core.api.pods import EnterRequest
            from kurma_core.models.streams import Stdio

            assert client.enter(run.uuid, EnterRequest(exec=("/bin/true",)), Stdio(null, null, null)) == 0
        finally:
            os.close(null)
        record = client.stop(run.uuid)
        assert (record.state, record.exit_code) == ("stopped", 4), record.reason
        text = b"".join(line.text for line in client.logs(run.uuid, None))
        assert text == b"upbye", text
        assert run.wait(60) == 4
        client.rm(run.uuid)


def many(house, count, net="default"):
    """The lives of so many pods, :data:`ABREAST` at a time. :returns: what went wrong, a line each."""
    left = list(range(count))
    lock = threading.Lock()
    wrong = []

    def worker():
        while True:
            with lock:
                if not left:
                    return
                number = left.pop()
            try:
                whole_life(house, net)
            except Exception as error:  # noqa: BLE001 - told with the others
                with lock:
                    wrong.append(f"pod {number}: {type(error).__name__}: {error}")

    workers = [threading.Thread(target=worker) for _ in range(min(ABREAST, count))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return wrong


def settled(house, before):
    """What is there that was not before, once everything had its time. :returns: (too many, missing)."""

    def differs():
        now = machine(house.state)
        return sorted(set(now) - set(before)), sorted(set(before) - set(now))

    try:
        until(lambda: differs() == ([], []), "the machine as it was", 10)
    except AssertionError:
        return differs()
    return [], []


def soak(house, count):
    """Prints and :returns: whether the machine is as it was, and nothing went wrong."""
    wrong = many(house, 2)  # what is made once, as the bridge, is there now
    before, (fds, private) = machine(house.state), held()
    began = time.monotonic()
    wrong += many(house, count)
    seconds = time.monotonic() - began
    extra, missing = settled(house, before)
    fds_after, private_after = held()
    print(f"{count} pods, {ABREAST} at a time, in {seconds:.1f} s ({seconds / count * 1000:.0f} ms each)")
    print(f"failed: {len(wrong)}")
    for line in wrong[:5]:
        print(f"  {line}")
    print(f"left on the machine: {len(extra)}; gone from it: {len(missing)} (of {len(before)} things looked at)")
    for line in (extra + missing)[:20]:
        print(f"  {line}")
    print(f"this process: descriptors {fds} -> {fds_after}, private memory {private} -> {private_after} KiB")
    sys.stdout.flush()
    return not wrong and not extra and not missing and fds_after <= fds
