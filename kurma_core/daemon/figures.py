"""Operations that tell what pods use, and of which processes they are. They look when they are asked, and only
then."""

from __future__ import annotations

from typing import Any

from kurma_core.daemon.operations import Call, Query, operation

Json = Any


@operation(
    "GET",
    "/v1/usage",
    "What pods use by now.",
    rights="read",
    query=(Query("pod", "text", "only that one; else all that run", many=True),),
    result="Usages",
)
def usage(call: Call) -> Json:
    return [one.to_json() for one in call.client.usage(call.query["pod"])]


@operation(
    "GET",
    "/v1/pods/{pod}/processes",
    "The processes of a pod that runs.",
    rights="read",
    query=(Query("app", "text", "only of that one"),),
    result="Processes",
)
def pod_processes(call: Call) -> Json:
    return [one.to_json() for one in call.client.processes(call.path["pod"], call.query["app"])]
