"""Kurma and containerd as container runtimes of Kubernetes, by one gRPC client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
from host import cgroup_parent
from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.proto import runtime_pb2_grpc as services
from measuring import BenchError, descendants
from oci import layer, write_layout
from runtimes import Kurma, output, program
from serving import Daemon

#: Pods of the burst, and pods that are there while lists are taken and memory is counted.
BURST, IDLE, AT_ONCE = 100, 110, 10
_IMAGE = "kurma.test/busybox:1"
_PAUSE = "kurma.test/pause:1"
_NETWORK = {
    "cniVersion": "0.4.0",
    "name": "bench",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "bench0",
            "isGateway": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


class Runtime:
    """One side: a socket, and the processes that count as its own.

    :param image: of its containers, as CreateContainer takes it.
    :param root: PID of the process below or beside which its processes are.
    """

    def __init__(self, socket: str, image: str, parent: str, pids: Callable[[], list[int]]) -> None:
        end = time.monotonic() + 60
        while not os.path.exists(socket):
            if time.monotonic() > end:
                raise BenchError(f"{socket} does not come")
            time.sleep(0.05)
        self._channel = grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")])
        grpc.channel_ready_future(self._channel).result(60)
        self.runtime = services.RuntimeServiceStub(self._channel)
        self._image = image
        self._parent = parent
        self._pids = pids
        self._numbers = itertools.count()

    def close(self) -> None:
        self._channel.close()

    def run(self) -> tuple[str, cri.PodSandboxConfig]:
        number = next(self._numbers)
        metadata = cri.PodSandboxMetadata(name=f"pod-{number}", namespace="bench", uid=f"uid-{number}")
        config = cri.PodSandboxConfig(metadata=metadata, hostname=f"pod-{number}", labels={"app": "bench"})
        config.linux.cgroup_parent = self._parent
        request = cri.RunPodSandboxRequest(config=config)
        return self.runtime.RunPodSandbox(request).pod_sandbox_id, config

    def start(self, sandbox: tuple[str, cri.PodSandboxConfig], name: str = "main") -> str:
        container = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=self._image),
            command=["/bin/sleep", "100000"],
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox[0], config=container, sandbox_config=sandbox[1]
        )
        made: str = self.runtime.CreateContainer(request).container_id
        self.runtime.StartContainer(cri.StartContainerRequest(container_id=made))
        return made

    def execute(self, container: str) -> None:
        answer = self.runtime.ExecSync(
            cri.ExecSyncRequest(container_id=container, cmd=["/bin/echo", "x"], timeout=10)
        )
        if answer.stdout != b"x\n":
            raise BenchError(f"ExecSync: {answer}")

    def remove(self, sandbox: str, container: str) -> None:
        self.runtime.StopContainer(cri.StopContainerRequest(container_id=container, timeout=0))
        self.runtime.RemoveContainer(cri.RemoveContainerRequest(container_id=container))
        self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox))
        self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox))

    def clear(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._remove_sandbox, self.runtime.ListPodSandbox(cri.ListPodSandboxRequest()).items))

    def _remove_sandbox(self, sandbox: Any) -> None:
        self.runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=sandbox.id))
        self.runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id))

    def memory(self) -> int:
        """Bytes of memory that its processes have for themselves, the pods' own programs left out."""
        found = 0
        for pid in self._pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() == "sleep":
                        continue
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    found += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))
        return found


@contextlib.contextmanager
def of_kurma(kurma: Kurma, work: str) -> Iterator[Runtime]:
    """kurmad with the service ``cri``."""
    socket = f"{work}/kurma-cri.sock"
    configuration = kurma.environment["KURMA_CONFIG"]
    with open(configuration, "w") as file:
        json.dump({"plugins": {"services": {"cri": {"config": {"socket": socket}}}}}, file)
    try:
        with Daemon(work, kurma.environment) as daemon:
            pids = lambda: descendants(daemon.pid)  # noqa: E731
            one = Runtime(socket, kurma.image, f"/{cgroup_parent(work)}/kurma", pids)
            try:
                yield one
            finally:
                one.clear()
                one.close()
    finally:
        with open(configuration, "w") as file:
            file.write("{}\n")


