"""Operations on the apps of pods that run, and on pods that have ended."""

from __future__ import annotations

from typing import Any

from kurma_core.api.pods import PodRequest
from kurma_core.daemon import bodies
from kurma_core.daemon.operation import current
from kurma_core.daemon.operations import Call, Query, operation
from kurma_core.daemon.queries import DRY_RUN, FORCE, STOP

Json = Any


@operation(
    "POST",
    "/v1/pods/{pod}/apps",
    "Add an app to a pod that runs.",
    query=(Query("start", "flag", "and start it", default=False),),
    body="PodRequest",
    result="Pod",
    given_up=True,
)
def app_add(call: Call) -> Json:
    request = bodies.read(PodRequest, call.body)
    return call.client.app_add(
        call.path["pod"], request, start=call.query["start"], progress=current().progress()
    ).to_json()


@operation("POST", "/v1/pods/{pod}/apps/{app}/start", "Start an app that was added, or has ended.", result="Pod")
def app_start(call: Call) -> Json:
    return call.client.app_start(call.path["pod"], call.path["app"]).to_json()


@operation(
    "POST",
    "/v1/pods/{pod}/apps/{app}/stop",
    "Stop an app; the rest of the pod goes on.",
    query=STOP,
    result="Pod",
)
def app_stop(call: Call) -> Json:
    return call.client.app_stop(call.path["pod"], call.path["app"], **call.query).to_json()


@operation("DELETE", "/v1/pods/{pod}/apps/{app}", "Remove an app that does not run.", query=(FORCE,))
def app_remove(call: Call) -> None:
    call.client.app_rm(call.path["pod"], call.path["app"], force=call.query["force"])


@operation(
    "POST",
    "/v1/pods/gc",
    "Take down what is dead, and remove pods that ended a while ago.",
    query=(
        Query("grace", "seconds", "keep what ended less than that ago", default=1800.0),
        DRY_RUN,
    ),
    result="Collected",
)
def pod_gc(call: Call) -> Json:
    found = call.client.gc(grace=call.query["grace"], dry_run=call.query["dryRun"])
    return found.to_json()
