"""The managers of one state directory: plugins, images, pods, networks. Each is made when it is first needed."""

from __future__ import annotations

import os

from kurma_core.errors import KurmaError, PrivilegeError
from kurma_core.value import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kurma_core.client import Settings
    from kurma_core.client.local.logs import PodLogs
    from kurma_core.config import Config
    from kurma_core.hookspecs.driver import HostProgram, HostTree, Started
    from kurma_core.images import ImageManager
    from kurma_core.journal import Journal
    from kurma_core.networking.manager import Networking
    from kurma_core.pod_store import PodStore
    from kurma_core.pods.foreground import Signals
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.services import Services
    from kurma_core.registry import PluginRegistry


class Managers:
    """:param refused: the socket of a kurmad that would do it, and that this process may not use."""

    def __init__(self, settings: Settings, config: Config, refused: str | None = None) -> None:
        self.settings = settings
        self.config = config
        self.refused = refused

    def close(self) -> None:
        if "services" in self.__dict__:
            self.services.close()

    def successor(self, config: Config) -> Managers:
        """The managers of the same state directory by another configuration, used and closed in place of these.
        What runs goes on with what it has: spawner and metadata service are the same.
        """
        found = Managers(self.settings, config)
        found.services.share(self.services)
        return found

    @kept
    def registry(self) -> PluginRegistry:
        from kurma_core.registry import PluginRegistry

        return PluginRegistry(
            self.config, self.settings.note, self._host_image, self.settings.daemon, self._start_program
        )

    def _host_image(self, locator: str) -> HostTree:
        from kurma_core.hookspecs.driver import HostTree

        image = self.images.host_image(locator)
        return HostTree(image.id, image.path, image.manifest)

    def _start_program(self, program: HostProgram) -> Started:
        return self.services.start_program(program)

    @kept
    def images(self) -> ImageManager:
        from kurma_core.images import make_image_manager

        self._check_state_directory()
        return make_image_manager(self.config, self.registry, self.settings.note, self.settings.passphrases)

    @kept
    def services(self) -> Services:
        """What the pod manager works with."""
        from kurma_core.pods.services import Services

        self._check_state_directory()
        services = Services(self.config, self.registry, lambda: self.images, self.settings.note)
        services.served = self._served
        return services

    def _served(self) -> bool:
        """Whether a kurmad serves the state directory; this process, perhaps."""
        if self.settings.daemon:
            return True
        from kurma_core.client import SOCKET
        from kurma_core.client.remote.http import Connection

        try:
            connection = Connection.open(f"{self.config.run_dir}/{SOCKET}", required=False)
        except KurmaError:
            return False
        if connection is not None:
            connection.close()
        return connection is not None

    def _check_state_directory(self) -> None:
        from kurma_core import state_directory

        state_directory.check(self.config.state_dir, self.config.origins.get("state_dir", "default"))

    @kept
    def pods(self) -> PodManager:
        from kurma_core.pods.manager import PodManager

        return PodManager(self.services)

    @kept
    def store(self) -> PodStore:
        """The pods' directories: enough to list them."""
        from kurma_core.pod_store import PodStore

        self._check_state_directory()
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

    def warm(self) -> None:
        """Makes now what is otherwise made when first needed. From then on, threads may share these managers."""
        for place, names in (
            (self, ("pods",)),
            (self.images, ("keys", "files", "removal")),
            (self.services, ("networking", "joined", "names", "id_ranges", "metadata")),
        ):
            for name in names:
                getattr(place, name)
        self.services.spawner.open()

    def signals(self) -> Signals:
        from kurma_core.pods.foreground import Signals

        return Signals(taken=self.settings.signals)

    def tell_service(self, text: str) -> None:
        """Tells the service manager, if one has started this process for a pod in the foreground."""
        if self.settings.service is not None:
            from kurma_core.linux import service_manager

            service_manager.tell(self.settings.service, text)

    def need_root(self, what: str) -> None:
        """:raises PrivilegeError: this process is not root."""
        if os.geteuid() != 0:
            raise PrivilegeError(f"cannot {what}: only root can", hint=self.way_to_power())

    def way_to_power(self) -> str:
        """What a caller who is not root can do."""
        found = "run it as root, with sudo for instance"
        if self.refused is None:
            return f"{found}; or have root start kurmad, and be a member of the group kurma"
        import grp

        try:
            gid = os.stat(self.refused).st_gid
            name = grp.getgrgid(gid).gr_name if gid else ""
        except (OSError, KeyError):
            name = ""
        if not name:
            return f"{found}; the kurmad that runs is root's alone: when it started there was no group kurma"
        return f"{found}; or by way of the kurmad that runs, as a member of the group {name}"


__all__ = ["Managers"]
