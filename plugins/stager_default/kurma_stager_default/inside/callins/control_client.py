"""A call-in's side of the control socket: a request to the pod's supervisor, and its answers."""

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
    """The supervisor says no. :param code: the exit status that goes with it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Gone(SetupError):
    """The supervisor has ended: the pod ends, too."""


class Asking:
    """One conversation.

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
        """:raises SetupError: it is too long, or cannot be sent. :raises Gone: the supervisor has ended."""
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
        """The next answer and the descriptors that came with it; None: there are no more.

        :raises Refused: the supervisor cannot do it.
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
        """It ends with this process, whose exit status is told by then: a pod that waits for it takes nothing down
        before."""
        self._socket.detach()

    def close(self) -> None:
        self._socket.close()


def ask(request: dict[str, Any], document: bytes | None = None, path: str = PATH) -> dict[str, Any]:
    """A request with a single answer. :param document: goes beside it, as a file in memory, of any length.

    :raises SetupError: the supervisor does not listen. :raises Gone: it has ended. :raises Refused: it says no.
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
    """Whether the pod's supervisor has ended, for a call-in that failed: the pod's end explains the failure."""
    try:
        Asking({"do": "status"}, path=path).close()
    except Gone:
        return True
    except SetupError:
        return False
    return False
