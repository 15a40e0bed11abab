"""The stager ``solo``: the host's half.

It shows the other design that :class:`kurma_core.hookspecs.stager.StagerHooks` is made for: no image, no call-ins;
a supervisor that runs on the host beside a prepared directory. It takes pods of one app without volumes, and
applies no isolators, so it is nothing to run strangers' images with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kurma_core.errors import StagerError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.driver import Driver
from kurma_core.hookspecs.pod_setup import PodSetup
from kurma_core.linux import process
from kurma_core.linux.files import replace_file
from kurma_core.models.pod import AppStatus
from kurma_core.models.streams import Stdio


class Solo:
    name = "solo"

    @hookimpl
    def prepare(self, pod: PodSetup) -> None:
        """Copies the layers, the lowest first, and writes down what is to be run."""
        if len(pod.apps) != 1 or pod.volumes:
            raise StagerError(f"stager {self.name}: it takes pods of one app without volumes", pod=pod.uuid)
        (app,) = pod.apps
        image = pod.images[app.layers[0].id]
        own = pod.manifest.apps[0].app
        command = list(own.exec) if own is not None and own.exec else image.get("app", {}).get("exec")
        if not command:
            raise StagerError(f"stager {self.name}: app {app.name} has no command", pod=pod.uuid)
        self._forget(pod.directory)
        root = os.path.join(pod.directory, "stager", "rootfs")
        os.makedirs(root)
        for layer in reversed(app.layers):
            run = ["cp", "--archive", "--reflink=auto", f"{layer.path}/.", root]
            copied = subprocess.run(run, capture_output=True, text=True, check=False)
            if copied.returncode:
                raise StagerError(f"stager {self.name}: {copied.stderr.strip()}", pod=pod.uuid)
        setup = {
            "app": app.name,
            "root": root,
            "exec": command,
            "environment": dict(app.environment),
            "network": pod.network_namespace,
            "status": _path(pod.directory, "status.json"),
        }
        replace_file(_path(pod.directory, "setup.json"), json.dumps(setup).encode())

    @hookimpl
    def start(self, pod: PodSetup, stdio: Stdio) -> Supervisor:
        command = [sys.executable, "-m", "kurma_example_solo.supervisor", _path(pod.directory, "setup.json")]
        try:
            child = subprocess.Popen(command, stdin=stdio.stdin, stdout=stdio.stdout, stderr=stdio.stderr)
        except OSError as error:
            raise StagerError(f"stager {self.name}: {error}", pod=pod.uuid) from error
        child.returncode = 0  # it is waited for by its pidfd, not by subprocess
        running = Supervisor(process.ProcessIdentity.current(child.pid), process.pidfd_open(child.pid))
        replace_file(_path(pod.directory, "identity.json"), json.dumps(running.identity).encode())
        return running

    @hookimpl
    def attach_to(self, directory: str, identity: Mapping[str, Any]) -> Supervisor | None:
        known = process.ProcessIdentity.from_json(dict(identity))
        pidfd = known.open()
        return None if pidfd is None else Supervisor(known, pidfd)

    @hookimpl
    def status(self, directory: str, running: Supervisor | None) -> Mapping[str, AppStatus]:
        try:
            with open(_path(directory, "status.json")) as stream:
                record = json.load(stream)
        except FileNotFoundError:
            return {}
        app = AppStatus(record["app"], record["pid"], record["exited"], exit_code=record["exitCode"])
        return {record["app"]: app}

    @hookimpl
    def call(self, verb: str) -> int:
        raise StagerError(f"stager {self.name} has no call-in {verb!r}")

    @hookimpl
    def stop(self, directory: str, running: Supervisor, force: bool) -> None:
        running.signal(9 if force else 15)

    @hookimpl
    def cleanup(self, directory: str, cgroup: str) -> None:
        try:
            with open(_path(directory, "identity.json")) as stream:
                running = self.attach_to(directory, json.load(stream))
        except FileNotFoundError:
            running = None
        if running is not None:
            # The app is the first process of its PID namespace and dies with the supervisor; all else with it.
            running.signal(9)
            running.wait(10)
            running.close()
        self._forget(directory)

    def _forget(self, directory: str) -> None:
        shutil.rmtree(os.path.join(directory, "stager"), ignore_errors=True)


class Supervisor:
    """A running supervisor, by its pidfd."""

    def __init__(self, identity: process.ProcessIdentity, pidfd: int) -> None:
        self._identity = identity
        self._pidfd = pidfd
        self._status: int | None = None

    @property
    def pid(self) -> int:
        return self._identity.pid

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity.to_json()

    @hookimpl
    def wait_running(self, timeout: float) -> bool:
        """It has nothing to set up: it runs, or has ended."""
        if self.alive():
            return True
        if self.wait():
            raise StagerError(f"stager solo: it ended with status {self._status}")
        return False

    @hookimpl
    def wait(self, timeout: float | None = None) -> int | None:
        if self._status is None and process.wait_pidfd(self._pidfd, timeout):
            code = process.exit_status(self._pidfd)
            self._status = code if code is None or code >= 0 else 128 - code
        return self._status

    @hookimpl
    def alive(self) -> bool:
        return not process.wait_pidfd(self._pidfd, 0)

    @hookimpl
    def fileno(self) -> int:
        return self._pidfd

    @hookimpl
    def signal(self, number: int) -> None:
        try:
            process.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    @hookimpl
    def close(self) -> None:
        os.close(self._pidfd)


def _path(directory: str, name: str) -> str:
    return os.path.join(directory, "stager", name)


@hookimpl
def kurma_stager() -> Driver:
    return Driver(lambda context: Solo())
