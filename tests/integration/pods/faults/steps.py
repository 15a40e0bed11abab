"""The stager, struck at its N-th step: strace counts the system calls by which it changes something, and strikes.

Nothing of the product helps: what is killed is the default stager as it is, behind a program that waits until it
is traced. By hand, at every step with every signal: ``./dev stager-kill-test``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading

from kurma_stager_default import image

from kurma_core.errors import KurmaError
from kurma_core.models.streams import Stdio
from tests.kit.images import BUSYBOX, archive, image_id
from tests.kit.waiting import alive, until

#: System calls by which the stager changes something that others see, makes a process, or waits for something.
CALLS = (
    "unshare,setns,sethostname,mount,fsopen,fsmount,move_mount,open_tree,mount_setattr,pivot_root,umount2,"
    "clone,clone3,fork,vfork,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,pipe2,socket,bind,listen,"
    "kill,pidfd_send_signal,wait4,waitid,poll,ppoll,write,ftruncate,chmod,fchmod,fchmodat,chown,fchown"
)
# It stops before it becomes the stager, so that whoever wants to watch can come.
_WAITING = "#!/bin/busybox sh\necho $$ > /pod/waiting\nkill -STOP $$\nexec {command}\n"
#: A pod that does all that a pod does: handlers, output, a clean end when it is asked.
_APP = {
    "exec": ["/bin/sh", "-c", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.02; done"],
    "user": "0",
    "group": "0",
    "eventHandlers": [{"name": "pre-start", "exec": ["/bin/true"]}, {"name": "post-stop", "exec": ["/bin/true"]}],
}


def waiting_stager(directory):
    """Path of an image archive: the default stager, behind a program that waits for its tracer."""
    root = f"{directory}/waiting"
    manifest = image.build(root)
    os.makedirs(f"{root}/bin", exist_ok=True)
    shutil.copy(BUSYBOX, f"{root}/bin/busybox")
    app = dict(manifest["app"])
    with open(f"{root}/waiting", "w") as file:
        file.write(_WAITING.format(command=" ".join(app["exec"])))
    os.chmod(f"{root}/waiting", 0o755)
    app["exec"] = ["/waiting"]
    return archive(root, f"{directory}/waiting.aci", "example.com/waiting", app=app)


def configuration(path):
    """A configuration whose pods run under the stager that waits. :param path: of its archive."""
    return {
        "stager": "waiting",
        "stagers": {"waiting": {"image": path, "without_isolators": True}},
        "host_image_digests": {path: image_id(path)},
        "start_timeout": 2,
        "stop_timeout": 2,
    }


class Tracer:
    """strace at a stager that waits, which goes on from there.

    :param pid: of the stager, stopped.
    :param file: where strace writes.
    :param step: where it is struck: a system call, and which one of those; None: nowhere.
    """

    def __init__(self, pid, file, step=None, number=signal.SIGKILL):
        self.pid = pid
        self._file = file
        name = signal.Signals(number).name.removeprefix("SIG")
        inject = [] if step is None else ["-e", f"inject={step[0]}:signal={name}:when={step[1]}"]
        self._strace = subprocess.Popen(
            ["strace", "-qq", "-o", file, "-e", f"trace={CALLS}", "-e", "signal=none", *inject, "-p", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._attached, "strace at the stager")
        os.kill(pid, signal.SIGCONT)

    def _attached(self):
        assert self._strace.poll() is None, "strace has ended"
        with open(f"/proc/{self.pid}/status") as file:
            text = file.read()
        return re.search(r"^TracerPid:\t[1-9]", text, re.M) and re.search(r"^State:\t[tT]", text, re.M)

    def end(self):
        """It has ended by itself, as what it traced has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._strace.wait(20)
        if self._strace.poll() is None:
            self._strace.kill()
        self._strace.wait()

    def steps(self):
        """What the stager did, a line for each step. The last one was not done if it was struck there."""
        with open(self._file) as file:
            return [line for line in file.read().splitlines() if "(" in line]


def names_of(lines):
    """Each step as a tracer wants it: ``(system call, which one of those)``."""
    seen = {}
    found = []
    for line in lines:
        call = line.partition("(")[0]
        seen[call] = seen.get(call, 0) + 1
        found.append((call, seen[call]))
    return found


def _waiting(path):
    """The PID of the stager that waits, once it has stopped. :param path: of the pod's directory."""

    def stopped():
        with contextlib.suppress(FileNotFoundError, ValueError):
            with open(f"{path}/pod/waiting") as file:
                pid = int(file.read())
            with open(f"/proc/{pid}/stat") as file:
                return pid if file.read().rpartition(")")[2].split()[0] == "T" else None
        return None

    return until(stopped, "the stager that waits")


class Life:
    """The life of one pod under a stager that is struck at some step: started, entered, stopped.

    :param step: see :class:`Tracer`.
    :attr:`told`: the error that the start ended with, if it did. :attr:`record`: how it is told afterwards.
    :attr:`struck`: whether it came so far.
    """

    def __init__(self, house, scratch, step=None, number=signal.SIGKILL, net="none"):
        self.told = None
        request = house.request({"main": _APP}, net=net)
        self.uuid = house.client.prepare(request).uuid
        started = threading.Event()
        owner = threading.Thread(target=self._own, args=(house, started))
        owner.start()
        tracer = Tracer(_waiting(house.path(self.uuid)), f"{scratch}/trace", step, number)
        try:
            until(lambda: started.is_set() or not owner.is_alive(), "the start", 40)
            if started.is_set() and alive(tracer.pid):
                # By another client than the owner's, as from another shell.
                house.client.stop(self.uuid, timeout=1 if number == signal.SIGSTOP else None)
        finally:
            owner.join(60)
            tracer.end()
        assert not owner.is_alive()
        self.steps = tracer.steps()
        self.struck = step is not None and step in names_of(self.steps)
        self.record = house.client.pod(self.uuid)

    def _own(self, house, started):
        null = os.open("/dev/null", os.O_RDWR)
        pod = None
        try:
            with house.connect() as client:
                try:
                    pod = client.here.pods.start(self.uuid, Stdio(null, null, null))
                    started.set()
                    pod.finish()
                except KurmaError as error:
                    self.told = error
                finally:
                    if pod is not None:
                        pod.close()
        finally:
            os.close(null)
