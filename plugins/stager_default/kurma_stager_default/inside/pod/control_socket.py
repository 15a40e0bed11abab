"""The supervisor's control socket: call-ins send requests to the supervisor on it.

The socket is in the stager's own mount namespace, which no app enters. A conversation is one request,
``{"do": VERB, …}``, and its answers, each a packet of JSON; after the last answer the socket is closed. Packets
may carry descriptors. The supervisor waits for no client: it drops one that does not read.
"""

from __future__ import annotations

import _socket
import os
import select
import sys

from kurma_core.formats import small_json
from kurma_core.linux.descriptor_passing import packed, room, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kurma_stager_default.inside.event_loop import Loop

    #: Called with the conversation and the request. A :class:`Refusal` that it raises is sent as the answer.
    Verb = Callable[["Conversation", dict[str, Any]], None]

PATH = "/run/kurma/control"
#: Most bytes of a packet, and of a file whose descriptor is sent with one that would be larger.
PACKET = 65536
DOCUMENT = 1 << 20
_BACKLOG = 16
# Clients at the same time; more wait in the backlog.
_CLIENTS = 256
_DESCRIPTORS = 8
_SIZE = 4  # bytes of a number in SO_PEERCRED's answer
ROOM = room(_DESCRIPTORS)


class Refusal(Exception):
    """A request that cannot be fulfilled. :param code: the exit status of the call-in."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Conversation:
    """The connection of one client.

    :attr:`fds` are descriptors that came with the request; a handler owns those that it takes out of the list.
    :attr:`on_packet` is called with each later packet, :attr:`on_end` once, at the end of either side.
    """

    __slots__ = ("_control", "_socket", "fds", "on_end", "on_packet")

    def __init__(self, control: Control, socket: _socket.socket) -> None:
        self._control = control
        self._socket: _socket.socket | None = socket
        self.fds: list[int] = []
        self.on_packet: Callable[[dict[str, Any]], None] | None = None
        self.on_end: Callable[[], None] | None = None

    @property
    def pid(self) -> int:
        """The client's PID when it connected; 0: the conversation is over."""
        if self._socket is None:
            return 0
        content = self._socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 3 * _SIZE)
        return int.from_bytes(content[:_SIZE], sys.byteorder)

    def answer(self, value: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Sends a packet, and drops a client that does not take it. :returns: whether it was sent."""
        if self._socket is None:
            return False
        try:
            self._socket.sendmsg([small_json.encode_valid(value).encode()], packed(fds))
        except OSError:
            self.end()
            return False
        return True

    def offer(self, value: dict[str, Any]) -> None:
        """Sends a packet, and keeps a client that has no room for it: the client misses the packet."""
        if self._socket is None:
            return
        try:
            self._socket.send(small_json.encode_valid(value).encode())
        except OSError:
            return  # no room; or the client has closed the socket, which receive() handles

    def refuse(self, text: str, code: int = 1) -> None:
        """Answers that the request cannot be fulfilled, and ends the conversation."""
        self.answer({"error": text, "code": code})
        self.end()

    def end(self) -> None:
        """Ends the conversation, after the last answer or when the client has gone. It may be called again."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        self._control.forget(socket)
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        on_end, self.on_end, self.on_packet = self.on_end, None, None  # breaks the callbacks' reference cycles
        if on_end is not None:
            on_end()

    def receive(self, events: int) -> None:
        """Reads the request, a later packet, or the client's end."""
        socket = self._socket
        if socket is None or not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return
        try:
            data, beside, _, _ = socket.recvmsg(PACKET + 1, ROOM, _socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, beside = b"", []
        self.fds += unpacked(beside)
        if not data:
            self.end()
            return
        try:
            self._dispatch(small_json.decode(data.decode()))
        except Refusal as refusal:
            self.refuse(str(refusal), refusal.code)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self.refuse(f"not understood: {error}", 2)
        except OSError as error:
            # A failed request must not end the pod.
            self.refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))

    def _dispatch(self, value: dict[str, Any]) -> None:
        if self.on_packet is not None:
            self.on_packet(value)
            return
        verb = self._control.verbs.get(value["do"])
        if verb is None:
            raise Refusal(f"nothing that this stager does: {value['do']!r}", 2)
        verb(self, value)


class Control:
    """The listening socket. Modules add their handlers to :attr:`verbs`."""

    __slots__ = ("_clients", "_listener", "loop", "on_end", "verbs")

    def __init__(self, loop: Loop, path: str = PATH) -> None:
        """:raises OSError: the socket exists already, or its directory cannot be written to."""
        self.verbs: dict[str, Verb] = {}
        #: called once a conversation has ended
        self.on_end: Callable[[], None] | None = None
        self.loop = loop
        self._clients: dict[_socket.socket, Conversation] = {}
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        kind = _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK
        self._listener = _socket.socket(_socket.AF_UNIX, kind)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(_BACKLOG)
        loop.watch(self._listener.fileno(), self._accept)

    def _accept(self, fd: int, _events: int) -> None:
        try:
            number: int = self._listener._accept()[0]  # type: ignore[attr-defined]
        except OSError:
            return
        socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, number)
        os.set_blocking(number, False)
        conversation = Conversation(self, socket)
        self._clients[socket] = conversation
        self.loop.watch(number, lambda _, events: conversation.receive(events))
        if len(self._clients) >= _CLIENTS:
            self.loop.unwatch(fd)

    def forget(self, socket: _socket.socket) -> None:
        """Removes a conversation that has ended."""
        self.loop.unwatch(socket.fileno())
        self._clients.pop(socket, None)
        socket.close()
        self.loop.watch(self._listener.fileno(), self._accept)
        if self.on_end is not None:
            self.on_end()

    def close(self) -> None:
        """Closes the socket and ends all conversations."""
        self.loop.unwatch(self._listener.fileno())
        for conversation in list(self._clients.values()):
            conversation.end()
        self.loop.unwatch(self._listener.fileno())
        self._listener.close()
