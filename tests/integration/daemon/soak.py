"""Many pods, ten at a time, of all sorts, by way of a daemon that is killed every few seconds: no exit code
is lost, no line of a log, and nothing is left. By hand: ``./dev soak daemon [N [SEED]]``.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

from kurma_core.client.remote.http import Connection
from kurma_core.daemon.process.lifecycle import TRIM_AFTER
from kurma_core.errors import KurmaError
from tests.integration.daemon.soak_caller import Caller
from tests.integration.daemon.soak_lives import any_kind
from tests.integration.daemon.soak_remains import WHOLE, Remains
from tests.integration.pods.soak import ABREAST
from tests.kit.command import KURMA
from tests.kit.waiting import until

#: Pods between two looks at the machine.
BATCH = 250
#: Seconds that a daemon has to live: as often as not, it dies while it recovers what the one before has left.
_LIVES = (0.0, 0.3, 0.8, 1.5, 2.0, 3.0, 4.0, 5.0)
#: Seconds that what is left has to go.
_SETTLED = 30
#: Seconds until a daemon has taken away what others have left half made.
_SWEEPS = 3
#: Samples until a daemon has as many threads as it needs.
_WARM = 5
#: Kilobytes that one daemon may grow after its first sample. What malloc keeps for each thread comes to its full
#: size slowly, and a busy moment leaves pages in which little is in use: a step of 3 MB was seen. That nothing is
#: kept of a pod is counted in test_root_memory.py.
_GROWTH = 5000
#: Looks at what a daemon holds, and by how many its threads may differ: they come and go.
_LOOKS, _THREADS = 10, 3
#: Stagers that wait, as daemons have them unless they are told otherwise.
STAND_BY = 2


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
        self._command = [*KURMA, *which, "daemon", "run"]
        self.process = None
        self.killed = 0

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_up(self):
        def answers():
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            return Connection.find(self.socket)

        until(answers, lambda: self.log.read_text()[-2000:], 30).close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.killed += 1

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert code == 0, f"kurmad ended with {code}: {self.log.read_text()[-2000:]}"

    def close(self):
        """Whatever has happened, none goes on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def held(self):
        """What the one that runs holds, its spawner's and its waiting stagers' included, at rest: connections that
        were closed by their clients may be there for a moment."""
        looks = []
        for _ in range(_LOOKS):
            time.sleep(0.1)
            looks.append(self._holds())
        return Held(*map(min, zip(*looks, strict=True)))

    def _holds(self):
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            others = file.read().split()
        fds = [len(os.listdir(f"/proc/{one}/fd")) for one in (pid, *others)]
        memory = [_private(one) for one in (pid, *others)]
        return Held(fds[0], len(os.listdir(f"/proc/{pid}/task")), memory[0], sum(fds[1:]), sum(memory[1:]))

    def complaints(self):
        """Lines of its log that should not be there."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"Traceback|[Ee]rror\b|failed|cannot|not complete", line)]


class Held(NamedTuple):
    """Memory is private, in kB."""

    fds: int
    threads: int
    memory: int
    others_fds: int
    others_memory: int

    def __str__(self):
        return (
            f"kurmad has {self.fds} descriptors, {self.threads} threads, {self.memory} kB; its spawner and "
            f"stagers that wait {self.others_fds} descriptors, {self.others_memory} kB"
        )


def _private(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


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
        self.remains = Remains(house, self.daemons)
        self.wrong = []
        self._number = 0
        self._lock = threading.Lock()

    def close(self):
        self.daemons.close()
        self.remains.names.close()

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
        if self._guarded(number, life, life.live) and self._guarded(number, life, life.check):
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

    def settled(self, before):
        """Once everything had its time: (too many, missing)."""
        deadline = time.monotonic() + _SETTLED
        while True:
            now = self.remains.there()
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
        before = self.remains.there()
        self.daemons.start()
        self.daemons.wait_up()
        time.sleep(1)
        held, done, began = [self.daemons.held()], 0, time.monotonic()
        while done < count:
            size = min(BATCH, count - done)
            self.batch(size)
            done += size
            self._look_at_supply(f"after {done} pods")
            extra, missing = self._rest(before)
            held.append(self.daemons.held())
            print(
                f"{done} pods, {time.monotonic() - began:.0f} s; kurmad killed {self.daemons.killed} times; "
                f"wrong: {len(self.wrong)}; left: {len(extra)}; gone: {len(missing)}; {held[-1]}",
                flush=True,
            )
            for line in (*extra, *missing)[:20]:
                print(f"  {line}", flush=True)
            if extra or missing:
                self.wrong.append(f"after {done} pods the machine is another: {(extra + missing)[:3]}")
                before = self.remains.there()
        self.daemons.end()
        for line in self.daemons.complaints()[:20]:
            print(f"  log: {line}")
        per_batch = slope([one.memory for one in held]) if len(held) > 2 else 0.0
        print(
            f"daemons just started: {held[0].memory} kB before all, {held[-1].memory} kB after all: "
            f"{per_batch * 1000 / BATCH:+.1f} kB for each 1000 pods",
            flush=True,
        )
        self._not_more("what a new kurmad has", held[0], held[-1])
        return not self.wrong and not self.daemons.complaints()

    def steady(self, count, every=100):
        """So many more, under one daemon that nobody kills. Prints, and :returns: whether that stays as it is."""
        self.kills = False
        self.daemons.start()
        self.daemons.wait_up()
        held, began = [], time.monotonic()
        for _ in range(count // every):
            self.batch(every)
            self._look_at_supply(f"after {len(held) * every + every} pods of one kurmad", STAND_BY)
            time.sleep(TRIM_AFTER + 1)  # it gives back what its work has taken
            held.append(self.daemons.held())
            print(
                f"one kurmad, {len(held) * every} pods, {time.monotonic() - began:.0f} s: {held[-1]}", flush=True
            )
        # None of them has one but this one.
        self._look_at_supply("before the end", STAND_BY)
        self.daemons.end()
        self._look_at_supply("after the end", 0)
        # The first ones bring what it needs once.
        rest = held[min(_WARM, len(held) - 1) :]
        growth = held[-1].memory - held[0].memory
        others = held[-1].others_memory - held[0].others_memory
        print(
            f"one kurmad: {held[0].memory} kB after {every} pods, {held[-1].memory} kB after {len(held) * every}: "
            f"{growth:+} kB; its spawner and stagers that wait: {others:+} kB; wrong: {len(self.wrong)}",
            flush=True,
        )
        self._not_more("what one kurmad has", rest[0], rest[-1])
        return not self.wrong and growth < _GROWTH and others < _GROWTH

    def _not_more(self, what, first, last):
        """Descriptors are all to be closed; threads may be as many as work at a time."""
        if last.fds > first.fds or last.others_fds > first.others_fds or last.threads > first.threads + _THREADS:
            self.wrong.append(f"{what} is more and more: {first}; {last}")

    def _look_at_supply(self, when, count=None):
        """What there is while no pod is there: each stager that waits has all that it needs, and nothing else has
        anything. :param count: of them; None: any, up to what there may be."""
        deadline = time.monotonic() + _SETTLED
        while True:
            there = self.remains.of_waiting()
            right = len(there) == count if count is not None else len(there) <= STAND_BY
            if right and all(kinds == WHOLE for kinds in there.values()):
                return
            if time.monotonic() > deadline:
                self.wrong.append(f"{when}, there are for pods to come: {there}")
                print(self.wrong[-1], flush=True)
                return
            time.sleep(0.2)

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