@contextlib.contextmanager
def of_containerd(work: str, rootfs: str) -> Iterator[Runtime]:
    """Debian's containerd with runc. Its pause image is the same root filesystem."""
    place = f"{work}/containerd"
    os.makedirs(place)
    socket = f"{place}/containerd.sock"
    config = f"""version = 2
root = "{place}/root"
state = "{place}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{_PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""
    with open(f"{place}/config.toml", "w") as file:
        file.write(config)
    with open(f"{place}/log", "wb") as log:
        process = subprocess.Popen(
            [program("containerd"), "--config", f"{place}/config.toml"], stdout=log, stderr=log
        )
    try:
        tar = layer(rootfs)
        for name, entrypoint in ((_IMAGE, ["/bin/sh"]), (_PAUSE, ["/bin/sleep", "1000000"])):
            layout = f"{place}/{name.partition('/')[2].replace(':', '-')}"
            write_layout(layout, tar, {"Entrypoint": entrypoint})
            output(["tar", "-C", layout, "-cf", f"{layout}.tar", "."], os.environ)
            _import(socket, f"{layout}.tar", name)
        one = Runtime(socket, _IMAGE, f"/{cgroup_parent(work)}/containerd", lambda: [process.pid, *_shims(socket)])
        try:
            yield one
        finally:
            one.clear()
            one.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _import(socket: str, archive: str, name: str) -> None:
    base = name.rpartition(":")[0]
    words = [program("ctr"), "--address", socket, "--namespace", "k8s.io", "images", "import", "--base-name", base]
    end = time.monotonic() + 30
    while True:
        try:
            output([*words, archive], os.environ)
            return
        except BenchError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _shims(socket: str) -> list[int]:
    """The shims, and all below them."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{name}/cmdline", "rb") as file,
        ):
            if b"containerd-shim" in file.read():
                found += descendants(int(name))
    return found


def write_network() -> None:
    """The node's network, of both sides."""
    os.makedirs("/etc/cni/net.d", exist_ok=True)
    with open("/etc/cni/net.d/10-bench.conflist", "w") as file:
        json.dump(_NETWORK, file)


def timed(function: Callable[[], Any], into: list[float]) -> Any:
    begun = time.perf_counter()
    found = function()
    into.append((time.perf_counter() - begun) * 1000)
    return found


#: Names of the figures of one pod, with the most that Kurma may take of containerd's.
OF_A_POD = {
    "run": ("RunPodSandbox", 1.0),
    "start": ("CreateContainer and StartContainer", 1.0),
    "exec": ("ExecSync", 1.0),
    "remove": ("StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox", 1.0),
    "pod": ("a pod with one container: the first three figures but ExecSync", 0.6),
}


def one_pod(side: Runtime, taken: dict[str, list[float]]) -> None:
    """The life of one pod, timed."""
    sandbox = timed(side.run, taken["run"])
    container = timed(lambda: side.start(sandbox), taken["start"])
    taken["pod"].append(taken["run"][-1] + taken["start"][-1])
    timed(lambda: side.execute(container), taken["exec"])
    timed(lambda: side.remove(sandbox[0], container), taken["remove"])


def burst(side: Runtime) -> tuple[list[float], float]:
    """:returns: milliseconds of each pod of the burst, and of all of it."""
    taken: list[float] = []

    def one(_: int) -> None:
        timed(lambda: side.start(side.run()), taken)

    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(BURST)))
    whole = (time.perf_counter() - begun) * 1000
    side.clear()
    return taken, whole


def fill(side: Runtime) -> float:
    """Makes many pods, for :func:`lists`. :returns: KiB of memory of each."""
    before = side.memory()

    def one(_: int) -> None:
        sandbox = side.run()
        side.start(sandbox, "one")
        side.start(sandbox, "two")

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(IDLE)))
    time.sleep(3)
    return (side.memory() - before) / 1024 / IDLE


def lists(sides: Mapping[str, Runtime]) -> dict[str, tuple[list[float], list[float]]]:
    """:returns: milliseconds of ListPodSandbox and of ListContainers, of sides that take turns."""
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    for number in range(101):
        for name in sides if number % 2 else reversed(sides):
            runtime, (sandboxes, containers) = sides[name].runtime, taken[name]
            timed(functools.partial(runtime.ListPodSandbox, cri.ListPodSandboxRequest()), sandboxes)
            timed(functools.partial(runtime.ListContainers, cri.ListContainersRequest()), containers)
    return {name: (sandboxes[1:], containers[1:]) for name, (sandboxes, containers) in taken.items()}
