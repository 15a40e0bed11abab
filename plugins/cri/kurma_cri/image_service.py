"""The ImageService: images of the node."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kurma_cri.proto import runtime_pb2_grpc as services

if TYPE_CHECKING:
    from kurma_core.api.operations import Api
    from kurma_cri.options import Options


class ImageService(services.ImageServiceServicer):
    """:param client: does Kurma's operations."""

    def __init__(self, options: Options, client: Api, log: logging.Logger) -> None:
        self._options = options
        self._client = client
        self._log = log
