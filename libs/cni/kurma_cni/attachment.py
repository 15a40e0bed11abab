"""Joins a pod to a network and takes it out: ADD and DEL of each plugin of a chain, after failures too."""

from __future__ import annotations

from kurma_cni.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kurma_cni.chain import Chain
    from kurma_cni.plugins import Plugins

    Json = Any


def _nothing() -> None:
    return


class Attachment:
    """One interface of a pod in one network, from before ADD until after DEL.

    The caller records ``result``, ``left`` and ``refused`` each time that ``save`` is called: then
    a DEL by another process can go on after a death at any point.

    :param container: the pod, as plugins know it.
    :param arguments: ``KEY=VALUE;…`` for ``CNI_ARGS``. :param runtime: capability arguments by name.
    :ivar result: of the last plugin whose ADD succeeded; None: no ADD has.
    :ivar left: places in the chain of the plugins whose DEL succeeded. They are not asked again: they also act on
        addresses, and an address that was given back may be another pod's by then.
    :ivar refused: :attr:`CniError.reason` of the chain's first plugin, if it refused to ADD.
    """

    def __init__(
        self,
        chain: Chain,
        container: str,
        interface: str,
        arguments: str = "",
        runtime: Mapping[str, Json] | None = None,
        *,
        result: Json = None,
        left: tuple[int, ...] = (),
        refused: str = "",
    ) -> None:
        self.chain = chain
        self.container = container
        self.interface = interface
        self.arguments = arguments
        self.runtime = runtime or {}
        self.result = result
        self.left = left
        self.refused = refused

    def add(
        self,
        plugins: Plugins,
        namespace: str,
        check: Callable[[Json], None] = lambda result: None,
        save: Callable[[], None] = _nothing,
    ) -> None:
        """Runs ADD of each plugin, in order; each is told the result so far.

        :param check: raises ValueError, with the reason, if what a plugin printed is not a result.
        :param save: called between two plugins; the caller records the end itself.
        :raises CniError: a plugin failed; :meth:`delete` undoes what the earlier ones did.
        """
        for plugin in self.chain.plugins:
            try:
                result = self.execute(plugins, "ADD", plugin, namespace, self.result)
            except CniError as error:
                self.refused = error.reason if self.result is None else ""
                raise
            try:
                check(result)
            except ValueError as error:
                kind = plugin["type"]
                about = f'cannot join network "{self.chain.name}": CNI plugin {kind}'
                raise CniError(f"{about} printed a result that makes no sense: {error}", plugin=kind) from None
            if not result.get("cniVersion"):  # then it is the configuration's
                result["cniVersion"] = self.chain.version
            self.result = result
            if plugin is not self.chain.plugins[-1]:
                save()

    def delete(self, plugins: Plugins, namespace: str, save: Callable[[], None] = _nothing) -> list[CniError]:
        """Runs DEL of each plugin whose DEL has not succeeded yet, in reverse order, whichever fails.

        :param namespace: "": it is gone.
        :returns: the failures.
        """
        failures = []
        for place, plugin in reversed(tuple(enumerate(self.chain.plugins))):
            if place in self.left:
                continue
            try:
                self.execute(plugins, "DEL", plugin, namespace, self.del_result)
            except CniError as error:
                # A configuration that the first plugin does not understand, it does not understand at DEL either.
                # Its ADD made nothing.
                if not self.refused or error.reason != self.refused:
                    failures.append(error)
            else:
                self.left = (*self.left, place)
                save()
        return failures

    @property
    def del_result(self) -> Json:
        """The result that plugins are told at DEL, since 0.4.0."""
        return self.result if self.chain.has_check else None

    def execute(
        self,
        plugins: Plugins,
        verb: str,
        plugin: Mapping[str, Json],
        namespace: str,
        previous: Json,
        kind: str = "",
    ) -> Json:
        """Runs one plugin of the chain. :param kind: another program than the plugin's own type.

        :raises CniError: it failed.
        """
        return plugins.execute(
            verb,
            kind or plugin["type"],
            self.chain.document(plugin, self.runtime, previous),
            container=self.container,
            namespace=namespace,
            interface=self.interface,
            arguments=self.arguments,
        )
