"""Operations on networks, stagers, plugins and the host, in this process; and the transport of all of them."""

from __future__ import annotations

import os

from kurma_core.api.operations import Transport
from kurma_core.client.local.managers import Managers
from kurma_core.errors import UsageError
from kurma_core.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from kurma_core.api.host import (
        CheckLine,
        Event,
        HostInfo,
        IsolatorInfo,
        NetworkFinding,
        NetworkInfo,
        PluginInfo,
        StagerInfo,
        Version,
    )
    from kurma_core.api.images import HostImage
    from kurma_core.api.operations import Operation

#: Classes of operations by the first part of their paths; others are the host's.
_NOUNS = {"pods": "pods", "listing": "pods", "usage": "pods", "images": "images", "trust": "images"}


class Local(Transport):
    """Does operations in this process.

    :param managers: of the state directory.
    """

    def __init__(self, managers: Managers) -> None:
        self.managers = managers

    def close(self) -> None:
        self.managers.close()

    def call(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        method = getattr(self.operations(operation), operation.method, None)
        if method is None:
            raise UsageError(
                f"{operation.name} is done by kurmad alone, and none serves {self.managers.config.state_dir}",
                hint="start kurmad",
            )
        return method(**arguments)

    def operations(self, operation: Operation) -> Any:
        """What has the methods of operations of that kind."""
        noun = _NOUNS.get(operation.parts[0], "host")
        if noun == "pods":
            from kurma_core.client.local.pods import LocalPods

            return LocalPods(self.managers)
        if noun == "images":
            from kurma_core.client.local.images import LocalImages

            return LocalImages(self.managers)
        return LocalHost(self.managers)


class LocalHost:
    """The methods of :class:`kurma_core.api.operations.Api` that are about the host, by their names."""

    def __init__(self, managers: Managers) -> None:
        self._m = managers

    def networks_list(self) -> list[NetworkInfo]:
        return list(self._m.networks.listing())

    def network(self, network: str) -> NetworkInfo:
        """:raises NetworkError: there is none of that name."""
        return self._m.networks.show(network)

    def network_rm(self, network: str) -> None:
        """:raises NetworkError: pods are joined to it."""
        self._m.need_root("remove a network")
        self._m.networks.remove(network, self._m.pods.network_users(network))

    def network_check(self, names: Collection[str], repair: bool) -> list[NetworkFinding]:
        """:raises NetworkError: there is no network of such a name."""
        self._m.need_root("check networks")
        caretaker, wanted = self._m.pods.caretaker, tuple(names)
        return caretaker.mend(wanted) if repair else caretaker.check(wanted)

    def stagers(self) -> list[StagerInfo]:
        from kurma_core.api.host import StagerInfo

        known, config = self._m.services.stagers, self._m.config
        found = []
        for name in known.names():
            section = config.stagers.get(name)
            image = None if section is None else section.image
            kind = "plugin" if image is None else "image"
            found.append(StagerInfo(name, kind, image, name == config.stager, dict(known.config(name))))
        return found

    def stager_build(self, stager: str, force: bool) -> HostImage:
        self._m.need_root("build a stager")
        return self._m.services.stagers.image(stager, rebuild=force)

    def stager_check(self, image: str, tell: Callable[[CheckLine], None]) -> list[CheckLine]:
        """:raises StagerError: that stager is not an image."""
        self._m.need_root("check a stager")
        from kurma_core.stager_check.suite import check

        self._m.services.spawner.open()
        with self._m.signals() as signals:
            try:
                return list(check(self._m.services, image, tell).ordered())
            finally:
                signals.settle()

    def plugins(self, load: bool) -> list[PluginInfo]:
        return list(self._m.registry.listing(load))

    def isolators(self) -> list[IsolatorInfo]:
        from kurma_core.isolation import host_facts
        from kurma_core.isolator_list import isolator_list
        from kurma_core.pods.services import Services

        registry, host = self._m.registry, host_facts(Services.cgroup_versions(), frozenset({"user"}))
        drivers: Any = registry.drivers("kurma.isolators")
        return list(isolator_list(drivers, host, registry.isolator_claims(), registry.isolator_collision))

    def version(self) -> Version:
        from kurma_core.api.host import Version

        return Version(VERSION)

    def info(self) -> HostInfo:
        from kurma_core.api.host import HostInfo
        from kurma_core.config_schema import KINDS
        from kurma_core.pods.services import Services

        uname, config = os.uname(), self._m.config
        required = config.required_isolators
        without = [name for name, stager in config.stagers.items() if stager.without_isolators]
        not_required = [name for name, wanted in required.items() if not wanted]
        return HostInfo(
            version=VERSION,
            kernel=uname.release,
            machine=uname.machine,
            state_directory=config.state_dir,
            configuration=tuple(config.config_files),
            cgroups=dict(Services.cgroup_versions()),
            renderer=config.renderer,
            stager=config.stager,
            required_isolators=tuple(name for name, wanted in required.items() if wanted),
            not_required_isolators=(*not_required, *(f"any under stager {name}" for name in without)),
            pods=len(self._m.services.store.uuids()) if os.geteuid() == 0 else None,
            daemon=None,
            plugins={f"kurma.{kind}": tuple(self._m.registry.names(f"kurma.{kind}")) for kind in KINDS},
        )

    def events(
        self,
        since: int | None,
        follow: bool,
        pod: str | None,
        subject: Collection[str],
        kind: Collection[str],
    ) -> Iterator[Event]:
        self._m.need_root("see what happens")
        from kurma_core.client.local.events import read, wanted

        return filter(wanted(pod, subject, kind), read(self._m.journal, since, follow=follow))


__all__ = ["Local", "LocalHost"]
