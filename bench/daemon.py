"""A kurmad with many pods: ``daemon.py COUNT IMAGE``. Prints one object of JSON.

Pods are started one after the other on network ``none``, and sleep. Measured are the start of each, from the
question for it to the answer that it runs; ``kurma list``; the daemon's own memory and its descriptors; its start,
from its exec to its first answer: without pods, with all of them running, with all ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from serving import Daemon

from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.client import Settings, connect

FEW = 10
#: Times that ``kurma list`` is measured.
LISTINGS = 7
STARTS = 5


def main(count: int, image: str) -> None:
    work = os.path.dirname(os.environ["KURMA_DIR"])
    daemon = Daemon(work)
    found: dict[str, Any] = {
        "pods": count,
        "start": {},
        "list": {},
        "private": {},
        "descriptors": {},
        "threads": {},
    }
    found["start"]["none"] = _starts(daemon)
    daemon.start()
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    uuids: list[str] = []

    def measure(name: str) -> None:
        time.sleep(2)  # what follows a start: the next stagers that wait, for instance
        found["private"][name] = daemon.private()
        found["descriptors"][name] = daemon.descriptors()
        found["threads"][name] = daemon.threads()
        found["list"][name] = _listing()

    with connect(settings) as client:
        template = {
            "apps": [
                {
                    "name": "main",
                    "image": image,
                    "app": {"exec": ["/bin/sleep", "100000"], "user": "0", "group": "0"},
                }
            ],
            "networks": ["none"],
        }
        request = PodRequest(PodTemplate.parse(template))
        _start(client, request, uuids)  # what is loaded and made once
        client.stop(uuids[0], force=True)
        client.rm(uuids.pop())
        measure("none")
        found["latency"] = []
        while len(uuids) < count:
            found["latency"].append(_start(client, request, uuids))
            if len(uuids) == FEW:
                measure("few")
            time.sleep(0.3)  # as long as the next stager that waits takes to be there
        measure("many")
    daemon.end()
    found["start"]["running"] = _starts(daemon)
    daemon.start()
    with connect(settings) as client:
        time.sleep(5)
        found["private"]["adopted"] = daemon.private()
        found["descriptors"]["adopted"] = daemon.descriptors()
        for uuid in uuids:
            client.stop(uuid, force=True)
    daemon.end()
    found["start"]["ended"] = _starts(daemon)
    with connect(settings) as client:
        for uuid in uuids:
            client.rm(uuid)
    print(json.dumps(found))


def _starts(daemon: Daemon) -> list[float]:
    taken = []
    for _ in range(STARTS):
        taken.append(daemon.start())
        daemon.end()
    return taken


def _start(client: Any, request: PodRequest, uuids: list[str]) -> float:
    begin = time.monotonic()
    record = client.prepare(request)
    uuids.append(record.uuid)
    client.launch(record.uuid)
    return time.monotonic() - begin


def _listing() -> list[float]:
    program = os.path.join(os.path.dirname(sys.executable), "kurma")
    taken = []
    for _ in range(LISTINGS):
        begin = time.monotonic()
        subprocess.run([program, "list"], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.monotonic() - begin)
    return taken


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
