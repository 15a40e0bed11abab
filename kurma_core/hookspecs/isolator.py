"""The contract of isolators: values of a manifest become plans that any stager can apply."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from kurma_core.hookspecs import Hooks, hookspec
from kurma_core.value import field, frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kurma_core.hookspecs.driver import Json
    from kurma_core.models.isolator import IsolatorPlan, TrafficLimit

_WHERE = {"IsolatorPlan": "kurma_core.models.isolator"}


@frozen
class IsolatorHost:
    """Facts about the host and the pod that compilers of isolators use.

    :param cgroups: cgroup version (1 or 2) by available controller; ``cgroup`` is 2 if the host has the v2
        hierarchy, also beside v1.
    :param cpus: number of processors online.
    :param userns: the pod has a user namespace.
    :param host_network: the pod is in the host's network.
    :param root: the directory that holds ``/proc`` and ``/sys``, from which a compiler may read further facts.
    :param pod: name → value of the pod's own isolators, which bound those of its apps.
    :param siblings: name → value of all isolators of the scope that is compiled, including defaults.
    :param shared: namespaces that the pod shares with the host: of ``ipc``, ``net``, ``pid``, ``user``, ``uts``.
    :param pods: the directory of all pods.
    :param api: a daemon serves the state directory at the moment, so apps can be given its API.
    :param fewer_capabilities: the app's image expects the default capabilities of container engines, fewer than
        the specification's (:class:`kurma_core.models.image.Conventions`).
    """

    cgroups: Mapping[str, int]
    cpus: int
    userns: bool = False
    host_network: bool = False
    root: str = "/"
    pod: Mapping[str, Json] = field(default_factory=dict)
    siblings: Mapping[str, Json] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    pods: str = ""
    api: bool = False
    fewer_capabilities: bool = False

    @property
    def host_namespaces(self) -> frozenset[str]:
        """All namespaces of the host that the pod is in: ``shared``, and what the two flags say."""
        found = self.shared | {"net"} if self.host_network else self.shared
        return found if self.userns else found | {"user"}


@frozen
class Compiled:
    """A compiled isolator.

    :param plan: a plan with only the fields that the isolator sets; the core merges the plans of all isolators.
    :param outcome: ``enforced``, ``modified`` or ``ignored``.
    :param note: how it was modified, or why it is ignored, for people.
    :param amounts: its quantities in base units, for people: ``limit 1610612736 bytes`` of ``{"limit": "1.5Gi"}``.
    :param apps: for a pod's isolator: the plan that it adds to each of the pod's apps.
    """

    plan: IsolatorPlan
    outcome: str = "enforced"
    note: str = ""
    amounts: str = ""
    apps: IsolatorPlan | None = None


@frozen
class IsolatorAbout:
    """Description of an isolator, for people, and for the check of its scope.

    :param scopes: ``app``, ``pod`` or both: where it has a meaning.
    :param value: the form of its value, in a few words.
    :param example: an example value; listings compile it to show its effect on this host.
    """

    scopes: tuple[str, ...]
    value: str
    example: Json


@frozen
class Power:
    """Power over the host that an isolator's value asks for, and that a grant must allow.

    :param name: its name in grants of ``kurma.yml``: the isolator's name, or ``ISOLATOR=PART`` for one of
        several powers that the isolator can give. A grant of the isolator gives all of them.
    :param namespace: the namespace of the host (``pid``) that all apps of the pod would share.
    :param least: a smaller power that suffices if no grant gives the whole.
    """

    name: str
    namespace: str | None = None
    least: str | None = None


class IsolatorHooks(Hooks):
    """Compiles isolators to a plan that any stager can apply; it changes nothing on the host.

    The plugin declares its isolators (:attr:`.driver.Driver.isolators`), so that the core knows them without
    importing the plugin.

    :raises IsolatorError: a value is wrong.
    """

    @hookspec(required=True)
    def compile(self, name: str, value: Json, scope: str, host: IsolatorHost) -> Compiled:
        """Compiles one isolator to a plan. Set only the isolator's own fields: the core merges the plans, and
        refuses those that contradict each other.

        :called: when a pod is prepared, an app is added, and for listings
        :param name: of the isolator, one of ``Driver.isolators``.
        :param value: as the manifest or the caller has it; untrusted.
        :param scope: ``app`` or ``pod``.
        :param host: facts about the host and the pod.
        :returns: the plan, and how far it enforces the value.
        :raises IsolatorError: the value is wrong, or the isolator has no meaning in that scope.
        """

    @hookspec
    def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Json], ...]:
        """Brings isolators that a scope has by default. The core compiles and reports them like all others;
        ``--strict-isolators`` does not apply to them. Return a required isolator also on a host where ``compile``
        can only answer ``ignored``.

        :called: before the isolators of a scope are compiled, if the plugin declares ``default_isolators``
        :param scope: ``app`` or ``pod``.
        :param names: names of the isolators that the scope has.
        :param host: facts about the host and the pod.
        :returns: name and value of each default isolator.
        """
        return ()

    @hookspec
    def about(self, name: str) -> IsolatorAbout:
        """Describes one isolator.

        :called: by ``kurma isolators list``, and to find the scope of ``--isolator``
        :param name: one of ``Driver.isolators``.
        :returns: the description.
        """
        return IsolatorAbout(("app", "pod"), "", None)

    @hookspec
    def powers(self, name: str, value: Json, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
        """Tells which powers a value needs beyond the default of the image's kind
        (:attr:`IsolatorHost.fewer_capabilities`). An image gets them only by a grant. The plugin
        declares these isolators and their parts (:attr:`.driver.Driver.gated`).

        :called: when a pod is prepared or started, or an app is added, before ``compile``
        :param name: of the isolator, one of ``Driver.isolators``.
        :param value: as for ``compile``.
        :param scope: ``app`` or ``pod``.
        :param host: its ``siblings`` are the isolators of the manifest, without defaults. ``shared`` is not
            decided yet.
        :returns: the powers; empty: the value needs none.
        :raises IsolatorError: the value is wrong.
        """
        return ()

    @hookspec
    def namespaces(self, name: str, value: Json) -> Mapping[str, str]:
        """Tells which namespaces a value chooses. The core decides, and passes the result to the compilers as
        :attr:`IsolatorHost.shared`.

        :called: before isolators are compiled
        :param name: of the isolator, one of ``Driver.isolators``.
        :param value: as for ``compile``.
        :returns: ``host`` (shared with the host) or ``private`` (the pod's own) for those of ``ipc``, ``net``,
            ``pid``, ``user``, ``uts`` that the value names.
        :raises IsolatorError: the value is wrong.
        """
        return {}

    @hookspec
    def changed(self, name: str, before: Json, value: Json) -> Json:
        """Makes the value of an isolator after an update of its app. Without the hook, the new value replaces the
        earlier one.

        :called: by ``kurma app update``, if the app has an isolator of that name
        :param name: of the isolator, one of ``Driver.isolators``.
        :param before: the app's present value.
        :param value: the caller's.
        :returns: the whole value.
        :raises IsolatorError: the value is wrong.
        """
        return value

    @hookspec
    def limit_traffic(
        self, namespace: str, limits: Collection[TrafficLimit], held: Mapping[str, Collection[TrafficLimit]]
    ) -> tuple[str, ...]:
        """Limits the pod's interfaces to these rates, as the plans of any isolator want it, and removes its other
        limits. It can be repeated. The kernel must remove the limits with the namespace: there is no undo.

        If several plugins have it, the first in the order of ``kurma plugins list`` gets the limits of all.

        :called: after the pod has joined its networks, and when its apps change
        :param namespace: path of the pod's network namespace, with its interfaces in it.
        :param limits: of several for one interface and direction, the lowest counts; empty: no limit is left.
        :param held: limits that a network applies itself, by interface, at most one for each direction: only
            stricter limits are to be added.
        :returns: interfaces that a limit names and that do not exist.
        :raises NetworkError: it failed.
        """
        return ()
