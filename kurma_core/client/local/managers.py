"""The managers of one state directory: plugins, images, pods, networks. Each is made when it is first needed.

It is checked that others cannot write to the directory. :func:`problems` checks the configuration.
"""

from __future__ import annotations

import os
import stat

from kurma_core import config as configuration
from kurma_core.config.schema import kind_of
from kurma_core.errors import ConfigError, KurmaError, PluginNotFoundError, PrivilegeError
from kurma_core.linux.files import others_may_write
from kurma_core.value import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kurma_core.cancellation import Cancellation, Report
    from kurma_core.client import Settings
    from kurma_core.client.local.logs import PodLogs
    from kurma_core.config import Config
    from kurma_core.hookspecs.driver import HostProgram, HostTree, Started
    from kurma_core.images.manager import ImageManager
    from kurma_core.journal import Journal
    from kurma_core.networking.manager import Networking
    from kurma_core.plugins.registry import PluginRegistry
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.record.pod_store import PodStore
    from kurma_core.pods.services import Services
    from kurma_core.signals import Signals

#: Directories that only root and the caller may write to, below the state directory.
_BELOW = ("", "/keys", "/build_key", "/images", "/pods")
_NAMED = "--dir, KURMA_DIR or `state_dir` in kurma.yml name"
_FETCHERS = "kurma.fetchers"
_NETWORKS, _STAGERS, _ISOLATORS = "kurma.networks", "kurma.stagers", "kurma.isolators"


class Managers:
    """:param refused: the socket of a kurmad that would do it, and that this process may not use."""

    def __init__(self, settings: Settings, config: Config, refused: str | None = None) -> None:
        self.settings = settings
        self.config = config
        self.refused = refused
        #: The operation that reports progress to the user of this client, and its reporter before.
        self._reporting: tuple[Cancellation, Callable[[], Report | None] | None] | None = None

    def close(self) -> None:
        if "services" in self.__dict__:
            self.services.close()
        if self._reporting is not None:
            operation, outer = self._reporting
            operation.reporter, self._reporting = outer, None

    def _report_progress(self) -> None:
        """Long work on files reports to the user of this client. A listing makes neither images nor services, and
        loads nothing for this."""
        if self.settings.progress is not None and self._reporting is None:
            from kurma_core.cancellation import current

            operation = current()
            self._reporting = operation, operation.reporter
            operation.reporter = self.settings.progress

    def successor(self, config: Config) -> Managers:
        """The managers of the same state directory with another configuration, used and closed in place of these.
        Installed plugins are looked up anew.

        Spawner and metadata service are shared, so that running pods keep theirs.
        """
        found = Managers(self.settings, config)
        found.services.share(self.services)
        found.registry.look_up_anew(self.registry)
        return found

    @kept
    def registry(self) -> PluginRegistry:
        from kurma_core.plugins.registry import PluginRegistry

        trace = self._trace if self.settings.debug else None
        return PluginRegistry(
            self.config, self.settings.note, self._host_image, self.settings.daemon, self._start_program, trace
        )

    def _trace(self, line: str) -> None:
        if self.settings.daemon:
            from logging import getLogger

            getLogger("kurmad").info("%s", line)  # a note would go to a client
        else:
            self.settings.note(f"debug: {line}")

    def _host_image(self, locator: str) -> HostTree:
        from kurma_core.hookspecs.driver import HostTree

        image = self.images.host_image(locator)
        return HostTree(image.id, image.path, image.manifest)

    def _start_program(self, program: HostProgram) -> Started:
        return self.services.start_program(program)

    @kept
    def images(self) -> ImageManager:
        from kurma_core.images.manager import ImageManager

        _check_state_directory(self.config, self.settings)
        self._report_progress()
        return ImageManager(
            self.config,
            self.registry,
            self.settings.note,
            self.settings.passphrases,
            relative_paths=not self.settings.daemon,
        )

    @kept
    def services(self) -> Services:
        """The services that the pod manager uses."""
        from kurma_core.pods.services import Services

        _check_state_directory(self.config, self.settings)
        self._report_progress()
        services = Services(self.config, self.registry, lambda: self.images, self.settings.note)
        services.served = self._served
        return services

    def _served(self) -> bool:
        """Whether a kurmad serves the state directory; this process, perhaps."""
        if self.settings.daemon or self.refused is not None:
            return True
        from kurma_core.client import SOCKET
        from kurma_core.client.remote.http import Connection

        try:
            connection = Connection.find(f"{self.config.run_dir}/{SOCKET}")
        except KurmaError:
            return False
        if connection is not None:
            connection.close()
        return connection is not None

    @kept
    def pods(self) -> PodManager:
        from kurma_core.pods.manager import PodManager

        return PodManager(self.services)

    @kept
    def store(self) -> PodStore:
        """The pods' directories: enough to list them."""
        from kurma_core.pods.record.pod_store import PodStore

        _check_state_directory(self.config, self.settings)
        return PodStore(self.config.state_dir)

    @kept
    def logs(self) -> PodLogs:
        from kurma_core.client.local.logs import PodLogs

        return PodLogs(self.pods, self.settings.note)

    @property
    def networks(self) -> Networking:
        return self.services.networking

    @property
    def journal(self) -> Journal:
        return self.services.journal

    def check_state_directory(self) -> None:
        """:raises ConfigError: the state directory is not a directory, or other users may write to it."""
        _check_state_directory(self.config, self.settings)

    def warm(self) -> None:
        """Makes now what would otherwise be made at its first use. From then on, threads may share these
        managers."""
        for place, names in (
            (self, ("pods",)),
            (self.pods, ("stopper", "remover", "apps")),
            (self.images, ("keys", "files", "garbage_collector")),
            (self.services, ("networking", "joined", "names", "id_ranges", "metadata")),
        ):
            for name in names:
                getattr(place, name)
        self.services.spawner.open()

    def signals(self) -> Signals:
        from kurma_core.signals import Signals

        return Signals(taken=self.settings.signals)

    def need_root(self, what: str) -> None:
        """:raises PrivilegeError: this process is not root."""
        if os.geteuid() != 0:
            raise PrivilegeError(f"cannot {what}: only root can", hint=self.way_to_power())

    def way_to_power(self) -> str:
        """The hint for a caller who is not root."""
        found = "run it as root, with sudo for instance"
        if self.refused is None:
            return f"{found}; or have root start kurmad, and be a member of the group kurma"
        name = self.group_of_kurmad()
        if not name:
            return f"{found}; the kurmad that runs is root's alone: when it started there was no group kurma"
        return f"{found}; or by way of the kurmad that runs, as a member of the group {name}"

    def group_of_kurmad(self) -> str:
        """The group whose members may use the kurmad that refuses this process; empty: it is root's alone."""
        import grp

        assert self.refused is not None
        try:
            gid = os.stat(self.refused).st_gid
            return grp.getgrgid(gid).gr_name if gid else ""
        except (OSError, KeyError):
            return ""


