"""Operations on pods."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kurma_core.api.pods import PodRequest
from kurma_core.daemon import bodies, inside, operation
from kurma_core.daemon.http import foreground
from kurma_core.daemon.http.stdio import STDIO, Caller
from kurma_core.daemon.operations import Call, Query
from kurma_core.daemon.operations import operation as op
from kurma_core.daemon.pods.listing import RECORDS, SHOWN, SUMMARIES
from kurma_core.daemon.queries import FORCE, STOP
from kurma_core.pods.attach import attaches_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.daemon.pods.owned import RunningPod
    from kurma_core.models.log import LogText

Json = Any
_AGAIN = Query("again", "flag", "to start it again: it is left as it is if it may not be", default=False)
_LOGS = (
    Query("app", "text", "only of that one"),
    Query("follow", "flag", "and what they will write", default=False),
    Query("tail", "whole", "only the last so many lines of what is there", least=0),
    Query("since", "whole", "nanoseconds since 1970: only what was written from then on"),
    Query("stream", "text", "only that one", choices=("stdout", "stderr")),
    Query("instance", "whole", "of that execution of the app; -1: the one before the last"),
)


@op("GET", "/v1/pods", "List pods, the oldest first.", rights="read", result="Pods")
def pods(call: Call) -> Json:
    form = RECORDS if call.exchange.peer.rights == "full" else SHOWN
    return call.daemon.listing.json(form)


@op(
    "GET",
    "/v1/listing",
    "List pods, the oldest first: what a table shows of each.",
    rights="read",
    result="Listing",
)
def listing(call: Call) -> Json:
    return call.daemon.listing.json(SUMMARIES)


@op(
    "POST",
    "/v1/pods",
    "Prepare a pod.",
    query=(Query("start", "flag", "and start it; it runs on by itself", default=False),),
    body="PodRequest",
    result="Pod",
    given_up=True,
)
def pod_prepare(call: Call) -> Json:
    request, progress = bodies.read(PodRequest, call.body), operation.current().progress()
    if call.query["start"]:
        return _started(call, lambda up: call.daemon.run(request, progress, up))
    return call.client.prepare(request, progress).to_json()


@op("GET", "/v1/pods/{pod}", "Show a pod.", rights="read", result="Pod")
def pod(call: Call) -> Json:
    return call.client.pod(call.path["pod"]).to_json()


@op("DELETE", "/v1/pods/{pod}", "Remove a pod that does not run.", query=(FORCE,))
def pod_remove(call: Call) -> None:
    call.client.rm(call.path["pod"], force=call.query["force"])


@op("POST", "/v1/pods/{pod}/start", "Start a prepared or ended pod; it runs on by itself.", result="Pod")
def pod_start(call: Call) -> Json:
    return _started(call, lambda up: call.daemon.launch(call.path["pod"], up=up))


def _started(call: Call, start: Callable[[Callable[[RunningPod], None]], RunningPod]) -> Json:
    """The pod that was started, also if it is over, and removed at its end. One that was over before it was up, or
    because a program could not be executed, is told of as it has ended.
    """
    with contextlib.ExitStack() as held:
        running = start(lambda running: held.enter_context(running.reading()))
        record = call.client.pod(running.uuid)
        stopped = record.unstarted and all(app.exited for app in record.apps) and not running.pod.stays
        if stopped or running.pod.over_at_once:
            record = running.wait()
        return record.to_json()


@op("POST", "/v1/pods/{pod}/stop", "Stop a pod.", query=(*STOP, _AGAIN), result="Pod")
def pod_stop(call: Call) -> Json:
    return call.client.stop(call.path["pod"], **call.query).to_json()


@op(
    "POST",
    "/v1/pods/{pod}/kill",
    "Send a signal to the apps of a pod.",
    query=(
        Query("signal", "whole", "its number", default=15, least=0, most=64),
        Query("app", "text", "only to that one"),
    ),
)
def pod_kill(call: Call) -> None:
    call.client.kill(call.path["pod"], call.query["signal"], call.query["app"])


@op(
    "GET",
    "/v1/pods/{pod}/wait",
    "Wait for a pod's end.",
    rights="read",
    result="Pod",
    given_up=True,
    lasts=True,
)
def pod_wait(call: Call) -> Json:
    running = call.daemon.running(call.path["pod"])
    if running is not None:
        # Any number may wait so; of watches on directories a host has few.
        return running.wait_asked().to_json()
    return call.client.wait(call.path["pod"]).to_json()


@op(
    "GET",
    "/v1/pods/{pod}/logs",
    "What the apps of a pod have written, a line of JSON for each.",
    kind="lines",
    given_up=True,
    query=_LOGS,
    result="LogLine",
)
def pod_logs(call: Call) -> Iterator[Json]:
    query = dict(call.query)
    return map(_log_line, call.client.logs(call.path["pod"], query.pop("app"), **query))


def _log_line(text: LogText) -> Json:
    return {
        "app": text.app,
        "at": text.at,
        "stream": text.stream,
        "partial": text.partial,
        "text": text.text.decode("utf-8", "surrogateescape"),
    }


@op(
    "POST",
    "/v1/pods/{pod}/logs",
    "What the apps of a pod have written, in frames.",
    kind="stream",
    query=_LOGS,
)
def pod_logs_in_frames(call: Call) -> None:
    foreground.logs(call)


@op(
    "POST",
    "/v1/pods/run",
    "Prepare a pod and run it, with its output.",
    kind="stream",
    query=(
        *STDIO,
        Query("hold", "flag", "wait for the client's word before it is started", default=False),
    ),
    body="PodRequest",
    result="Pod",
)
def pod_run(call: Call) -> Json:
    return foreground.run(call, bodies.read(PodRequest, call.body))


@op(
    "POST",
    "/v1/pods/{pod}/foreground",
    "Start a prepared or ended pod, with its output.",
    kind="stream",
    query=STDIO,
    result="Pod",
)
def pod_foreground(call: Call) -> Json:
    return foreground.start(call, call.path["pod"])


@op(
    "POST",
    "/v1/pods/{pod}/enter",
    "Run a command in an app of a running pod.",
    kind="stream",
    query=STDIO,
    body="Command",
    result="Exit",
)
def pod_enter(call: Call) -> Json:
    command = inside.command(call.body)
    with Caller(call) as caller:
        stdio = caller.open(terminal=command["terminal"])
        code = call.client.enter(call.path["pod"], stdio=stdio, **command)
    return {"exitCode": code}


@op(
    "POST",
    "/v1/pods/{pod}/attach",
    "Join a running app: its output from now on, and its standard input.",
    kind="stream",
    query=(
        *STDIO,
        Query("app", "text", "which; it may be left out where the pod has one"),
        Query("stdin", "flag", "what is typed goes to the app", default=True),
        Query("detachKeys", "text", "ctrl-p,ctrl-q; empty: none"),
    ),
    result="Exit",
)
def pod_attach(call: Call) -> Json:
    query = call.query
    pod, app = call.path["pod"], query["app"]
    terminal = attaches_terminal(call.client.services, call.client.pod(pod), app)
    # The app's input goes on with those who are still attached.
    with Caller(call, ends_input=False) as caller:
        stdio = caller.open(terminal=terminal, reads_input=query["stdin"])
        code = call.client.attach(pod, app, stdio, stdin=query["stdin"], detach_keys=query["detachKeys"])
    return {"exitCode": code}
