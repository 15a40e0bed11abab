"""A foreground command: ``runner.py JSON``. Exits as the pod did; 125 with the error's line on standard error.

``prelude`` may be ``ignore-hup``, or ``impatient``: what does not die is given up after a second.
``faults`` is a list of ``[when, where]``: this process kills itself (SIGKILL) at that point. ``when`` is
``before`` or ``after`` the launch step ``where`` is done, ``undoing`` or ``undone`` of its undo; or ``entering``
or ``leaving`` the function ``where`` (``module:Class.function``), with ``#N`` behind it: the N-th time.
``entering with 2``: the signal 2 comes then, instead of death; ``entering with removal``: somebody removes the
directories of all pods then.
"""

import functools
import glob
import json
import os
import shutil
import signal
import sys

from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import KurmaError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.models.streams import Stdio
from tests.kit.client import open_client
from tests.kit.strikes import strike_function, strike_step


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def remove_pods(state):
    for path in glob.glob(f"{state}/pods/*-*"):
        os.rename(path, f"{state}/removed")
        shutil.rmtree(f"{state}/removed", ignore_errors=True)  # its stager may still write there


def break_function(when, where, state=""):
    """Has this process die, get a signal, or lose its pods, as it enters or leaves a function."""
    when, _, what = when.partition(" with ")
    if not what:
        strike = die
    elif what == "removal":
        strike = functools.partial(remove_pods, state)
    else:
        strike = functools.partial(signal.raise_signal, int(what))
    strike_function(when, where, strike)


def printed(line):
    sys.stdout.buffer.write(line.text + (b"" if line.partial else b"\n"))
    sys.stdout.buffer.flush()


def main():
    request = json.loads(sys.argv[1])
    if request["prelude"] == "ignore-hup":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if request["prelude"] == "impatient":
        kill = CgroupTree.kill
        CgroupTree.kill = lambda tree, patience=1.0: kill(tree, min(patience, 1.0))
    for when, where in request["faults"]:
        if ":" in where:
            break_function(when, where, request["state"])
        else:
            strike_step(when, where, die)

    def tell(uuid):
        with open(request["told"] + ".new", "w") as file:
            file.write(uuid)
        os.rename(request["told"] + ".new", request["told"])

    with open_client(request["config"], request["state"], host=request["host"]) as client:
        try:
            if request["start"] is not None:
                tell(client.pod(request["start"]).uuid)
                if request["again"]:
                    client.stop(request["start"], again=True)
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
