"""One pod as ``kurma run`` starts it, in this process, from an image of the store; prints when its launch began.

``launching.py IMAGE OUT COUNT``: OUT is mounted at ``/out`` in the app, which writes to ``/out/first``; each of
COUNT pods is prepared, launched, and taken down. Prints the monotonic clock, in seconds, at each launch.
``launching.py IMAGE - COUNT``: COUNT pods that end at once, and stay.
"""

from __future__ import annotations

import os
import sys
import time

from kurma_core.appc.template import PodTemplate
from kurma_core.cli.pod_options import app_name
from kurma_core.client import Settings, connect
from kurma_core.hookspecs import Stdio
from kurma_core.models import NetworkRequest
from kurma_core.pods.manager import PodManager
from kurma_core.pods.request import PodRequest
from kurma_core.pods.services import Services


def request(image: str, out: str | None) -> PodRequest:
    app = {"exec": ["/bin/true"], "user": "0", "group": "0"}
    document: dict[str, object] = {"apps": [{"name": app_name(image), "image": image, "app": app}]}
    if out is not None:
        app["exec"] = ["/bin/sh", "-c", "echo >/out/first"]
        document["volumes"] = [{"name": "out", "kind": "host", "source": out}]
        document["apps"][0]["mounts"] = [{"volume": "out", "path": "/out"}]  # type: ignore[index]
    return PodRequest(template=PodTemplate.parse(document), networks=(NetworkRequest("none"),))


def main(image: str, out: str | None, count: int) -> None:
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    with connect(settings) as client:
        services = Services(client.config, client.registry, lambda: client.images, lambda text: None)
        manager = PodManager(services)
        services.spawner.open()  # as `kurma run` does, while images are looked for
        for _ in range(count):
            record = manager.prepare(request(image, out))
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
    main(sys.argv[1], None if sys.argv[2] == "-" else sys.argv[2], int(sys.argv[3]))
