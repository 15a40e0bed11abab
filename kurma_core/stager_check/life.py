"""Lines about how pods end: by themselves, and when they are stopped (G3, G6, G7)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kurma_core.errors import StagerError
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import state
from kurma_core.stager_check.lab import app
from kurma_core.stager_check.lines import Wrong, equal

if TYPE_CHECKING:
    from kurma_core.models.pod import PodRecord
    from kurma_core.stager_check.lab import Lab, Pod
    from kurma_core.stager_check.lines import Report
    from kurma_core.stager_check.talk import Probe


def by_itself(pod: Pod, main: Probe, other: Probe, report: Report) -> None:
    """The pod of :func:`status_of`, once its last apps have ended, and left a daemon."""
    with report.line("end.exit-code"):
        main.must("daemon")
        left = [pid for pid in CgroupTree(pod.cgroup).pids() if pid != pod.owned.stager.pid]
        other.tell("exit", 0)
        main.tell("exit", 5)
        equal("exit status of the stager", _stager_status(pod), 0)
        record = pod.ends()
        equal("exit code of the pod", record.exit_code, 5)
        equal("state of the pod", record.state, "stopped")
    with report.line("end.left-behind"):
        alive = [pid for pid in left if _alive(pid)]
        if alive:
            raise Wrong(f"alive after the pod's end: {alive}")
    with report.line("status.kept"):
        _known(pod.ends(), {"main": 5, "other": 0, "seven": 7, "killed": 137})


def _known(record: PodRecord, wanted: dict[str, int]) -> None:
    codes = {each.name: each.exit_code for each in record.apps if each.exited}
    equal("exit codes", codes, wanted)


def _stager_status(pod: Pod) -> int:
    status = pod.owned.stager.wait(pod.lab.patience.answer)
    if status is None:
        raise Wrong("all apps have ended, and the stager has not")
    return status


def _alive(pid: int) -> bool:
    try:
        return state(pid) not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_failure(lab: Lab, report: Report) -> None:
    with report.line("end.start-failure"):
        missing = {"exec": ["/no/such/command"], "user": "0", "group": "0"}
        try:
            with lab.pod({"main": missing}) as pod:
                record = pod.ends()
                status = {each.name: each for each in record.apps}["main"]
                if not record.exit_code:
                    raise Wrong("the pod ended with status 0")
                if status.reason not in ("start-failed", "exited") or not status.exited:
                    raise Wrong(f"status says {status.to_json()}")
        except StagerError as error:
            if error.data.get("status") is None:
                raise
            if not error.data.get("said"):
                raise Wrong(f"{error.message}, and said nothing") from None


def stopping(lab: Lab, report: Report) -> None:
    with report.line("stop.signal"), lab.pod({"main": app("main", "serve"), "two": app("two", "serve")}) as pod:
        apps = [pod.probe("main"), pod.probe("two")]
        for code, each in enumerate(apps):
            each.must("catch", 15, 3 + code)
        pod.stop()
        for each in apps:
            equal("signal", each.signal(), 15)
        record = pod.ends(lab.patience.stop + lab.patience.answer)
        equal("state of the pod", (record.state, record.reason), ("stopped", None))
        equal("exit code of the pod", record.exit_code, 3)
    with report.line("stop.bounded"), lab.pod({"main": app("main", "serve")}) as pod:
        pod.probe("main").must("catch", 15, None)
        started = time.monotonic()
        pod.stop()
        pod.ends(lab.patience.stop + lab.patience.answer)
        took = time.monotonic() - started
        if took < 0.8 * lab.patience.stop:
            raise Wrong(f"it was killed after {took:.1f} s already")
