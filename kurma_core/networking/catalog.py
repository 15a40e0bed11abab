"""Finds networks by name: configured, built in, or discovered by a driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import NetworkInfo
from kurma_core.errors import KurmaError, NetworkError, NetworkNotFoundError
from kurma_core.networking import interfaces
from kurma_core.networking.default_network import DEFAULT, DRIVERS, HOST, LO, NONE, DefaultNetwork
from kurma_core.value import replace

if TYPE_CHECKING:
    from kurma_core.config import Config, NetworkConfig
    from kurma_core.hookspecs.network import NetworkHooks

Json = Any
#: The default interface of a network.
DEFAULT_INTERFACE = "eth{{num}}"
#: A UUID to check whether a template makes a valid interface name.
_SOME_POD = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


class Catalog:
    """Finds networks by name. It loads a driver only if the name is not found otherwise."""

    def __init__(
        self,
        config: Config,
        driver: Callable[[str], NetworkHooks],
        resolve_alias: Callable[[str], str | None],
        image_runner: Callable[[], str | None],
        names: Callable[[], tuple[str, ...]],
        default: DefaultNetwork,
        note: Callable[[str], None],
    ) -> None:
        self._configured = {entry.name: entry for entry in config.container_networks}
        self._driver = driver
        self._resolve_alias = resolve_alias
        self._image_runner = image_runner
        self._names = names
        self._default = default
        self._note = note

    def defaults(self) -> tuple[str, ...]:
        """Names of the networks that a pod joins by default, without loopback, which every pod joins."""
        chosen = [e.name for e in self._configured.values() if e.default and e.name != LO]
        return tuple(chosen) or (DEFAULT,)

    def is_optional(self, name: str) -> bool:
        """Whether the configuration declares the network optional."""
        entry = self._configured.get(name)
        return entry is not None and entry.optional

    def get(self, name: str) -> NetworkInfo:
        """Finds the network of that name.

        :raises NetworkError: there is none (the known ones are listed), or its plugin is missing.
        """
        entry = self._configured.get(name)
        if entry is not None:
            return self._from_entry(entry)
        if name == DEFAULT:
            return self._built_in(name, *self._default.served())
        if name == LO:
            return self._built_in(name)
        found = self._found()
        if name not in found:
            known = ", ".join([info.name for info in self._all(found)])
            raise NetworkNotFoundError(f'no network "{name}"', hint=f"there are: {known}", network=name)
        return found[name]

    def all(self) -> tuple[NetworkInfo, ...]:
        """Every network: configured, built in, discovered. One that cannot be used has the reason in
        ``problem``."""
        return self._all(self._found())

    def _all(self, found: Mapping[str, NetworkInfo]) -> tuple[NetworkInfo, ...]:
        infos = {info.name: info for info in self.configured()}
        for name in (LO, DEFAULT, HOST, NONE):
            if name not in infos:
                infos[name] = self._default_info() if name == DEFAULT else self._checked(self._built_in(name))
        return tuple({**infos, **{name: info for name, info in found.items() if name not in infos}}.values())

    def _default_info(self) -> NetworkInfo:
        try:
            return self._checked(self._built_in(DEFAULT, *self._default.served(choose=False)))
        except KurmaError as error:  # its record is damaged, or of a newer Kurma
            return replace(self._built_in(DEFAULT), problem=error.message)

    def _checked(self, info: NetworkInfo) -> NetworkInfo:
        """The network, with the reason if it cannot be used, as far as that can be checked without a pod."""
        try:
            if info.driver:
                driver = self._driver(info.driver)
                if info.source != "built-in":
                    interfaces.assign([(info.name, info.interface)], _SOME_POD)
                    driver.check_config(info.config)
        except KurmaError as error:
            return replace(info, problem=error.message)
        return info

    def configured(self) -> tuple[NetworkInfo, ...]:
        """The networks of Kurma's configuration. One that cannot be used has the reason in ``problem``."""
        found = []
        for entry in self._configured.values():
            try:
                found.append(self._checked(self._from_entry(entry)))
            except KurmaError as error:
                found.append(self._info(entry, "", problem=error.message))
        return tuple(found)

    def _from_entry(self, entry: NetworkConfig) -> NetworkInfo:
        driver = entry.plugin or self._resolve_alias(entry.aci or "")
        if driver is not None:
            return self._info(entry, driver)
        driver = self._image_runner()
        if driver is None:
            raise NetworkError(
                f'network "{entry.name}": no installed plugin answers to "{entry.aci}", and none runs images',
                hint="see `kurma plugins list`; `plugin: NAME` picks an installed one",
                network=entry.name,
            )
        info = self._info(entry, driver)
        # The listing shows the entry as it is in the configuration, without defaults.
        interface = entry.container_interface or ""
        told = {"aci": entry.aci or "", **({"containerInterface": interface} if interface else {})}
        return replace(info, interface=interface, config={**info.config, **told})

    def _info(self, entry: NetworkConfig, driver: str, problem: str | None = None) -> NetworkInfo:
        interface = LO if entry.name == LO else DEFAULT_INTERFACE
        return NetworkInfo(
            name=entry.name,
            driver=driver,
            source="configured",
            interface=entry.container_interface or interface,
            default=entry.name in self.defaults(),
            optional=entry.optional,
            config={**entry.config, "name": entry.name},
            problem=problem,
            names=entry.names,
        )

    def _built_in(
        self, name: str, driver: str | None = None, config: Mapping[str, Json] | None = None
    ) -> NetworkInfo:
        interface = {LO: LO, DEFAULT: DEFAULT_INTERFACE}.get(name, "")
        served_by = DRIVERS.get(name, "") if driver is None else driver
        told = {**(config or {}), "name": name}
        return NetworkInfo(name, served_by, "built-in", interface, name in self.defaults(), False, told)

    def _found(self) -> dict[str, NetworkInfo]:
        """The networks that drivers discover, by name; of two with one name, that of the first driver counts."""
        found: dict[str, NetworkInfo] = {}
        for driver in self._names() or tuple(DRIVERS.values()):
            try:
                configs = self._driver(driver).discover()
            except KurmaError as error:  # a broken plugin hides only its own networks
                self._note(f"network plugin {driver}: {error.message}")
                continue
            for name, config in configs.items():
                if name not in found:
                    info = NetworkInfo(
                        name, driver, "found", DEFAULT_INTERFACE, False, False, {**config, "name": name}
                    )
                    found[name] = info
        return found
