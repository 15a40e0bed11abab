"""Frames of streams, and errors as JSON, as kurmad and its client exchange them.

Frames go both ways on a connection that was an HTTP request for ``Upgrade: kurma-stream/1``. A frame is one byte
for its kind, four bytes for its length (big-endian), and the payload of that length.

| kind | from | payload |
|---|---|---|
| 0 message | both | a JSON object; its ``is`` names its type |
| 1 input | client | bytes for standard input; empty: the input has ended |
| 2 output | server | bytes of standard output |
| 3 error | server | bytes of standard error |
| 4 log | server | texts of the apps' logs: of each its length in four bytes, and ``APP TIME STREAM P|F TEXT`` |

Messages of the client: ``{"is": "resize", "rows": N, "columns": N}``, ``{"is": "stop", "force": bool}``, ``{"is":
"signal", "number": N}``, ``{"is": "closed", "stream": "stdout"}`` when the client no longer reads that stream;
``{"is": "go"}``, after "prepared", if the client's request asked for that.

Messages of the server: ``{"is": "note", "text": …}``, ``{"is": "progress", …}``, ``{"is": "prepared", "pod": …}``,
``{"is": "running", "name": …}``, ``{"is": "input", "terminal": bool}`` once input is wanted, ``{"is": "taken",
"bytes": N}``, and the last one, ``{"is": "result", …}`` or ``{"is": "error", …}``.

A client sends at most :data:`WINDOW` bytes of input beyond those that the server has reported as taken.
"""

from __future__ import annotations

from kurma_core import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    Json = Any

PROTOCOL = "kurma-stream/1"
MESSAGE, INPUT, OUTPUT, ERROR, LOG = range(5)
_HEAD = 5
#: Bytes of one frame's payload.
LIMIT = 1 << 20
#: Bytes of input that may be under way.
WINDOW = 1 << 18


class FrameError(Exception):
    """The received bytes are not a frame."""


def frame(kind: int, payload: bytes) -> bytes:
    """:param payload: of at most :data:`LIMIT` bytes."""
    return bytes((kind,)) + len(payload).to_bytes(4, "big") + payload


class FrameReader:
    """Frames in the bytes that came."""

    def __init__(self, data: bytes = b"") -> None:
        self._buffer = bytearray(data)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    @property
    def inside(self) -> bool:
        """Whether the last frame is not whole yet."""
        return bool(self._buffer)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Kind and payload of all that are whole. :raises FrameError: there is something else."""
        while len(self._buffer) >= _HEAD:
            kind, length = self._buffer[0], int.from_bytes(self._buffer[1:_HEAD], "big")
            if kind > LOG or length > LIMIT:
                raise FrameError(f"a frame of kind {kind} and {length} bytes")
            if len(self._buffer) < _HEAD + length:
                return
            payload = bytes(self._buffer[_HEAD : _HEAD + length])
            del self._buffer[: _HEAD + length]
            yield kind, payload


def error_to_json(error: errors.KurmaError) -> dict[str, Json]:
    """An error as JSON: of its data, text, numbers, true and false."""
    plain = {name: value for name, value in error.data.items() if isinstance(value, str | int | float | bool)}
    return {
        "error": {
            "kind": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "exitCode": error.exit_code,
            "data": plain,
        }
    }


def error_from_json(value: Mapping[str, Json]) -> errors.KurmaError:
    """The error of :func:`error_to_json`; of a kind that this Kurma does not know, a plain :class:`KurmaError`."""
    said = value["error"]
    kind = getattr(errors, said["kind"], errors.KurmaError)
    if not (isinstance(kind, type) and issubclass(kind, errors.KurmaError)):
        kind = errors.KurmaError
    found: errors.KurmaError = kind.__new__(kind)
    # Some kinds put their message together from parts of it.
    errors.KurmaError.__init__(found, said["message"], hint=said.get("hint"), **said.get("data", {}))
    found.exit_code = said.get("exitCode", found.exit_code)
    return found
