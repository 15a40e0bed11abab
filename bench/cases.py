"""What is measured: each case runs Kurma and its peers side by side on the same root filesystem."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import oci
from calling import SETTLES, Calling
from measuring import BenchError, alternate, descendants, median, run
from pulling import IMAGES, MANY, Pulling, served
from runtimes import Kurma, Podman, Runc, busybox_root, output
from serving import Daemon
from stage1 import OfStage1

KURMA = "kurma"
_TO_THE_SAME, _WHOLE = "runc run, to the same", "runc run, all of it"
_BY_WAITING = "the same, by a stager that waits for a pod"
_LINE = 84
_LINES = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    :param values: by side; Kurma's under ``kurma``.
    :param target: (peer, most that Kurma may take of it); None where there is no such aim.
    """

    name: str
    what: str
    unit: str
    values: Mapping[str, tuple[float, ...]]
    target: tuple[str, float] | None = None
    note: str = ""

    def ratio(self, peer: str) -> float:
        return median(self.values[KURMA]) / median(self.values[peer])


@dataclass(slots=True)
class Bench:
    """Set up once; the cases share it.

    :param rounds: runs of each side that count.
    """

    work: str
    rounds: int
    note: Callable[[str], None]
    kurma: Kurma = field(init=False)
    podman: Podman = field(init=False)
    runc: Runc = field(init=False)

    def __post_init__(self) -> None:
        root = busybox_root(self.work)
        self.kurma = Kurma(self.work)
        self.podman = Podman(self.work)
        self.runc = Runc(self.work, root)
        self.kurma.build_image(root, self.archive)
        self.kurma.add_image(self.archive)
        self.podman.add_image(root)

    @property
    def archive(self) -> str:
        return f"{self.work}/busybox.aci"

    def of_kurma(self, argv: Sequence[str], **options: str) -> Callable[[], float]:
        return lambda: run(argv, self.kurma.environment, output=options.get("output")) * 1000

    def of_podman(self, argv: Sequence[str], **options: str) -> Callable[[], float]:
        return lambda: run(argv, self.podman.environment, output=options.get("output")) * 1000

    def clear(self) -> None:
        """No pod and no container."""
        self.podman.remove_all()
        for pod in json.loads(output([self.kurma.program, "list", "--format", "json"], self.kurma.environment)):
            output([self.kurma.program, "rm", "--force", pod["uuid"]], self.kurma.environment)


def run_none(bench: Bench) -> list[Figure]:
    """The whole command, no network."""
    sides = {
        KURMA: bench.of_kurma(bench.kurma.run("--net", "none", command=["/bin/true"])),
        "podman": bench.of_podman(bench.podman.run("--network", "none", command=["/bin/true"])),
    }
    what = "`run --rm`, no network, `/bin/true`: the whole command"
    return [Figure("run-none", what, "ms", alternate(sides, bench.rounds), ("podman", 2.0))]


def run_bridge(bench: Bench) -> list[Figure]:
    """The whole command, on each one's default bridge; and what the bridge adds to the same without a network. All
    four take turns, and what is subtracted is of the same round."""
    true = ["/bin/true"]
    sides = {
        KURMA: bench.of_kurma(bench.kurma.run(command=true)),
        f"{KURMA} none": bench.of_kurma(bench.kurma.run("--net", "none", command=true)),
        "podman": bench.of_podman(bench.podman.run("--network", "podman", command=true)),
        "podman none": bench.of_podman(bench.podman.run("--network", "none", command=true)),
    }
    values = alternate(sides, bench.rounds)
    added = {
        side: tuple(bridge - none for bridge, none in zip(values[side], values[f"{side} none"], strict=True))
        for side in (KURMA, "podman")
    }
    what = "`run --rm` on the default bridge, `/bin/true`: the whole command"
    setup = "what the default bridge adds to `run --rm`: the whole command with it, less without"
    return [
        Figure("run-bridge", what, "ms", {side: values[side] for side in added}),
        Figure("network-setup", setup, "ms", added, ("podman", 0.5)),
    ]


