"""A foreground command: ``runner.py JSON``. Exits as the pod did; 125 with the error's line on standard error.

``faults`` is a list of ``[when, step]``: this process kills itself (SIGKILL) at that point. ``when`` is
``before`` or ``after`` the step of that name is done, ``undoing`` or ``undone`` of its undo.
"""

import json
import os
import signal
import sys

from kurma_core.appc.template import PodTemplate
from kurma_core.client import Settings, connect
from kurma_core.errors import KurmaError
from kurma_core.hookspecs import Stdio
from kurma_core.pods import launch
from kurma_core.pods.request import PodRequest


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Fragile:
    """A step of the launch table, in whose course this process dies."""

    def __init__(self, step, when):
        self.name = step.name
        self._step = step
        self._when = when

    def do(self, pod):
        if self._when == "before":
            die()
        self._step.do(pod)
        if self._when == "after":
            die()

    def undo(self, pod):
        if self._when == "undoing":
            die()
        self._step.undo(pod)
        if self._when == "undone":
            die()


def printed(line):
    sys.stdout.buffer.write(line.text + (b"" if line.partial else b"\n"))
    sys.stdout.buffer.flush()


def main():
    request = json.loads(sys.argv[1])
    for when, name in request["faults"]:
        launch.STEPS = tuple(Fragile(step, when) if step.name == name else step for step in launch.STEPS)

    def tell(uuid):
        with open(request["told"] + ".new", "w") as file:
            file.write(uuid)
        os.rename(request["told"] + ".new", request["told"])

    with connect(Settings(request["config"], request["state"])) as client:
        try:
            if request["start"] is not None:
                tell(client.pod(request["start"]).uuid)
                record = client.start(request["start"], Stdio(0, 1, 2), printed)
            else:
                pod = PodRequest(PodTemplate.parse(request["template"]), **request["options"])
                record = client.run(pod, Stdio(0, 1, 2), printed, None, lambda made: tell(made.uuid))
        except KurmaError as error:
            print(error.message, file=sys.stderr)
            return 125
        except BaseException as error:
            if not hasattr(error, "number"):
                raise
            print(error, file=sys.stderr)
            return 128 + error.number
        if record.reason:
            print(record.reason, file=sys.stderr)
        return record.exit_code


if __name__ == "__main__":
    sys.exit(main())
