"""Owns a pod from its preparation on: starts it, watches its stager, records its end with the exit code, and takes
it down."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kurma_core.cancellation import current, shielded
from kurma_core.errors import (
    HostError,
    KurmaError,
    NetworkError,
    PodDamagedError,
    PodError,
    PodNotFoundError,
    PodStateError,
    StagerError,
)
from kurma_core.formats.timestamps import timestamp
from kurma_core.linux.process import boot_id
from kurma_core.pods.network import port_claims
from kurma_core.pods.record.pod_directory import unwritable
from kurma_core.pods.record.pod_record import conclusion, forced, pod_record, request_stop
from kurma_core.pods.record.state import PodEnd, PodState, mark
from kurma_core.pods.run import pod_restarts
from kurma_core.pods.run.app_events import AppEvents
from kurma_core.pods.run.launch import STEP_NAMES, Launch, bring_up, claim_places, not_complete, tear_down
from kurma_core.staging.aci_stager import last_output
from kurma_core.value import replace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kurma_core.hookspecs.stager import RunningStagerHooks
    from kurma_core.models.image import RenderedImage
    from kurma_core.models.pod import AppStatus, PodRecord
    from kurma_core.models.streams import Stdio
    from kurma_core.pods.record.document import PodDocument
    from kurma_core.pods.record.pod_directory import PodDirectory
    from kurma_core.pods.services import Events, Services


class NewPod:
    """A pod that is being prepared. Nothing of it exists before :meth:`become`, unless it was prestarted
    (:class:`~kurma_core.pods.run.prestarted.PrestartedPod`).

    :param directory: the pod's directory, if it exists already.
    :param lock: the descriptor of its owner lock, if this process holds it already.
    """

    def __init__(
        self, services: Services, uuid: str, directory: PodDirectory | None = None, lock: int = -1
    ) -> None:
        self.uuid = uuid
        self._services = services
        self._directory = directory
        self._lock = lock

    @property
    def directory(self) -> PodDirectory:
        assert self._directory is not None
        return self._directory

    def become(self, name: str) -> PodDirectory:
        """Makes the pod's directory, and takes its owner lock. :raises PodExistsError: the UUID or the name is
        taken."""
        self._directory, self._lock = self._services.store.create(self.uuid, name)
        return self._directory

    def fitted(self, document: PodDocument) -> NewPod:
        """The same pod, without parts that a pod with that definition cannot use."""
        return self

    def record(self, document: PodDocument) -> None:
        """Writes the pod's records. :raises HostError: they cannot be written."""
        self.directory.write_state(PodState("preparing"))
        self.directory.write_pod(document)
        self.directory.write_state(PodState("prepared"))

    def owned(
        self,
        document: PodDocument,
        rendered: dict[str, RenderedImage],
        images: AbstractContextManager[None],
        events: Events,
    ) -> OwnedPod:
        """The handle of the pod, which owns its lock and all of its parts from now on."""
        launch = Launch(self._services, self.directory, document, rendered=rendered)
        return OwnedPod(launch, self._lock, events, images)

    def abandon(self, name: str) -> None:
        """Removes everything, after :meth:`become`: the preparation has failed. If that fails, too, the next
        process that sees the half-made pod removes it."""
        try:
            self._services.store.delete(self.directory, name)
        finally:
            os.close(self._lock)


