"""Finds networks by name: entries of ``container_networks``, and networks that drivers discover."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import NetworkInfo
from kurma_core.errors import HostError, KurmaError, NetworkError, NetworkNotFoundError
from kurma_core.networking import interfaces
from kurma_core.plugins.calls import source_of
from kurma_core.value import replace

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from kurma_core.config import Config, NetworkConfig
    from kurma_core.hookspecs.network import NetworkHooks

Json = Any
#: Names that are no entries: ``host`` shares the host's network namespace, ``none`` is only the base networks.
HOST, NONE = "host", "none"
#: The default interface of a network.
DEFAULT_INTERFACE = "eth{{num}}"
#: So many subnets after a taken one are looked at for a free one.
_NEAR = 1024
#: A UUID to check whether a template makes a valid interface name.
_SOME_POD = "146d7cef-fbf6-41da-a2f8-eba218597f9c"


class Catalog:
    """Finds networks by name. It loads a driver only if the name is not found otherwise.

    :param discovering: names of the enabled plugins that may discover networks.
    """

    def __init__(
        self,
        config: Config,
        driver: Callable[[str], NetworkHooks],
        resolve_alias: Callable[[str], str | None],
        image_runner: Callable[[], str | None],
        discovering: Callable[[], tuple[str, ...]],
        note: Callable[[str], None],
    ) -> None:
        self._config = config
        self._entries = {entry.name: entry for entry in config.container_networks}
        self._driver = driver
        self._resolve_alias = resolve_alias
        self._image_runner = image_runner
        self._discovering = discovering
        self._note = note

    def is_optional(self, name: str) -> bool:
        """Whether the configuration declares the network optional."""
        entry = self._entries.get(name)
        return entry is not None and entry.optional

    def get(self, name: str) -> NetworkInfo:
        """Finds the network of that name, for a pod that joins it. The driver chooses the values that its
        configuration leaves open.

        :raises NetworkError: there is none (the known ones are listed), or its plugin is missing.
        """
        entry = self._entries.get(name)
        if entry is not None:
            return self._completed(self._from_entry(entry), choose=True)
        found = self._found()
        if name not in found:
            known = ", ".join([info.name for info in self._all(found)])
            raise NetworkNotFoundError(f'no network "{name}"', hint=f"there are: {known}", network=name)
        return self._completed(found[name], choose=True)

    def all(self) -> tuple[NetworkInfo, ...]:
        """Every network: configured, built in, discovered. One that cannot be used has the reason in
        ``problem``."""
        return self._all(self._found())

    def _all(self, found: Mapping[str, NetworkInfo]) -> tuple[NetworkInfo, ...]:
        infos = {info.name: info for info in self.configured()}
        for name in (HOST, NONE):
            infos[name] = NetworkInfo(name, "", "built-in", "", False, False, {"name": name})
        infos |= {name: self._checked(info) for name, info in found.items() if name not in infos}
        return tuple(infos.values())

    def is_unused(self, info: NetworkInfo) -> bool:
        """Whether no pod has ever joined the network: its driver has not chosen the values that its configuration
        leaves open."""
        if not info.driver or info.problem is not None:
            return False
        return self._driver(info.driver).complete(info.config, choose=False) is None

    def _completed(self, info: NetworkInfo, choose: bool) -> NetworkInfo:
        """The network as its driver completes it: the interface, and what the configuration leaves open."""
        entry, driver = self._entries.get(info.name), self._driver(info.driver)
        interface = None
        if entry is None or entry.container_interface is None:
            interface = driver.interface(info.config)
            if interface is not None:
                self._check_interface(info.name, interface, driver)
        config = driver.complete(info.config, choose=choose)
        return replace(
            info,
            interface=info.interface if interface is None else interface,
            config=info.config if config is None else config,
        )

    @staticmethod
    def _check_interface(network: str, interface: str, driver: NetworkHooks) -> None:
        """:raises NetworkError: a driver named an interface that cannot exist."""
        try:
            interfaces.assign([(network, interface)], _SOME_POD)
        except NetworkError as error:
            source = source_of(driver)
            error.message += "" if source is None else f" (by {source})"
            raise

    def check_subnets(self, name: str, subnets: Json) -> None:
        """Checks the subnets of a network that is to be created: none overlaps another network's, or holds an
        address of the host.

        :param subnets: the key ``subnets`` of its configuration. Other values than subnets are ignored.
        :raises NetworkError: one is taken; names the network or the interface that has it.
        """
        wanted = list(_parsed(subnets))
        if not wanted:
            return
        taken = _taken_subnets(info for info in self.all() if info.name != name)
        for subnet in wanted:
            for other, holder in taken:
                if subnet.version == other.version and subnet.overlaps(other):
                    free = _free_after(subnet, [one for one, _ in taken])
                    further = "or leave --subnet out: the plugin chooses one"
                    raise NetworkError(
                        f"the subnet {subnet} overlaps {holder}",
                        hint=f"--subnet {free} is free; {further}"
                        if free
                        else f"choose another subnet, {further}",
                        network=name,
                    )

    def _checked(self, info: NetworkInfo) -> NetworkInfo:
        """The network, with the reason if it cannot be used, as far as that can be checked without a pod."""
        try:
            info = self._completed(info, choose=False)
            interfaces.assign([(info.name, info.interface)], _SOME_POD)
            self._driver(info.driver).check_config(info.config)
        except KurmaError as error:
            return replace(info, problem=error.message)
        return info

    def configured(self) -> tuple[NetworkInfo, ...]:
        """The entries of ``container_networks``. One that cannot be used has the reason in ``problem``."""
        found = []
        for entry in self._entries.values():
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
                f'network "{entry.name}": no installed plugin handles "{entry.aci}", and none runs images',
                hint="see `kurma plugins list`; `plugin: NAME` selects an installed plugin",
                network=entry.name,
            )
        info = self._info(entry, driver)
        # The plugin gets the entry as it is in the configuration, without defaults.
        interface = entry.container_interface or ""
        told = {"aci": entry.aci or "", **({"containerInterface": interface} if interface else {})}
        return replace(info, config={**info.config, **told})

    def _info(self, entry: NetworkConfig, driver: str, problem: str | None = None) -> NetworkInfo:
        return NetworkInfo(
            name=entry.name,
            driver=driver,
            source="built-in" if self._config.is_built_in(entry.name) else "configured",
            interface=entry.container_interface or DEFAULT_INTERFACE,
            default=entry.name in self._config.joined_by_default,
            optional=entry.optional,
            config={**entry.config, "name": entry.name},
            problem=problem,
            names=entry.names,
        )

    def _found(self) -> dict[str, NetworkInfo]:
        """The networks that drivers discover, by name; of two with one name, that of the first driver counts."""
        found: dict[str, NetworkInfo] = {}
        for driver in self._discovering():
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


def _parsed(subnets: Json) -> Iterator[IPv4Network | IPv6Network]:
    """The subnets of a list in CIDR form. Only a plugin knows the shape of its configuration, so nothing is an
    error."""
    from contextlib import suppress
    from ipaddress import ip_network

    for text in subnets if isinstance(subnets, list | tuple) else ():
        with suppress(ValueError):
            yield ip_network(text)


def _taken_subnets(networks: Iterable[NetworkInfo]) -> list[tuple[IPv4Network | IPv6Network, str]]:
    """The subnets of these networks, then the addresses of the host, each with its holder for people."""
    from ipaddress import ip_address, ip_network

    from kurma_core.linux.netlink import Netlink, NetlinkError

    found = [
        (subnet, f"{subnet} of network {info.name}")
        for info in networks
        for subnet in _parsed(info.config.get("subnets"))
    ]
    try:
        with Netlink() as netlink:
            for link in netlink.links():
                for address in netlink.addresses(link.index):
                    own = ip_address(address.value)
                    found.append((ip_network(own), f"{own}, an address of the host on {link.name}"))
    except NetlinkError as error:
        raise HostError(f"cannot read the addresses of the host: {error.strerror}", errno=error.errno) from error
    return found


def _free_after(
    subnet: IPv4Network | IPv6Network, taken: Sequence[IPv4Network | IPv6Network]
) -> IPv4Network | IPv6Network | None:
    """The next private subnet of the same length that overlaps none of ``taken``; None: there is none near."""
    for number in range(1, _NEAR):
        try:
            found = type(subnet)((int(subnet.network_address) + number * subnet.num_addresses, subnet.prefixlen))
        except ValueError:  # beyond the last address
            return None
        if found.is_private and not any(found.version == one.version and found.overlaps(one) for one in taken):
            return found
    return None
