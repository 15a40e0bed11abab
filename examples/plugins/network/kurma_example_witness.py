"""The network kind ``witness``: raises the pod's loopback, and keeps a file for every pod that joined."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import NetworkError
from kurma_core.hookspecs import AttachmentContext, Driver, DriverContext, Network, hookimpl
from kurma_core.linux.files import replace_file
from kurma_core.linux.links import raise_lo
from kurma_core.linux.netns_thread import in_network_namespace


class Witness:
    """What must outlive the process lies in the driver's own directory, by network and pod."""

    def __init__(self, context: DriverContext) -> None:
        self._directory = context.state_dir

    def setup(self, config: Mapping[str, Any]) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)

    def add(self, context: AttachmentContext) -> None:
        # The record comes first: a crash after it leaves something for delete to find.
        record = {"pod": context.pod, "namespace": context.namespace, "interface": context.interface}
        replace_file(self._record(context), json.dumps(record).encode())
        try:
            in_network_namespace(context.namespace, raise_lo)
        except OSError as error:
            raise NetworkError(
                f"network {context.attachment.network}: {context.namespace}: {error.strerror}",
                network=context.attachment.network,
            ) from error

    def delete(self, context: AttachmentContext) -> None:
        try:
            os.unlink(self._record(context))
        except FileNotFoundError:
            return

    def check(self, context: AttachmentContext) -> None:
        if not os.path.exists(self._record(context)):
            network = context.attachment.network
            raise NetworkError(f"network {network}: pod {context.pod} never joined", network=network)

    def remove(self, config: Mapping[str, Any]) -> None:
        """Pods share nothing of it."""

    def _record(self, context: AttachmentContext) -> str:
        return os.path.join(self._directory, f"{context.attachment.network}-{context.pod}")


@hookimpl
def kurma_network() -> Driver[Network]:
    return Driver(Witness, aliases=("example.com/kurma/witness",))
