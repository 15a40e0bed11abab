"""Runs pods under the checked stager and talks to the probes inside them, with limits of time and size.

A probe's answers are untrusted.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import KurmaError
from kurma_core.formats.small_json import decode
from kurma_core.models.streams import Stdio
from kurma_core.pods.manager import PodManager
from kurma_core.stager_check.callin import Call
from kurma_core.stager_check.probe_image import PROGRAM
from kurma_core.stager_check.report import Untidy, Wrong, shortened
from kurma_core.staging.callin import CallIn, has_call_in

if TYPE_CHECKING:
    from kurma_core.models.pod import AppStatus, PodRecord
    from kurma_core.pods.run.owner import OwnedPod
    from kurma_core.stager_check.check_services import CheckServices, Patience, WatchedStager
    from kurma_core.stager_check.probe_image import ProbeImage

Json = Any
#: Most probes that are accepted at a time.
_MOST = 64


def app(*arguments: str, user: str = "0", group: str = "0", **fields: Json) -> dict[str, Json]:
    """Returns an ``app`` of a manifest that runs the probe.

    :param arguments: the probe's name and action.
    """
    return {"exec": [PROGRAM, *arguments], "user": user, "group": group, **fields}


class Lab:
    """Starts pods, one after another.

    :param workplace: a directory for the check's own files.
    :param most_apps: the most apps that a pod of this stager may have; None: any number.
    """

    def __init__(
        self,
        services: CheckServices,
        driver: WatchedStager,
        image: ProbeImage,
        patience: Patience,
        workplace: str,
        most_apps: int | None = None,
    ) -> None:
        self.image = image
        self.patience = patience
        self.workplace = workplace
        self.driver = driver
        self.manager = PodManager(services)
        self.most_apps = most_apps

    def takes(self, apps: int) -> bool:
        """Whether a pod of this stager may have so many apps."""
        return self.most_apps is None or apps <= self.most_apps

    @property
    def few_apps(self) -> str:
        """The reason why a line about several apps is skipped."""
        return f"the stager takes pods of {self.most_apps} {'app' if self.most_apps == 1 else 'apps'} at most"

    def template(self, apps: Mapping[str, Mapping[str, Json]], **pod: Json) -> PodTemplate:
        """Makes a pod template. :param apps: as in :meth:`pod`."""
        documents = [
            {"name": name, "image": {"id": self.image.id}, **(one if "app" in one else {"app": one})}
            for name, one in apps.items()
        ]
        return PodTemplate.parse({"apps": documents, **pod})

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
        """Runs a pod, and tears it down and removes it at the end of the ``with`` statement.

        :param apps: by name, an ``app``, or an app of a pod's manifest (with the key ``app``).
        :raises KurmaError: it did not start.
        """
        template = self.template(apps, networks=["none"], **pod)
        request = PodRequest(
            template, stager=self.driver.name, ephemeral=True, interactive=interactive, userns=userns
        )
        record = self.manager.prepare(request)
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
                self.manager.remover.remove(record.uuid, force=True)
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
        return self.owned.name

    def probe(self, name: str) -> Probe:
        """Waits for the report of the probe of that name, and returns the probe, once.

        :raises Wrong: the probe did not connect.
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
        """Returns the probes that have connected by now and were not returned before, in order."""
        for _ in range(_MOST):
            if not select.select([self._listener], [], [], 0)[0]:
                break
            connection, _ = self._listener.accept()
            self.arrived.append(Probe(connection, self.lab.patience.answer))
        found, self.arrived = self.arrived, []
        self._gathered += found
        return found

    def _told(self) -> str:
        from kurma_core.staging.aci_stager import last_output

        return last_output(self.owned.directory)

    def status(self) -> Mapping[str, AppStatus]:
        return self.lab.driver.status(self.owned.directory, self.owned.stager)

    def status_when(self, name: str) -> AppStatus:
        """Waits until the app's status says that it has ended, and returns it. :raises Wrong: it does not."""
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
        return has_call_in(self.owned.stager, verb)

    def call(
        self,
        verb: str,
        *arguments: str,
        document: Json = None,
        stdin: bytes = b"",
        fd: int = -1,
        terminal: int = -1,
    ) -> Call:
        """Starts a call-in.

        :param stdin: the content of its standard input; or ``fd``, a descriptor for it; or ``terminal``, a
            descriptor for all three of its streams.
        """
        text = None if document is None else json.dumps(document).encode()
        patience = self.lab.patience.answer

        def begin(stdio: Stdio) -> CallIn:
            return self.lab.driver.begin(self.owned.directory, self.owned.stager, verb, arguments, stdio, text)

        source = terminal if terminal >= 0 else fd
        call = Call(verb, begin, patience, stdin=stdin, fd=source, terminal=terminal)
        self._calls.append(call)
        return call

    def run(self, *command: str, stdin: bytes = b"", app: str = "main", **fields: Json) -> Call:
        """Starts the ``run`` call-in with the probe.

        :param command: the probe's arguments.
        """
        document = {"exec": [PROGRAM, *command], "user": "0", "group": "0", **fields}
        return self.call("run", app, document=document, stdin=stdin)

    def stop(self, *, force: bool = False) -> None:
        self.owned.stop(force=force)

    def ends(self, seconds: float | None = None) -> PodRecord:
        """Waits for the pod's end and returns its record. :raises Wrong: it does not end."""
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


#: Most bytes of one message of a probe.
_LIMIT = 1 << 20


class Probe:
    """The check's end of a probe's socket.

    :ivar facts: the probe's report (:mod:`probe`).
    :ivar pid: PID of its process in the check's PID namespace.
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
        value = decode(line)
        if not isinstance(value, dict):
            raise Wrong(f"an app answers {shortened(value)}")
        return value

    def ask(self, *what: Json) -> Json:
        """Sends a command and returns the probe's answer. :raises Wrong: it does not answer."""
        self.tell(*what)
        while True:
            heard = self._hear()
            if "answer" in heard:
                return heard["answer"]
            self.signals.append(heard["signal"])

    def tell(self, *what: Json) -> None:
        """Sends a command without waiting for the answer."""
        data = marshal.dumps(list(what))
        try:
            self._socket.sendall(len(data).to_bytes(4, "little") + data)
        except OSError as error:
            raise Wrong(f"the app is gone: {error}") from None

    def signal(self) -> int:
        """Waits for the next signal that the probe received. :raises Wrong: it receives none."""
        while not self.signals:
            heard = self._hear()
            if "signal" in heard:
                self.signals.append(heard["signal"])
        return self.signals.pop(0)

    def must(self, *what: Json) -> Json:
        """Like :meth:`ask`. :raises Wrong: the command failed."""
        answer = self.ask(*what)
        if isinstance(answer, dict) and "error" in answer:
            raise Wrong(f"{what[0]} {what[1] if len(what) > 1 else ''}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._socket.close()
