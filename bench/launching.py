"""One pod as ``kurma run`` starts it, in this process, from an image of the store; prints when its launch began.

``launching.py IMAGE OUT COUNT``: OUT is mounted at ``/out`` in the app, which writes to ``/out/first``; each of
COUNT pods is prepared, launched, and taken down. Prints the monotonic clock, in seconds, at each launch.
``launching.py IMAGE OUT COUNT waiting``: by a stager that was started before, for the pod to come.
``launching.py IMAGE - COUNT``: COUNT pods that end at once, and stay.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

from kurma_core.appc.template import PodTemplate
from kurma_core.cli.pod_options import app_name
from kurma_core.client import Settings, connect
from kurma_core.hookspecs import PodSetup, RunningStager, Stdio
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models import NetworkRequest
from kurma_core.pods.manager import PodManager
from kurma_core.pods.records import read_document
from kurma_core.pods.request import PodRequest
from kurma_core.pods.services import Services
from kurma_core.staging.aci import AciStager
from kurma_core.staging.waiting import WaitingPlace

_SCRIPT = "echo >/out/first"


def request(image: str, out: str | None, command: tuple[str, ...] = ("/bin/true",)) -> PodRequest:
    app = {"exec": list(command), "user": "0", "group": "0"}
    document: dict[str, object] = {"apps": [{"name": app_name(image), "image": image, "app": app}]}
    if out is not None:
        app["exec"] = ["/bin/sh", "-c", _SCRIPT]
        document["volumes"] = [{"name": "out", "kind": "host", "source": out}]
        document["apps"][0]["mounts"] = [{"volume": "out", "path": "/out"}]  # type: ignore[index]
    return PodRequest(template=PodTemplate.parse(document), networks=(NetworkRequest("none"),))


class Supply:
    """What a daemon would have done before: a stager that waits, with the cgroup and the network namespace of the
    pod to come. The pod's launch finds them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        driver = services.stagers.get("default")
        assert isinstance(driver, AciStager)
        self._driver = driver

    def prepare(self, uuid: str, directory: str) -> None:
        document = read_document(self._services.store.directory(uuid))
        spawner, driver = self._services.spawner, self._driver
        CgroupTree(document.cgroup).create()
        made = document.network_namespace
        assert made is not None
        spawner.make_namespace(made)
        waiting = driver.start_waiting(WaitingPlace(directory, document.cgroup, made))

        def start(pod: PodSetup, _: Stdio) -> RunningStager:
            return driver.hand_over(waiting, pod)

        def make_namespace(path: str, **_: object) -> None:
            assert path == made

        driver.start = start  # type: ignore[method-assign,assignment]
        spawner.make_namespace = make_namespace  # type: ignore[method-assign,assignment]
        time.sleep(0.2)  # it has come to where it waits


def main(image: str, out: str | None, count: int, waiting: bool) -> None:
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    with connect(settings) as client, tempfile.TemporaryDirectory(dir=os.environ["KURMA_DIR"]) as scratch:
        services = Services(client.config, client.registry, lambda: client.images, lambda text: None)
        manager = PodManager(services)
        services.spawner.open()  # as `kurma run` does, while images are looked for
        for _ in range(count):
            record = manager.prepare(request(image, out))
            if waiting:
                Supply(services).prepare(record.uuid, scratch)
            begun = time.perf_counter()
            pod = manager.start(record.uuid, Stdio(0, 1, 2))
            try:
                pod.finish()
            finally:
                pod.close()
            if out is not None:
                manager.remove(record.uuid)
                print(begun, flush=True)
        services.close()


if __name__ == "__main__":
    main(sys.argv[1], None if sys.argv[2] == "-" else sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["waiting"])
