"""Many pods, ten at a time, of all sorts, by way of a daemon that is killed every few seconds: no exit code
is lost, no line of a log, and nothing is left. By hand: ``./dev soak daemon [N [SEED]]``.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from kurma_core.client.wire import Connection
from kurma_core.errors import KurmaError
from tests.integration.daemon.soak_caller import Caller
from tests.integration.daemon.soak_lives import any_kind
from tests.integration.pods.soak import ABREAST, _listed, _said, machine

#: Pods between two looks at the machine.
BATCH = 250
#: Seconds that a daemon has to live: as often as not, it dies while it recovers what the one before has left.
_LIVES = (0.0, 0.3, 0.8, 1.5, 2.0, 3.0, 4.0, 5.0)
#: Seconds that what is left has to go.
_SETTLED = 30
#: Seconds until a daemon has taken away what others have left half made.
_SWEEPS = 3
#: Samples until a daemon has what it needs, and kilobytes that it may grow from one to the next after them.
_WARM, _GROWTH = 3, 16


class Daemons:
    """One daemon after the other on one state directory.

    :param house: whose state directory.
    """

    def __init__(self, house):
        self.house = house
        self.socket = f"{house.state}/run/kurmad.sock"
        self.log = Path(
            f"{house.state}/soak-{os.getpid()}-kurmad.log"
        )  # its own: other tests' daemons have written there, too
        which = ["--dir", house.state, "--config", house.config_file]
        self._command = [sys.executable, "-m", "kurma_core.cli.main", *which, "daemon"]
        self.process = None
        self.killed = 0

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_up(self):
        deadline = time.monotonic() + 30
        while (connection := Connection.open(self.socket, required=False)) is None:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.02)
        connection.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.killed += 1

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert code == 0, f"kurmad ended with {code}: {self.log.read_text()[-2000:]}"

    def held(self):
        """Descriptors, threads and kilobytes of the one that runs."""
        pid = self.process.pid
        with open(f"/proc/{pid}/smaps_rollup") as file:
            private = sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
        return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), private

    def complaints(self):
        """Lines of its log that should not be there."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"Traceback|[Ee]rror\b|failed|cannot|not complete", line)]


class Killer(threading.Thread):
    """Kills the daemon, every few seconds, and starts another."""

    def __init__(self, daemons, seed):
        super().__init__(name="killer", daemon=True)
        self._daemons = daemons
        self._random = random.Random(seed)
        self._over = threading.Event()

    def run(self):
        while True:
            if not self._random.randrange(3):
                # It dies at some moment of its own start.
                pause = self._random.uniform(0, 1)
            else:
                self._daemons.wait_up()
                pause = self._random.choice(_LIVES)
            if self._over.wait(pause):
                return
            self._daemons.kill()
            self._daemons.start()

    def end(self):
        self._over.set()
        self.join()
        self._daemons.wait_up()


