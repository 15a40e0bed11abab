"""What the tests of pods are made of: images, requests, foreground commands in processes of their own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kurma_core.api.pods import EnterRequest, PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import KurmaError
from kurma_core.models.streams import Stdio
from tests.kit.client import open_client
from tests.kit.command import Kurma
from tests.kit.images import shell
from tests.kit.waiting import PATIENCE, until

_OF_THE_POD = ("net", "volumes", "isolators", "annotations", "ports")
_RUNNER = os.path.join(os.path.dirname(__file__), "runner.py")


#: A mark of tests whose pods are run in process and by way of a daemon.
both_ways = pytest.mark.parametrize("way", ["here", "kurmad"], indirect=True)


def _of_the_pod(options):
    """What of the options stands in the pod's file. The host's network is granted there."""
    pod = {key: options.pop(key) for key in _OF_THE_POD if key in options}
    if pod.get("net") == "host":
        options["grants"] = (*options.get("grants", ()), "os/linux/namespaces=net")
    return pod


class House:
    """A client, and pods asked for in a line.

    :param image: ID of the busybox image.
    """

    def __init__(self, config_file, state, image, scratch):
        self.config_file = config_file
        self.state = state
        self.image = image
        self.notes = []
        self._scratch = scratch
        self._runs = []
        self.client = self.connect()

    def connect(self, host=None):
        """Another client of the same. :param host: as ``--host``."""
        return open_client(self.config_file, self.state, host=host, note=self.notes.append)

    def reopen(self):
        """A client anew: by way of kurmad, if one has come."""
        self.client.close()
        self.client = self.connect()

    @property
    def kurma(self):
        """The command, on the same state directory with the same configuration."""
        return Kurma(Path(self.state), Path(self.config_file), self.image)

    def close(self):
        """Ends what tests left running, as the last resort: each test checks its own. Volumes, secrets and the
        default network go, which stay when their pods have gone, in the way of tests that follow."""
        for run in self._runs:
            run.kill()
        with self.connect(host="local") as client:
            for uuid in client.here.services.store.uuids():
                # What a test has broken on purpose is removed by it, too.
                with contextlib.suppress(KurmaError):
                    client.rm(uuid, force=True, managed=True)
            if os.path.exists(f"{self.state}/volumes"):
                client.volume_prune()
            for secret in client.secrets_list():
                client.secret_rm(secret.name, force=True)
            if os.path.exists(f"{self.state}/plugins/kurma.networks/bridge/choices/default.json"):
                client.network_rm("default")
        # Names of pods whose directory a test has removed.
        for name in self.names():
            os.unlink(f"{self.state}/pods/names/{name}")
        self.client.close()

    def kept(self):
        """What stands in the directory of pods; the place for ids stays once a pod had some."""
        return sorted(name for name in os.listdir(f"{self.state}/pods") if name != ".ids")

    def names(self):
        """Names that pods have, those included whose directory somebody removed."""
        try:
            return set(os.listdir(f"{self.state}/pods/names"))
        except FileNotFoundError:  # no pod had one yet
            return set()

    # -- asking --

    def template(self, apps, *, net="none", **pod):
        """:param apps: by name: a shell script, an ``app``, or a whole runtime app."""
        documents = []
        for name, app in apps.items():
            if isinstance(app, str):
                app = {"app": shell(app)}
            elif "exec" in app:
                app = {"app": app}
            documents.append({"name": name, "image": self.image, **app})
        networks = {} if net is None else {"networks": [net] if isinstance(net, str) else net}
        return {"apps": documents, **networks, **pod}

    def request(self, apps, *, template=None, **options):
        """:param apps: see :meth:`template`; a script alone is the app ``main``."""
        if isinstance(apps, str):
            apps = {"main": apps}
        pod = _of_the_pod(options)
        return PodRequest(PodTemplate.parse(template or self.template(apps, **pod)), **options)

    # -- doing --

    def run(self, apps, *, stdin=None, **options):
        """Runs a pod in the foreground: its record and its output."""
        return self.foreground(
            lambda stdio, out: self.client.run(self.request(apps, **options), stdio, out), stdin
        )

    def start(self, reference, stdin=None):
        return self.foreground(lambda stdio, output: self.client.start(reference, stdio, output), stdin)

    def foreground(self, function, stdin=None):
        lines = []
        null = os.open("/dev/null", os.O_RDWR)
        try:
            record = function(Stdio(null if stdin is None else stdin, null, null), lines.append)
        finally:
            os.close(null)
        return record, text_of(lines)

    @contextlib.contextmanager
    def running(self, apps="sleep 1000", **options):
        """A pod that this process owns, once it has come up; ended by force at the end if it still runs."""
        with self.started(self.client.prepare(self.request(apps, **options))) as pod:
            yield pod

    @contextlib.contextmanager
    def started(self, record):
        """As :meth:`running`, for a pod that is prepared."""
        null = os.open("/dev/null", os.O_RDWR)
        try:
            pod = self.client.here.pods.start(record.uuid, Stdio(null, null, null))
        finally:
            os.close(null)
        try:
            yield pod
        finally:
            if pod.stager.alive():
                pod.stop(force=True)
            pod.finish()
            pod.close()

    def enter(self, reference, *argv, app=None, stdin=b"", **options):
        """A command in an app: exit code, stdout, stderr."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(f"{self._scratch}/enter.{n}", "w+b")) for n in range(3)]
            files[0].write(stdin)
            files[0].seek(0)
            request = EnterRequest(exec=argv, app=app, **options)
            code = self.client.enter(reference, request, Stdio(*[file.fileno() for file in files]))
            for file in files[1:]:
                file.seek(0)
            return code, files[1].read().decode(), files[2].read().decode()

    def launch(
        self,
        apps=None,
        *,
        start=None,
        restart=None,
        faults=(),
        prelude="",
        stdout=None,
        stdin=None,
        wait="running",
        host="local",
        **options,
    ):
        """Runs a pod in the foreground of a process of its own.

        :param start, restart: reference of a pod to be started (again), instead of a new one.
        :param faults, prelude: see ``runner.py``.
        :param host: None: by way of the daemon, if one serves the state directory.
        :param wait: the state to wait for; None: none.
        """
        if isinstance(apps, str):
            apps = {"main": apps}
        pod = _of_the_pod(options)
        template = None if apps is None else self.template(apps, **pod)
        request = {
            "config": self.config_file,
            "state": self.state,
            "host": host,
            "template": template,
            "start": start or restart,
            "again": restart is not None,
            "options": options,
            "faults": list(faults),
            "prelude": prelude,
        }
        run = Run(self, f"{self._scratch}/run-{len(self._runs)}", request, stdout, stdin)
        self._runs.append(run)
        if wait is not None:
            run.wait_state(wait)
        return run

    # -- looking --

    def path(self, record, name=""):
        uuid = getattr(record, "uuid", record)
        return f"{self.state}/pods/{uuid}/{name}".rstrip("/")

    def state_of(self, record):
        with open(self.path(record, "state.json")) as file:
            return json.load(file)

    def log(self, record, app=None):
        return text_of(self.client.logs(record.uuid, app))

    def uuids(self):
        return sorted(self.client.here.services.store.uuids())


