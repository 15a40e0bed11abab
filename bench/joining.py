"""Networks of pods that join the default network ten at a time; prints how long each ten took.

``joining.py COUNT``: COUNT network namespaces are made and joined, and all left again. Prints milliseconds, a line
for each ten. Fails where two have one address.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from kurma_core.client import Settings, connect
from kurma_core.linux import namespaces
from kurma_core.models.network import Attachment
from kurma_core.networking.manager import Networking
from kurma_core.networking.network_records import pin_path
from kurma_core.pods.services import Services

AT_ONCE = 10


class Joined:
    """One pod's network."""

    def __init__(self, networking: Networking) -> None:
        self._networking = networking
        self._pod = str(uuid.uuid4())
        self._attachments: tuple[Attachment, ...] = ()

    @property
    def _where(self) -> dict[str, Any]:
        return {"pod": self._pod, "pod_name": self._pod, "namespace": pin_path("net", self._pod)}

    def join(self) -> list[str]:
        """:returns: its addresses."""
        planned = self._networking.plan(None, (), self._pod)
        self._attachments = self._networking.add_all(planned, **self._where)
        results = [one.result for one in self._attachments if one.result is not None]
        return [address.address for result in results for address in result.addresses]

    def leave(self) -> None:
        self._networking.delete_all(self._attachments, **self._where)

    def make(self) -> None:
        namespaces.make_netns(pin_path("net", self._pod))

    def remove(self) -> None:
        namespaces.unpin(pin_path("net", self._pod))


def main(count: int) -> None:
    settings = Settings(os.environ["KURMA_CONFIG"], os.environ["KURMA_DIR"], note=lambda text: None)
    addresses: list[str] = []
    with connect(settings) as client, ExitStack() as stack:
        services = Services(client.config, client.here.registry, lambda: client.here.images, lambda text: None)
        pods = [Joined(services.networking) for _ in range(count + 1)]
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        for pod in pods:
            # A namespace is made by a thread of its own, which stays in it.
            with ThreadPoolExecutor(1) as maker:
                maker.submit(pod.make).result()
            stack.callback(pod.remove)
        pods.pop().join()  # whatever is made once per network, or loaded once per process
        for first in range(0, count, AT_ONCE):
            begun = time.perf_counter()
            for found in pool.map(Joined.join, pods[first : first + AT_ONCE]):
                addresses += found
            print((time.perf_counter() - begun) * 1000, flush=True)
        list(pool.map(Joined.leave, pods))
        services.close()
    if len(set(addresses)) != len(addresses) or len(addresses) < count:
        sys.exit(f"{count} pods have {len(set(addresses))} addresses")


if __name__ == "__main__":
    main(int(sys.argv[1]))
