"""Checks the health of an app by a request over HTTP or a TCP connection, from the pod's network namespace.

The app is untrusted: one deadline covers the whole check, what is read of an answer is limited, and the end of the
operation ends the check. A check holds one socket and, for a moment, the thread that makes it in the namespace.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from kurma_core import VERSION
from kurma_core.cancellation import CancellationFd
from kurma_core.errors import Cancelled, HostError, PodEndedError, StagerError
from kurma_core.linux import process
from kurma_core.linux.namespaces import in_network_namespace
from kurma_core.models.health import LONGEST_OUTPUT
from kurma_core.pods.run.recovery import find_stager

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from kurma_core.models.health import HealthCheck, HttpCheck, TcpCheck
    from kurma_core.models.pod import PodRecord
    from kurma_core.pods.services import Services

    T = TypeVar("T")

_PIECE = 16 << 10
#: Most bytes of the status line and the headers of an answer; and of a whole answer, with the framing of its body.
_LONGEST_HEAD, _LONGEST_ANSWER = 32 << 10, 256 << 10


class _FailedError(Exception):
    """The check fails. Its text: why."""


def check_app(services: Services, record: PodRecord, check: HealthCheck) -> tuple[bool, str]:
    """Does the check. :returns: whether it passes, and one line on it, with the beginning of the answer.

    :param check: completed; by a request or a connection.
    :raises StagerError: the pod's network namespace is not known.
    :raises PodEndedError: the pod has ended. :raises HostError: no socket can be made in the pod's namespace.
    :raises Cancelled: the operation of this thread was cancelled.
    """
    where = check.http or check.tcp
    assert where is not None
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    limit = check.timeout or 0.0
    connected = _in_network_of(services, record, lambda: socket.socket(family, socket.SOCK_STREAM))
    with connected, CancellationFd() as cancelled:
        connection = _Connection(connected, cancelled, limit)
        try:
            _connect(connection, where)
            if check.http is None:
                return True, f"connected to {where.address}"
            status, body = _request(connection, check.http)
        except _FailedError as error:
            return False, str(error)
        finally:
            connection.socket.close()  # TLS puts another one in its place
    text = f"HTTP {status} from {check.http.url}"
    if body:
        text = f"{text}\n{body.decode(errors='replace')}"
    return 200 <= status < 400, text


# --- the pod's network namespace -------------------------------------------------------------------------------


def _in_network_of(services: Services, record: PodRecord, function: Callable[[], T]) -> T:
    """Runs ``function`` where the pod's apps have their network.

    :raises StagerError: the stager has made the namespace itself, and is not in it, as with a virtual machine.
    """
    directory = services.store.directory(record.uuid)
    document = directory.read_document()
    what = f"cannot check the health of pod {record.name} over its network"
    if document.host_network:
        try:
            return function()
        except OSError as error:
            raise HostError.of(what, error) from None
    stager = find_stager(services, directory)
    if stager is None:
        raise _ended(record)

    def work() -> T:
        if _namespace("thread-self") == _namespace("self"):
            raise StagerError(
                f"{what}: its stager {record.stager} is in the host's network namespace",
                hint="use a command as health check, or run the pod with another stager",
            )
        return function()

    path = document.network_namespace or f"/proc/{stager.pid}/ns/net"
    try:
        try:
            found = in_network_namespace(path, work)
        except OSError as error:
            if process.wait_pidfd(stager.fileno(), 0):
                raise _ended(record) from None
            raise HostError.of(what, error) from None
        except RuntimeError:
            raise HostError(f"{what}: no thread can be started") from None
        if document.network_namespace is None and process.wait_pidfd(stager.fileno(), 0):
            # Another process may have had its number.
            if isinstance(found, socket.socket):
                found.close()
            raise _ended(record)
        return found
    finally:
        stager.close()


def _namespace(whose: str) -> tuple[int, int]:
    """:param whose: a directory of ``/proc``; ``self`` is the main thread, which stays on the host."""
    status = os.stat(f"/proc/{whose}/ns/net")
    return status.st_dev, status.st_ino


def _ended(record: PodRecord) -> PodEndedError:
    return PodEndedError(f"pod {record.name} has ended", pod=record.uuid)


# --- connections -----------------------------------------------------------------------------------------------


class _Connection:
    """A connection with a deadline.

    :param limit: seconds from now.
    """

    def __init__(self, connected: socket.socket, cancelled: CancellationFd, limit: float) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._cancelled = cancelled
        self._deadline = time.monotonic() + limit
        self.limit = limit

    def wait(self, event: int) -> bool:
        """Waits for a ``POLL…`` event of the socket; 0: does not wait. :returns: False: the time is over."""
        left = self._deadline - time.monotonic()
        ready = True
        if event and left > 0:
            poll = select.poll()
            poll.register(self.socket, event)
            poll.register(self._cancelled, select.POLLIN)
            ready = bool(poll.poll(left * 1000))
        if self._cancelled.cancelled:
            raise Cancelled
        return ready and left > 0

    def do(self, call: Callable[[], T], event: int, late: str) -> T:
        """Calls a method of the socket until it does not have to wait.

        :param event: for which it may have to wait.
        :raises _FailedError: the time is over; its text is ``late``. :raises OSError: the connection is broken.
        """
        awaited = 0  # TLS may have the data already
        while True:
            # Also if the call would not wait: a server may send without end.
            if not self.wait(awaited):
                raise _FailedError(late)
            try:
                return call()
            except BlockingIOError:
                awaited = event
            except OSError as error:
                awaited = _wanted_by_tls(error)
                if not awaited:
                    raise

    def secure(self, late: str) -> None:
        """Begins TLS, without verification: the app's certificate is rarely for the address of its pod."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        wrapped = context.wrap_socket(self.socket, do_handshake_on_connect=False)
        self.socket = wrapped
        self.do(wrapped.do_handshake, select.POLLOUT, late)


