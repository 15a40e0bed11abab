"""``pod.json``: the definition of a pod, made when it is prepared. Afterwards only its apps may change."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.appc.pod import PodApp, PodManifest
from kurma_core.models.health import HEALTH_CHECK, HealthCheck
from kurma_core.models.image import Conventions
from kurma_core.models.isolator import CGROUP_PARENT, IdRange, IsolatorPlan, IsolatorReport
from kurma_core.models.network import Attachment
from kurma_core.models.pod import KEEP_ROOT, MountSetup, stop_timeout_of
from kurma_core.models.summary import DISPLAY_NAME, MANAGER
from kurma_core.schema import MISSING, JsonValue, SchemaError
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Json = Any

#: The annotation of a pod that names its restart policy.
RESTART_POLICY = "kurma.io/pod/restart"


@frozen
class Need(JsonValue):
    """A power over the host that an image must be granted.

    :param power: ``ISOLATOR`` or ``ISOLATOR=PART``, as a grant names it.
    :param level: the source of the need: :data:`OF_IMAGE`, :data:`OF_APP` or :data:`OF_POD`; or the name of
        another app, through which all apps of the pod get the power.
    :param least: a lesser part of the power that is enough, too.
    """

    power: str
    level: str
    least: str | None = None

    @property
    def isolator(self) -> str:
        return self.power.partition("=")[0]


#: Keys that records of earlier versions lack.
_LATER: Mapping[str, object] = {"addedAt": {}, "dnsExact": False}
#: Sources of a need: the image's manifest; the pod manifest, for that app; the pod manifest, for all apps. An
#: app's name never contains a space.
OF_IMAGE, OF_APP, OF_POD = "its image", "its app", "the pod"


@frozen
class PodDocument(JsonValue):
    """The definition of a pod, as ``pod.json`` has it.

    :param manifest: reified.
    :param mounts: by app, in the order in which they are mounted.
    :param interactive: the app that gets the caller's standard input; ``terminal``: the app that has a terminal.
    :param attachments: the planned networks, in order.
    :param host_network: the pod shares the host's network namespace.
    :param ephemeral: the pod is removed once it has ended.
    :param foreground: it was made to run in the foreground of a command.
    :param ids: the range of host ids of its user namespace, reserved until the pod is removed. None: no user
        namespace.
    :param keep: the pod was made without apps, and ends only when it is stopped.
    :param added_volumes: names of volumes that came with an app while the pod ran.
    :param dns_exact: ``dns`` is all of ``/etc/resolv.conf``.
    :param own_networks: the stager joins the pod to the networks, in namespaces that the stager makes (network and
        user namespace).
    :param held: by app, the isolators of ``required_isolators`` that the app has.
    :param needs: by app, the powers over the host that the app's image must be granted at every start; "": powers
        of the whole pod, which every app's image must be granted.
    :param grants: powers that the caller has granted (``--grant``), by app; "": to the pod as a whole.
    :param stager_plugin: ``PLUGIN`` or ``PLUGIN:IMAGE`` of the section of ``kurma.yml`` that is the ``stager``:
        pods outlive their configuration. Empty: the name tells.
    :param image_names: by app, the image as the caller named it, without passwords.
    :param conventions: by app, what its image expects, if that differs from the App Container specification.
    :param added_at: by app that was added later, when: RFC 3339.
    """

    uuid: str
    name: str
    created_at: str
    manifest: PodManifest
    mounts: Mapping[str, tuple[MountSetup, ...]]
    plans: Mapping[str, IsolatorPlan]
    pod_plan: IsolatorPlan
    isolators: tuple[IsolatorReport, ...]
    notes: tuple[str, ...]
    stager: str
    renderer: str
    attachments: tuple[Attachment, ...]
    host_network: bool
    hostname: str
    interactive: str | None = None
    terminal: str | None = None
    dns: Mapping[str, tuple[str, ...]] | None = None
    dns_exact: bool = False
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ephemeral: bool = False
    foreground: bool = False
    verify: bool = False
    insecure: tuple[str, ...] = ()
    volume_links: bool = False
    environment: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    ids: IdRange | None = None
    keep: bool = False
    added_volumes: tuple[str, ...] = ()
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, tuple[Need, ...]] = field(default_factory=dict)
    grants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_networks: bool = False
    stager_plugin: str = ""
    image_names: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, Conventions] = field(default_factory=dict)
    added_at: Mapping[str, str] = field(default_factory=dict)

    @property
    def restart_policy(self) -> str:
        return self.manifest.annotation(RESTART_POLICY) or "never"

    @property
    def keeps_root(self) -> bool:
        """Whether the apps' root file systems stay when the pod has ended."""
        return self.manifest.annotation(KEEP_ROOT) == "true"

    @property
    def stop_timeout(self) -> float | None:
        """Seconds between the stop signal and SIGKILL for its apps; None: as configured."""
        return stop_timeout_of(self.manifest)

    @property
    def manager(self) -> str | None:
        """The program that manages the pod; None: none does."""
        return self.manifest.annotation(MANAGER)

    @property
    def display_name(self) -> str | None:
        """The pod's name for people; None: ``name`` is the only one."""
        return self.manifest.annotation(DISPLAY_NAME)

    @property
    def app_names(self) -> list[str]:
        return [app.name for app in self.manifest.apps]

    @property
    def images(self) -> dict[str, str]:
        """Image ID by app."""
        return {app.name: str(app.image.id) for app in self.manifest.apps}

    def health_check(self, app: str) -> HealthCheck | None:
        """The health check of an app, with all defaults; None: it has none.

        :raises AppNotFoundError: there is no such app.
        """
        return self._health_check(self.manifest.app(app))

    def _health_check(self, app: PodApp) -> HealthCheck | None:
        expected = self.conventions.get(app.name)
        image = None if expected is None else expected.health_check
        if image is None and app.annotation(HEALTH_CHECK) is None:
            return None
        from kurma_core.appc.health_check import of_app  # few apps have one

        return of_app(app.name, app.annotation(HEALTH_CHECK), image)

    @property
    def health_checks(self) -> dict[str, HealthCheck]:
        """The health checks by app."""
        found = {app.name: self._health_check(app) for app in self.manifest.apps}
        return {app: check for app, check in found.items() if check is not None}

    @property
    def cgroup_parent(self) -> str | None:
        """The cgroup in which the pod's own is made, relative to the root of each hierarchy; "": the root. None:
        Kurma's own."""
        text = self.manifest.annotation(CGROUP_PARENT)
        return None if text is None else _expanded(text)

    @property
    def used_images(self) -> set[str]:
        """IDs of the images of its apps and volumes."""
        return {*self.images.values(), *self.volume_images}

    @property
    def volume_images(self) -> tuple[str, ...]:
        """IDs of the images of its volumes."""
        return tuple(one.image for one in self.manifest.volumes if one.image is not None)

    @property
    def cgroup(self) -> str:
        """See :func:`cgroup_of`."""
        return cgroup_of(self.uuid, self.cgroup_parent)

    @property
    def shared(self) -> frozenset[str]:
        """Namespaces that it shares with the host: of ``ipc``, ``net``, ``pid``, ``user`` and ``uts``."""
        found = {kind for kind, word in self.pod_plan.namespaces.items() if word == "host"}
        found.update(["net"] if self.host_network else [], ["user"] if self.ids is None else [])
        return frozenset(found)

    @property
    def network_namespace(self) -> str | None:
        """Path of the pinned network namespace; None: the pod is in the host's, or in one that the stager
        makes."""
        return None if self.host_network or self.own_networks else f"/run/netns/kurma-{self.uuid}"

    @property
    def user_namespace(self) -> str | None:
        """Path of the pinned user namespace; None: the pod has none, or the stager makes it."""
        return None if self.ids is None or self.own_networks else f"/run/kurma/userns/{self.uuid}"

    @classmethod
    def from_json(cls, value: Json, path: str = "the record") -> Self:
        """:raises SchemaError: the record does not have the required form. :raises ManifestError: its manifest is
        invalid."""
        if isinstance(value, dict):
            value = {**_LATER, **value}
        found = super(PodDocument, cls).from_json(value, path)  # noqa: UP008 - frozen() remakes the class
        for key, by_app in (("mounts", found.mounts), ("plans", found.plans)):
            for app in found.app_names:
                if app not in by_app:
                    raise SchemaError(f"{key}.{app}", "an entry", MISSING)
        if found.manifest.annotation(CGROUP_PARENT) is not None:
            from kurma_core.pods.record.cgroup_parent import parent_of

            parent_of(found.manifest)
        return found


def _expanded(text: str) -> str:
    from kurma_core.pods.record.cgroup_parent import expanded  # few pods have a parent

    return expanded(text)


def cgroup_of(uuid: str, parent: str | None = None) -> str:
    """Path of a pod's cgroup, relative to the root of each hierarchy. :param parent: see
    :attr:`PodDocument.cgroup_parent`."""
    if parent is None:
        return f"kurma/{uuid}"
    from kurma_core.linux.cgroups import GUEST

    return f"{parent}/{GUEST}{uuid}" if parent else f"{GUEST}{uuid}"


def cgroups_of_lost(uuid: str) -> tuple[str, ...]:
    """As :func:`cgroup_of`, for a pod whose ``pod.json`` is lost: the path in Kurma's own cgroup, and every
    existing one in another parent."""
    from kurma_core.linux.cgroups import GUEST, find_guests

    return (cgroup_of(uuid), *find_guests(f"{GUEST}{uuid}"))
