"""Recovers pods whose owner process died: takes down dead pods, and leaves running ones alone.

Also frees what stagers of some designs leave of a pod until it is removed or started again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from kurma_core.errors import HostError, KurmaError, PodNotFoundError
from kurma_core.formats.timestamps import timestamp
from kurma_core.linux.cgroups import CgroupTree
from kurma_core.linux.process import boot_id
from kurma_core.pods.record.pod_directory import REMAINS, unwritable
from kurma_core.pods.record.pod_record import conclusion
from kurma_core.pods.record.state import PodEnd, mark
from kurma_core.pods.run import pod_restarts
from kurma_core.pods.run.app_events import AppEvents
from kurma_core.pods.run.launch import Launch, ends_now, incomplete, not_complete, tear_down
from kurma_core.staging.aci_stager import last_output
from kurma_core.staging.stager_status import read_status_file
from kurma_core.value import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kurma_core.hookspecs.stager import AnyStagerHooks, RunningStagerHooks
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.record.state import PodState
    from kurma_core.pods.services import Events, Services


def find_stager(services: Services, directory: PodDirectory) -> RunningStagerHooks | None:
    """The living stager of that pod, if any; the caller closes it."""
    state = directory.read_state()
    identity = state.stager
    if not identity:
        return None
    driver = services.stagers.of_pod(directory.read_document())
    return driver.attach_to(directory.path, identity)


def needs_recovery(directory: PodDirectory) -> bool:
    """Whether the pod has no owner although it needs one, or its teardown is not complete; reads only its
    state."""
    try:
        state = directory.read_state()
    except PodNotFoundError:
        return not directory.owned()
    except KurmaError:
        return False  # damaged, or of a newer version: left as it is
    return state.unsettled and not directory.owned()


def recover(services: Services, directory: PodDirectory, events: Events, *, give_up: bool = False) -> bool:
    """Finishes the work of a dead owner: undoes a half-made pod, takes down a dead one and records its end.

    :param give_up: as :func:`take_down`.
    :returns: whether something was done. A pod that runs, or has a living owner, is left as it is.
    :raises KurmaError: the teardown failed; it stays on record.
    """
    lock = directory.try_own()
    if lock is None:
        return False
    try:
        return take_down(services, directory, events, give_up=give_up)
    finally:
        os.close(lock)


def take_down(services: Services, directory: PodDirectory, events: Events, *, give_up: bool = False) -> bool:
    """As :func:`recover`, for a caller that holds the owner lock.

    :param give_up: give up the networks whose plugins are not installed any more.
    :raises PluginNotFoundError: nothing but a plugin that is not installed any more keeps it from being taken
        down.
    :raises HostError: everything is taken down, but the record cannot be written (see :func:`unwritable`); or, as
        at the last attempt, its processes hang in the kernel.
    """
    if _half_made(directory):
        if directory.read_steps():
            # Steps that were done before its definition was known.
            from kurma_core.pods.run import prestarted

            prestarted.undo(services, directory.uuid)
        services.store.delete(directory, services.store.name_of(directory.uuid))
        return True
    document, state = directory.read_document(), directory.read_state()
    if not state.live and not state.steps:
        return False
    stager = find_stager(services, directory)
    rebooted = state.live and _of_another_boot(state)
    launch = Launch(services, directory, document)
    launch.gives_up = give_up
    if stager is not None:
        if state.state == "starting" and stager.has_come_up():
            # The pod is up; only its owner died before it could record that.
            state = directory.change_state(only_in=("starting",), state="running")
            events.tell("running", document)
        if state.state != "starting":
            stager.close()
            return False
        # The pod has no owner that would notice that it came up, so it is undone.
        services.stagers.of_pod(document).stop(directory.path, stager, force=True)
        stager.wait(5)
        stager.close()
        end = PodEnd("errored", "its owner died while it started", 125)
    elif state.state == "starting" and not _all_ended(directory, document):
        reason = "the host was rebooted while it started" if rebooted else "its owner died while it started"
        end = PodEnd("errored", reason, 125)
    elif state.live:
        driver = services.stagers.of_pod(document)
        end = conclusion(directory, document, driver, None, last_output(directory.path))
        if rebooted and end.state == "errored":
            end = replace(end, reason="the host was rebooted while it ran")
    else:
        ends_now(launch)
        end = PodEnd(state.state, state.reason, state.exit_code)
    if rebooted and state.cause != pod_restarts.STOPPED:
        end = replace(end, cause=pod_restarts.REBOOTED)
    left, failures = tear_down(launch)
    if failures:
        end = replace(end, state="errored", reason=not_complete(launch, failures))
    unrecorded: HostError | None = None
    when: dict[str, Any] = {} if state.finished_at else {"finished_at": timestamp(), "over": mark()}
    try:
        directory.change_state(**end.changes(), **when, owner=None, steps=left)
        directory.drop_spare()
        AppEvents(directory, document, events, doubtful=True).over(end)
        events.ended(end, document)
    except HostError as error:
        if not unwritable(error):
            raise
        unrecorded = error
    if failures:
        raise incomplete(launch, failures)
    if document.ephemeral:
        discard_remains(services, directory)
        services.store.delete(directory, document.name)
    elif unrecorded is not None:
        raise unrecorded
    return True


def remove_lost_cgroup(document: PodDocument) -> bool:
    """Removes the cgroup of a pod that has ended, and is taken down: a call-in that was killed may have made it
    again. The caller holds the owner lock. Repeatable.

    :returns: whether there was one. :raises HostError: it cannot be removed.
    """
    tree = CgroupTree(document.cgroup)
    if not tree.exists():
        return False
    try:
        tree.kill()
        tree.remove()
    except OSError as error:
        what = f"pod {document.uuid}: cannot remove the cgroup that it has left"
        raise HostError.of(what, error, hint="kurma gc tries again", pod=document.uuid) from None
    return True


def _of_another_boot(state: PodState) -> bool:
    """Whether the host was rebooted since the pod's stager, or its start, was recorded."""
    boot = (state.stager or {}).get("bootId") or state.boot
    return boot is not None and boot != boot_id()


