"""URLs of the streaming server for the calls Exec, Attach and PortForward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from kurma_cri.proto import runtime_pb2 as cri
from kurma_cri.rpc import RpcError, failed_precondition, invalid
from kurma_cri.statuses import container_state
from kurma_cri.streaming.requests import AttachStreams, ExecStreams, PortForward
from kurma_cri.streaming.tokens import TooManyTokensError

if TYPE_CHECKING:
    from kurma_cri.records import Container, Records
    from kurma_cri.streaming.requests import Request
    from kurma_cri.streaming.server import StreamingServer


class StreamUrls:
    """Makes URLs that one client can use once, within a minute.

    :raises RpcError: of each method: the request is wrong; its container or sandbox does not run; too many URLs
        were not used yet.
    """

    def __init__(self, records: Records, server: StreamingServer) -> None:
        self._records = records
        self._server = server

    def exec(self, request: cri.ExecRequest) -> str:
        _check(request)
        if not request.cmd:
            raise invalid("cmd is empty: it is the command and its arguments")
        container = self._running(request.container_id)
        return self._url(
            ExecStreams(
                pod=container.sandbox.pod.uuid,
                app=container.id,
                command=tuple(request.cmd),
                tty=request.tty,
                stdin=request.stdin,
                stdout=request.stdout,
                stderr=request.stderr,
            )
        )

    def attach(self, request: cri.AttachRequest) -> str:
        _check(request)
        container = self._running(request.container_id)
        return self._url(
            AttachStreams(
                pod=container.sandbox.pod.uuid,
                app=container.id,
                tty=request.tty,
                stdin=request.stdin,
                stdout=request.stdout,
                stderr=request.stderr,
            )
        )

    def port_forward(self, request: cri.PortForwardRequest) -> str:
        sandbox = self._records.sandbox(request.pod_sandbox_id)
        if not sandbox.ready:
            raise failed_precondition(f"pod sandbox {sandbox.id} does not run")
        return self._url(PortForward(pod=sandbox.pod.uuid, ports=tuple(request.port)))

    def _running(self, reference: str) -> Container:
        container = self._records.container(reference)
        if container_state(container) != cri.CONTAINER_RUNNING:
            raise failed_precondition(f"container {container.id} does not run: it is {container.app.state}")
        return container

    def _url(self, request: Request) -> str:
        try:
            return self._server.url(request)
        except TooManyTokensError as error:
            raise RpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error.message} ({error.hint})") from None


def _check(request: cri.ExecRequest | cri.AttachRequest) -> None:
    if not (request.stdin or request.stdout or request.stderr):
        raise invalid("stdin, stdout and stderr are all false: one of them must be true")
    if request.tty and request.stderr:
        raise invalid("stderr must be false with tty: a terminal has one output")
