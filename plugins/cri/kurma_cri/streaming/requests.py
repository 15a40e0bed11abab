"""The requests that tokens of the streaming server stand for, and the contract of their backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from kurma_core.value import frozen

if TYPE_CHECKING:
    import socket

    from kurma_cri.streaming.streams import Streams


@frozen(kw_only=True)
class ExecStreams:
    """A command in an app.

    :param pod: its UUID. :param app: its name.
    :param command: the program and its arguments.
    :param tty: the command gets a terminal; then it has no ``stderr``.
    :param stdin: the client sends input. :param stdout: it reads output. :param stderr: it reads errors.
    """

    KIND: ClassVar[str] = "exec"

    pod: str
    app: str
    command: tuple[str, ...]
    tty: bool = False
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False


@frozen(kw_only=True)
class AttachStreams:
    """A running app, to whose streams the client connects. The fields are those of :class:`ExecStreams`."""

    KIND: ClassVar[str] = "attach"

    pod: str
    app: str
    tty: bool = False
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False


@frozen(kw_only=True)
class PortForward:
    """Connections to ports of a pod.

    :param pod: its UUID.
    :param ports: for clients whose streams do not name the port; may be empty.
    """

    KIND: ClassVar[str] = "portforward"

    pod: str
    ports: tuple[int, ...] = ()


Request = ExecStreams | AttachStreams | PortForward


class Backend(Protocol):
    """Serves requests. Each call has a thread of its own."""

    def exec(self, request: ExecStreams, streams: Streams) -> int:
        """Runs the command to its end. :returns: its exit code. :raises KurmaError: it cannot be run."""
        ...

    def attach(self, request: AttachStreams, streams: Streams) -> None:
        """Connects the streams to the app until one side ends. :raises KurmaError: that is not possible."""
        ...

    def port_forward(self, pod: str, port: int) -> socket.socket:
        """Connects to a port of the pod's loopback address. The caller closes the socket.

        :raises KurmaError: the connection failed.
        """
        ...
