"""Values of the API about the host: networks, stagers, isolators, plugins, events, health of kurmad."""

from __future__ import annotations

from _collections_abc import Mapping  # without collections

from kurma_core.schema import Count, JsonValue, Pid, Timestamp, Whole, Words
from kurma_core.value import field, frozen

#: Subjects of events.
SUBJECTS = ("pod", "app", "image", "volume", "daemon")
#: Kinds of events by subject.
KINDS: Mapping[str, tuple[str, ...]] = {
    "pod": (
        *("prepared", "starting", "running", "stopping", "stopped", "errored"),
        *("restarting", "adopted", "removed"),
    ),
    "app": ("created", "started", "healthy", "unhealthy", "stopped", "removed"),
    "image": ("fetched", "removed"),
    "volume": ("created", "removed"),
    "daemon": ("started", "reloaded", "reload-refused", "ended"),
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = Any
    ChangeKind = str
    CheckOutcome = str
    EventKind = str
    _Kind = str
    EventSubject = str
    _Subject = str
    HealthState = str
    IsolatorOutcome = str
    IsolatorScope = str
    EventNumber = int
    ServiceState = str
    StagerKind = str
    TargetState = str
else:

    class _AnyWord(Words):
        """Words of which another version of Kurma may have more: any text is read."""

        __slots__ = ()

        def read(self, value: Json, path: str) -> str:
            if not isinstance(value, str):
                raise self._wrong(value, path)
            return value

    ChangeKind = Words("new", "changed", "removed")
    CheckOutcome = Words("ok", "fail", "skipped")
    EventKind = Words(*dict.fromkeys([kind for kinds in KINDS.values() for kind in kinds]))
    EventSubject = Words(*SUBJECTS)
    _Kind, _Subject = _AnyWord(*EventKind.words), _AnyWord(*SUBJECTS)
    HealthState = Words("ok", "failing")
    IsolatorOutcome = Words("enforced", "modified", "ignored", "refused", "")
    IsolatorScope = Words("app", "pod")
    EventNumber = Whole(0)
    ServiceState = Words("starting", "running", "waiting", "failed", "stopped")
    StagerKind = Words("plugin", "image")
    TargetState = Words("waiting", "present", "failed")


# --- networks --------------------------------------------------------------------------------------------------


@frozen
class NetworkInfo(JsonValue):
    """One network that a pod may name.

    :param name: name of the network.
    :param driver: the plugin that serves it; empty for ``host`` and ``none``, which need none.
    :param source: ``configured``, ``built-in`` or ``found`` (by its driver, outside Kurma's configuration).
    :param interface: name or template of the interface inside the pod.
    :param default: whether pods without a list of networks join it.
    :param optional: true: its failure does not fail the pod.
    :param config: configuration of the driver.
    :param problem: why it cannot be used; null: no problem is known.
    :param names: whether pods on it find each other by name.
    """

    JSON_NAME = "Network"

    name: str
    driver: str
    source: str
    interface: str
    default: bool
    optional: bool
    config: Mapping[str, Json]
    problem: str | None = None
    names: bool = True


@frozen
class NetworkFinding(JsonValue):
    """A problem of a network on this host, present or repaired.

    :param kind: ``network``, ``namespace``, ``record``, ``pod``, ``attachment``, or a plugin's word: ``address``,
        ``interface``, ``chain``, …
    :param network: its name; null: it concerns no network.
    :param pod: its UUID; null: it concerns no pod.
    :param what: object with the problem.
    :param why: description of the problem.
    :param repaired: true: ``--repair`` has repaired it.
    """

    JSON_NAME = "NetworkFinding"

    kind: str
    network: str | None
    pod: str | None
    what: str
    why: str
    repaired: bool = False


# --- stagers, isolators, plugins -------------------------------------------------------------------------------


@frozen
class StagerInfo(JsonValue):
    """A stager that a pod may name.

    :param name: name of the stager.
    :param kind: source of the stager. :param image: its locator; null: it is a plugin's.
    :param default: whether it is used without ``--stager``.
    :param config: from ``kurma.yml``: its section of ``stagers``, and the options of its plugin.
    :param features: its abilities, by the names of :class:`~kurma_core.hookspecs.stager.StagerFeatures`. Empty:
        its plugin cannot be loaded. An image may declare fewer.
    """

    JSON_NAME = "Stager"

    name: str
    kind: StagerKind
    image: str | None
    default: bool
    config: Mapping[str, Json]
    features: tuple[str, ...] = ()


@frozen
class CheckLine(JsonValue):
    """One line of the contract suite for stagers.

    :param name: name of the line. :param about: rule that the line checks.
    :param outcome: outcome of the check.
    :param detail: the observation, or why it was skipped; null: the rule holds.
    """

    JSON_NAME = "StagerCheckLine"

    name: str
    about: str
    outcome: CheckOutcome
    detail: str | None = None


@frozen
class IsolatorInfo(JsonValue):
    """One isolator, and its effect on this host.

    :param name: name of the isolator.
    :param plugin: plugin that applies the isolator; all plugins that claim it.
    :param scopes: ``app``, ``pod`` or both; empty, like the next two, if the plugin does not declare them.
    :param value: form of the value, in words.
    :param example: example of a value.
    :param outcome: outcome of the example on this host; empty: there is no example.
    :param note: details of the outcome, or its reason.
    :param default: the value for an app, or a pod, without this isolator; null: none.
    """

    JSON_NAME = "Isolator"

    name: str
    plugin: str
    scopes: tuple[IsolatorScope, ...] = ()
    value: str = ""
    example: Json = None
    outcome: IsolatorOutcome = ""
    note: str = ""
    default: Json = None


@frozen
class PluginInfo(JsonValue):
    """A plugin.

    :param kind: the group without ``kurma.``: ``networks``. :param name: name of the plugin.
    :param distribution: package of the plugin; null: the plugin is required and missing.
    :param version: of that package; ``?``: it says none; null: likewise.
    :param status: ``ok``, ``disabled``, ``skipped`` (this host lacks something), ``failed``, ``outdated`` (another
        version is loaded than is installed), ``behind`` (an observer that hangs, or that events wait for);
        ``found`` when it was not loaded. Of a service of kurmad: the state of :class:`ServiceInfo`.
    :param reason: why it is not ``ok``, or a name that another plugin claims, too; empty if the plugin works.
    :param enable: the line of ``kurma.yml`` that enables it, if it is ``disabled``; empty otherwise.
    :param loaded: the version that the process has loaded; null: none yet.
    :param process: process of this row: ``kurmad`` or ``this command``.
    """

    JSON_NAME = "Plugin"

    kind: str
    name: str
    distribution: str | None
    version: str | None
    status: str
    reason: str = ""
    enable: str = ""
    loaded: str | None = None
    process: str = "this command"


@frozen
class PluginOption(JsonValue):
    """An option of a plugin, in its section of ``kurma.yml``.

    :param name: name of the option. :param type: of its value, in words. :param default: its value if it is left
        out.
    :param least: of a number; null: any. :param most: likewise.
    :param help: its effect.
    """

    name: str
    type: str
    default: Json
    least: float | None
    most: float | None
    help: str


@frozen
class PluginPage(JsonValue):
    """A plugin and its options.

    :param settings: its section of ``kurma.yml``, defaults filled in.
    :param options: the options that the section may have.
    """

    JSON_NAME = "PluginPage"

    plugin: PluginInfo = field(inline=True)
    settings: Mapping[str, Json]
    options: tuple[PluginOption, ...]


# --- the host and kurmad ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Target(JsonValue):
    """A pod or an image that kurmad keeps by its configuration.

    :param name: in the configuration. :param state: state of kurmad's attempts.
    :param error: why it failed; null: it has not. :param next: when kurmad tries again; null: it does not.
    """

    name: str
    state: TargetState
    error: str | None
    next: Timestamp | None


@frozen(kw_only=True)
class InitialPod(Target):
    """:param pod: its UUID; null: it is not there yet."""

    pod: str | None


@frozen(kw_only=True)
class PrefetchImage(Target):
    """:param image: its ID; null: it is not there yet."""

    image: str | None


@frozen
class ServiceInfo(JsonValue):
    """A service that kurmad runs.

    :param name: of its plugin.
    :param state: ``waiting``: it has ended and is started again; ``failed``: kurmad cannot start it.
    :param reason: why it does not run; empty if it does.
    :param required: whether kurmad fails without the service.
    """

    JSON_NAME = "Service"

    name: str
    state: ServiceState
    reason: str
    required: bool


@frozen
class HostCheckInfo(JsonValue):
    """Whether this host has something that Kurma or a plugin needs.

    :param by: ``kurma``, or the plugin: ``KIND/NAME``. :param name: of the check. :param ok: whether it has.
    :param detail: what is missing, or what was found. :param hint: what to do.
    """

    JSON_NAME = "HostCheck"

    by: str
    name: str
    ok: bool
    detail: str = ""
    hint: str = ""


@frozen(kw_only=True)
class DaemonInfo(JsonValue):
    """kurmad itself.

    :param pid: PID of kurmad.
    :param recovered: whether kurmad has checked every pod since its start.
    :param initial_pods: state of the pods of ``initial_pods``.
    :param prefetch_images: state of the images of ``prefetch_images``.
    :param configuration: the file or directory that it reads.
    :param configuration_read: when kurmad read the current configuration.
    :param refused: when kurmad last refused a newer configuration; null: never, or it has accepted one since.
    :param services: services of kurmad.
    """

    pid: Pid
    recovered: bool
    initial_pods: tuple[InitialPod, ...]
    prefetch_images: tuple[PrefetchImage, ...]
    configuration: str
    configuration_read: Timestamp
    refused: Timestamp | None = None
    services: tuple[ServiceInfo, ...] = ()


@frozen(kw_only=True)
class HostInfo(JsonValue):
    """This host and this installation, for people and bug reports.

    :param version: version of Kurma. :param kernel: release of the kernel. :param machine: the architecture, as
        the kernel names it.
    :param state_directory: path.
    :param configuration: paths of the files that were read.
    :param cgroups: version by controller.
    :param renderer: default renderer. :param stager: default stager.
    :param required_isolators: names of the isolators without which no app runs.
    :param not_required_isolators: those that ``kurma.yml`` does not require, and ``any under stager NAME``.
    :param pods: number of pods; null: the caller has no right to know.
    :param daemon: kurmad; null: it was not asked.
    :param plugins: names of plugins by kind.
    """

    JSON_NAME = "Info"

    version: str
    kernel: str
    machine: str
    state_directory: str
    configuration: tuple[str, ...]
    cgroups: Mapping[str, int]
    renderer: str
    stager: str
    required_isolators: tuple[str, ...]
    not_required_isolators: tuple[str, ...]
    pods: Count | None = None
    daemon: DaemonInfo | None = None
    plugins: Mapping[str, tuple[str, ...]]


@frozen
class SecretInfo(JsonValue):
    """One secret. It never has the value.

    :param name: name of the secret.
    :param changed_at: when it was created, or its value was replaced.
    :param pods: names of the pods that name it, running or not.
    """

    JSON_NAME = "Secret"

    name: str
    changed_at: Timestamp
    pods: tuple[str, ...] = ()


@frozen
class Event(JsonValue):
    """An event.

    :param seq: number of the event; numbers increase, and a gap means discarded events.
    :param at: when it happened.
    :param subject: the kind of thing that it is about.
    :param kind: ``fetched`` is of an image, ``created`` is of an app or a volume, ``reloaded``,
        ``reload-refused`` and ``ended`` are of the daemon, ``started`` is of an app or the daemon, ``stopped`` is
        of a pod or an app, ``removed`` is of a pod, an app, an image or a volume, and any other is of a pod.
    :param id: the UUID of the pod, or of the app's pod; the image's ID; null: a volume's or the daemon's.
    :param name: the pod's, the app's, the image's, the volume's; empty if it is not known any more.
    :param detail: ``exitCode``, ``reason`` of a pod or an app that has ended, ``pod`` and ``instance`` of an app,
        ``trust`` of an image, ``pid``, ``version`` of a daemon, ``changed`` and ``problems`` of its reload.
    """

    JSON_NAME = "Event"

    seq: EventNumber
    at: Timestamp
    subject: _Subject
    kind: _Kind
    id: str | None
    name: str
    detail: Mapping[str, Json]


@frozen
class Version(JsonValue):
    """:param version: version of Kurma."""

    JSON_NAME = "Version"

    version: str


@frozen
class Health(JsonValue):
    """Whether kurmad is well.

    :param problems: reasons why it cannot work, a line for each.
    :param services: services of kurmad; one that does not work is a problem only if it is required.
    """

    JSON_NAME = "Health"

    status: HealthState
    version: str
    problems: tuple[str, ...]
    services: tuple[ServiceInfo, ...] = ()


@frozen
class ErrorFacts(JsonValue):
    """An error.

    :param kind: a class of :mod:`kurma_core.errors`. :param message: one line.
    :param hint: advice for the user; null: there is no hint.
    :param exit_code: of the command line.
    :param data: text, numbers, true or false, by name.
    """

    kind: str
    message: str
    hint: str | None
    exit_code: int
    data: Mapping[str, Json]


@frozen
class ConfigChange(JsonValue):
    """A value of the configuration that differs after a reload.

    :param key: dotted path of the key.
    :param before: its value; null: there was none, or it may hold a secret. :param after: likewise.
    :param change: kind of the change.
    """

    JSON_NAME = "ConfigChange"

    key: str
    change: ChangeKind
    before: Json = None
    after: Json = None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.key}: {self.change}"
        return f"{self.key}: {_text(self.before)} → {_text(self.after)}"