def _wanted_by_tls(error: OSError) -> int:
    """The event for which TLS has to wait; 0: it does not wait."""
    return {"SSLWantReadError": select.POLLIN, "SSLWantWriteError": select.POLLOUT}.get(type(error).__name__, 0)


def _connect(connection: _Connection, where: HttpCheck | TcpCheck) -> None:
    failed = f"cannot connect to {where.address}"
    code = connection.socket.connect_ex((where.host, where.port))
    if code == errno.EINPROGRESS:
        if not connection.wait(select.POLLOUT):
            raise _FailedError(f"{failed}: no answer within {connection.limit:g} s")
        code = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if not code:
        try:
            # Without a server, a socket whose own port is by chance that port is connected to itself.
            itself = connection.socket.getsockname() == connection.socket.getpeername()
            code = errno.ECONNREFUSED if itself else 0
        except OSError as error:  # the app has ended the connection already
            code = error.errno or errno.ENOTCONN
    if code:
        raise _FailedError(f"{failed}: {os.strerror(code)}")


# --- HTTP ------------------------------------------------------------------------------------------------------


def _request(connection: _Connection, check: HttpCheck) -> tuple[int, bytes]:
    """:returns: the status, and the beginning of the body. :raises _FailedError: there is no whole answer."""
    import h11

    late = f"no whole answer from {check.url} within {connection.limit:g} s"
    try:
        if check.scheme == "https":
            connection.secure(late)
        return _exchange(connection, check, late)
    except h11.RemoteProtocolError as error:
        # h11 quotes the app's bytes after a colon.
        reason = str(error).split(": b", 1)[0]
    except OSError as error:
        of_tls = getattr(error, "reason", None)
        reason = f"TLS: {of_tls.replace('_', ' ').lower()}" if of_tls else error.strerror or str(error)
    raise _FailedError(f"no answer from {check.url}: {reason}")


def _exchange(connection: _Connection, check: HttpCheck, late: str) -> tuple[int, bytes]:
    import h11

    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
    head = h11.Request(method="GET", target=check.path, headers=_headers(check))
    left = memoryview((http.send(head) or b"") + (http.send(h11.EndOfMessage()) or b""))
    while left:
        left = left[connection.do(functools.partial(connection.socket.send, left), select.POLLOUT, late) :]
    status, body, most = 0, b"", _LONGEST_ANSWER
    while len(body) < LONGEST_OUTPUT:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = connection.do(lambda: connection.socket.recv(_PIECE), select.POLLIN, late)
            most -= len(data)
            if not data and not status:
                raise _FailedError(f"no answer from {check.url}: it has closed the connection")
            if most < 0:
                raise _FailedError(f"no answer from {check.url}: it is longer than {_LONGEST_ANSWER >> 10} KiB")
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif not isinstance(event, h11.InformationalResponse):
            break
    return status, bytes(body[:LONGEST_OUTPUT])


def _headers(check: HttpCheck) -> list[tuple[str, str]]:
    given = {name.lower() for name, _ in check.headers}
    usual = [("Host", check.address), ("User-Agent", f"kurma/{VERSION}"), ("Accept", "*/*")]
    found = [(name, value) for name, value in usual if name.lower() not in given]
    for name, value in check.headers:
        if value or name.lower() not in ("accept", "user-agent"):
            found.append((name, value))
    return [*found, ("Connection", "close")]
