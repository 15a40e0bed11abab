"""Pods under the stager that is checked, and what is asked of them. Everything has a bound in time and in size."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.appc.template import PodTemplate
from kurma_core.errors import KurmaError
from kurma_core.hookspecs import Stdio
from kurma_core.pods.manager import PodManager
from kurma_core.pods.request import PodRequest
from kurma_core.stager_check.layers import PROGRAM
from kurma_core.stager_check.lines import Untidy, Wrong, shortened
from kurma_core.staging.callin import CallIn

if TYPE_CHECKING:
    from kurma_core.models import AppStatus, PodRecord
    from kurma_core.pods.owned import OwnedPod
    from kurma_core.stager_check.host import CheckServices, Patience, WatchedStager
    from kurma_core.stager_check.layers import ProbeImage

Json = Any
_LIMIT = 1 << 20
#: Apps and commands that are listened to at a time.
_MOST = 64


def app(*arguments: str, user: str = "0", group: str = "0", **fields: Json) -> dict[str, Json]:
    """An ``app`` of a manifest that runs the probe.

    :param arguments: its name, and what it does.
    """
    return {"exec": [PROGRAM, *arguments], "user": user, "group": group, **fields}


class Lab:
    """Starts pods, one after another.

    :param workplace: a directory for what the check keeps beside its pods.
    """

    def __init__(
        self, services: CheckServices, driver: WatchedStager, image: ProbeImage, patience: Patience, workplace: str
    ) -> None:
        self.image = image
        self.patience = patience
        self.workplace = workplace
        self.driver = driver
        self.hostnames: dict[str, str] = {}
        self.manager = PodManager(services)

    @contextlib.contextmanager
    def pod(
        self,
        apps: Mapping[str, Mapping[str, Json]],
        *,
        interactive: str | None = None,
        stdin: int | None = None,
        userns: str = "none",
        **pod: Json,
    ) -> Iterator[Pod]:
        """A pod that runs; taken down and removed whatever comes.

        :param apps: an ``app`` by name; or, with the key ``app``, more of a pod's manifest.
        :raises KurmaError: it did not start.
        """
        documents = [
            {"name": name, "image": {"id": self.image.id}, **(one if "app" in one else {"app": one})}
            for name, one in apps.items()
        ]
        template = PodTemplate.parse({"apps": documents, "networks": ["none"], **pod})
        request = PodRequest(
            template, stager=self.driver.name, ephemeral=True, interactive=interactive, userns=userns
        )
        record = self.manager.prepare(request)
        self.hostnames[record.uuid] = record.name
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            owned = self.manager.start(record.uuid, Stdio(null if stdin is None else stdin, null, null))
            made = Pod(self, owned)
            try:
                yield made
            finally:
                made.close()
        finally:
            os.close(null)
            listener = self.driver.listeners.pop(record.uuid, None)
            if listener is not None:
                listener.close()
            try:
                self.manager.remove(record.uuid, force=True)
            except KurmaError as error:
                raise Untidy(error.message, hint=error.hint) from None


class Pod:
    """A pod of the check.

    :param owned: this process is its owner.
    """

    def __init__(self, lab: Lab, owned: OwnedPod) -> None:
        self.lab = lab
        self.owned = owned
        self.arrived: list[Probe] = []
        self._gathered: list[Probe] = []
        self._listener = lab.driver.listeners[owned.uuid]
        self._record: PodRecord | None = None
        self._calls: list[Call] = []

    @property
    def cgroup(self) -> str:
        return f"kurma/{self.owned.uuid}"

    @property
    def hostname(self) -> str:
        return self.lab.hostnames[self.owned.uuid]

    def probe(self, name: str) -> Probe:
        """The probe of that name, once it has told what it finds; each is given out once.

        :raises Wrong: it did not arrive.
        """
        until = time.monotonic() + self.lab.patience.answer
        while True:
            for each in self.arrived:
                if each.name == name:
                    self.arrived.remove(each)
                    self._gathered.append(each)
                    return each
            left = until - time.monotonic()
            readable = select.select([self._listener], [], [], max(0.0, left))[0]
            if not readable:
                raise Wrong(
                    f"{name} did not begin, or is not in the pod's network namespace; the stager said: "
                    + (self._told() or "nothing")
                )
            connection, _ = self._listener.accept()
            self.arrived.append(Probe(connection, self.lab.patience.answer))

    def gather(self) -> list[Probe]:
        """Those that have arrived by now, and were not given out, in the order in which they came."""
        for _ in range(_MOST):
            if not select.select([self._listener], [], [], 0)[0]:
                break
            connection, _ = self._listener.accept()
            self.arrived.append(Probe(connection, self.lab.patience.answer))
        found, self.arrived = self.arrived, []
        self._gathered += found
        return found

    def _told(self) -> str:
        from kurma_core.staging.aci import last_output

        return last_output(self.owned.directory)

    def status(self) -> Mapping[str, AppStatus]:
        return self.lab.driver.status(self.owned.directory, self.owned.stager)

    def status_when(self, name: str) -> AppStatus:
        """The app's, once it says that the app has ended. :raises Wrong: it does not."""
        until = time.monotonic() + self.lab.patience.answer
        while True:
            found = self.status().get(name)
            if found is not None and found.exited:
                return found
            if time.monotonic() > until:
                raise Wrong(f"{name} has ended, and status says {shortened(found and found.to_json())}")
            time.sleep(0.02)

    def has(self, verb: str) -> bool:
        """Whether the stager's image has that call-in."""
        return os.path.isfile(f"/proc/{self.owned.stager.pid}/root/opt/stager/{verb}")

    def call(
        self,
        verb: str,
        *arguments: str,
        document: Json = None,
        stdin: bytes = b"",
        fd: int = -1,
        terminal: int = -1,
    ) -> Call:
        """A call-in, under way.

        :param stdin: all of its standard input; or ``fd``, a descriptor that is it; or ``terminal``, one that is
            all three of its streams.
        """
        text = None if document is None else json.dumps(document).encode()
        call = Call(self, verb, arguments, text, stdin, terminal if terminal >= 0 else fd, terminal)
        self._calls.append(call)
        return call

    def run(self, *command: str, stdin: bytes = b"", app: str = "main", **fields: Json) -> Call:
        """The ``run`` call-in with the probe.

        :param command: the probe's arguments.
        """
        document = {"exec": [PROGRAM, *command], "user": "0", "group": "0", **fields}
        return self.call("run", app, document=document, stdin=stdin)

    def stop(self, *, force: bool = False) -> None:
        self.owned.stop(force=force)

    def ends(self, seconds: float | None = None) -> PodRecord:
        """How the pod ended. :raises Wrong: it does not."""
        if self._record is None:
            seconds = self.lab.patience.answer if seconds is None else seconds
            if self.owned.stager.wait(seconds) is None and self.owned.stager.alive():
                raise Wrong(f"the stager has not ended within {seconds:g} s")
            self._record = self.owned.finish()
        return self._record

    def close(self) -> None:
        for probe in [*self.arrived, *self._gathered]:
            probe.close()
        try:
            if self._record is None:
                if self.owned.stager.alive():
                    self.owned.stop(force=True)
                self._record = self.owned.finish()
        except KurmaError as error:
            raise Untidy(error.message, hint=error.hint) from None
        finally:
            for call in self._calls:
                call.close()
            self.owned.close()


