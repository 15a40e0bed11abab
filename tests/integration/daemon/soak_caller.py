"""A client that outlives its daemon: what it did when that died it does again, as docs/reference/api.md has it."""

import contextlib
import time

from kurma_core.errors import DaemonGoneError, PodExistsError, PodNotFoundError, PodStateError
from tests.kit.client import open_client
from tests.kit.house import text_of

#: Seconds for which there may be no daemon.
_PATIENCE = 60
_UNDONE = "its owner died while it started"


class Caller:
    """For one thread.

    :param house: of the state directory. :param socket: where its daemon listens.
    """

    def __init__(self, house, socket):
        self.house = house
        self.socket = socket
        self._client = None
        #: How often the daemon had gone.
        self.gone = 0

    def close(self):
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def client(self):
        """:raises DaemonGoneError: there is no daemon at the moment."""
        if self._client is None:
            self._client = open_client(
                self.house.config_file, self.house.state, host=f"unix:{self.socket}", note=lambda text: None
            )
        return self._client

    def ask(self, question):
        """``question(client)``, as often as the daemon dies on the way."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return question(self.client)
            except DaemonGoneError:
                self.lost()
                if time.monotonic() > deadline:
                    raise

    def lost(self):
        self.close()
        self.gone += 1
        time.sleep(0.05)

    def make(self, request):
        """Prepares a pod whose UUID the request has."""
        while True:
            try:
                return self.ask(lambda client: client.prepare(request))
            except PodExistsError:
                # We have asked before, and did not hear the answer.
                with contextlib.suppress(PodNotFoundError):
                    record = self.pod(request.uuid)
                    if record.state != "preparing":
                        return record
                time.sleep(0.02)

    def begin(self, request):
        """Makes a pod that has a name, and no UUID yet, and starts it, by one request. :returns: its UUID."""
        while True:
            try:
                # Not the first time, perhaps: the answer may have been lost.
                return self.start(self.pod(request.name).uuid).uuid
            except PodNotFoundError:
                with contextlib.suppress(PodExistsError):  # somebody of before has it yet, half made
                    try:
                        return self.client.prepare(request, start=True).uuid
                    except DaemonGoneError:
                        self.lost()

    def start(self, uuid, since=None):
        """Starts it, once.

        :param since: when it was started the time before.
        :returns: it, however it is by then.
        :raises PodNotFoundError: whoever made it died before it was made, and it was undone.
        """
        while True:
            record = self.pod(uuid)
            if is_to_start(record, since):
                try:
                    return self.client.launch(uuid)
                except (DaemonGoneError, PodStateError):
                    self.lost()
            elif record.state not in ("preparing", "starting"):
                return record
            time.sleep(0.02)

    def pod(self, uuid):
        return self.ask(lambda client: client.pod(uuid))

    def wait(self, uuid):
        return self.ask(lambda client: client.wait(uuid))

    def stop(self, uuid, **options):
        while True:
            try:
                return self.ask(lambda client: client.stop(uuid, **options))
            except PodStateError as error:
                if "cannot be stopped yet" not in error.message:
                    raise
                time.sleep(0.02)

    def remove(self, uuid, *, force=False):
        with contextlib.suppress(PodNotFoundError):
            self.ask(lambda client: client.rm(uuid, force=force))

    def lines(self, uuid):
        return self.ask(lambda client: text_of(client.logs(uuid)).splitlines())

    def follow(self, uuid, until=None):
        """What it writes, until it has ended, each byte once, whatever becomes of daemons.

        :param until: a line, behind which nobody reads on.
        """
        seen = ""
        while True:
            now = ""
            try:
                for text in self.client.logs(uuid, follow=True):
                    now += text_of([text])
                    seen += now[len(seen) :]
                    if until in seen.splitlines():
                        self.close()  # the rest of the answer is not read
                        return seen
                assert until is None, f"it has ended, and has not said {until!r}: {seen}"
                return seen
            except DaemonGoneError:
                self.lost()


def is_to_start(record, since):
    if record.state == "errored":
        return record.reason == _UNDONE
    return record.state == "prepared" or (record.state == "stopped" and record.started_at == since)
