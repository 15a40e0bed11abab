"""One change of a pod's apps in a process of its own, which kills itself on the way: ``changer.py JSON``.

``fault`` is as in ``runner.py``; ``pause`` a file: where the fault would strike, it is made, and waited for to go.
"""

import json
import os
import sys
import time

from kurma_core.api.pods import PodRequest
from kurma_core.appc.template import PodTemplate
from kurma_core.errors import KurmaError
from tests.kit import runner
from tests.kit.client import open_client


def wait(path):
    with open(path, "w"):
        pass
    while os.path.exists(path):
        time.sleep(0.005)


def main():
    request = json.loads(sys.argv[1])
    if request.get("pause"):
        runner.die = lambda: wait(request["pause"])
    if request.get("fault"):
        runner.break_function(*request["fault"])
    with open_client(request["config"], request["state"], host="local") as client:
        try:
            if request["do"] == "add":
                client.app_add(request["pod"], PodRequest(PodTemplate.parse(request["template"])))
            else:
                getattr(client, f"app_{request['do']}")(request["pod"], request["app"])
        except KurmaError as error:
            print(error.message, file=sys.stderr)
            return 125
    return 0


if __name__ == "__main__":
    sys.exit(main())
