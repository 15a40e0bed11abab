"""The contract of networks: pods join and leave; plugins find and remove leftovers on the host."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kurma_core.hookspecs.driver import Json
    from kurma_core.models.network import Attachment, NetworkResult

_WHERE = {"NetworkResult": "kurma_core.models.network"}


@frozen
class AttachmentContext:
    """Arguments of ``add``, ``delete`` and ``check``, the same for all three.

    :param pod: the pod's UUID.
    :param pod_name: the pod's name.
    :param namespace: path of the pod's network namespace; in ``delete`` it may be gone.
    :param interface: name of the interface inside the pod; "" if an image serves the network and the configuration
        names no interface.
    :param attachment: the network's name and configuration, the user's request (addresses, MAC), and the ports to
        publish.
    """

    pod: str
    pod_name: str
    namespace: str
    interface: str
    attachment: Attachment


@frozen
class Leak:
    """A resource on the host, made by a network plugin, that is left over, missing or damaged.

    :param kind: ``address``, ``interface``, ``chain``, ``rule``, ``namespace``, ``record`` …
    :param what: for people: `interface kv1a2b3c4d on bridge kurma0`.
    :param why: what is wrong with it: `its pod 146d7cef-… is gone`.
    :param network: its network; "": unknown. :param pod: its pod's UUID; "": it belongs to no pod.
    """

    kind: str
    what: str
    why: str
    network: str = ""
    pod: str = ""


class NetworkHooks(Hooks):
    """Joins pods to networks of its kind. One driver serves every configured network that names it. An argument
    ``config`` is the network's configuration, completed.

    :raises NetworkError: the work failed, and why.
    """

    @hookspec(required=True)
    def setup(self, config: Mapping[str, Json]) -> None:
        """Checks the configuration and prepares the network. It may be repeated.

        :called: before the first ``add`` of a network in a process
        :raises NetworkError: the network cannot work, and why.
        """

    @hookspec(required=True)
    def add(self, context: AttachmentContext) -> NetworkResult | None:
        """Joins the pod. It may run at once for different pods.

        :called: when a pod starts, for each of its networks in order, after the attachment is on record
        :param context: the pod and the attachment.
        :returns: the pod's addresses, routes and resolver; None: there is no result, as for loopback.
        :raises NetworkError: the pod cannot join; the core calls ``delete``.
        """

    @hookspec(required=True)
    def delete(self, context: AttachmentContext) -> None:
        """Undoes ``add``. It may be repeated.

        :called: when a pod ends, also after an ``add`` that failed or was interrupted, and when the namespace is
            gone; again, if an ``add`` that was given up because it took long succeeds in the end
        :param context: as for ``add``.
        :raises NetworkError: something is left; the core calls it again later.
        """

    @hookspec(required=True)
    def check(self, context: AttachmentContext) -> None:
        """Checks that the results of ``add`` are unchanged.

        :called: by ``kurma network check``, for each pod that is joined
        :param context: as for ``add``.
        :raises NetworkError: they are not.
        """

    @hookspec(required=True)
    def remove(self, config: Mapping[str, Json]) -> None:
        """Removes what the network shares among pods (a bridge, base chains), and the choice of ``complete``. It
        may be repeated.

        :called: by ``kurma network rm``, when no pod uses the network
        :raises NetworkError: it could not be removed.
        """

    @hookspec
    def check_config(self, config: Mapping[str, Json]) -> None:
        """Checks the configuration alone: changes nothing, runs no program, and does not look at the host.

        :called: by ``kurma config check``, a reload, and listings
        :param config: it may lack values that ``complete`` has not chosen yet.
        :raises NetworkError: it is wrong, and why.
        """

    @hookspec
    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """Finds networks that are configured elsewhere than in ``kurma.yml``. It notes a broken configuration,
        and returns the others.

        :called: when ``kurma.yml`` lacks a name, and for listings
        :returns: the configurations, by name.
        """
        return {}

    @hookspec
    def complete(self, config: Mapping[str, Json], choose: bool) -> Mapping[str, Json] | None:
        """Chooses values that the configuration leaves open, such as subnets. All other hooks but ``check_config``
        get the result.

        The driver records a choice in its own state directory before it returns, and makes nothing on the host.
        The same configuration is completed alike until ``remove``, in every process, also after a crash. If it
        names files that hold the rest, the result follows them. A pod leaves with the result with which it joined.

        :called: before the other hooks that take a configuration
        :param config: as it is configured.
        :param choose: True: a pod is about to join; choose and record what was not chosen yet. False, for
            listings: return None if something was not chosen yet.
        :returns: the whole configuration.
        :raises NetworkError: nothing is left to choose from.
        :raises HostError: the record cannot be read or written.
        """
        return config

    @hookspec
    def interface(self, config: Mapping[str, Json]) -> str | None:
        """Names the pod's interface if the configuration has no ``containerInterface``.

        :called: when a pod is about to join
        :returns: a name, or a template (``eth{{num}}``); "": the driver names it at ``add``; None: the core's
            default, ``eth{{num}}``.
        """
        return None

    @hookspec
    def status(self, config: Mapping[str, Json]) -> None:
        """Checks that a pod could join the network now.

        :called: by ``kurma network check``
        :raises NetworkError: it could not, and why.
        """

    @hookspec
    def limits(self, config: Mapping[str, Json]) -> bool:
        """Whether the network limits a pod's traffic itself. If so, ``attachment.limits`` of ``add`` has the pod's
        limits, and no isolator plugin applies them again.

        :called: when a pod with limits of traffic is about to join
        """
        return False

    @hookspec
    def publishes(self, config: Mapping[str, Json]) -> bool | str:
        """Whether the network can publish ports of the host. The pod's first network that can gets the ports.

        :called: when a pod that publishes ports is prepared
        :returns: True, or why it cannot: `its plugin is an image, which is not told of ports`.
        """
        return True

    @hookspec
    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Finds resources of this driver that belong to no pod, are missing, or are damaged. It changes nothing,
        and does not report resources of other programs. The core acts on a leak that is found twice.

        :called: by ``kurma network check`` and ``kurma gc``
        :param configs: configurations of every network that names this driver now; the host may have traces of
            earlier networks.
        :param pods: UUIDs of this state directory's pods that are joined, partly joined, or about to join: all of
            them were on record before the first ``add``. Ask the kernel and the disk first, and compare then: each
            ``in`` reads the pods' records as they are at that moment.
        :returns: the faults; without the hook, ``delete`` is called for networks on record of pods that are gone.
        :raises NetworkError: the search itself failed.
        """
        return ()

    @hookspec
    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Frees or repairs what :meth:`leaks` finds. It may be repeated, and may run beside ``add`` and ``delete``
        of other processes: a pod may join again meanwhile, so compare and free under the lock that ``add`` takes.

        :called: by ``kurma network check --repair`` and ``kurma gc``
        :param configs: as for ``leaks``.
        :param pods: as for ``leaks``.
        :returns: the faults that remain.
        """
        return ()