def network_scale(bench: Bench) -> list[Figure]:
    """A hundred pods' networks, joined ten at a time: the last ten, and the first. Addresses are distinct, or the
    case fails."""
    first, last = [], []
    for _ in range(min(bench.rounds, 5)):
        words = output([sys.executable, _program("joining.py"), "100"], bench.kurma.environment).split()
        first.append(float(words[0]))
        last.append(float(words[-1]))
    what = "100 pods join the default network ten at a time, in process: the last ten; the first"
    values = {KURMA: tuple(last), "first ten": tuple(first)}
    return [Figure("network-scale", what, "ms", values, ("first ten", 1.3))]


def daemon(bench: Bench) -> list[Figure]:
    """A kurmad with 200 pods: its start, its memory, the last ten starts, and the listing."""
    told = json.loads(
        output([sys.executable, _program("daemon.py"), "200", bench.kurma.image], bench.kurma.environment)
    )
    per_pod = (told["private"]["many"] - told["private"]["none"]) / 1024 / told["pods"]
    descriptors = (told["descriptors"]["many"] - told["descriptors"]["none"]) / told["pods"]

    def milliseconds(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(1000 * value for value in values)

    starts = {KURMA: milliseconds(told["latency"][-10:]), "first ten": milliseconds(told["latency"][:10])}
    lists = {KURMA: milliseconds(told["list"]["many"]), "with ten": milliseconds(told["list"]["few"])}
    return [
        *(
            Figure(
                "daemon-start", f"kurmad, to its first answer, pods: {which}", "ms", {KURMA: milliseconds(taken)}
            )
            for which, taken in told["start"].items()
        ),
        Figure("daemon-memory", "private memory of kurmad for each of 200 pods", "KiB", {KURMA: (per_pod,)}),
        Figure("daemon-memory", "descriptors of kurmad for each of 200 pods", "", {KURMA: (descriptors,)}),
        Figure("daemon-scale", "200 detached pods: starts of the last ten", "ms", starts, ("first ten", 1.3)),
        Figure("daemon-scale", "kurma list with 200 pods", "ms", lists, ("with ten", 1.5)),
    ]


def cri(bench: Bench) -> list[Figure]:
    """As a node's container runtime, beside containerd with runc: one gRPC client, one CNI network."""
    import kubernetes

    kubernetes.write_network()
    names = kubernetes.OF_A_POD
    with contextlib.ExitStack() as stack:
        sides = {
            KURMA: stack.enter_context(kubernetes.of_kurma(bench.kurma, bench.work)),
            "containerd": stack.enter_context(kubernetes.of_containerd(bench.work, f"{bench.work}/rootfs")),
        }
        taken: dict[str, dict[str, list[float]]] = {name: {one: [] for one in names} for name in sides}
        for number in range(-2, bench.rounds):
            for name in sides if number % 2 else reversed(sides):
                kubernetes.one_pod(sides[name], taken[name] if number >= 0 else {one: [] for one in names})
        bursts = {name: kubernetes.burst(side) for name, side in sides.items()}
        memory = {name: kubernetes.fill(side) for name, side in sides.items()}
        lists = kubernetes.lists(sides)

    def figure(
        name: str, what: str, unit: str, value: Callable[[str], Sequence[float]], aim: float | None
    ) -> Figure:
        target = None if aim is None else ("containerd", aim)
        return Figure(name, what, unit, {side: tuple(value(side)) for side in sides}, target)

    many = f"{kubernetes.BURST} pods, {kubernetes.AT_ONCE} at a time"
    with_pods = f"with {kubernetes.IDLE} pods of two containers"
    return [
        *(
            figure(f"cri-{one}", what, "ms", lambda side, one=one: taken[side][one], aim)  # type: ignore[misc]
            for one, (what, aim) in names.items()
        ),
        figure("cri-burst", f"{many}: p50 of a pod's start", "ms", lambda side: [_at(bursts[side][0], 0.5)], 1.0),
        figure("cri-burst", f"{many}: p99 of a pod's start", "ms", lambda side: [_at(bursts[side][0], 0.99)], 1.0),
        figure("cri-burst", f"{many}: all of them", "ms", lambda side: [bursts[side][1]], 1.0),
        figure("cri-list", f"ListPodSandbox {with_pods}", "ms", lambda side: lists[side][0], 1.0),
        figure("cri-list", f"ListContainers {with_pods}", "ms", lambda side: lists[side][1], 1.0),
        figure(
            "cri-memory",
            f"private memory of each of {kubernetes.IDLE} idle pods, all processes but its own programs",
            "KiB",
            lambda side: [memory[side]],
            0.5,
        ),
    ]


def _at(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class _First:
    """What the app first writes, told by the clock; and runc to the same."""

    def __init__(self, bench: Bench, name: str) -> None:
        self._bench = bench
        self.directory = f"{bench.work}/{name}"
        os.mkdir(self.directory)
        os.mkfifo(f"{self.directory}/first")
        self._fifo = os.open(f"{self.directory}/first", os.O_RDWR | os.O_NONBLOCK)
        self._bundle = bench.runc.bundle(["/bin/sh", "-c", "echo >/out/first"], {"/out": self.directory})
        self._plain = bench.runc.bundle(["/bin/true"], {})

    def __enter__(self) -> _First:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fifo)

    def came(self, process: subprocess.Popen[str] | None = None) -> float:
        """When the app wrote. :param process: ends early if it will not."""
        ended = [] if process is None else [os.pidfd_open(process.pid)]
        ready = select.select([self._fifo, *ended], [], [], 60)[0]
        came = time.perf_counter()
        for fd in ended:
            os.close(fd)
        if self._fifo not in ready:
            if process is not None:
                process.kill()
            raise BenchError("the app has not come up")
        os.read(self._fifo, 64)
        return came

    def runc(self) -> dict[str, Callable[[], float]]:
        """The sides that are runc's: to the app's first output, and all of it."""
        return {_TO_THE_SAME: self._by_runc, _WHOLE: self._whole}

    def _by_runc(self) -> float:
        runc, begun = self._bench.runc, time.perf_counter()
        with subprocess.Popen(runc.run(self._bundle), env=dict(runc.environment), text=True) as process:
            return (self.came(process) - begun) * 1000

    def _whole(self) -> float:
        return run(self._bench.runc.run(self._plain), self._bench.runc.environment) * 1000

    def figure(
        self, name: str, what: str, taken: Sequence[float], values: Mapping[str, tuple[float, ...]], most: float
    ) -> Figure:
        """:param values: by side, with runc's among them. :param most: of all of ``runc run``."""
        peers = {side: values[side] for side in (_TO_THE_SAME, _WHOLE)}
        return Figure(name, what, "ms", {KURMA: tuple(taken), **peers}, (_WHOLE, most))


def launch(bench: Bench) -> list[Figure]:
    """To the app's first instruction, in a process that stays: from the launch of a prepared pod, and from its
    being asked for; by a stager that is started for it, and by one that waits for a pod."""
    asked: dict[str, list[float]] = {}
    waiting = "of a stager that waits"

    def by_kurma(process: subprocess.Popen[str], name: str) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print("go", file=process.stdin, flush=True)
        came = first.came(process)
        request, begun = process.stdout.readline().split()
        asked.setdefault(name, []).append((came - float(request)) * 1000)
        return (came - float(begun)) * 1000

    with _First(bench, "out") as first:
        out = first.directory
        with _launching(bench, out) as one, _launching(bench, out, "waiting") as other:
            sides = {
                KURMA: lambda: by_kurma(one, KURMA),
                waiting: lambda: by_kurma(other, waiting),
                **first.runc(),
            }
            values = alternate(sides, bench.rounds)
        counted = {name: taken[-bench.rounds :] for name, taken in asked.items()}
        what = "a prepared pod is launched, in process, no network, to the app's first instruction"
        call = "a pod is asked for, in process, to the app's first instruction"
        return [
            first.figure("launch", what, values[KURMA], values, 2.0),
            first.figure("launch-waiting", _BY_WAITING, values[waiting], values, 0.6),
            first.figure("call", call, counted[KURMA], values, 2.0),
            first.figure("call-waiting", _BY_WAITING, counted[waiting], values, 0.6),
        ]


def api_call(bench: Bench) -> list[Figure]:
    """The same over the socket of a running kurmad, by who connects to it for that: one request for a pod that is
    to be started, and the start of one that was prepared before."""
    prepared = "of a prepared pod"
    with _First(bench, "api-out") as first, Daemon(bench.work, bench.kurma.environment) as daemon:
        calling = Calling(daemon, bench.kurma.image, first.directory)
        sides = {
            KURMA: lambda: calling.whole(first.came),
            prepared: lambda: calling.prepared(first.came),
            **first.runc(),
        }
        values = alternate(sides, bench.rounds)
    what = "a pod is asked for and started by one request to a running kurmad, to the app's first instruction"
    start = "a pod that was prepared before is started by a request to a running kurmad, to the same"
    return [
        first.figure("api-call", what, values[KURMA], values, 0.6),
        first.figure("api-start", start, values[prepared], values, 2.0),
    ]


def run_kurmad(bench: Bench) -> list[Figure]:
    """The whole command by way of a running kurmad, without a network and on each one's default bridge."""
    true = ["/bin/true"]

    def by_kurmad(*options: str) -> Callable[[], float]:
        taken = bench.of_kurma(bench.kurma.run(*options, command=true))

        def after_a_pause() -> float:
            time.sleep(SETTLES)
            return taken()

        return after_a_pause

    sides = {
        KURMA: by_kurmad("--net", "none"),
        f"{KURMA} bridge": by_kurmad(),
        "podman": bench.of_podman(bench.podman.run("--network", "none", command=true)),
        "podman bridge": bench.of_podman(bench.podman.run("--network", "podman", command=true)),
    }
    with Daemon(bench.work, bench.kurma.environment):
        values = alternate(sides, bench.rounds)
    what = "`run --rm` by way of a running kurmad, no network, `/bin/true`: the whole command"
    bridge = "the same on the default bridge"
    of_bridges = {side: values[f"{side} bridge"] for side in (KURMA, "podman")}
    added = {
        side: tuple(one - other for one, other in zip(taken, values[side], strict=True))
        for side, taken in of_bridges.items()
    }
    setup = "what the default bridge adds to it"
    return [
        Figure("run-kurmad", what, "ms", {side: values[side] for side in added}, ("podman", 1.0)),
        Figure("run-kurmad-bridge", bridge, "ms", of_bridges, ("podman", 1.0)),
        Figure("network-kurmad", setup, "ms", added, ("podman", 0.5)),
    ]


@contextlib.contextmanager
def _launching(bench: Bench, out: str, *how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that starts a pod for each line that it is given."""
    argv = [sys.executable, _program("launching.py"), bench.kurma.image, out, *how]
    with subprocess.Popen(
        argv, env=dict(bench.kurma.environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate(timeout=60)
    if process.returncode:
        raise BenchError(f"launching.py ended with {process.returncode}")


def stager_start(bench: Bench) -> list[Figure]:
    """The stager alone, beside the interpreter that it is made of."""
    found = []
    for state, rounds in (("warm", 2 * bench.rounds), ("cold", bench.rounds)):
        argv = [sys.executable, _program("starting.py"), bench.kurma.image, str(rounds), state]
        values = {side: tuple(taken) for side, taken in json.loads(output(argv, bench.kurma.environment)).items()}
        what = f"the stager, from exec to descriptor 4 closed, {state}; the bare interpreter of its image"
        found.append(Figure(f"stager-start-{state}", what, "ms", values))
    return found


def _program(name: str) -> str:
    """The path of one of the programs beside this one."""
    return os.path.join(os.path.dirname(__file__), name)


def enter(bench: Bench) -> list[Figure]:
    """A command in a running pod."""
    with _idle(bench, 1) as idle:
        sides = {
            KURMA: bench.of_kurma([bench.kurma.program, "enter", idle.pods[0], "--", "/bin/true"]),
            "podman": bench.of_podman(bench.podman.words("exec", idle.containers[0], "/bin/true")),
        }
        what = "`kurma enter POD -- true`; `podman exec`"
        return [Figure("enter", what, "ms", alternate(sides, bench.rounds), ("podman", 1.0))]


def logs(bench: Bench) -> list[Figure]:
    """A million lines through the log files to standard output, and how many of them arrive."""
    data = f"{bench.work}/lines"
    os.mkdir(data)
    with open(f"{data}/lines", "w") as file:
        file.write(f"{'x' * (_LINE - 1)}\n" * _LINES)
    shown = f"{bench.work}/shown"
    command = ["/bin/cat", "/data/lines"]
    argv = {
        KURMA: bench.kurma.run("--net", "none", "-v", f"{data}:/data:ro", command=command),
        "podman": bench.podman.run(
            *("--network", "none", "--log-driver", "k8s-file", "-v", f"{data}:/data:ro"), command=command
        ),
    }
    arrived = {}
    for side, words in argv.items():
        run(words, bench.kurma.environment if side == KURMA else bench.podman.environment, output=shown)
        with open(shown, "rb") as file:
            arrived[side] = sum(1 for _ in file)
    os.unlink(shown)
    sides = {KURMA: bench.of_kurma(argv[KURMA]), "podman": bench.of_podman(argv["podman"])}
    what = f"one app writes {_LINES:,} lines of {_LINE} bytes, in the foreground: the whole command"
    lost = [f"{side} shows {count:,} of them" for side, count in arrived.items() if count != _LINES]
    values = alternate(sides, max(3, bench.rounds // 3), warm_up=0)
    os.unlink(f"{data}/lines")
    return [Figure("logs", what, "ms", values, ("podman", 1.0), "; ".join(lost))]


def memory(bench: Bench) -> list[Figure]:
    """What the supervisors of idle pods keep for themselves: stager and init of Kurma's, conmon of podman's."""
    with _idle(bench, 4) as idle:
        time.sleep(1)
        ours = tuple(_private(idle.supervisors_of_pod(pod)) for pod in idle.pods)
        theirs = tuple(_private([idle.conmon(container)]) for container in idle.containers)
    what = "private memory per idle one-app pod: stager and init; conmon"
    return [Figure("memory", what, "MiB", {KURMA: ours, "podman": theirs}, note="aim: at most 6 MB")]


def listing(bench: Bench) -> list[Figure]:
    """Listing, and starting one more, with none and with a hundred that have ended."""
    count = 100
    crowded = Kurma(bench.work, "crowded")
    crowded.add_image(bench.archive)
    bench.note(f"making {count} pods and containers that have ended")
    output([sys.executable, _program("launching.py"), crowded.image, "-", str(count)], crowded.environment)
    containers = bench.of_podman(bench.podman.words("ps", "--all"))
    none = {
        KURMA: bench.of_kurma([bench.kurma.program, "list"]),
        "podman": containers,
    }
    few = alternate(none, bench.rounds)
    for _ in range(count):
        run(bench.podman.run("--network", "none", command=["/bin/true"], keep=True), bench.podman.environment)
    many = alternate(
        {KURMA: lambda: run([crowded.program, "list"], crowded.environment) * 1000, "podman": containers},
        bench.rounds,
    )
    more = crowded.run("--net", "none", command=["/bin/true"])
    starts = alternate(
        {
            KURMA: lambda: run(more, crowded.environment) * 1000,
            "none ended": bench.of_kurma(bench.kurma.run("--net", "none", command=["/bin/true"])),
        },
        bench.rounds,
    )
    return [
        Figure("list", "`kurma list`, no pods; `podman ps --all`", "ms", few),
        Figure("list-100", f"the same with {count} that have ended", "ms", many),
        Figure(
            "run-100", f"`run-none` with {count} that have ended; with none", "ms", starts, ("none ended", 1.3)
        ),
    ]


def distributions(bench: Bench) -> list[Figure]:
    """`list` and `run` with 300 unrelated distributions on ``sys.path``, and with an empty directory there."""
    count = 300
    environments = {}
    for side, number in ((KURMA, count), ("none", 0)):
        site = f"{bench.work}/site-{number}"
        os.mkdir(site)
        for name in (f"other_{each}" for each in range(number)):
            os.mkdir(f"{site}/{name}-1.0.dist-info")
            for file, text in (("METADATA", f"Name: {name}"), ("entry_points.txt", "[console_scripts]")):
                with open(f"{site}/{name}-1.0.dist-info/{file}", "w") as out:
                    out.write(f"{text}\n")
        environments[side] = {**bench.kurma.environment, "PYTHONPATH": site}

    def sides(argv: Sequence[str]) -> dict[str, Callable[[], float]]:
        return {
            side: lambda environment=environment: run(argv, environment) * 1000
            for side, environment in environments.items()
        }

    found = []
    for name, argv in (
        ("list", [bench.kurma.program, "list"]),
        ("run", bench.kurma.run("--net", "none", command=["/bin/true"])),
    ):
        what = f"`kurma {name}` with {count} other Python distributions installed; with none"
        values = alternate(sides(argv), bench.rounds)
        found.append(Figure(f"{name}-distributions", what, "ms", values, ("none", 1.05)))
    return found


def run_stage1(bench: Bench) -> list[Figure]:
    """The whole command under a small stage1 image, with a hundred pods that have ended, and with none."""
    count = 100
    alone, crowded = (OfStage1(bench.work, name, bench.archive) for name in ("stage1", "stage1-crowded"))
    bench.note(f"making {count} pods under a stage1 that have ended")
    for _ in range(count):
        run(crowded.run, crowded.environment)
    sides = {
        KURMA: lambda: run([*crowded.run, "--rm"], crowded.environment) * 1000,
        "none ended": lambda: run([*alone.run, "--rm"], alone.environment) * 1000,
    }
    what = f"`run --rm` under a small stage1 image, `/bin/true`, with {count} that have ended; with none"
    return [Figure("run-stage1", what, "ms", alternate(sides, bench.rounds), ("none ended", 1.1))]


def help_(bench: Bench) -> list[Figure]:
    """How long the list of commands takes."""
    sides = {
        KURMA: bench.of_kurma([bench.kurma.program, "--help"]),
        "podman": bench.of_podman([bench.podman.program, "--help"]),
    }
    return [Figure("help", "`--help`", "ms", alternate(sides, bench.rounds))]


def completion(bench: Bench) -> list[Figure]:
    """How long TAB takes after `kurma stop`."""
    sides = {
        KURMA: bench.of_kurma([bench.kurma.program, "__complete", "stop", ""]),
        "list": bench.of_kurma([bench.kurma.program, "list"]),
    }
    return [
        Figure(
            "completion",
            "TAB after `kurma stop`; `kurma list`",
            "ms",
            alternate(sides, bench.rounds),
            ("list", 0.5),
        )
    ]


def images(bench: Bench) -> list[Figure]:
    """From a registry on this machine into the store, and rendered; and what else is done with images."""
    rounds = max(5, bench.rounds // 2)
    found = []
    with oci.Registry(bench.work) as registry:
        pulling = Pulling(bench.work, registry, rounds)
        for image in IMAGES:
            bench.note(f"images: making {image.name}")
            reference = pulling.push(image)
            bench.note(f"images: fetching {image.name}")
            what = f"`image fetch` and `image render` of {image.what}; `podman pull`"
            aim = ("podman", image.aim)
            found.append(Figure(f"pull-{image.name}", what, "ms", pulling.times(reference), aim))
            what = "most memory on the way, all processes together"
            found.append(
                Figure(f"peak-{image.name}", what, "MiB", pulling.memory(reference), note="aim: at most 150 MiB")
            )
            if image.name == "small":
                found += _of_image(pulling, image.name, reference)
    what = f"`image list` of {MANY} images"
    return [*found, Figure("image-list", what, "ms", {KURMA: pulling.listing()})]


def _of_image(pulling: Pulling, name: str, reference: str) -> list[Figure]:
    again, render = pulling.again(reference)
    archive = pulling.archive(reference)
    local = pulling.fetching(archive)
    with served(os.path.dirname(archive)) as address:
        url = f"{address}/{os.path.basename(archive)}"
        remote = pulling.fetching(url, "--insecure-options=http,image")
    os.unlink(archive)
    return [
        Figure(f"again-{name}", "`image fetch --pull always` of what is there", "ms", {KURMA: again}),
        Figure(f"render-{name}", "`image render` of it, for the second time", "ms", {KURMA: render}),
        Figure(f"aci-{name}", "`image fetch` of the same as a compressed ACI from a file", "ms", {KURMA: local}),
        Figure(f"aci-http-{name}", "the same by plain HTTP", "ms", {KURMA: remote}),
    ]


def hook_call(bench: Bench) -> list[Figure]:
    """A call of a driver's hook: as Kurma makes it, by pluggy, and the bare method."""
    values = json.loads(output([sys.executable, _program("hooks.py")], bench.kurma.environment))
    what = "one call of a driver's hook with four arguments, checked and named"
    return [
        Figure("hook-call", what, "µs", {side: tuple(times) for side, times in values.items()}, ("pluggy", 1.0))
    ]


CASES: Mapping[str, Callable[[Bench], list[Figure]]] = {
    "run-none": run_none,
    "run-bridge": run_bridge,
    "network-scale": network_scale,
    "daemon": daemon,
    "cri": cri,
    "launch": launch,
    "api-call": api_call,
    "run-kurmad": run_kurmad,
    "stager-start": stager_start,
    "enter": enter,
    "logs": logs,
    "memory": memory,
    "list": listing,
    "distributions": distributions,
    "run-stage1": run_stage1,
    "help": help_,
    "completion": completion,
    "images": images,
    "hook-call": hook_call,
}


class _idle:
    """Pods and containers that sleep, for as long as the block lasts."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self.pods = [f"idle-{number}" for number in range(count)]
        self.containers = list(self.pods)
        self._foregrounds: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _idle:
        bench = self._bench
        sleep = ["/bin/sleep", "100000"]
        try:
            for name in self.pods:
                argv = bench.kurma.run("--name", name, "--net", "none", command=sleep)
                self._foregrounds.append(
                    subprocess.Popen(argv, env=bench.kurma.environment, stdin=subprocess.DEVNULL)
                )
                words = bench.podman.run("-d", "--name", name, "--network", "none", command=sleep)
                output(words, bench.podman.environment)
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        until = time.monotonic() + 60
        while sum(pod["state"] == "running" for pod in self._listing()) < len(self.pods):
            if time.monotonic() > until or any(one.poll() is not None for one in self._foregrounds):
                raise BenchError("the idle pods have not come up")
            time.sleep(0.1)

    def _listing(self) -> list[dict[str, object]]:
        kurma = self._bench.kurma
        found: list[dict[str, object]] = json.loads(
            output([kurma.program, "list", "--format", "json"], kurma.environment)
        )
        return found

    def __exit__(self, *_: object) -> None:
        for one in self._foregrounds:
            one.terminate()
        for one in self._foregrounds:
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._bench.clear()

    def supervisors_of_pod(self, pod: str) -> list[int]:
        """Everything of the pod but its apps."""
        kurma = self._bench.kurma
        record = json.loads(output([kurma.program, "show", pod, "--format", "json"], kurma.environment))
        apps = {app["pid"] for app in record["apps"].values()}
        return [pid for pid in descendants(record["stagerPid"]) if pid not in apps]

    def conmon(self, container: str) -> int:
        podman = self._bench.podman
        return int(output(podman.words("inspect", "-f", "{{.State.ConmonPid}}", container), podman.environment))


def _private(pids: Sequence[int]) -> float:
    """MiB that are these processes' alone."""
    kilobytes = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            kilobytes += sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return kilobytes / 1024