def text_of(lines):
    return "".join(line.text.decode() + ("" if line.partial else "\n") for line in lines)


class Run:
    """A foreground command, in a process of its own."""

    def __init__(self, house, files, request, stdout, stdin):
        self.house = house
        self._files = files
        request = {**request, "told": f"{files}.told"}
        with open(f"{self._files}.out", "wb") as out, open(f"{self._files}.err", "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, _RUNNER, json.dumps(request)],
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=stdout or out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def uuid(self):
        def told():
            with contextlib.suppress(FileNotFoundError), open(f"{self._files}.told") as file:
                return file.read().strip()
            assert self.process.poll() is None, self.errors
            return ""

        return until(told, "the pod's UUID")

    def wait_state(self, *states):
        """Waits until the pod's record names one of these states."""

        def reached():
            with contextlib.suppress(FileNotFoundError):
                state = self.house.state_of(self.uuid)["state"]
                return state if state in states else ""
            return ""

        return until(reached, f"pod in {states}; {self.errors}")

    @property
    def output(self):
        with open(f"{self._files}.out") as file:
            return file.read()

    def wait_output(self, text):
        until(lambda: text in self.output, f"{text!r} in the output; {self.errors}")

    @property
    def errors(self):
        with open(f"{self._files}.err") as file:
            return file.read()

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=PATIENCE):
        return self.process.wait(timeout)

    def kill(self):
        """SIGKILL: as the machine's own killer would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)


def address(house, pod):
    (attachment,) = [one for one in house.state_of(pod)["attachments"] if one["network"] != "lo"]
    return attachment["result"]["addresses"][0]["address"].split("/")[0]


def received(house, pod, seconds=0.6):
    """Bytes per second that come out of the pod, from what serves without end at port 9000."""

    def connected():
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((address(house, pod), 9000), timeout=5)

    with until(connected, "the pod serves") as client:
        client.settimeout(0.2)
        count, begin = 0, time.monotonic()
        while time.monotonic() < begin + seconds:
            with contextlib.suppress(TimeoutError):
                count += len(client.recv(1 << 20))
        return count / (time.monotonic() - begin)
