"""Describes the failure of a script, for error messages."""

from __future__ import annotations

from kurma_core.linux.programs import one_line
from kurma_net_aci.inside import job
from kurma_net_aci.inside.job import Report


def what_happened(report: Report, timeout: float) -> str:
    """Returns the rest of a sentence that begins with the script's name, for a script that failed."""
    said = one_line(report.stderr + b" " + report.stdout)
    if report.how == job.NOT_EXECUTED:
        return f"cannot be executed: {said}"
    if report.how == job.NO_ROOT:
        return f"has no root to run in: {said}"
    if report.how == job.TIMEOUT:
        return f"was killed: it took longer than {timeout:g} seconds" + (f": {said}" if said else "")
    if report.how == job.STOPPED:
        return "was killed: its end was asked for"
    how = f"signal {report.number}" if report.how == job.KILLED else f"status {report.number}"
    return f"failed with {how}: {said}" if said else f"failed with {how}, and said nothing"