@frozen
class PluginChange(JsonValue):
    """A plugin that has changed since kurmad looked for plugins, or since it loaded this one.

    :param kind: the group without ``kurma.``. :param name: name of the plugin.
    :param before: distribution and version; null: it was not installed. :param after: likewise.
    :param note: what is to be done, why it does not work, or that it failed before and works now; empty: nothing.
    """

    JSON_NAME = "PluginChange"

    kind: str
    name: str
    before: str | None
    after: str | None
    note: str = ""

    def __str__(self) -> str:
        if self.before == self.after:
            what = self.after
        elif self.before is None:
            what = f"{self.after} is new"
        else:
            what = f"{self.before} → {self.after or 'uninstalled'}"
        return f"plugin {self.kind}/{self.name}: {what}{f': {self.note}' if self.note else ''}"


@frozen(kw_only=True)
class ReloadReport(JsonValue):
    """The result of a reload of kurmad: its changes, or why it was refused.

    :param at: when kurmad read the configuration.
    :param in_force: when kurmad read the current configuration.
    :param files: files that kurmad read.
    :param changed: values that took effect.
    :param fixed: keys whose changes take effect only after a restart of kurmad.
    :param plugins: that have changed.
    :param problems: problems of the new configuration; with any problem, no change took effect.
    """

    JSON_NAME = "Reload"

    at: Timestamp
    in_force: Timestamp
    files: tuple[str, ...]
    changed: tuple[ConfigChange, ...] = ()
    fixed: tuple[str, ...] = ()
    plugins: tuple[PluginChange, ...] = ()
    problems: tuple[ErrorFacts, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Describes each change in a line."""
        fixed = (f"{key} stays as it is until kurmad is started again" for key in self.fixed)
        return (*map(str, self.changed), *map(str, self.plugins), *fixed)


def _text(value: Json) -> str:
    from kurma_core.json_text import dumps

    return value if isinstance(value, str) else dumps(value)


@frozen
class ErrorBody(JsonValue):
    """The answer to a request that failed."""

    JSON_NAME = "Error"

    error: ErrorFacts
