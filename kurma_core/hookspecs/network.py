"""The contract of networks: pods join and leave, and what is left on the host is found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kurma_core.value import frozen

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Json
    from kurma_core.models.network import Attachment, NetworkResult


@frozen
class AttachmentContext:
    """Arguments of ``add``, ``delete`` and ``check``; always the same three times.

    :param namespace: path of the pod's network namespace; in ``delete`` it may be gone.
    :param interface: name of the interface inside the pod; "" where the network is an image's and is configured
        without one.
    """

    pod: str
    pod_name: str
    namespace: str
    interface: str
    attachment: Attachment


class Network(Protocol):
    """Joins pods to networks of its kind. One driver serves every configured network that names it."""

    def setup(self, config: Mapping[str, Json]) -> None:
        """Before the first ``add`` of a network in a process; checks its configuration. May be called again.

        :raises NetworkError: the network cannot work, and why.
        """
        ...

    def add(self, context: AttachmentContext) -> NetworkResult | None:
        """Joins the pod. None: nothing to tell (loopback). May run at once for different pods.

        :raises NetworkError:
        """
        ...

    def delete(self, context: AttachmentContext) -> None:
        """Undoes ``add``: repeatable, and right after a failed or half-done ``add`` too.

        :raises NetworkError: something is left; it may be called again.
        """
        ...

    def check(self, context: AttachmentContext) -> None:
        """:raises NetworkError: what ``add`` made is not as it was."""
        ...

    def remove(self, config: Mapping[str, Json]) -> None:
        """Takes away what the network shares among pods (a bridge, base chains). Repeatable.

        :raises NetworkError: in use, or it could not be removed.
        """
        ...


class NetworkConfigChecker(Protocol):
    """What a :class:`Network` may have besides: a look at a configuration, for ``config check`` and listings."""

    def check_config(self, config: Mapping[str, Json]) -> None:
        """Looks at the configuration alone: nothing is changed, no program is run, and the host is not asked.

        :raises NetworkError: it is wrong, and why.
        """
        ...


class NetworkDiscovery(Protocol):
    """What a :class:`Network` may have besides: networks of its own, outside Kurma's configuration."""

    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """Configurations by network's name. Asked when a name is in no configuration, and for listings.

        What is broken is noted, and hides nothing else.
        """
        ...


@frozen
class Leak:
    """Something on the host that a network plugin has made, and that is not as it should be.

    :param kind: ``address``, ``interface``, ``chain``, ``rule``, ``namespace``, ``record`` …
    :param what: for people: `interface kv1a2b3c4d on bridge kurma0`.
    :param why: what is wrong with it: `its pod 146d7cef-… is gone`.
    :param network: whose; "" where that cannot be told. :param pod: UUID; "" where it is no pod's.
    """

    kind: str
    what: str
    why: str
    network: str = ""
    pod: str = ""


class NetworkCare(Protocol):
    """What a :class:`Network` may have besides: looking after what it has on the host."""

    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """What it has made and belongs to no pod, or is missing or damaged. Nothing is changed, and nothing of
        anybody else's is told.

        :param configs: of every network that names this driver now; there may be traces of others.
        :param pods: UUIDs of this state directory's pods that are joined, half so, or about to be: all of them
            were on record before the first ``add``. Ask the kernel and the disk first, and compare then: each
            ``in`` looks at the pods' records anew, as they are at that moment.
        :raises NetworkError: it cannot look.
        """
        ...

    def mend(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Frees or puts right what :meth:`leaks` tells. Repeatable; may run beside ``add`` and ``delete`` of other
        processes: what a pod may have come back for meanwhile is compared and freed under the lock that ``add``
        takes.

        :returns: what is left.
        """
        ...


class NetworkStatus(Protocol):
    """What a :class:`Network` may have besides: a word on whether pods could join now."""

    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: they could not, and why."""
        ...


class TrafficHolder(Protocol):
    """What a :class:`Network` may have besides: a word on limits of traffic. Without it the core holds pods."""

    def limits(self, config: Mapping[str, Json]) -> bool:
        """Whether that network holds a pod to rates itself. Then ``add`` finds the pod's own limits, if there are
        any, among the attachment's capabilities, as CNI's ``bandwidth``, and the core leaves them to it.
        """
        ...


class PortPublisher(Protocol):
    """What a :class:`Network` may have besides: a word on ports. Without it, a network is given a pod's ports."""

    def publishes(self, config: Mapping[str, Json]) -> bool:
        """Whether that network can lead ports of the host into a pod. Of a pod's networks the first that can gets
        the ports."""
        ...
