"""Pods as a daemon starts them, in one process that stays, from an image of the store.

``launching.py IMAGE OUT``: OUT is mounted at ``/out`` in the app, which writes to ``/out/first``. For each line on
standard input a pod is prepared, launched, and taken down, once it has ended; printed are the monotonic clock, in
seconds, when it was asked for, and when it was launched. What comes next is loaded, and what comes once is done,
with the first one.
``launching.py IMAGE OUT waiting``: by stagers that were started before, for pods to come.
``launching.py IMAGE - COUNT``: COUNT pods that end at once, and stay.
"""

from __future__ import annotations

import os
import sys
import time

from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate, app_name
from kurma_core.client import Settings, connect
from kurma_core.models.network import NetworkRequest
from kurma_core.models.streams import Stdio
from kurma_core.pods.manager import PodManager
from kurma_core.pods.run.owner import OwnedPod
from kurma_core.pods.run.prestarted import prestart
from kurma_core.pods.services import Services

_SCRIPT = "echo >/out/first"
_SETTLES = 0.3


def request(image: str, out: str | None, command: tuple[str, ...] = ("/bin/true",)) -> PodRequest:
    app = {"exec": list(command), "user": "0", "group": "0"}
    document: dict[str, object] = {"apps": [{"name": app_name(image), "image": image, "app": app}]}
    if out is not None:
        app["exec"] = ["/bin/sh", "-c", _SCRIPT]
        document["volumes"] = [{"name": "out", "kind": "host", "source": out}]
        document["apps"][0]["mounts"] = [{"volume": "out", "path": "/out"}]  # type: ignore[index]
    return PodRequest(template=PodTemplate.parse(document), networks=(NetworkRequest("none"),))


class Launching:
    """:param waiting: stagers are started before."""

    def __init__(self, services: Services, image: str, waiting: bool) -> None:
        self._services = services
        self._manager = PodManager(services)
        self._image = image
        self._waiting = waiting

    def stay(self) -> None:
        """One pod that ends at once."""
        _, pod = self._manager.prepare_to_start(request(self._image, None))
        self._to_its_end(pod)

    def go(self, out: str) -> tuple[float, float]:
        """:returns: when it was asked for, and when it was launched."""
        prestarted = prestart(self._services, "default") if self._waiting else None
        if prestarted is not None:
            time.sleep(_SETTLES)  # it has come to where it waits
        asked = time.perf_counter()
        record, pod = self._manager.prepare_to_start(request(self._image, out), new=prestarted)
        begun = time.perf_counter()
        self._to_its_end(pod)
        self._manager.remover.remove(record.uuid)
        return asked, begun

    def _to_its_end(self, pod: OwnedPod) -> None:
        self._manager.start_prepared(pod, Stdio(0, 1, 2))
        try:
            pod.finish()
        finally:
            pod.close()


def main(image: str, out: str, what: str) -> None:
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    with connect(settings) as client:
        services = Services(client.config, client.here.registry, lambda: client.here.images, lambda text: None)
        services.spawner.open()
        launching = Launching(services, image, what == "waiting")
        if out == "-":
            for _ in range(int(what)):
                launching.stay()
        else:
            for _ in sys.stdin:
                print(*launching.go(out), flush=True)
        services.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], (sys.argv[3:] or [""])[0])