def _check_state_directory(config: Config, settings: Settings) -> None:
    """Checks that the state directory is a directory to which only root and the caller may write: keys in it are
    trusted for programs that run as root. It may not exist yet, unless the caller has named it for reading.

    :raises ConfigError: it is not a directory, or other users may write to it; or its name may be mistyped.
    """
    path, origin = config.state_dir, config.origins.get("state_dir", "default")
    for below in _BELOW:
        place = path + below
        try:
            status = os.stat(place)
        except FileNotFoundError:
            if below == "" and settings.state_dir is not None and not settings.makes:
                named = "--dir" if origin == "command line" else "KURMA_DIR"
                raise ConfigError(
                    f"no state directory {path}",
                    hint=f"{named} sets this path; run, prepare and image fetch create it",
                    file=origin,
                    path="state_dir",
                ) from None
            continue
        except OSError as error:
            _unusable(path, origin, f"{place}: {str(error.strerror).lower()}")
        if not stat.S_ISDIR(status.st_mode):
            _unusable(path, origin, f"{place} is not a directory")
        if others_may_write(status):
            raise ConfigError(
                f"the state directory {path}: users other than root can write {place} "
                f"(owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}), so its content "
                "cannot be trusted",
                hint=f"check its content, then: chown root {place} && chmod go-w {place}",
                file=origin,
                path="state_dir",
            )


def run_dir_hint(config: Config) -> str:
    """Names the setting that determines the run directory."""
    same = config.origins.get("run_dir") == config.origins.get("state_dir")
    if same and config.run_dir == f"{config.state_dir}/run":
        return f"it is in the state directory, which {_NAMED}"
    return "`run_dir` in kurma.yml names it"


