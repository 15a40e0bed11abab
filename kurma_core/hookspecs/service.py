"""The contract of services: programs inside kurmad that use Kurma by its client's API."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from logging import Logger

    from kurma_core.api.operations import Api
    from kurma_core.hookspecs.driver import Json


@frozen
class ServiceHost:
    """Kurma as a service sees it.

    :param client: does Kurma's operations in kurmad, as its HTTP API does: the pods that it starts belong to
        kurmad. It stays valid when the configuration is reloaded. ``client.events(follow=True)`` yields events as
        they come.
    :param log: kurmad's log.
    :param ready: reports that the service works. Repeatable; any thread may call it.
    """

    client: Api
    log: Logger
    ready: Callable[[], None]


class ServiceHooks(Hooks):
    """A service. Its options, its directory and its notes are those of :class:`.driver.DriverContext`."""

    @hookspec(required=True)
    def serve(self, host: ServiceHost) -> None:
        """Serves until it is cancelled (:mod:`kurma_core.cancellation`), in a thread of its own.

        It calls ``host.ready`` once it works.

        :called: when kurmad has recovered its pods; again, after a pause of 1 second that doubles up to 5 minutes,
            when it has returned or raised an exception
        :param host: what kurmad gives the service.
        :raises KurmaError: it cannot serve, and why: ``kurma plugins list``, ``/healthz`` and the log say so.
        """

    @hookspec
    def reload(self, config: Mapping[str, Json]) -> bool:
        """Takes a new configuration, in another thread than :meth:`serve`.

        :called: when the service's section of ``kurma.yml`` has changed
        :param config: checked, with defaults filled in.
        :raises KurmaError: as False; the log says why.
        :returns: False, as without this hook: kurmad stops the service and starts it with the new configuration.
        """
        return False