class Probe:
    """The other end of a probe's socket.

    :ivar facts: what it found, as :mod:`probe` tells it.
    :ivar pid: of its process, as seen from here.
    """

    def __init__(self, connection: socket.socket, patience: float) -> None:
        self._socket = connection
        self._patience = patience
        connection.settimeout(patience)
        self._rest = b""
        self.signals: list[int] = []
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = struct.unpack("iii", credentials)[0]
        self.facts: dict[str, Json] = self._hear()
        self.name = str(self.facts.get("name"))

    def _hear(self) -> dict[str, Json]:
        while b"\n" not in self._rest:
            try:
                more = self._socket.recv(1 << 16)
            except OSError as error:
                raise Wrong(f"an app does not answer: {error}") from None
            if not more or len(self._rest) > _LIMIT:
                raise Wrong("an app ended, or talks nonsense, where it should answer")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise Wrong(f"an app answers {shortened(value)}")
        return value

    def ask(self, *what: Json) -> Json:
        """What the probe answers. :raises Wrong: it does not."""
        self.tell(*what)
        while True:
            heard = self._hear()
            if "answer" in heard:
                return heard["answer"]
            self.signals.append(heard["signal"])

    def tell(self, *what: Json) -> None:
        """Asks, and does not wait."""
        data = marshal.dumps(list(what))
        try:
            self._socket.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise Wrong(f"the app is gone: {error}") from None

    def signal(self) -> int:
        """The next signal that came. :raises Wrong: none does."""
        while not self.signals:
            heard = self._hear()
            if "signal" in heard:
                self.signals.append(heard["signal"])
        return self.signals.pop(0)

    def must(self, *what: Json) -> Json:
        """As :meth:`ask`. :raises Wrong: it could not."""
        answer = self.ask(*what)
        if isinstance(answer, dict) and "error" in answer:
            raise Wrong(f"{what[0]} {what[1] if len(what) > 1 else ''}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._socket.close()


class Call:
    """A call-in under way."""

    def __init__(
        self,
        pod: Pod,
        verb: str,
        arguments: tuple[str, ...],
        document: bytes | None,
        stdin: bytes,
        fd: int,
        terminal: int,
    ) -> None:
        lab = pod.lab
        self._patience = lab.patience.answer
        self.verb = verb
        self._output: list[_Collector] = []
        source = fd if fd >= 0 else os.memfd_create("stdin", os.MFD_CLOEXEC)
        if fd < 0:
            os.pwrite(source, stdin, 0)
        ends = []
        try:
            for _ in range(2):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                ends.append(writer)
                self._output.append(_Collector(reader))
            stager = pod.owned.stager
            self._call = CallIn(
                lab.driver.spawner,
                stager.pid,
                stager.fileno(),
                pod.cgroup,
                (f"/opt/stager/{verb}", *arguments),
                Stdio(source, *(ends if terminal < 0 else (terminal, terminal))),
                document,
                self._patience,
            )
        finally:
            for end in ends:
                os.close(end)
            if fd < 0:
                os.close(source)
        self._code: int | None = None
        self._error: KurmaError | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._code = self._call.wait(2 * self._patience)
        except KurmaError as error:
            self._error = error

    @property
    def pid(self) -> int:
        return self._call.pid

    @property
    def out(self) -> str:
        return self._output[0].text()

    @property
    def err(self) -> str:
        return self._output[1].text()

    def code(self) -> int:
        """The exit code, once it has ended, and both outputs are complete.

        :raises Wrong: it does not end. :raises KurmaError: it broke the protocol.
        """
        self._thread.join(2 * self._patience + 5)
        if self._error is not None:
            raise self._error
        if self._code is None:
            raise Wrong(f"the call-in {self.verb} does not end")
        for each in self._output:
            each.finish(1.0)
        return self._code

    def ended(self, seconds: float) -> bool:
        """Whether it ends within that time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def prints(self, text: str) -> None:
        """Waits until it has printed that. :raises Wrong: it does not."""
        until = time.monotonic() + self._patience
        while text not in self.out:
            if time.monotonic() > until:
                raise Wrong(f"{self.verb} printed {shortened(self.out)}, without {shortened(text)}")
            time.sleep(0.01)

    def close(self) -> None:
        self._thread.join(2 * self._patience + 5)
        for each in self._output:
            each.close()


class _Collector:
    """Reads a pipe in a thread; whoever writes more than is sensible writes to nobody.

    :param fd: closed in the end.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._fd, "rb", buffering=0) as stream:
            while len(self._data) <= _LIMIT and not self._stop.is_set():
                if not select.select([stream], [], [], 0.2)[0]:
                    continue
                more = stream.read(1 << 16)
                if not more:
                    return
                self._data += more

    def text(self) -> str:
        return bytes(self._data).decode(errors="replace")

    def finish(self, seconds: float) -> None:
        self._thread.join(seconds)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