def _unusable(path: str, origin: str, what: str) -> None:
    raise ConfigError(
        f"the state directory {path} cannot be used: {what}",
        hint=f"{_NAMED} it",
        file=origin,
        path="state_dir",
    )


def problems(managers: Managers) -> tuple[KurmaError, ...]:
    """Finds all problems of the configuration; each names its file.

    For ``kurma config check`` and a reload of kurmad. Loads every plugin that the configuration mentions; makes
    nothing, and fetches nothing.
    """
    from kurma_core.plugins.problems import problems_of_plugins

    config = managers.config
    found = list(problems_of_plugins(managers.registry, config))
    for problem in found:
        problem.message = _placed(problem, config)
    for further in (_of_short_names, _of_locators, _of_networks, _of_isolators, problems_of_pods):
        told = {
            str(problem.data[key]) for problem in found for key in ("plugin", "isolator") if key in problem.data
        }
        told |= {problem.message for problem in found}
        found += further(managers, told)
    return tuple(found)


def _of_short_names(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    config = managers.config
    if config.short_names is None:
        return
    origin = configuration.origin("short_names", config.origins)
    try:
        managers.images.check_short_names()
    except KurmaError as error:
        what = f"{origin}: short_names: {error.message}"
        yield ConfigError(what, hint=error.hint, file=origin, path="short_names")


def _of_locators(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """Finds locators that no enabled fetcher serves. Their text is not shown: it may hold a password."""
    from kurma_core.fetching import parse_locator

    config, registry = managers.config, managers.registry
    schemes = registry.names(_FETCHERS)
    for key, text in _locators(managers):
        origin = configuration.origin(key.partition("[")[0], config.origins)
        try:
            found = parse_locator(text, registry.locator_kind, config.fetchers.paths, directory=None)
        except KurmaError as error:
            yield ConfigError(f"{origin}: {key}: {error.message}", hint=error.hint, file=origin, path=key)
            continue
        scheme = found.scheme or config.fetchers.names
        if scheme not in schemes and f"{_FETCHERS}/{scheme}" not in told:
            plugin = f"{_FETCHERS}/{scheme}"
            told.add(plugin)
            yield PluginNotFoundError(f"{origin}: {key}: {_missing(managers, _FETCHERS, scheme)}", plugin=plugin)


def _locators(managers: Managers) -> Iterator[tuple[str, str]]:
    """The locators in the configuration, with their keys."""
    config = managers.config
    for key in ("paths", "names", "saves"):
        scheme = getattr(config.fetchers, key)
        if f"fetchers.{key}" in config.origins and config.origins[f"fetchers.{key}"] != "default":
            yield f"fetchers.{key}", f"{scheme}://"
    for index, pod in enumerate(config.initial_pods):
        for app in pod.template.get("apps", ()):
            if isinstance(app.get("image"), str):
                yield f"initial_pods[{index}]", app["image"]
    for index, locator in enumerate(config.prefetch_images):
        yield f"prefetch_images[{index}]", locator
    for name, stager in config.stagers.items():
        if stager.image is not None:
            yield f"stagers.{name}.image", stager.image
    if config.stager not in config.stagers and ":" in config.stager:
        yield "stager", config.stager.partition(":")[2]
    for entry in config.container_networks:
        if entry.aci is not None and not _is_alias(managers, entry.aci):
            yield f"container_networks.{entry.name}.aci", entry.aci


def _is_alias(managers: Managers, aci: str) -> bool:
    """Whether a network plugin answers to it, so that it is no locator."""
    try:
        return managers.registry.resolve_alias(_NETWORKS, aci) is not None
    except KurmaError:
        return True  # two do, which is a problem of the network


def _of_networks(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """:param told: plugins, isolators and messages of the problems found before."""
    config = managers.config
    entries = {entry.name: entry for entry in config.networks_in_use}
    for network in managers.networks.catalog.configured():
        if network.problem is None or network.name not in entries:
            continue
        if f"{_NETWORKS}/{entries[network.name].plugin}" not in told and network.problem not in told:
            key = f"container_networks.{network.name}"
            origin = config.origins[key]
            place = key if config.is_built_in(network.name) else f"{origin}: {key}"
            yield ConfigError(f"{place}: {network.problem}", file=origin, path=key)


def _of_isolators(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """Checks that an app without isolators of its own has the required ones that have a default."""
    from kurma_core.isolation import Rules, compile_isolators, host_facts, isolator_plugins
    from kurma_core.pods.services import Services

    required = managers.config.required_under(managers.config.stager)
    try:
        host = host_facts(Services.cgroup_versions(), frozenset({"user"}))
        plugins = isolator_plugins(managers.registry)
        usable = [(plugin, plugin.driver()) for plugin in plugins if plugin.collision is None]
        working = [(plugin, driver) for plugin, driver in usable if driver is not None]
        known = {name for plugin, _ in working for name in plugin.names}
        defaults = {name for _, driver in working for name, _ in driver.defaults("app", (), host)}
        asked = dict.fromkeys(sorted(required - (known - defaults) - told), True)
        rules = Rules(required=asked, absent=managers.registry.absent(_ISOLATORS))
        compile_isolators(None, {"*": ()}, plugins, host, rules=rules)
    except KurmaError as error:
        # A reason may be the message of an isolator plugin's own problem.
        if any(one.startswith(f"{_ISOLATORS}/") or one in error.message for one in told):
            return
        missing = error.data.get("isolators")
        if not isinstance(missing, list):
            error.message = _placed(error, managers.config)
            yield error
            return
        key, origins = "required_isolators", managers.config.origins
        files = [configuration.origin(f"{key}.{name}", origins) for name in missing]
        file = next((one for one in files if one != "default"), "default")
        place = key if file == "default" else f"{file}: {key}"
        lack = f"{place}: apps would lack {', '.join(missing)}: {error.data['reason']}"
        yield ConfigError(lack, hint=error.hint, file=file, path=key)


def problems_of_pods(managers: Managers, told: set[str]) -> Iterator[KurmaError]:
    """Finds plugins that the configuration disables and that pods on record need.

    :param told: plugins of which another problem tells.
    """
    config = managers.config
    sections = [section for kind in config.plugins.values() for section in kind.values()]
    if config.enable == "all" and all(section.enabled for section in sections):
        return
    if os.geteuid() != 0 or not os.path.isdir(config.state_dir):
        return
    store = managers.services.store
    for uuid in store.uuids():
        try:
            pod = store.directory(uuid).read_document()
        except KurmaError:
            continue  # removed meanwhile; or damaged, so that it is never started again
        driver = pod.stager_plugin or ("" if pod.stager in config.stagers else pod.stager)
        used = {("kurma.renderers", pod.renderer), (_STAGERS, driver.partition(":")[0])}
        used |= {(_NETWORKS, attachment.driver) for attachment in pod.attachments}
        for group, name in sorted(used):
            if name and not config.plugin(group, name).enabled and f"{group}/{name}" not in told:
                yield PluginNotFoundError(
                    f"pod {pod.name}: {_missing(managers, group, name)}",
                    hint=f"kurma rm {pod.name}",
                    plugin=f"{group}/{name}",
                    pod=uuid,
                )


def _missing(managers: Managers, group: str, name: str) -> str:
    """Why a plugin cannot be used."""
    try:
        managers.registry.driver(group, name)
    except KurmaError as error:
        return error.message
    return f"{group}/{name}"


def _placed(problem: KurmaError, config: Config) -> str:
    """The problem's message, preceded by the file and the key that require the plugin, unless it names the
    file."""
    group, _, name = str(problem.data.get("plugin", "")).partition("/")
    keys = {
        "kurma.renderers": ["renderer"] if name == config.renderer else [],
        "kurma.stagers": [f"stagers.{key}.driver" for key, one in config.stagers.items() if one.driver == name],
        "kurma.networks": [
            f"container_networks.{one.name}.plugin" for one in config.networks_in_use if one.plugin == name
        ],
    }.get(group, [])
    if group == "kurma.stagers" and name == config.stager and name not in config.stagers:
        keys.insert(0, "stager")
    section = f"plugins.{kind_of(group)}.{name}"
    key = next(iter(keys), section)
    origin = configuration.origin(key, config.origins)
    if origin == "default" and key in keys and group == "kurma.networks" and not isinstance(problem, ConfigError):
        return f"{key}: {problem.message}"
    if origin == "default" or origin in problem.message:
        return problem.message
    return f"{origin}: {key}: {problem.message}"
