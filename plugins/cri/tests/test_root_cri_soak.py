"""The life of many sandboxes with two containers each, ten at a time, by way of a kurmad that is killed every few
seconds (``./dev soak cri N SEED``): nothing is lost, nothing is left, memory stays flat."""

import os
import queue
import random
import re
import threading
import time

import grpc
import pytest
from kurma_cri.proto import runtime_pb2 as cri

from plugins.cri.tests.kubelet import Kubelet
from tests.integration.pods.test_pods_crash import assert_nothing_left
from tests.kit.kurmad import ended
from tests.kit.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.full]

MANY = int(os.environ.get("KURMA_TEST_PODS", 16))
SEED = int(os.environ.get("KURMA_TEST_SEED", 1))
AT_ONCE = 10
#: Rounds without a kill, in which memory is looked at.
_CALM = 3 if MANY > 100 else 0
#: Seconds between two kills, from and to.
_KILLS = (3.0, 6.0)


def container_config(image, name, attempt, code):
    script = f"echo {name}-{attempt}; trap 'exit {code}' TERM; while :; do sleep 0.05; done"
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name, attempt=attempt),
        image=cri.ImageSpec(image=image),
        command=["sh", "-c", script],
    )


def live(kubelet, image, number, chance):
    """The life of one sandbox. :raises AssertionError: something is not as it should be."""
    metadata = cri.PodSandboxMetadata(name=f"pod-{number}", namespace="soak", uid=f"uid-{number}")
    config = cri.PodSandboxConfig(metadata=metadata)
    config.linux.security_context.namespace_options.network = cri.NODE
    sandbox = kubelet.sandbox(config)
    for attempt in range(2):
        codes = {name: chance.randrange(100) for name in ("web", "side")}
        containers = {
            name: kubelet.container(sandbox, container_config(image, name, attempt, code))
            for name, code in codes.items()
        }
        for name, container in containers.items():
            kubelet.stop(container)
            status = kubelet.exited(container)
            # The program may not have set its trap yet.
            assert status.exit_code in (codes[name], 143), (name, status)
            assert 0 < status.created_at < status.started_at <= status.finished_at, status
        for container in containers.values():
            kubelet.remove(container)
    assert kubelet.sandbox(config) == sandbox
    kubelet.no_sandbox(config)


class Callers:
    """Threads that live the lives of sandboxes, ``AT_ONCE`` at a time."""

    def __init__(self, socket, image, numbers):
        self._socket, self._image = socket, image
        self._numbers = queue.SimpleQueue()
        for number in numbers:
            self._numbers.put(number)
        self.failures = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(AT_ONCE)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        kubelet = Kubelet(self._socket, patience=120)
        try:
            while not self.failures:
                number = self._numbers.get_nowait()
                live(kubelet, self._image, number, random.Random(SEED * 100_000 + number))
        except queue.Empty:
            pass
        except (AssertionError, grpc.RpcError) as error:
            self.failures.append((error, kubelet.errors[-5:]))
        finally:
            kubelet.close()

    def alive(self):
        return any(thread.is_alive() for thread in self._threads)

    def join(self):
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures[0]


def memory(pid):
    """Private memory of a process in KiB."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(number) for number in re.findall(r"^Private_\w+:\s+(\d+) kB", file.read(), re.MULTILINE))


def test_many_lives(make_house, kurmad, tmp_path):
    socket = f"{tmp_path}/cri.sock"
    section = {"config": {"socket": socket, "network": "default"}}
    house = make_house({"stop_timeout": 3, "plugins": {"services": {"cri": section}}})
    daemon = kurmad(house=house)
    chance = random.Random(SEED)
    callers = Callers(socket, house.image, range(MANY))
    uuids, kills = set(), 0
    while callers.alive():
        until_kill = time.monotonic() + chance.uniform(*_KILLS)
        while callers.alive() and time.monotonic() < until_kill:
            uuids |= set(house.uuids())
            time.sleep(0.2)
        if callers.alive():
            daemon.process.kill()
            daemon.process.wait()
            kills += 1
            daemon = kurmad(house=house)
    callers.join()
    until(lambda: not house.client.pods(), lambda: str(house.client.pods()))
    figures = []
    for start in range(MANY, MANY + _CALM * AT_ONCE, AT_ONCE):
        Callers(socket, house.image, range(start, start + AT_ONCE)).join()
        figures.append(memory(daemon.process.pid))
    print(f"\n{MANY} sandboxes, {kills} kills, {len(uuids)} pods seen; kurmad's private memory in KiB: {figures}")
    assert ended(daemon) is None
    for uuid in uuids - set(house.uuids()):
        assert_nothing_left(uuid)
    assert not [pod for pod in house.client.pods() if "kurma.io/cri/sandbox" in str(pod.manifest)]
