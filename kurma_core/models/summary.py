"""Pod summaries, for tables of pods."""

from __future__ import annotations

from kurma_core.schema import JsonValue, Timestamp, Words
from kurma_core.value import frozen

#: States of a pod, in the order of its life.
STATES = ("preparing", "prepared", "starting", "running", "stopping", "stopped", "errored")

TYPE_CHECKING = False
if TYPE_CHECKING:
    State = str
else:
    State = Words(*STATES)


@frozen
class NetworkSummary(JsonValue):
    """A network that a pod is joined to.

    :param addresses: in CIDR form; none before the pod was started.
    :param base: every pod joins the network, which may give it no address.
    """

    network: str
    interface: str
    addresses: tuple[str, ...]
    base: bool = False


@frozen
class PodSummary(JsonValue):
    """The part of a :class:`kurma_core.models.pod.PodRecord` that a table of pods shows. It is read without asking
    a stager.

    :param apps: names, in the manifest's order.
    :param networks: empty: the pod shares the host's.
    """

    uuid: str
    name: str
    state: State
    created_at: Timestamp
    apps: tuple[str, ...] = ()
    networks: tuple[NetworkSummary, ...] = ()