class OwnedPod:
    """The handle of a pod from its preparation, or its start, to its end: its records and its owner lock.

    :param lock: the owner lock's descriptor; kept until :meth:`close`.
    :param images: an entered ``ImageManager.keeping``, which protects the pod's images until the pod is up.
    """

    def __init__(
        self, launch: Launch, lock: int, events: Events, images: AbstractContextManager[None] | None = None
    ) -> None:
        self._images = images
        self._launch = launch
        self._lock = lock
        self.events = events
        self._app_events = AppEvents(launch.directory, launch.document, events)
        #: Whether its start is recorded.
        self._claimed = False
        self._over = False
        self._unrecorded: KurmaError | None = None
        self._unclaimed: Exception | None = None
        #: Whether the stager ended before the pod was up.
        self.over_at_once = False

    @property
    def stop_timeout(self) -> float | None:
        """See :attr:`.PodDocument.stop_timeout`."""
        return self._launch.document.stop_timeout

    @classmethod
    def adopted(
        cls, services: Services, directory: PodDirectory, stager: RunningStagerHooks, lock: int, events: Events
    ) -> OwnedPod:
        """Takes over a running pod whose owner has died: this process owns it from now on, and serves its metadata
        at the same address.

        :param stager: the stager that was found again; closed by :meth:`close`.
        :raises KurmaError: its record cannot be read or written.
        """
        from kurma_core.pods.run import pod_metadata

        document = directory.read_document()
        attachments = directory.read_state().attachments
        launch = Launch(services, directory, document, attachments=attachments, stager=stager)
        launch.record(owner=os.getpid())
        directory.drop_spare()
        try:
            pod_metadata.take_up(services, directory, document)
        except KurmaError as error:
            services.note(f"pod {document.name} runs without its metadata service: {error.message}")
        pod = cls(launch, lock, events)
        pod._app_events = AppEvents(directory, document, events, doubtful=True)
        pod._claimed = True
        return pod

    def tell_apps(self) -> tuple[AppStatus, ...]:
        """Tells the events of apps that the stager's status has of new. Any thread may call it; it never fails.

        :returns: the statuses of its apps; empty: they are not known.
        """
        return () if self._over else self._app_events.look()

    def records(self) -> tuple[PodDirectory, PodDocument, PodState]:
        """The pod's directory, and the present content of its records. :raises KurmaError: they cannot be read."""
        return self._launch.directory, self._launch.document, self._launch.directory.read_state()

    @property
    def uuid(self) -> str:
        return self._launch.document.uuid

    @property
    def name(self) -> str:
        return self._launch.document.name

    @property
    def directory(self) -> str:
        return self._launch.directory.path

    @property
    def stays(self) -> bool:
        """Whether the pod keeps running when all of its apps have ended."""
        return self._launch.document.keep

    @property
    def typed_into(self) -> str | None:
        """The app whose terminal gets this process's standard input."""
        from kurma_core.pods.prepare.app_settings import typed_into

        return typed_into(self._launch.document)

    @property
    def stager(self) -> RunningStagerHooks:
        assert self._launch.stager is not None
        return self._launch.stager

    @property
    def document(self) -> PodDocument:
        """Its definition, as it was when this process took the pod over."""
        return self._launch.document

    def claim(self, *, again: bool = False) -> None:
        """Claims the pod's ports, and records that it is starting.

        :param again: its restart policy starts it, not a user.
        :raises NetworkError: another pod or program has one of the ports.
        :raises PodStateError: it was stopped meanwhile, and must not be restarted.
        :raises HostError: the record cannot be written.
        """
        directory, document = self._launch.directory, self._launch.document
        ports = port_claims.published(document.attachments)
        with port_claims.claimed(directory, self._launch.services.store, document.name, ports):
            self._record_start(again=again)

    def _record_start(self, *, again: bool) -> None:
        with self._launch.directory.op_lock():
            # Reads and writes under one lock, so that a concurrent stop of the ended pod is not lost.
            state = self._launch.directory.read_state()
            if again and state.cause == pod_restarts.STOPPED:
                raise PodStateError(
                    f"pod {self._launch.document.name} cannot be started again: it was stopped", pod=self.uuid
                )
            steps: tuple[str, ...] = STEP_NAMES
            try:
                claim_places(self._launch)
            except (KurmaError, OSError) as error:
                # No further steps are recorded: undoing them would remove what belongs to another pod.
                self._unclaimed, steps = error, state.steps
            self._launch.directory.write_state(replace(state, steps=steps, **self._beginning(state, again)))
            self._claimed = True

    def _beginning(self, state: PodState, again: bool) -> dict[str, Any]:
        return {
            "state": "starting",
            "owner": os.getpid(),
            "reason": None,
            "exit_code": None,
            "started_at": timestamp(),
            "begun": mark(),
            "finished_at": None,
            "over": None,
            "stager": None,
            "stager_version": None,
            # Without results: if this process dies before the networks are joined, the teardown finds the planned
            # ones.
            "attachments": self._launch.document.attachments,
            "metadata": None,
            "notes": (),
            "apps": None,
            "change": None,
            "boot": boot_id(),
            "cause": None,
            "forced": None,
            "restart": pod_restarts.begun(state, again=again),
        }

    def refuse(self, error: KurmaError) -> None:
        """Undoes everything, and records the pod as errored, though its steps have not begun.

        :param error: why it is not started.
        """
        with shielded():
            self._end(_never_up(error))
            self._launch.directory.drop_spare()
            self.events.flush()

    def settle(self) -> None:
        """Records the pod as prepared, for a start that does not follow at once. Does nothing for a pod that was
        not prestarted.

        :raises HostError: the record cannot be written.
        """
        self._launch.directory.change_state(only_in=("preparing",), state="prepared")
        self.events.flush()

    def start(self, stdio: Stdio, settled: Callable[[], None], *, again: bool = False) -> None:
        """Starts the pod, and waits until it runs. After a failure, the handle is closed.

        :param settled: called once the pod is up, or is being taken down: from here on nothing may interrupt us.
        :param again: as for :meth:`claim`.
        :raises KurmaError: why it did not start. If :meth:`claim` did not fail, everything is undone and the pod
            recorded as errored.
        """
        try:
            if not self._claimed:
                self.claim(again=again)
            self._bring_up(stdio, settled)
        except BaseException:
            self.close()
            raise

    def _bring_up(self, stdio: Stdio, settled: Callable[[], None]) -> None:
        launch, begun = self._launch, timestamp()
        launch.stdio = stdio
        self.events.tell("starting", launch.document, at=begun)
        try:
            try:
                try:
                    if self._unclaimed is not None:
                        raise self._unclaimed
                    bring_up(launch)
                except (OSError, RuntimeError) as error:
                    known = HostError.of_shortage(error)
                    raise known or error from None
                finally:
                    self.events.flush()
                with current().waking(lambda: self.stager.signal(signal.SIGKILL)):
                    try:
                        running = self.stager.wait_running(launch.services.config.start_timeout)
                    except StagerError as error:
                        raise error.with_limit(self.directory) from None
                self.over_at_once = not running
                if running:
                    # Unless another process has recorded "stopping" meanwhile.
                    launch.directory.change_state(only_in=("starting",), state="running")
            finally:
                settled()
                self._free_images()
                if launch.directory.spared:
                    launch.directory.drop_spare()
        except BaseException as error:
            with shielded():
                stopped = self._stopped(error)
                self._end(_never_up(error) if stopped is None else stopped)
            if stopped is not None and isinstance(error, StagerError | NetworkError):
                raise PodStateError(f"pod {launch.document.name} was stopped while it started") from None
            raise
        if running:
            self.events.tell("running", launch.document)

    def _stopped(self, error: BaseException) -> PodEnd | None:
        """The end to record for a pod that was stopped before it was up; None: it was not stopped.

        :param error: why it did not come up.
        """
        with contextlib.suppress(KurmaError):
            state = self._launch.directory.read_state()
            if state.cause:
                number = signal.SIGKILL if state.forced else signal.SIGTERM
                reason = "it was stopped while it started"
                if isinstance(error, NetworkError):
                    reason = f"{reason}: {error.message}"
                return PodEnd("stopped", reason, 128 + number)
        return None

    def fileno(self) -> int:
        """Polls readable once the stager has ended."""
        return self.stager.fileno()

    def stop(self, *, force: bool, cause: str = pod_restarts.STOPPED) -> None:
        """Asks the stager to end the pod; does not wait.

        :param cause: the reason; see :func:`kurma_core.pods.run.pod_restarts.wanted`.
        """
        # Recorded before the stager is asked, so that the restart policy does not start it again. A full disk or a
        # removed record must not keep the pod running.
        with contextlib.suppress(HostError, PodNotFoundError, PodDamagedError):
            self._launch.directory.change_state(only_in=("starting", "running"), cause=cause)
        driver = self._launch.services.stagers.of_pod(self._launch.document)
        request_stop(self._launch.directory, self._launch.document, driver, self.stager, self.events, force=force)

    def finish(self) -> PodRecord:
        """Waits for the stager's end, takes everything down, and records how the pod ended.

        :raises PodError: a step could not be undone; it stays on record, and ``kurma gc`` tries again.
        """
        launch = self._launch
        end = self._conclusion(self.stager.wait(None))
        failures = self._end(end)
        if not os.path.isdir(self.directory):
            # Frees its name.
            launch.services.store.delete(launch.directory, launch.document.name)
            raise PodNotFoundError(
                f"pod {self.uuid}: its directory was removed while it ran, so kurma stopped it",
                hint="remove pods by kurma rm; after moving the state directory: kurma --dir NEW gc",
                pod=self.uuid,
            )
        record = pod_record(launch.directory)
        if not failures and self._unrecorded is not None:
            launch.services.note(f"{self._unrecorded.message}; the pod was stopped and cleaned up")
            return replace(
                record,
                state=end.state,
                reason=end.reason,
                exit_code=end.exit_code,
                owner=None,
                stager_pid=None,
            )
        if failures:
            raise PodError(f"pod {self.uuid}: {not_complete(launch, failures)}", hint="kurma gc tries again")
        return record

    def _conclusion(self, status: int | None) -> PodEnd:
        launch = self._launch
        driver = launch.services.stagers.of_pod(launch.document)
        end = conclusion(launch.directory, self._document(), driver, status, last_output(self.directory))
        if status is None and end.state == "errored" and not forced(launch.directory):
            # The stager is not our child, and its files do not tell its exit status: the kernel may report it in a
            # moment.
            status = self.stager.wait_reaped()
            if status is not None:
                return self._conclusion(status)
        return end

    def _document(self) -> PodDocument:
        """The present definition: apps may have been added or removed."""
        try:
            return self._launch.directory.read_document()
        except KurmaError:
            return self._launch.document

    def abandon(self) -> None:
        """Ends the pod by force, if it has not ended: used when the code that watches the pod has failed.

        :raises PodNotFoundError: the pod's directory was removed, which is the cause of that failure.
        """
        if self._over:
            return
        if self.stager.alive():
            self.stop(force=True)
        # Steps that cannot be undone stay on record; the caller's own failure is reported instead.
        try:
            self.finish()
        except PodNotFoundError:
            raise
        except KurmaError:
            pass

    def _end(self, end: PodEnd) -> list[KurmaError]:
        self._over = True
        left, failures = tear_down(self._launch)
        if failures:
            end = replace(end, state="errored", reason=not_complete(self._launch, failures))
        try:
            self._launch.record(**end.changes(), finished_at=timestamp(), over=mark(), owner=None, steps=left)
        except KurmaError as error:
            # Once the disk has space again, any process that sees the pod finds it dead, and records its end.
            if unwritable(error):
                self._unrecorded = error
            else:
                failures.append(error)
        self._app_events.over(end)
        self.events.ended(end, self._launch.document)
        return failures

    def close(self) -> None:
        """Releases the owner lock. A pod that still runs goes on without an owner; one that was not started stays
        prepared. Repeatable.

        :raises KurmaError: that it stays prepared cannot be recorded.
        """
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, lock)
            undo.callback(self._launch.discard_unused)
            if self._launch.stager is not None:
                undo.callback(self._launch.stager.close)
            undo.callback(self._launch.services.forget_metadata, self.uuid)
            undo.callback(self._free_images)
            if not self._claimed and not self._over:
                self._stay_prepared()

    def _stay_prepared(self) -> None:
        """Undoes the steps that were done before the pod's preparation. Those that cannot be undone stay on
        record, and the next command that sees the pod undoes them."""
        directory = self._launch.directory
        with contextlib.suppress(KurmaError):  # tear_down undoes everything if the record is gone
            if not directory.read_state().unsettled:
                return
        left, failures = tear_down(self._launch)
        directory.drop_spare()
        directory.change_state(only_in=("preparing", "prepared"), state="prepared", steps=left)
        self.events.flush()
        if failures:
            self._launch.services.note(f"pod {self.uuid}: {not_complete(self._launch, failures)}")

    def _free_images(self) -> None:
        """Ends the protection of the pod's images: from now on its record protects them."""
        images, self._images = self._images, None
        if images is not None:
            images.__exit__(None, None, None)


def _never_up(error: BaseException) -> PodEnd:
    reason = error.message if isinstance(error, KurmaError) else str(error) or type(error).__name__
    return PodEnd("errored", reason, 125)
