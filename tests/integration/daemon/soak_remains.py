"""What pods, and stagers that wait for some, may leave on a machine."""

import contextlib
import os
import re
import threading

from kurma_core.linux.inotify import IN_CREATE, IN_MOVED_TO, Watch
from tests.integration.pods.soak import _listed, _said, machine

_HALF = re.compile(r"(?:\.half-)?([0-9a-f]{8}-[0-9a-f-]{27})(?:\.|$)")
#: What a stager that waits has: see :meth:`Remains.of_waiting`.
WHOLE = {"directory", "namespace", "record", "cgroup", "process"}
_LASTS = ("kurmad.log", "kurmad.sock")


class Names:
    """UUIDs of all that has been made below a state directory, be it that nobody ever saw it: pods, and pods to
    come. Cgroups are shared by the whole machine, and are told apart by them."""

    def __init__(self, state):
        self._watch = Watch(f"{state}/pods", IN_CREATE | IN_MOVED_TO)
        self._found = set()
        self._lock = threading.Lock()

    def all(self):
        with self._lock:
            while events := self._watch.events():
                for _, _, name in events:
                    if uuid := _HALF.match(name):
                        self._found.add(uuid[1])
            return set(self._found)

    def close(self):
        self._watch.close()


class Remains:
    """:param house: whose. :param daemons: theirs are none."""

    def __init__(self, house, daemons):
        self.state = house.state
        self.daemons = daemons
        os.makedirs(f"{self.state}/pods", 0o700, exist_ok=True)
        self.names = Names(self.state)

    def there(self):
        """Lines, each a thing."""
        state, uuids = self.state, self.names.all()
        found = [line for line in machine(state) if not line.startswith("process ")]
        found += [f"rule {line.strip()}" for line in _said("nft", "list", "ruleset") if " counter " not in line]
        found += [f"cgroup {path}" for path in self.cgroups(uuids)]
        for directory, _, files in os.walk(state):
            found += [f"directory {directory}", *[f"file {directory}/{name}" for name in files]]
        for place in ("/run/kurma", "/var/lib/cni", "/run/lock"):
            for directory, _, files in os.walk(place):
                found += [f"file {directory}/{name}" for name in files]
        found += self._processes(uuids)
        return sorted({line for line in found if not line.endswith(_LASTS) and "/events/" not in line})

    def cgroups(self, uuids=None):
        """Of pods and pods to come, on all hierarchies."""
        known = self.names.all() if uuids is None else uuids
        places = ["/sys/fs/cgroup", *[f"/sys/fs/cgroup/{name}" for name in _listed("/sys/fs/cgroup")]]
        return [f"{place}/kurma/{name}" for place in places for name in _listed(f"{place}/kurma") if name in known]

    def _processes(self, uuids):
        """All in our network, all that have something of the state directory mounted, and all in cgroups of its
        pods, whoever they are."""
        ours, found = os.stat("/proc/self/ns/net").st_ino, []
        mounts = os.stat("/proc/self/ns/mnt").st_ino
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in (os.getpid(), self.daemons.process.pid):
                continue
            try:
                net, mnt = (os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in ("net", "mnt"))
                with open(f"/proc/{pid}/cmdline") as file, open(f"/proc/{pid}/mountinfo") as mountinfo:
                    text = file.read().replace("\0", " ").strip()
                    there = net == ours or (mnt != mounts and f"{self.state}/" in mountinfo.read())
                with open(f"/proc/{pid}/cgroup") as file:
                    there = there or bool(uuids & set(re.split("[/\n]", file.read())))
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if there and parent != self.daemons.process.pid:
                found.append(f"process {pid} {text}")
        return found

    def of_waiting(self):
        """What there is for pods to come, by UUID: kinds of things."""
        uuids, found = self.names.all(), {}
        for name in _listed(f"{self.state}/pods"):
            if name.startswith(".half-") and (uuid := _HALF.match(name)):
                found.setdefault(uuid[1], set()).add("directory")
        for name in _listed("/run/netns"):
            found.setdefault(name.removeprefix("kurma-"), set()).add("namespace")
        for name in _listed(f"{self.state}/networks/pods"):
            found.setdefault(name.partition(".")[0], set()).add("record")
        for path in self.cgroups(uuids):
            kinds = found.setdefault(os.path.basename(path), set())
            kinds.add("cgroup")
            with contextlib.suppress(OSError), open(f"{path}/cgroup.procs") as file:  # it goes just now
                kinds.update(["process"] if file.read() else [])
        return found
