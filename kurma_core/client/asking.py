"""Asking a daemon: one request after the other, on a connection that is kept."""

from __future__ import annotations

from kurma_core.client import values
from kurma_core.client.local import LocalClient
from kurma_core.client.targets import target
from kurma_core.errors import HostError, KurmaError
from kurma_core.linux.smalljson import decode, encode
from kurma_core.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, BinaryIO, TypeVar

    from kurma_core.client import Settings, wire
    from kurma_core.config import Config
    from kurma_core.progress import Progress

    Json = Any
    T = TypeVar("T")

_NDJSON = "application/x-ndjson"
_NONSENSE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)


class Asking(LocalClient):
    remote = True

    def __init__(self, settings: Settings, config: Config, connection: wire.Connection) -> None:
        super().__init__(settings, config)
        self._connection = connection

    def close(self) -> None:
        self._connection.close()
        super().close()

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: Mapping[str, Json] | None = None,
        body: Json = None,
        progress: Progress | None = None,
        *,
        heard: Callable[[Json], None] = lambda message: None,
        secrets: bool = False,
    ) -> Json:
        """The operation's value; what the daemon notes on the way is told.

        :param path: its parts behind ``/v1``.
        :param heard: gets the messages that only some operations have.
        :param secrets: the operation may ask for passphrases.
        :raises KurmaError: what the daemon had; or it has gone.
        """
        headers = {"Accept": _NDJSON}
        data = None
        if body is not None:
            data = encode(body).encode()
            headers["Content-Type"] = "application/json"
        elif method != "GET":
            data = b""
        if secrets:
            headers.update(self.attempts())
        return self._asked(method, target(path, query), data, headers, progress, heard)

    def _asked(
        self,
        method: str,
        where: str,
        body: bytes | wire.Body | None,
        headers: Mapping[str, str],
        progress: Progress | None = None,
        heard: Callable[[Json], None] = lambda message: None,
    ) -> Json:
        ears = Ears(self, progress)
        value = None
        try:
            answer = self._connection.request(method, where, body, headers)
            if not answer.headers.get("content-type", "").startswith(_NDJSON):
                value = self.understood(decode, answer.read())
                if answer.status >= 400:
                    raise self.failure(value)
                return value
            for line in answer.lines():
                value = self._said(self.understood(decode, line), ears, heard)
        except KurmaError:
            self._connection.let_go_unless_whole()
            raise
        except BaseException:
            # Ctrl-C, say: who goes away cancels what it has asked for.
            self._connection.let_go()
            raise
        finally:
            ears.close()
        return value

    def _said(self, message: Json, ears: Ears, heard: Callable[[Json], None]) -> Json:
        """The result's value, if that is the result.

        :raises KurmaError: it tells of an error.
        """
        kind = self.understood(lambda said: said["is"], message)
        if kind == "result":
            return message["value"]
        if kind == "error":
            raise self.failure(message)
        if not ears.hear(message):
            heard(message)  # what is not known is passed over: a newer daemon says more
        return None

    def _write(self, path: tuple[str, ...], query: Mapping[str, Json] | None, out: BinaryIO) -> None:
        """What an operation gives that is no JSON, into a file.

        :raises KurmaError: what the daemon had, be it on the way.
        """
        try:
            answer = self._connection.request("GET", target(path, query), None, {"TE": "trailers"})
            if answer.status >= 400:
                raise self.failure(self.understood(decode, answer.read()))
            for piece in answer.pieces():
                out.write(piece)
        except KurmaError:
            self._connection.let_go_unless_whole()
            raise
        except BaseException:
            self._connection.let_go()
            raise
        self._check_late(answer)

    def _lines(self, path: tuple[str, ...], query: Mapping[str, Json] | None) -> Iterator[Json]:
        """What an operation says line by line, as it comes. On a connection of its own: while it lasts, something
        else may be asked for."""
        with self._connection.again() as connection:
            answer = connection.request("GET", target(path, query), None, {"TE": "trailers"})
            if answer.status >= 400:
                raise self.failure(self.understood(decode, answer.read()))
            for line in answer.lines():
                yield self.understood(decode, line)
            for note in self.understood(decode, answer.trailers.get("kurma-notes", "[]")):
                self.settings.note(note)
            self._check_late(answer)

    def _check_late(self, answer: wire.Response) -> None:
        """:raises KurmaError: what went wrong while the answer was on its way."""
        late = answer.trailers.get("kurma-error")
        if late is not None:
            raise self.failure(self.understood(decode, late))

    # -- what is said --

    def attempts(self) -> dict[str, str]:
        """Says whether there is anybody who knows passphrases."""
        if self.settings.passphrases is None:
            return {}
        return {"Kurma-Passphrases": str(self.settings.passphrases().attempts)}

    def tell_passphrase(self, question: Mapping[str, Json]) -> None:
        """Tells the daemon a passphrase that it asks for, on another connection: the one that asks is taken."""
        from binascii import b2a_base64

        assert self.settings.passphrases is not None
        found = self.settings.passphrases().get(question["what"], wrong=question["wrong"])
        said = None if found is None else b2a_base64(found, newline=False).decode()
        with self._connection.again() as connection:
            body = encode({"passphrase": said}).encode()
            headers = {"Content-Type": "application/json"}
            answer = connection.request("POST", target(("answers", question["id"]), None), body, headers)
            if answer.status >= 400:
                raise self.failure(self.understood(decode, answer.read()))

    # -- what is heard --

    def failure(self, value: Mapping[str, Json]) -> KurmaError:
        """The error that an answer tells of."""
        found = self.understood(values.error, value["error"])
        theirs = self._connection.version
        if found.data.get("unknown") and theirs != VERSION:
            return HostError(
                f"the daemon is kurma {theirs}, and this is {VERSION}: {found.message}",
                hint="restart the daemon with this version; --host local works without it",
            )
        return found

    def understood(self, read: Callable[[Json], T], said: Json) -> T:
        """What ``read`` makes of what the daemon has said.

        :raises HostError: it makes nothing of it.
        """
        try:
            return read(said)
        except _NONSENSE as error:
            theirs = self._connection.version
            other = "" if theirs == VERSION else f": it is kurma {theirs}, and this is {VERSION}"
            raise HostError(
                f"what the daemon at {self._connection.path} says is not understood{other}",
                hint="restart the daemon with this version; --host local works without it",
            ) from error


