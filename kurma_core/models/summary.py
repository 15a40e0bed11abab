"""Pod summaries, for tables of pods."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.models.health import HealthWord
from kurma_core.schema import Count, ExitCode, JsonValue, Timestamp, Words
from kurma_core.value import field, frozen

#: States of a pod, in the order of its life.
STATES = ("preparing", "prepared", "starting", "running", "stopping", "stopped", "errored")

#: A pod's annotations that name the program that manages it, and its name for people.
MANAGER, DISPLAY_NAME = "kurma.io/manager", "kurma.io/display-name"

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
    :param images: image ID by app.
    :param image_names: by app, the image as the caller named it.
    :param volume_images: IDs of the images that are its volumes.
    :param ports: published ports, as ``[IP:]HOST:POD/PROTOCOL``.
    :param exit_code: the first of its apps' that is not 0, in manifest order; null: it has not ended.
    :param started_at: when it was started; null: it was not.
    :param finished_at: when it ended; null: it has not ended.
    :param restarts: how often kurmad has started it again since a caller started it.
    :param labels: by name.
    :param manager: name of the program that manages it; null: none does.
    :param display_name: its name for people, as its manager gave it; null: ``name`` is the only one.
    :param health: the worst health of its running apps; null: none of them has a health check.
    """

    uuid: str
    name: str
    state: State
    created_at: Timestamp
    apps: tuple[str, ...] = ()
    networks: tuple[NetworkSummary, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    image_names: Mapping[str, str] = field(default_factory=dict)
    volume_images: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    exit_code: ExitCode | None = None
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    restarts: Count = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    manager: str | None = None
    display_name: str | None = None
    health: HealthWord | None = None

    @property
    def condition(self) -> str:
        """Its state, and its health, for people."""
        return self.state if self.health is None else f"{self.state} ({self.health})"
