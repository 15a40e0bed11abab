"""Checks and repairs networks: calls the hooks ``status``, ``leaks`` and ``repair`` of the network plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kurma_core.api.host import NetworkFinding
from kurma_core.errors import KurmaError
from kurma_core.hookspecs.network import Leak

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kurma_core.api.host import NetworkInfo
    from kurma_core.hookspecs.network import NetworkHooks

Json = Any


def finding(leak: Leak, repaired: bool = False) -> NetworkFinding:
    return NetworkFinding(leak.kind, leak.network or None, leak.pod or None, leak.what, leak.why, repaired)


class DriverChecks:
    """Checks and repairs the networks of one state directory, by their drivers.

    :param infos: all networks that a pod can join.
    :param names: names of the enabled plugins that may look for leaks, also of those without a network now.
    :param driver: loads the plugin of a name.
    :param teardown: as ``driver``, for leaks and repair: the plugin may be disabled.
    :param unused: names of networks that no pod has ever joined, and that have no configuration before that.
    """

    def __init__(
        self,
        infos: Sequence[NetworkInfo],
        names: Iterable[str],
        driver: Callable[[str], NetworkHooks],
        note: Callable[[str], None],
        unused: Collection[str] = (),
        teardown: Callable[[str], NetworkHooks] | None = None,
    ) -> None:
        self._teardown = teardown or driver
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
            if info.name not in self._unused:
                self._driver(info.driver).status(info.config)
        except KurmaError as error:
            return error.message
        return None

    def leaks(self, pods: Collection[str], drivers: Collection[str] | None = None) -> list[Leak]:
        """Lists leaks that drivers report twice: resources of a pod that is just leaving are gone at the second
        call.

        :param pods: the joined pods; it is read from disk at each call.
        :param drivers: only these.
        """
        found: list[Leak] = []
        for name in self._names if drivers is None else drivers:
            first = self._leaks(name, pods)
            if first:
                again = self._leaks(name, pods)
                found += [leak for leak in again if leak in first]
        return found

    def repair(self, pods: Collection[str], drivers: Collection[str]) -> None:
        """Makes these drivers repair their leaks. :meth:`leaks` lists the others; a failure of a driver
        is noted here.
        """
        for name in drivers:
            for leak in self._repair(name, pods):
                if leak.kind == "plugin":
                    self._note(f"{leak.what} {leak.why}")

    def drivers_of(self, wanted: Collection[str]) -> tuple[str, ...]:
        """Names of the drivers of these networks; empty: of all networks."""
        if not wanted:
            return self._names
        return tuple(dict.fromkeys(info.driver for info in self._infos if info.name in wanted and info.driver))

    def _leaks(self, name: str, pods: Collection[str]) -> Sequence[Leak]:
        return self._ask(name, "look for leaks", lambda driver: driver.leaks(self._configs(name), pods))

    def _repair(self, name: str, pods: Collection[str]) -> Sequence[Leak]:
        return self._ask(name, "repair", lambda driver: driver.repair(self._configs(name), pods))

    def _ask(self, name: str, what: str, ask: Callable[[NetworkHooks], Sequence[Leak]]) -> Sequence[Leak]:
        try:
            driver = self._teardown(name)
        except KurmaError as error:
            # Noted only if a network needs the driver; go on with the other drivers.
            if any(info.driver == name for info in self._infos):
                self._note(error.message)
            return ()
        try:
            return ask(driver)
        except KurmaError as error:
            return (Leak("plugin", f"network plugin {name}", f"cannot {what}: {error.message}"),)

    def _configs(self, driver: str) -> list[Mapping[str, Json]]:
        return [info.config for info in self._infos if info.driver == driver and info.name not in self._unused]
