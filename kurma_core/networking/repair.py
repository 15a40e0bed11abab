"""Checks and repairs networks: calls the network plugins for status, leaks and repair.

A plugin may implement ``NetworkCare`` and ``NetworkStatus`` of :mod:`kurma_core.hookspecs` for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.api.host import NetworkFinding
from kurma_core.errors import KurmaError
from kurma_core.hookspecs.network import Leak
from kurma_core.networking.default_network import DEFAULT, DefaultNetwork
from kurma_core.shortage import words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kurma_core.api.host import NetworkInfo
    from kurma_core.hookspecs.network import Network

Json = Any


def finding(leak: Leak, mended: bool = False) -> NetworkFinding:
    return NetworkFinding(leak.kind, leak.network or None, leak.pod or None, leak.what, leak.why, mended)


class DriverCare:
    """Checks and repairs the networks of one state directory, by their drivers.

    :param infos: all networks that a pod can join.
    :param names: names of the enabled network plugins, also of those without a network now.
    :param driver: loads the plugin of a name.
    :param unused: names of networks that no pod has ever joined, and that have no configuration before that.
    """

    def __init__(
        self,
        infos: Sequence[NetworkInfo],
        names: Iterable[str],
        driver: Callable[[str], Network],
        note: Callable[[str], None],
        unused: Collection[str] = (),
    ) -> None:
        self._infos = [info for info in infos if info.driver or info.problem]
        self._names = tuple(dict.fromkeys([*names, *[info.driver for info in infos if info.driver]]))
        self._driver = driver
        self._note = note
        self._unused = unused

    def is_optional(self, name: str) -> bool:
        """Whether a pod starts without that network if it cannot be joined."""
        return any(info.name == name and info.optional for info in self._infos)

    def unusable(self, wanted: Collection[str] = ()) -> list[Leak]:
        """Networks that pods cannot join now, by their drivers' status, or for lack of a driver.

        :param wanted: names of networks; empty: all.
        """
        found = []
        for info in self._infos:
            if wanted and info.name not in wanted:
                continue
            why = info.problem or self._unusable(info)
            if why:
                found.append(Leak("network", f"network {info.name}", why, info.name))
        return found

    def _unusable(self, info: NetworkInfo) -> str | None:
        try:
            status = getattr(self._driver(info.driver), "status", None)
            if status is not None and info.name not in self._unused:
                status(info.config)
        except Exception as error:  # noqa: BLE001 - any exception of a third party's plugin is the answer
            return _said(error)
        return None

    def leaks(self, pods: Collection[str], drivers: Collection[str] | None = None) -> list[Leak]:
        """Lists leaks that drivers report twice: resources of a pod that is just leaving are gone at the second
        call.

        :param pods: the joined pods; it is read from disk at each call.
        :param drivers: only these.
        """
        found: list[Leak] = []
        for name in self._names if drivers is None else drivers:
            first = self._ask(name, "leaks", pods)
            if first:
                again = self._ask(name, "leaks", pods)
                found += [leak for leak in again if leak in first]
        return found

    def mend(self, pods: Collection[str], drivers: Collection[str]) -> None:
        """Makes these drivers repair their leaks. :meth:`leaks` lists the others; a failure of a driver
        is noted here.
        """
        for name in drivers:
            for leak in self._ask(name, "mend", pods):
                if leak.kind == "plugin":
                    self._note(f"{leak.what} {leak.why}")

    def drivers_of(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Names of the drivers of these networks; empty: of all networks."""
        if not wanted:
            return self._names
        return tuple(dict.fromkeys(info.driver for info in self._infos if info.name in wanted and info.driver))

    def _ask(self, name: str, verb: str, pods: Collection[str]) -> Sequence[Leak]:
        try:
            method = getattr(self._driver(name), verb, None)
        except KurmaError as error:
            # Noted only if a network needs the driver; go on with the other drivers.
            if any(info.driver == name for info in self._infos):
                self._note(error.message)
            return ()
        if method is None:
            return ()
        try:
            told: Sequence[Leak] = tuple(method(self._configs(name), pods))
        except Exception as error:  # noqa: BLE001 - as above
            what = "look for leaks" if verb == "leaks" else "mend"
            return (Leak("plugin", f"network plugin {name}", f"cannot {what}: {_said(error)}"),)
        return told

    def _configs(self, driver: str) -> list[Mapping[str, Json]]:
        return [info.config for info in self._infos if info.driver == driver and info.name not in self._unused]


def unused(default: DefaultNetwork, infos: Iterable[NetworkInfo]) -> frozenset[str]:
    """The name of the built-in network, if no pod has ever used it."""
    built_in = any(info.name == DEFAULT and info.source == "built-in" for info in infos)
    return frozenset([DEFAULT]) if built_in and not default.chosen() else frozenset()


def _said(error: Exception) -> str:
    return error.message if isinstance(error, KurmaError) else words(error)
