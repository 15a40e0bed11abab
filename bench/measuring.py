"""Times of commands: several, in alternating order, and the conditions they were taken in."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Of all the processors' time, the share that others may take before a machine is not quiet.
_QUIET = 0.05


class BenchError(Exception):
    """Something could not be measured: what, and why."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """:param load: load averages over 1, 5 and 15 minutes.
    :param busy: share of the processors' time that others took, before anything was measured.
    """

    processors: int
    kernel: str
    load: tuple[float, float, float]
    busy: float

    @property
    def quiet(self) -> bool:
        return self.busy < _QUIET

    def __str__(self) -> str:
        load = " ".join(f"{value:.2f}" for value in self.load)
        quiet = (
            "quiet" if self.quiet else f"NOT quiet, {self.busy:.0%} busy with other things: read ratios, loosely"
        )
        return f"{self.processors} processors, Linux {self.kernel}, load {load}: {quiet}"

    @classmethod
    def now(cls, seconds: float = 2.0) -> Conditions:
        """Looks at the machine for a while, doing nothing."""
        before = _processor_times()
        time.sleep(seconds)
        after = _processor_times()
        spent = [late - early for early, late in zip(before, after, strict=True)]
        idle = spent[3] + spent[4]
        busy = 1 - idle / (sum(spent) or 1)
        return cls(os.cpu_count() or 1, os.uname().release, os.getloadavg(), busy)


def _processor_times() -> list[int]:
    with open("/proc/stat") as file:
        return [int(word) for word in file.readline().split()[1:9]]


def run(
    argv: Sequence[str], environment: Mapping[str, str], *, expected: int = 0, output: str | None = None
) -> float:
    """Runs a command to its end. Its standard output goes nowhere, or to the file ``output``.

    :returns: seconds.
    :raises BenchError: it ended with another code than ``expected``.
    """
    messages = f"{environment['KURMA_BENCH_HOST']}/stderr"
    out = os.open(output or "/dev/null", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    err = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        begun = time.perf_counter()
        pid = os.posix_spawn(argv[0], list(argv), dict(environment), file_actions=actions)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        taken = time.perf_counter() - begun
    finally:
        for fd in (out, err, null):
            os.close(fd)
    if code != expected:
        with open(messages, errors="replace") as file:
            said = file.read().strip()[-1000:]
        raise BenchError(f"{' '.join(argv)}: ended with {code}: {said}")
    return taken


def peak_memory(argv: Sequence[str], environment: Mapping[str, str]) -> float:
    """The most that a command and everything below it had in memory at once, as resident sets; what several of
    them share counts for each.

    :returns: MiB.
    :raises BenchError: it failed.
    """
    with subprocess.Popen(
        argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        most = 0
        while process.poll() is None:
            most = max(most, sum(_resident(pid) for pid in descendants(process.pid)))
            time.sleep(0.01)
    if process.returncode != 0:
        raise BenchError(f"{' '.join(argv)}: ended with {process.returncode}")
    return most / (1 << 20)


def descendants(pid: int) -> list[int]:
    """The process and all below it, of those that are still there."""
    found = [pid]
    for one in found:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    found += [int(word) for word in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def alternate(
    sides: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 2
) -> dict[str, tuple[float, ...]]:
    """Each side once per round, every other round in reverse order; the first rounds do not count."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        names = list(sides)
        for name in names if number % 2 else reversed(names):
            value = sides[name]()
            if number >= 0:
                taken[name].append(value)
    return {name: tuple(values) for name, values in taken.items()}


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
