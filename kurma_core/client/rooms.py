"""What a client is made of: the registry, the images, the pods of one state directory, each made when needed."""

from __future__ import annotations

import os

from kurma_core.errors import KurmaError, PrivilegeError
from kurma_core.value import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kurma_core.client import Settings
    from kurma_core.config import Config
    from kurma_core.errors import ConfigError
    from kurma_core.hookspecs.driver import HostProgram, HostTree, Started
    from kurma_core.images import ImageManager
    from kurma_core.networking import Networking
    from kurma_core.pod_store import PodDirectory, PodStore
    from kurma_core.pods.manager import PodManager
    from kurma_core.pods.services import Services
    from kurma_core.registry import PluginRegistry


class Rooms:
    #: Whether a daemon does what is asked, which has powers that this process may lack.
    remote = False

    def __init__(self, settings: Settings, config: Config) -> None:
        self.settings = settings
        self._config = config
        #: What is wrong with the configuration, which only what is done in this process needs.
        self.wrong: ConfigError | None = None
        #: The socket of a daemon that would do it, and that we may not use.
        self.refused: str | None = None

    @property
    def config(self) -> Config:
        """:raises ConfigError: it is wrong (:attr:`wrong`)."""
        if self.wrong is not None:
            raise self.wrong
        return self._config

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if "_services" in self.__dict__:
            self._services.close()

    # -- rooms --

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
        return self._services.start_program(program)

    @kept
    def images(self) -> ImageManager:
        """The images of this state directory. Removal goes by :meth:`image_rm` and :meth:`image_gc`."""
        from kurma_core.images import make_image_manager

        self._check_state_directory()
        return make_image_manager(self.config, self.registry, self.settings.note, self.settings.passphrases)

    @kept
    def _services(self) -> Services:
        from kurma_core.pods.services import Services

        self._check_state_directory()
        services = Services(self.config, self.registry, lambda: self.images, self.settings.note)
        services.served = self._served
        return services

    def _served(self) -> bool:
        """Whether a daemon serves the state directory; this one, perhaps."""
        if self.settings.daemon:
            return True
        from kurma_core.client import SOCKET
        from kurma_core.client.wire import Connection

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
    def _pods(self) -> PodManager:
        from kurma_core.pods.manager import PodManager

        return PodManager(self._services)

    @kept
    def _store(self) -> PodStore:
        """The pods' directories: what is enough to list them."""
        from kurma_core.pod_store import PodStore

        self._check_state_directory()
        return PodStore(self.config.state_dir)

    def warm(self) -> None:
        """Makes now what is otherwise made when first needed. From then on, threads may share this client."""
        for place, names in (
            (self, ("_pods",)),
            (self.images, ("keys", "files", "removal")),
            (self._services, ("networking", "joined", "names", "id_ranges", "metadata")),
        ):
            for name in names:
                getattr(place, name)
        self._services.spawner.open()

    @property
    def services(self) -> Services:
        """For who owns pods: the daemon."""
        return self._services

    def probe(self) -> None:
        """:raises HostError: programs cannot be started: the spawner does not answer."""
        self._services.spawner.probe()

    def _recover(self, directory: PodDirectory) -> None:
        self._pods.recover(directory)

    @property
    def manager(self) -> PodManager:
        """For who owns pods: the daemon."""
        return self._pods

    @property
    def networks(self) -> Networking:
        return self._services.networking

    def _need_root(self, what: str) -> None:
        """:raises PrivilegeError: we are not root."""
        if os.geteuid() != 0:
            raise PrivilegeError(f"cannot {what}: only root can", hint=self.way_to_power())

    def way_to_power(self) -> str:
        """What somebody can do who is not root."""
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


__all__ = ["Rooms"]
