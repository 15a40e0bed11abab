"""The gRPC server of both services on a Unix socket."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc

from kurma_core.cancellation import current
from kurma_core.errors import HostError
from kurma_cri.calls import Interceptor
from kurma_cri.image_service import ImageService
from kurma_cri.proto import runtime_pb2_grpc as services
from kurma_cri.runtime_service import RuntimeService

if TYPE_CHECKING:
    from kurma_core.hookspecs.service import ServiceHost
    from kurma_cri.options import Options

#: Bytes of a request at most: kubelet sends up to 16 MiB.
_RECEIVED = 16 << 20
#: Calls at a time. Each that only waits takes one, such as StopContainer in its grace and a stream of events: a
#: node of 110 pods that is drained has many. The pool starts a thread only when it needs one.
_THREADS = 1024
#: Seconds that running calls get at the end.
_GRACE = 2.0


class Server:
    """Serves until its operation is cancelled."""

    def __init__(self, options: Options, host: ServiceHost) -> None:
        self._options = options
        self._host = host

    def serve(self) -> None:
        """:raises HostError: the socket cannot be made."""
        path = self._options.socket
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="cri")
        server = grpc.server(
            pool,
            interceptors=[Interceptor(self._host.log)],
            options=[("grpc.max_receive_message_length", _RECEIVED), ("grpc.so_reuseport", 0)],
        )
        client = self._host.client.managing()
        runtime = RuntimeService(self._options, client, self._host.log)
        images = ImageService(self._options, client, self._host.log)
        services.add_RuntimeServiceServicer_to_server(runtime, server)  # type: ignore[no-untyped-call]
        services.add_ImageServiceServicer_to_server(images, server)  # type: ignore[no-untyped-call]
        ended = _Gate()
        with contextlib.ExitStack() as undo:
            undo.callback(pool.shutdown, wait=False, cancel_futures=True)
            undo.enter_context(runtime)
            _clear(path)
            _listen(server, path)
            undo.callback(_clear, path)
            server.start()
            undo.callback(lambda: server.stop(_GRACE).wait())
            self._host.ready()
            with current().waking(ended.open):
                ended.wait()


def _clear(path: str) -> None:
    """Removes the socket of an earlier server."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)


def _listen(server: Any, path: str) -> None:
    """Makes the socket, which only root may use."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    except OSError as error:
        raise HostError(f"cannot make the directory of {path}: {error.strerror}") from None
    # In a directory of root's until it has its mode: kurmad's other threads need the umask.
    with tempfile.TemporaryDirectory(prefix=".cri", dir=os.path.dirname(path)) as closed:
        try:
            if not server.add_insecure_port(f"unix:{closed}/s"):
                raise HostError(f"cannot listen on {path}")
        except RuntimeError as error:
            raise HostError(f"cannot listen on {path}: {error}") from None
        os.chmod(f"{closed}/s", 0o600)
        os.rename(f"{closed}/s", path)


class _Gate:
    def __init__(self) -> None:
        import threading

        self._event = threading.Event()
        self.open = self._event.set
        self.wait = self._event.wait