class Ears:
    """Hears what any operation may say on its way."""

    def __init__(self, client: Asking, progress: Progress | None) -> None:
        self._client = client
        self._bar = _Bar(progress) if progress is not None else None

    def hear(self, message: Json) -> bool:
        """:returns: whether it was something of that kind."""
        kind = message["is"]
        if kind == "note":
            self._client.settings.note(message["text"])
        elif kind == "progress":
            if self._bar is not None:
                self._bar.hear(message)
        elif kind == "ask":
            self._client.tell_passphrase(message)
        else:
            return False
        return True

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Bar:
    """Moves a progress bar as the daemon says."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: tuple[str, int | None] | None = None
        self._done = self._skipped = 0

    def hear(self, message: Mapping[str, Json]) -> None:
        what = message["what"], message["total"]
        if what != self._open or message["done"] < self._done:
            self.close()
            self._open, self._done, self._skipped = what, 0, 0
            self._progress.start(*what)
        skipped = message["skipped"] - self._skipped
        if skipped:
            self._progress.skip(skipped)
        advanced = message["done"] - self._done - skipped
        if advanced > 0:
            self._progress.advance(advanced)
        self._done, self._skipped = message["done"], message["skipped"]
        if message["finished"]:
            self.close()

    def close(self) -> None:
        if self._open is not None:
            self._progress.finish()
            self._open = None


__all__ = ["Asking", "Ears"]
