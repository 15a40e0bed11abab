"""Pods whose owner has died: what is dead is taken down by whoever comes by; what lives is left alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, KurmaError, PodNotFoundError
from kurma_core.linux.clock import timestamp
from kurma_core.linux.process import boot_id
from kurma_core.pods import remains, restarts
from kurma_core.pods.launch import Launch, ends_now, not_complete, tear_down
from kurma_core.pods.listing import LIVE, unsettled
from kurma_core.pods.records import conclusion, read_document
from kurma_core.pods.space import unwritable
from kurma_core.pods.times import mark
from kurma_core.staging.aci import last_output
from kurma_core.staging.records import read_status_file

if TYPE_CHECKING:
    from kurma_core.hookspecs.stager import RunningStager
    from kurma_core.pod_store import PodDirectory
    from kurma_core.pods.document import PodDocument
    from kurma_core.pods.events import Events
    from kurma_core.pods.services import Services


def find_stager(services: Services, directory: PodDirectory) -> RunningStager | None:
    """The living stager of that pod; the caller closes it."""
    state = directory.read_state()
    identity = state.get("stager")
    if not identity:
        return None
    driver = services.stagers.of_pod(read_document(directory).stager)
    return driver.attach_to(directory.path, identity)


def needs_recovery(directory: PodDirectory) -> bool:
    """A quick look: is the pod in a state that somebody must own, or is its teardown not complete?"""
    try:
        state = directory.read_state()
    except PodNotFoundError:
        return not directory.owned()
    except KurmaError:
        return False  # damaged, or of a newer version: not for us to judge
    return unsettled(state) and not directory.owned()


def recover(services: Services, directory: PodDirectory, events: Events) -> bool:
    """Finishes what a dead owner left: a half-made pod is undone, a dead one taken down and recorded.

    :returns: whether something was done. A pod that runs, or has a living owner, is left as it is.
    :raises KurmaError: the teardown failed; it stays on record.
    """
    lock = directory.try_own()
    if lock is None:
        return False
    try:
        return take_down(services, directory, events)
    finally:
        os.close(lock)


def take_down(services: Services, directory: PodDirectory, events: Events) -> bool:
    """As :func:`recover`, for who holds the owner lock.

    :raises HostError: all is taken down, but that cannot be recorded (see :func:`unwritable`); or processes of it
        hang in the kernel, as they did the last time.
    """
    if _half_made(directory):
        if directory.read_steps():
            # One that was begun before it was known what pod it would be (see prestarted).
            from kurma_core.pods import prestarted

            prestarted.undo(services, directory.uuid)
        services.store.delete(directory, services.store.name_of(directory.uuid))
        return True
    document, state = read_document(directory), directory.read_state()
    if state["state"] not in LIVE and not state.get("steps"):
        return False
    stager = find_stager(services, directory)
    rebooted = state["state"] in LIVE and _of_another_boot(state)
    launch = Launch(services, directory, document)
    if stager is not None:
        if state["state"] == "starting" and getattr(stager, "has_come_up", lambda: False)():
            # Only its owner has not come to say so.
            state = directory.change_state(only_in=("starting",), state="running")
            events.tell("running", document)
        if state["state"] != "starting":
            stager.close()
            return False
        # Nobody will ever hear that it came up: a half-made pod is undone.
        services.stagers.of_pod(document.stager).stop(directory.path, stager, force=True)
        stager.wait(5)
        stager.close()
        end: dict[str, Any] = {"state": "errored", "reason": "its owner died while it started", "exitCode": 125}
    elif state["state"] == "starting" and not _all_ended(directory, document):
        reason = "the host was rebooted while it started" if rebooted else "its owner died while it started"
        end = {"state": "errored", "reason": reason, "exitCode": 125}
    elif state["state"] in LIVE:
        driver = services.stagers.of_pod(document.stager)
        end = conclusion(directory, document, driver, None, last_output(directory.path))
        if rebooted and end["state"] == "errored":
            end["reason"] = "the host was rebooted while it ran"
    else:
        ends_now(launch)
        end = {"state": state["state"], "reason": state.get("reason"), "exitCode": state.get("exitCode")}
    if rebooted and state.get("cause") != restarts.STOPPED:
        end["cause"] = restarts.REBOOTED
    failures = tear_down(launch)
    if failures:
        end = {**end, "state": "errored", "reason": not_complete(launch, failures)}
    unrecorded: HostError | None = None
    when: dict[str, Any] = {} if state.get("finishedAt") else {"finishedAt": timestamp(), "over": mark()}
    try:
        directory.change_state(**end, **when, owner=None)
        directory.drop_spare()
        events.ended(end, document)
    except HostError as error:
        if not unwritable(error):
            raise
        unrecorded = error
    if failures:
        raise KurmaError(f"pod {document.uuid}: {not_complete(launch, failures)}")
    if document.ephemeral:
        remains.discard(services, directory)
        services.store.delete(directory, document.name)
    elif unrecorded is not None:
        raise unrecorded
    return True


def _of_another_boot(state: dict[str, Any]) -> bool:
    """Whether the host was booted since the pod's stager, or its start, was recorded."""
    boot = (state.get("stager") or {}).get("bootId") or state.get("boot")
    return boot is not None and boot != boot_id()


def _all_ended(directory: PodDirectory, document: PodDocument) -> bool:
    """Whether all of its apps have run to their ends, by what its stager has left."""
    try:
        apps = (read_status_file(directory.path) or ({}, ()))[0]
    except KurmaError:
        return False
    return bool(apps) and all(name in apps and apps[name].exited for name in document.app_names)


def _half_made(directory: PodDirectory) -> bool:
    """Whether it died before it was wholly prepared. A damaged record is none that was never made."""
    try:
        return bool(directory.read_state()["state"] == "preparing")
    except PodNotFoundError:
        return not os.path.exists(directory.file("pod.json"))
