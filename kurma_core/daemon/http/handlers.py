"""Handlers of the operations whose requests or answers need more than JSON: streams, documents, kept listings."""

from __future__ import annotations

import base64
import contextlib
import select
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import CheckLine, Event
from kurma_core.api.operations import ARCHIVE, NDJSON, SSE
from kurma_core.client.local.transport import event_filter
from kurma_core.daemon.http import foreground, messages
from kurma_core.daemon.http.error_status import Gone, TooLargeError
from kurma_core.daemon.http.exchange import json_line
from kurma_core.daemon.http.streams import Caller
from kurma_core.daemon.pods.listing import RECORDS, SHOWN, SUMMARIES
from kurma_core.errors import UsageError
from kurma_core.journal import Cursor
from kurma_core.named_files import LARGEST_SIGNATURE
from kurma_core.pods.inside.enter_and_attach import attaches_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from kurma_core.daemon.http.calls import Call
    from kurma_core.daemon.http.exchange import Exchange
    from kurma_core.journal import Journal

Json = Any


def handle(call: Call) -> Any:
    """Does the requested operation.

    :returns: the operation's result, or JSON that was made of it; None for kinds ``bytes`` and ``stream``, which
        the handler has answered itself.
    """
    call.cancellation.reporter = messages.current().progress
    handler = HANDLERS.get(call.operation.name)
    if handler is not None:
        return handler(call)
    further = {"progress": messages.current().progress()} if "progress" in call.operation.names else {}
    return getattr(call.client, call.operation.method)(**call.method_arguments(**further))


# --- pods ------------------------------------------------------------------------------------------------------


def pods(call: Call) -> Json:
    return call.daemon.listing.json(RECORDS if call.exchange.peer.rights == "full" else SHOWN)


def listing(call: Call) -> Json:
    return call.daemon.listing.json(SUMMARIES)


def pod_enter(call: Call) -> Json:
    request = call.arguments["request"]
    if not request.exec:
        raise UsageError("exec is empty: it is the command and its arguments")
    left = call.cancellation.cancel if request.contained else lambda: None
    with Caller(call.stream, call.arguments, left=left) as caller:
        stdio = caller.open(terminal=request.tty)
        return {"exitCode": call.client.enter(call.arguments["pod"], request, stdio)}


def pod_attach(call: Call) -> Json:
    given = call.arguments
    pod, app = given["pod"], given["app"]
    terminal = attaches_terminal(call.client.here.services, call.client.pod(pod), app)
    # The app's input stays open, since other clients may be attached.
    with Caller(call.stream, call.arguments, ends_input=False) as caller:
        stdio = caller.open(terminal=terminal, reads_input=given["stdin"])
        return {"exitCode": call.client.attach(**call.method_arguments(stdio=stdio))}


# --- images ----------------------------------------------------------------------------------------------------


def images(call: Call) -> Json:
    found = call.client.images_list()
    for error in found.damaged:
        messages.current().problem(error)
    return found.images


def image_upload(call: Call) -> Json:
    signature = _signature(call.exchange)
    with call.client.here.images.upload_file() as stream:
        # Receives the whole archive first, so that a client that is slow, or is asked for a passphrase, does not
        # block other clients.
        _spool(call, stream)
        return call.client.here.images.upload(
            stream, call.arguments["name"], signature=signature, insecure=frozenset(call.arguments["insecure"])
        )


def _spool(call: Call, stream: BinaryIO) -> None:
    """:raises TooLargeError: it is larger than an image may be."""
    largest = call.daemon.config.limits.total_size
    count = 0
    for piece in call.exchange.pieces():
        count += len(piece)
        if count > largest:
            raise TooLargeError(f"the archive is longer than an image may be ({largest} bytes)")
        stream.write(piece)
    stream.flush()


def _signature(exchange: Exchange) -> bytes | None:
    text = exchange.headers.get("kurma-signature")
    if text is None:
        return None
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        raise UsageError("Kurma-Signature: the signature must be base64-encoded") from None
    if len(found) > LARGEST_SIGNATURE:
        raise UsageError(f"Kurma-Signature: longer than a signature may be here ({LARGEST_SIGNATURE} bytes)")
    return found