class Soak:
    """:param kills: whether the daemon is killed."""

    def __init__(self, house, seed, *, kills=True):
        self.house = house
        self.seed = seed
        self.kills = kills
        self.daemons = Daemons(house)
        self.wrong = []
        self.uuids = set()
        self._number = 0
        self._lock = threading.Lock()

    def batch(self, count):
        """So many lives, to their ends and removal."""
        left = list(range(self._number, self._number + count))
        self._number += count
        lived = []

        def worker():
            caller = Caller(self.house, self.daemons.socket)
            try:
                while True:
                    with self._lock:
                        if not left:
                            return
                        number = left.pop(0)
                    self._one(caller, number, lived)
            finally:
                caller.close()

        killer = Killer(self.daemons, self.seed + self._number) if self.kills else None
        workers = [threading.Thread(target=worker) for _ in range(min(ABREAST, count))]
        for each in (*workers, *filter(None, (killer,))):
            each.start()
        for each in workers:
            each.join()
        if killer is not None:
            killer.end()
        caller = Caller(self.house, self.daemons.socket)
        for number, life in lived:
            # Once more, when many other things have happened.
            life.caller = caller
            self._guarded(number, life, life.check)
            self._guarded(number, life, lambda life=life: caller.remove(life.uuid))
        caller.close()

    def _one(self, caller, number, lived):
        generator = random.Random(self.seed * 1_000_003 + number)
        life = any_kind(generator)(caller, generator.random())
        with self._lock:
            self.uuids.add(life.uuid)
        if self._guarded(number, life, life.live) and self._guarded(number, life, life.check):
            self.uuids.add(life.uuid)
            if generator.random() < 0.7:
                self._guarded(number, life, lambda: caller.remove(life.uuid))
            else:
                lived.append((number, life))

    def _guarded(self, number, life, do):
        try:
            do()
        except Exception as error:  # noqa: BLE001 (told with the others)
            with self._lock:
                text = " ".join(str(error).split())
                what = f"pod {number} {life.uuid} {type(life).__name__}: {type(error).__name__}: {text}"
                self.wrong.append(what)
                print(what[:600], flush=True)
            self._show_and_remove(life)
            return False
        return True

    def _show_and_remove(self, life):
        """What is wrong with it is told; the others go on without it."""
        with contextlib.suppress(OSError):
            with open(f"{self.house.state}/pods/{life.uuid}/state.json") as file:
                print("  " + " ".join(file.read().split())[:1500], flush=True)
        with contextlib.suppress(KurmaError):
            life.caller.remove(life.uuid, force=True)

    # -- looking --

    def there(self):
        """What there is on the machine that pods could have left: lines, each a thing."""
        state = self.house.state
        found = [line for line in machine(state) if not line.startswith("process ")]
        found += [f"rule {line.strip()}" for line in _said("nft", "list", "ruleset") if " counter " not in line]
        for hierarchy in ["/sys/fs/cgroup", *[f"/sys/fs/cgroup/{name}" for name in _listed("/sys/fs/cgroup")]]:
            found += [f"cgroup {hierarchy} {name}" for name in _listed(f"{hierarchy}/kurma") if name in self.uuids]
        for directory, _, files in os.walk(state):
            found += [f"directory {directory}", *[f"file {directory}/{name}" for name in files]]
        for place in ("/run/kurma", "/var/lib/cni", "/run/lock"):
            for directory, _, files in os.walk(place):
                found += [f"file {directory}/{name}" for name in files]
        found += self._processes()
        return sorted(
            {line for line in found if not line.endswith(("kurmad.log", "kurmad.sock")) and "/events/" not in line}
        )

    def _processes(self):
        """All in our network, whoever they are, and all that have something of the state directory mounted."""
        ours, found = os.stat("/proc/self/ns/net").st_ino, []
        mounts = os.stat("/proc/self/ns/mnt").st_ino
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in (os.getpid(), self.daemons.process.pid):
                continue
            try:
                net, mnt = (os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in ("net", "mnt"))
                with open(f"/proc/{pid}/cmdline") as file, open(f"/proc/{pid}/mountinfo") as mountinfo:
                    text = file.read().replace("\0", " ").strip()
                    there = net == ours or (mnt != mounts and f"{self.house.state}/" in mountinfo.read())
                with open(f"/proc/{pid}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if there and parent != self.daemons.process.pid:
                found.append(f"process {pid} {text}")
        return found

    def settled(self, before):
        """Once everything had its time: (too many, missing)."""
        deadline = time.monotonic() + _SETTLED
        while True:
            now = self.there()
            extra, missing = sorted(set(now) - set(before)), sorted(set(before) - set(now))
            if not (extra or missing) or time.monotonic() > deadline:
                return extra, missing
            time.sleep(0.2)

    def run(self, count, warm_up=20):
        """Prints, and :returns: whether nothing went wrong and the machine is as it was."""
        self.daemons.start()
        self.daemons.wait_up()
        kills, self.kills = self.kills, False
        self.batch(warm_up)  # what is made once, as the bridge, is there now
        self.kills = kills
        self.daemons.end()
        before = self.there()
        self.daemons.start()
        self.daemons.wait_up()
        time.sleep(1)
        held, done, began = [self.daemons.held()], 0, time.monotonic()
        while done < count:
            size = min(BATCH, count - done)
            self.batch(size)
            done += size
            extra, missing = self._rest(before)
            held.append(self.daemons.held())
            print(
                f"{done} pods, {time.monotonic() - began:.0f} s; kurmad killed {self.daemons.killed} times; "
                f"wrong: {len(self.wrong)}; left: {len(extra)}; gone: {len(missing)}; kurmad has "
                "{} descriptors, {} threads, {} kB".format(*held[-1]),
                flush=True,
            )
            for line in (*extra, *missing)[:20]:
                print(f"  {line}", flush=True)
            if extra or missing:
                self.wrong.append(f"after {done} pods the machine is another: {(extra + missing)[:3]}")
                before = self.there()
        self.daemons.end()
        for line in self.daemons.complaints()[:20]:
            print(f"  log: {line}")
        return not self.wrong and not self.daemons.complaints()

    def steady(self, count, every=100):
        """So many more, under one daemon that nobody kills. Prints, and :returns: whether that stays as it is."""
        self.kills = False
        self.daemons.start()
        self.daemons.wait_up()
        held = []
        for _ in range(count // every):
            self.batch(every)
            time.sleep(1)
            held.append(self.daemons.held())
            print("one kurmad, {} pods: {} descriptors, {} threads, {} kB".format(len(held) * every, *held[-1]))
        self.daemons.end()
        fds, threads, private = ([each[place] for each in held] for place in range(3))
        growth = slope(private[_WARM:]) if len(private) >= 2 * _WARM else 0
        print(f"its memory grows by {growth:.1f} kB for each {every} pods; wrong: {len(self.wrong)}", flush=True)
        return not self.wrong and fds[-1] <= fds[0] and threads[-1] <= max(threads[:_WARM]) and growth < _GROWTH

    def _rest(self, before):
        """What the machine has too many or too few of, while no pod is there, and no daemon."""
        time.sleep(_SWEEPS)
        self.daemons.end()
        found = self.settled(before)
        self.daemons.start()
        self.daemons.wait_up()
        time.sleep(1)
        return found


def slope(values):
    """Of the line through so many values: from one to the next."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
