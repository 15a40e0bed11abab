"""The contract of observers: they are told of each change of a pod's state, and of each start and end of its
apps."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from kurma_core.hookspecs import Hooks, hookspec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.models.pod import AppEvent, PodEvent


class ObserverHooks(Hooks):
    """Observes pods. Each observer has a queue and a thread of its own: pods and other observers do not wait for
    it."""

    @hookspec(required=True)
    def pod_event(self, event: PodEvent) -> None:
        """Gets a change of a pod's state.

        :called: after each change, once it is on disk, in the order of the changes, in the process that made it
        :param event: the change; later versions may add kinds.

        The core cancels a call that takes longer than 5 seconds (:mod:`kurma_core.cancellation`); for the first
        one, they include the import of the plugin and the making of its driver. A command waits 1 second for its
        observers before it ends, kurmad 5 seconds. An exception is noted, ever more rarely if it is not the first,
        and does not affect the pod.

        :raises KurmaError: the event could not be handled.
        """

    @hookspec
    def app_event(self, event: AppEvent) -> None:
        """Gets a change of an app: it came into its pod, was started, has ended, or was removed.

        :called: in the order of the changes, with the pod's own events, mostly by the pod's owner; within
            milliseconds of the change
        :param event: the change; later versions may add kinds.

        Time limits and exceptions are those of ``pod_event``.

        :raises KurmaError: the event could not be handled.
        """