def image_manifest(call: Call) -> None:
    call.exchange.respond(200, call.client.image_manifest(**call.arguments), "application/json")


def image_archive(call: Call) -> None:
    out: Any = _Pieces(call.exchange)
    call.client.image_archive(call.arguments["image"], out)
    out.end()


class _Pieces:
    """A file as the answer. The answer begins with the first byte, so that an error before that can be sent as
    such."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def write(self, data: bytes) -> int:
        if not self._exchange.answered:
            self._exchange.begin(ARCHIVE)
        self._exchange.piece(bytes(data))
        return len(data)

    def end(self) -> None:
        self._exchange.end()


# --- the host --------------------------------------------------------------------------------------------------


def stager_check(call: Call) -> Json:
    current = messages.current()

    def tell(line: CheckLine) -> None:
        current.tell({"is": "line", "line": line.to_json()})

    return call.client.stager_check(call.arguments["image"], tell)


def healthz(call: Call) -> None:
    value = call.daemon.health()
    call.exchange.respond_json(200 if value.status == "ok" else 503, value.to_json())


def metrics(call: Call) -> None:
    call.exchange.respond(200, call.client.metrics(), call.operation.gives[0])


# --- events ----------------------------------------------------------------------------------------------------


def events(call: Call) -> None:
    exchange, given = call.exchange, call.arguments
    sent = SSE in exchange.headers.get("accept", "")
    journal = call.client.here.journal
    cursor = Cursor(journal, _since(call))
    fits = event_filter(given["pod"], given["subject"], given["kind"])
    try:
        if not given["follow"]:
            batches: Iterator[list[Event]] = iter([list(cursor.read())])
        else:
            batches = _follow(cursor, journal, exchange)
        first = next(batches, [])
        exchange.begin(SSE if sent else NDJSON)
        form = _sent if sent else _line
        _send(exchange, form, filter(fits, first))
        for batch in batches:
            _send(exchange, form, filter(fits, batch))
    finally:
        cursor.close()
    exchange.end()


def _follow(cursor: Cursor, journal: Journal, exchange: Exchange) -> Iterator[list[Event]]:
    """Yields the present events, and then new ones.

    :raises Gone: the client has disconnected, or the daemon ends, which closes connections.
    :raises HostError: the kernel allows no more watches.
    """
    watch = journal.watch()
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(exchange.socket, select.POLLRDHUP)
    with contextlib.closing(watch):
        ready: list[int] = []
        while exchange.socket.fileno() not in ready:
            yield list(cursor.read())
            ready = [fd for fd, _ in poll.poll()]
            watch.drain()
    # The answer is broken off, not ended: there may be more events.
    raise Gone


def _since(call: Call) -> int | None:
    """:raises UsageError: Last-Event-ID is not a number."""
    last = call.exchange.headers.get("last-event-id")
    given = call.arguments["since"]
    if given is None and last is not None:
        if not (last.isascii() and last.isdigit() and len(last) < 20):
            raise UsageError("Last-Event-ID is not an event number")
        given = int(last)
    if given is not None and given < 0:
        raise UsageError("parameter since: an event's number is not negative")
    if given is None:
        return None if call.arguments["follow"] else 0
    return int(given)


def _send(exchange: Exchange, form: Callable[[Event], bytes], found: Iterator[Event]) -> None:
    data = b"".join(form(event) for event in found)
    if data:
        exchange.piece(data)


def _line(event: Event) -> bytes:
    return json_line(event.to_json())


def _sent(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n" % (event.seq, event.kind.encode(), _line(event))


_NAMED_AS_THEIR_OPERATIONS: tuple[Callable[[Call], Any], ...] = (
    *(pods, listing, pod_enter, pod_attach, images, image_upload, image_manifest, image_archive),
    *(stager_check, healthz, metrics, events),
)
#: By the name of the operation.
HANDLERS: dict[str, Callable[[Call], Any]] = {
    **{handler.__name__: handler for handler in _NAMED_AS_THEIR_OPERATIONS},
    "pod_run": foreground.run,
    "pod_foreground": foreground.start,
    "pod_logs_in_frames": foreground.logs,
}