def _all_ended(directory: PodDirectory, document: PodDocument) -> bool:
    """Whether all of its apps have ended, by the status file that its stager left."""
    try:
        apps = (read_status_file(directory.path) or ({}, ()))[0]
    except KurmaError:
        return False
    return bool(apps) and all(name in apps and apps[name].exited for name in document.app_names)


def _half_made(directory: PodDirectory) -> bool:
    """Whether its preparation was not completed. A pod with a damaged record counts as prepared."""
    try:
        return bool(directory.read_state().state == "preparing")
    except PodNotFoundError:
        return not os.path.exists(directory.file("pod.json"))


def discard_remains(services: Services, directory: PodDirectory) -> None:
    """Lets the driver that left something of the pod free it. The caller holds the owner lock; the pod does not
    run. Repeatable.

    :raises HostError: something could not be freed.
    """
    try:
        with open(directory.file(REMAINS), encoding="utf-8") as stream:
            name = stream.read().strip()
    except FileNotFoundError:
        return
    plugin = ""
    with contextlib.suppress(KurmaError):  # damaged: the name may tell
        plugin = directory.read_document().stager_plugin
    driver = services.stagers.named(name, plugin)
    from kurma_core.hookspecs import implements
    from kurma_core.hookspecs.stager import StagerHooks

    if not implements(driver, StagerHooks.discard):
        services.note(f"pod {directory.uuid}: cannot free the leftovers of stager {name}: its plugin is missing")
        return
    try:
        notes = driver.discard(directory.path)
    except OSError as error:
        what = f"pod {directory.uuid}: cannot free what stager {name} has left"
        raise HostError.of(what, error, hint="kurma gc tries again", pod=directory.uuid) from None
    from kurma_core.pods.network import port_claims

    port_claims.let_go(directory)
    for note in notes:
        services.note(f"pod {directory.uuid}: {note}")


def remains_of_gone_pods(services: Services, *, dry_run: bool) -> Iterator[tuple[str, bool]]:
    """Frees what stagers left of pods whose directories are gone. Yields a line for each, and whether it
    failed."""
    try:
        for collector in services.stagers.collectors():
            # Before the pods' directories are checked: a pod's directory is made first and removed last.
            for uuid in sorted(collector.remains()):
                if not os.path.lexists(services.store.directory(uuid).path):
                    yield from _free_gone(services, collector, uuid, dry_run)
    except OSError as error:
        yield f"what stagers have of pods that are gone cannot be listed: {error.filename}: {error.strerror}", True
    except KurmaError as error:
        yield f"what stagers have of pods that are gone is left: {error.message}", True


def _free_gone(
    services: Services, collector: AnyStagerHooks, uuid: str, dry_run: bool
) -> Iterator[tuple[str, bool]]:
    said = f"pod {uuid}: its directory is gone"
    if dry_run:
        yield f"{said}: what its stager has of it would be removed", False
        return
    try:
        notes = collector.discard_gone(uuid)
    except BlockingIOError as error:
        yield f"{said}, and it runs: left: {error.strerror}", False
    except OSError as error:
        why = f"{error.filename or ''}: {error.strerror or error}"
        yield f"{said}: what its stager has of it is left: {why}", True
    else:
        if notes is None:
            return
        for note in notes:
            services.note(f"pod {uuid}: {note}")
        yield f"{said}: the stager's leftovers are removed", False
