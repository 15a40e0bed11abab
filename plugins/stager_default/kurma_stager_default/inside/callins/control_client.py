"""The client of the control socket: call-ins send requests to the pod's supervisor, and read its answers."""

from __future__ import annotations

import _socket
import os

from kurma_core.formats import small_json
from kurma_core.linux.descriptor_passing import packed, unpacked
from kurma_stager_default.inside.errors import SetupError
from kurma_stager_default.inside.pod.control_socket import PACKET, PATH, ROOM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Refused(Exception):
    """The supervisor refuses the request. :param code: the exit status for the call-in."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Gone(SetupError):
    """The supervisor has ended, and with it the pod."""


class Asking:
    """One conversation with the supervisor.

    :raises SetupError: the supervisor does not listen. :raises Gone: it has ended.
    """

    def __init__(self, request: dict[str, Any], fds: Sequence[int] = (), path: str = PATH) -> None:
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET | _socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            # The kernel refuses once the listening process has ended: the supervisor listens until then.
            kind = Gone if isinstance(error, ConnectionRefusedError) else SetupError
            raise kind(f"the pod's supervisor does not answer: {error.strerror}") from None
        self.say(request, fds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def say(self, value: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends a packet. :raises SetupError: it is too long, or cannot be sent. :raises Gone: the supervisor has
        ended."""
        data = small_json.encode_valid(value).encode()
        if len(data) > PACKET:
            raise SetupError("the request is too long")
        try:
            self._socket.sendmsg([data], packed(fds))
        except (BrokenPipeError, ConnectionResetError):
            raise Gone("the pod's supervisor has ended") from None
        except OSError as error:
            raise SetupError(f"the pod's supervisor cannot be asked: {error.strerror}") from None

    def hear(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Reads the next answer and its descriptors; None: there are no more.

        :raises Refused: the supervisor refuses the request.
        """
        try:
            data, beside, _, _ = self._socket.recvmsg(PACKET + 1, ROOM, _socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None, []
        if not data:
            return None, []
        fds = unpacked(beside)
        value: dict[str, Any] = small_json.decode(data.decode())
        if "error" in value:
            for fd in fds:
                os.close(fd)
            raise Refused(value["error"], value.get("code", 1))
        return value, fds

    def keep(self) -> None:
        """Keeps the socket open until this process exits, so that a pod which waits for the conversation's end
        does not kill this process before its exit."""
        self._socket.detach()

    def close(self) -> None:
        self._socket.close()


def ask(request: dict[str, Any], document: bytes | None = None, path: str = PATH) -> dict[str, Any]:
    """Sends a request and reads its only answer. :param document: of any length; sent as a descriptor of a memfd.

    :raises SetupError: the supervisor does not listen. :raises Gone: it has ended. :raises Refused: it refuses.
    """
    fds = []
    if document is not None:
        fds = [os.memfd_create("document", os.MFD_CLOEXEC)]
        rest = memoryview(document)
        while rest:
            rest = rest[os.write(fds[0], rest) :]
    try:
        asking = Asking(request, fds, path)
    finally:
        for fd in fds:
            os.close(fd)
    try:
        value, _ = asking.hear()
    finally:
        asking.close()
    if value is None:
        raise Gone("the pod's supervisor has ended")
    return value


def supervisor_has_ended(path: str = PATH) -> bool:
    """Whether the pod's supervisor has ended. A call-in that failed asks it: the pod's end explains the
    failure."""
    try:
        Asking({"do": "status"}, path=path).close()
    except Gone:
        return True
    except SetupError:
        return False
    return False
