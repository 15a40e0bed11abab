"""The contract of isolators: values of a manifest become plans that any stager can apply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from kurma_core.value import field, frozen

if TYPE_CHECKING:
    from kurma_core.hookspecs.driver import Json
    from kurma_core.models.isolator import IsolatorPlan


@frozen
class IsolatorHost:
    """What a compiler of isolators must know of the host, and of the pod.

    :param cgroups: version (1 or 2) by controller that is there.
    :param cpus: number of processors online.
    :param userns: the pod has a user namespace.
    :param host_network: the pod is in the host's network.
    :param root: where ``/proc`` and ``/sys`` are, for what else a compiler has to know; it only reads.
    :param pod: name → value of the pod's own isolators, which bound the app's that is compiled.
    :param siblings: name → value of all isolators of the scope that is compiled, defaults among them.
    :param shared: namespaces that the pod shares with the host: of ``ipc``, ``net``, ``pid``, ``user``, ``uts``.
    :param pods: the directory of all pods.
    :param api: a daemon serves the state directory at the moment, whose API apps may be given.
    :param registry_image: the image of the app that is compiled came from a registry (Docker, OCI), and is no App
        Container image: its default capabilities are fewer.
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
    registry_image: bool = False


@frozen
class Compiled:
    """What an isolator becomes.

    :param plan: only the fields that it sets; the core merges the plans of all isolators.
    :param outcome: ``enforced``, ``modified`` or ``ignored``; ``note`` says how or why.
    :param amounts: its quantities in base units, for people: ``limit 1610612736 bytes`` of ``{"limit": "1.5Gi"}``.
    :param apps: of a pod's isolator: what it means for each of its apps.
    """

    plan: IsolatorPlan
    outcome: str = "enforced"
    note: str = ""
    amounts: str = ""
    apps: IsolatorPlan | None = None


@frozen
class IsolatorAbout:
    """What an isolator is, for people, and for who must know whose it is.

    :param scopes: ``app``, ``pod`` or both: where it has a meaning.
    :param value: the form of its value, in a few words.
    :param example: a value; what a host makes of it is compiled to be shown.
    """

    scopes: tuple[str, ...]
    value: str
    example: Json


class Isolator(Protocol):
    """Compiles isolators to a plan that any stager can apply; it changes nothing itself.

    It may have besides:

    - ``exclusive``, a tuple of frozensets of names: of each set, one scope may have one isolator;
    - ``defaults``, see :class:`IsolatorWithDefaults`;
    - ``about``, see :class:`IsolatorsTold`;
    - ``powers``, see :class:`GatedIsolator`;
    - ``namespaces``, see :class:`NamespaceIsolator`.
    """

    #: The isolator names that it looks after (``os/linux/oom-score-adj``).
    names: tuple[str, ...]

    def compile(self, name: str, value: Json, scope: str, host: IsolatorHost) -> Compiled:
        """:param scope: ``app`` or ``pod``.
        :raises IsolatorError: the value is wrong, or the isolator has no meaning in that scope.
        """
        ...


class IsolatorWithDefaults(Protocol):
    """What an :class:`Isolator` may have besides: isolators that hold where the manifest has none."""

    def defaults(self, scope: str, names: Collection[str], host: IsolatorHost) -> tuple[tuple[str, Json], ...]:
        """Name and value of each. They are compiled and reported as all others; strict mode leaves them alone.

        :param scope: ``app`` or ``pod``.
        :param names: of the isolators that it has.
        """
        ...


class IsolatorsTold(Protocol):
    """What an :class:`Isolator` may have besides: what its isolators are."""

    def about(self, name: str) -> IsolatorAbout:
        """:param name: one of ``names``."""
        ...


@frozen
class Power:
    """Power over the host that an isolator's value asks for; it goes through the gate.

    :param name: what a grant of ``kurma.yml`` calls it: the isolator's name, or ``ISOLATOR=PART`` for one of
        several powers that it can give. A grant of the isolator gives all of them.
    :param namespace: the namespace of the host's that is meant (``pid``), which all apps of the pod come by.
    :param least: a part of it that does, too, where no grant gives the whole.
    """

    name: str
    namespace: str | None = None
    least: str | None = None


class GatedIsolator(Protocol):
    """What an :class:`Isolator` may have besides: values that no image gets unless a grant says so.

    Every value that gives an app more than it has by default is such a value.
    """

    #: Isolators that ask for powers, each with the parts that it knows; None: its parts are open (paths).
    gated: Mapping[str, Collection[str] | None]

    def powers(self, name: str, value: Json, scope: str, host: IsolatorHost) -> tuple[Power, ...]:
        """Returns what the value asks for beyond the default of the image's kind; empty: nothing.

        :param scope: ``app`` or ``pod``.
        :param host: with the isolators that were asked for as ``siblings``, without defaults. What the pod shares
            with the host is not decided yet.
        :raises IsolatorError: the value is wrong.
        """
        ...


class NamespaceIsolator(Protocol):
    """What an :class:`Isolator` may have besides: values that say which namespaces a pod has. The core asks before
    it compiles anything, and tells by :attr:`IsolatorHost.shared` what came of it."""

    def namespaces(self, name: str, value: Json) -> Mapping[str, str]:
        """``host`` or ``private`` by ``ipc``, ``net``, ``pid``, ``user``, ``uts``; of those alone that it names.

        :raises IsolatorError: the value is wrong.
        """
        ...
