"""How long the default stager takes from its exec to the closing of descriptor 4, beside the bare interpreter of
the same image in the same root; prints milliseconds, by side, as JSON.

``starting.py IMAGE ROUNDS cold|warm``; cold: the machine's page, inode and directory caches are dropped before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import launching

from kurma_core.client import Settings, connect
from kurma_core.hookspecs.pod_setup import PodSetup
from kurma_core.linux.process import exit_status
from kurma_core.models.streams import Stdio
from kurma_core.pods.manager import PodManager
from kurma_core.pods.run.launch import STEP_NAMES, Launch, bring_up, claim_places, tear_down
from kurma_core.pods.services import Services
from kurma_core.spawn_plan import SpawnPlan
from kurma_core.staging.aci_stager import AciStager
from kurma_core.staging.stager_process import StagerProcess
from kurma_core.staging.stager_root import waiting_root

_BARE = "python -S -E -c pass"


def drop_caches() -> None:
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


class Starting:
    def __init__(self, services: Services, manager: PodManager, image: str) -> None:
        self._services = services
        self._manager = manager
        self._request = launching.request(image, None, ("/bin/sleep", "1000"))
        self._executed: list[float] = []
        driver = services.stagers.get("default")
        assert isinstance(driver, AciStager)
        self._driver_starts = driver.start
        driver.start = self._start  # type: ignore[method-assign]

    def stager(self) -> float:
        """One pod, whose app sleeps."""
        record = self._manager.prepare(self._request)
        directory = self._services.store.directory(record.uuid)
        launch = Launch(self._services, directory, directory.read_document())
        launch.stdio = Stdio(0, 1, 2)
        claim_places(launch)
        launch.record(steps=STEP_NAMES)
        bring_up(launch)
        assert launch.stager is not None
        launch.stager.wait_running(60)
        taken = time.perf_counter() - self._executed[-1]
        for failure in tear_down(launch)[1]:
            raise failure
        launch.stager.close()
        self._manager.remover.remove(record.uuid)
        return taken * 1000

    def _start(self, setup: PodSetup, stdio: Stdio) -> StagerProcess:
        """As the driver does it; notes when the stager has been exec'd, which is when the spawner answers."""
        running = self._driver_starts(setup, stdio)
        self._executed.append(time.perf_counter())
        return running

    def bare(self) -> float:
        """The interpreter alone; its end closes descriptor 4."""
        image = self._services.stagers.image("default")
        app = image.manifest.app
        assert app is not None
        ready, running = os.pipe2(os.O_CLOEXEC)
        argv = (app.exec[0], "-S", "-E", "-c", "pass")
        started = self._services.spawner.start(
            SpawnPlan(argv=argv, root=waiting_root(image.path), fds={4: running}, new_session=True)
        )
        begun = time.perf_counter()
        os.close(running)
        os.read(ready, 1)
        taken = time.perf_counter() - begun
        os.close(ready)
        exit_status(started.pidfd)
        os.close(started.pidfd)
        return taken * 1000


def main(image: str, rounds: int, cold: bool) -> None:
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    with connect(settings) as client:
        services = Services(client.config, client.here.registry, lambda: client.here.images, lambda text: None)
        one = Starting(services, PodManager(services), image)
        sides: dict[str, Callable[[], float]] = {"kurma": one.stager, _BARE: one.bare}
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(-2, rounds):
            for name in list(sides) if number % 2 else reversed(list(sides)):
                if cold:
                    drop_caches()
                value = sides[name]()
                if number >= 0:
                    taken[name].append(value)
        services.close()
    print(json.dumps(taken))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "cold")
