"""Joins pods to networks and takes them out: plans attachments, calls the plugins in order, undoes failures."""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from kurma_core.api.host import NetworkInfo
from kurma_core.api.network_options import no_address_of_a_host
from kurma_core.appc.types import address_family, is_cidr
from kurma_core.cancellation import abandoning, check
from kurma_core.errors import (
    HostError,
    KurmaError,
    NetworkError,
    PluginError,
    PluginNotFoundError,
    UsageError,
)
from kurma_core.hookspecs.network import AttachmentContext
from kurma_core.models.network import Attachment, NetworkRequest, PortMapping
from kurma_core.networking import interfaces
from kurma_core.networking.catalog import HOST, NONE, Catalog
from kurma_core.plugins.calls import source_of
from kurma_core.value import replace

if TYPE_CHECKING:
    from _thread import LockType as Lock

    from kurma_core.config import Config
    from kurma_core.hookspecs.network import NetworkHooks
    from kurma_core.models.isolator import TrafficLimit
    from kurma_core.models.network import NetworkResult
    from kurma_core.networking.repair import DriverChecks

Json = Any


class Networking:
    """The networks of one state directory. Several threads may use it, for different pods.

    :param driver: loads the network plugin of a name.
    :param resolve_alias: name of the plugin that declares an ``aci`` name, or None.
    :param image_runner: name of the plugin for networks whose ``aci`` is an image, or None.
    :param names: names of the enabled network plugins that may look for leaks, or repair them.
    :param note: shows the user a line.
    :param teardown: as ``driver``, to take something down: the plugin may be disabled.
    :param discovering: names of the enabled network plugins that may discover networks; None: ``names``.
    """

    def __init__(
        self,
        config: Config,
        driver: Callable[[str], NetworkHooks],
        resolve_alias: Callable[[str], str | None],
        note: Callable[[str], None],
        names: Callable[[], tuple[str, ...]] = lambda: (),
        image_runner: Callable[[], str | None] = lambda: None,
        teardown: Callable[[str], NetworkHooks] | None = None,
        discovering: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._driver = driver
        self._teardown = teardown or driver
        self._note = note
        self._config = config
        self.catalog = Catalog(config, driver, resolve_alias, image_runner, discovering or names, note)
        #: The configuration of each network whose driver has been called to set it up.
        self._ready: dict[str, Mapping[str, Json]] = {}
        self._setting_up: dict[str, Lock] = {}
        #: The latest :meth:`add` of each attachment, by pod and network.
        self._adding: dict[tuple[str, str], AttachmentContext] = {}
        self._names = names

    def driver_checks(self) -> DriverChecks:
        """The check and repair of the drivers' resources on the host."""
        from kurma_core.networking.repair import DriverChecks

        infos = self.catalog.all()
        unused = [info.name for info in infos if self.catalog.is_unused(info)]
        return DriverChecks(infos, self._names(), self._driver, self._note, unused, self._teardown)

    # -- planning --

    @staticmethod
    def shares_host(requests: Sequence[NetworkRequest] | None) -> bool:
        """Whether the pod has no network namespace of its own (``--net host``).

        :raises UsageError: ``host`` and another network.
        """
        names = [request.name for request in requests or ()]
        if HOST in names and len(names) > 1:
            raise UsageError(
                "the network host cannot be combined with others: the pod uses the host's network", network=HOST
            )
        return HOST in names

    def plan(
        self,
        requests: Sequence[NetworkRequest] | None,
        ports: Sequence[PortMapping],
        pod_uuid: str,
        dns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> tuple[Attachment, ...]:
        """Plans the pod's attachments in order, base networks first. The caller records them before :meth:`add`.
        Empty: the pod shares the host's namespace. It does not change the host.

        :param requests: None or empty: the default networks.
        :param ports: to be published, by the first network that can do so, preferably one that is not optional.
        :param dns: contents of the pod's resolv.conf that the caller wants, as :class:`Attachment` has them.
        :raises NetworkError: an unknown network, an invalid interface, or ports that no network can publish.
        :raises UsageError: the requests contradict each other.
        """
        self._check_wishes(requests or ())
        for port in ports:
            if why := no_address_of_a_host(port.host_ip):
                raise NetworkError(f"port {port.host_port} of the host cannot be published: {why}", pod=pod_uuid)
        if self.shares_host(requests):
            if ports:
                self._note("ports are not published: a pod in the host's network uses the host's ports directly")
            return ()
        base = self._config.base_networks
        wanted = list(requests or map(NetworkRequest, self._config.joined_by_default))
        self._check_names(wanted)
        wanted = [request for request in wanted if request.name not in (*base, NONE)]
        wanted = [*map(NetworkRequest, base), *wanted]
        infos = [self.catalog.get(request.name) for request in wanted]
        names = interfaces.assign(
            [
                (info.name, request.interface or info.interface)
                for info, request in zip(infos, wanted, strict=True)
            ],
            pod_uuid,
        )
        joined = slice(len(base), None)
        publisher = self._publisher(infos[joined], wanted[joined]) if ports else None
        return tuple(
            Attachment(
                network=info.name,
                driver=info.driver,
                interface=name,
                config=info.config,
                request=request,
                ports=tuple(ports) if info is publisher else (),
                base=info.name in base,
                dns=dns or {},
                names=info.names,
            )
            for info, request, name in zip(infos, wanted, names, strict=True)
        )

    def limited(self, attachments: Sequence[Attachment], limits: Sequence[TrafficLimit]) -> tuple[Attachment, ...]:
        """The attachments, with the pod's traffic limits passed to those networks that enforce them."""
        if not limits:
            return tuple(attachments)
        found = []
        for one in attachments:
            own = _lowest(limits, one.interface) if self._driver(one.driver).limits(one.config) else ()
            found.append(replace(one, limits=own) if own else one)
        return tuple(found)

    @staticmethod
    def _check_names(wanted: Sequence[NetworkRequest]) -> None:
        names = [request.name for request in wanted]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f'network "{name}" is requested twice', network=name)
        if NONE in names and len(names) > 1:
            raise UsageError("the network none cannot be combined with others", network=NONE)

    def _check_wishes(self, requests: Sequence[NetworkRequest]) -> None:
        """:raises UsageError: a request has an option that its network does not support."""
        for request in requests:
            wishes = [request.interface and f"interface {request.interface}", *request.ips, request.mac]
            for wish in filter(None, wishes):
                if request.name in (HOST, NONE, *self._config.base_networks):
                    raise UsageError(
                        f'network "{request.name}" cannot give a pod {wish}: it has neither interface nor address '
                        "to give",
                        hint=f"write --net {request.name}, or name another network",
                        network=request.name,
                    )

    def _publisher(self, infos: Sequence[NetworkInfo], requests: Sequence[NetworkRequest]) -> NetworkInfo:
        first: NetworkInfo | None = None
        reasons = []
        for info, request in zip(infos, requests, strict=True):
            can = self._driver(info.driver).publishes(info.config)
            if can is True:
                if not (request.optional or info.optional):
                    return info
                first = first or info
            else:
                reasons.append(f"network {info.name}: {can or 'it does not publish ports'}")
        if first is not None:
            return first
        others = [info.name for info in self.catalog.configured() if self._may_publish(info)]
        raise NetworkError(
            f"cannot publish ports: {'; '.join(reasons) or 'the pod joins no network'}",
            hint=f"networks that publish ports: {', '.join(others)}" if others else "no configured network does",
        )

    def _may_publish(self, info: NetworkInfo) -> bool:
        if info.problem or info.name in self._config.base_networks:
            return False
        return self._driver(info.driver).publishes(info.config) is True

    # -- joining and leaving --

    def add(
        self,
        attachment: Attachment,
        *,
        pod: str,
        pod_name: str,
        namespace: str,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Attachment:
        """Joins one network. After a failure it is left again. :returns: ``attachment`` with its result.

        :param pod: UUID. :param namespace: path of the pod's network namespace.
        :param wanted: asked each second whether to wait on for the driver. A driver that goes on after that is
            abandoned; if it succeeds in the end, the network is left then.
        :raises NetworkError: it failed, or gave no address, or is not wanted any more.
        """
        context = _context(attachment, pod, pod_name, namespace)
        driver = self._driver(attachment.driver)
        key, adding, begun = (pod, attachment.network), False, monotonic()
        self._adding[key] = context

        def ends() -> bool:
            """Forgets this call. :returns: False: the pod was started again, and a later call counts."""
            latest = self._adding.get(key) is context
            if latest:
                del self._adding[key]
            return latest

        def join() -> NetworkResult | None:
            nonlocal adding
            try:
                self._set_up(attachment, driver)
                check()
                adding = True
                return driver.add(context)
            except BaseException:
                ends()
                raise

        def leave(_: object) -> None:
            if ends():
                self._undo(driver, context)

        def ask() -> None:
            if not wanted():
                who = source_of(driver) or attachment.driver
                what = f"given up: {who}: {'add' if adding else 'setup'} has taken {monotonic() - begun:.0f} s"
                raise NetworkError(f'network "{attachment.network}": {what}', network=attachment.network)

        try:
            with _naming(attachment):
                result = abandoning(join, leave, meanwhile=ask)
                ends()
                self._check_result(attachment, result, driver)
        except BaseException:  # Ctrl-C too
            if adding:
                self._undo(driver, context)
            raise
        return replace(attachment, result=result)

    def _set_up(self, attachment: Attachment, driver: NetworkHooks) -> None:
        """Calls the driver's ``setup`` once for each configuration, before the first pod joins, also if several
        pods join at the same time. A slow network does not hold up others."""
        name = attachment.network
        if self._ready.get(name) == attachment.config:
            return
        with self._setting_up.setdefault(name, allocate_lock()):
            if self._ready.get(name) != attachment.config:
                driver.setup(attachment.config)
                self._ready[name] = attachment.config

    def add_all(
        self,
        attachments: Sequence[Attachment],
        *,
        pod: str,
        pod_name: str,
        namespace: str,
        wanted: Callable[[], bool] = lambda: True,
    ) -> tuple[Attachment, ...]:
        """Joins all networks, in order. After a failure the earlier ones are left in reverse, unless the failed
        network is optional, by the configuration or the pod.

        :param wanted: as for :meth:`add`.
        :returns: the joined ones; an optional network that failed is left out, with a note.
        :raises NetworkError: the first failure.
        """
        done: list[Attachment] = []
        try:
            for attachment in attachments:
                try:
                    result = self.add(attachment, pod=pod, pod_name=pod_name, namespace=namespace, wanted=wanted)
                except KurmaError as error:
                    if not self._optional(attachment) or not wanted():
                        raise
                    ports = (
                        f", and its ports {_listed(attachment.ports)} are not published"
                        if attachment.ports
                        else ""
                    )
                    self._note(
                        f"the pod runs without the optional network {attachment.network}{ports}: {error.message}"
                    )
                else:
                    done.append(result)
        except BaseException:
            for attachment in reversed(done):
                self._undo(self._driver(attachment.driver), _context(attachment, pod, pod_name, namespace))
            raise
        return tuple(done)

    def delete(self, attachment: Attachment, *, pod: str, pod_name: str, namespace: str) -> None:
        """Leaves one network. It can be repeated, and works after a failed or interrupted :meth:`add`, too.

        :raises PluginNotFoundError: its plugin is not installed any more.
        :raises NetworkError: a part is left on the host; try again.
        """
        with _naming(attachment):
            try:
                driver = self._teardown(attachment.driver)
            except PluginNotFoundError as error:  # made anew at each call
                error.prefix(f'network "{attachment.network}"')
                error.hint = f"install it again; or kurma rm --force {pod} gives up what it has of the pod"
                raise
            driver.delete(_context(attachment, pod, pod_name, namespace))

    def delete_all(
        self,
        attachments: Sequence[Attachment],
        *,
        pod: str,
        pod_name: str,
        namespace: str,
        give_up: bool = False,
    ) -> None:
        """Leaves all networks, in reverse, and goes on after a failure.

        :param give_up: only note the networks whose plugins are not installed any more.
        :raises PluginNotFoundError: the first failure: a plugin is not installed any more. All were tried, and
            none has failed in another way.
        :raises NetworkError: the first other failure.
        """
        failures: list[KurmaError] = []
        for attachment in reversed(attachments):
            try:
                self.delete(attachment, pod=pod, pod_name=pod_name, namespace=namespace)
            except PluginNotFoundError as error:
                if give_up:
                    self._note(f"pod {pod}: {error.message}: {self._may_be_left(attachment)}")
                else:
                    failures.append(error)
            except KurmaError as error:
                failures.append(error)
        if failures:
            raise next((one for one in failures if not isinstance(one, PluginNotFoundError)), failures[0])

    def _may_be_left(self, attachment: Attachment) -> str:
        """Possible leftovers of a missing plugin for a pod, for the user."""
        state = f"{self._config.state_dir}/plugins/kurma.networks/{attachment.driver}"
        reserved = f", and what it has reserved, in {state}" if os.path.isdir(state) else ""
        return f"what it has made of the pod's interface {attachment.interface} may be left on the host{reserved}"

    def check(self, attachment: Attachment, *, pod: str, pod_name: str, namespace: str) -> None:
        """Checks an attachment. :raises NetworkError: it is not as ``add`` made it."""
        context = AttachmentContext(pod, pod_name, namespace, attachment.interface, attachment)
        with _naming(attachment):
            self._teardown(attachment.driver).check(context)

    def _undo(self, driver: NetworkHooks, context: AttachmentContext) -> None:
        """Leaves a network after a failed ``add``, whose error is raised; an error here becomes a note."""
        try:
            with _naming(context.attachment):
                driver.delete(context)
        except KurmaError as error:
            self._note(f"{error.message}; `kurma gc` tries again")

    def _optional(self, attachment: Attachment) -> bool:
        optional = attachment.request.optional or self.catalog.is_optional(attachment.network)
        return optional and not attachment.base

    @staticmethod
    def _check_result(attachment: Attachment, result: NetworkResult | None, driver: NetworkHooks) -> None:
        """Checks that the result has an address, unless the network is a base network, and the requested ones."""
        name, source = attachment.network, source_of(driver)
        by = "" if source is None else f" (by {source})"
        if result is None or not result.addresses:
            if attachment.base:
                return
            raise NetworkError(f'network "{name}" gave the pod no address{by}', network=name)
        for one in result.addresses:
            gateway = one.gateway is None or address_family(one.gateway)
            if not (is_cidr(one.address) and gateway):
                wrong = one.gateway if is_cidr(one.address) else one.address
                what = f'network "{name}" gave the pod {wrong!r}, which is not an address{by}'
                raise NetworkError(what, network=name)
        given = [address.address for address in result.addresses]
        for ip in attachment.request.ips:
            if not any(_same_address(ip, address) for address in given):
                have = ", ".join(given)
                raise NetworkError(f'network "{name}" gave the pod {have} instead of {ip}{by}', network=name)

    # -- networks themselves --

    def show(self, name: str) -> NetworkInfo:
        """One network. :raises NetworkError: there is no network of that name."""
        for info in self.catalog.all():
            if info.name == name:
                return info
        return self.catalog.get(name)  # raises, and lists the known ones

    def remove(self, name: str, used_by: Collection[str] = ()) -> None:
        """Removes the network's shared resources from the host, and keeps its configuration. It can be repeated.

        :param used_by: pods that are joined to it.
        :raises NetworkError: there is no such network, it is in use, or the driver failed.
        """
        if name in (HOST, NONE):
            raise NetworkError(f'the network "{name}" has nothing to remove', network=name)
        if used_by:
            pods = ", ".join(sorted(used_by))
            raise NetworkError(
                f'network "{name}" is in use by {pods}', hint="stop and remove these pods", network=name
            )
        info = self.show(name)
        if self.catalog.is_unused(info):
            return
        attachment = Attachment(name, info.driver, "", info.config, NetworkRequest(name))
        with _naming(attachment):
            self._teardown(info.driver).remove(info.config)
        self._ready.pop(name, None)


def _context(attachment: Attachment, pod: str, pod_name: str, namespace: str) -> AttachmentContext:
    """The arguments of ``add`` and of each later ``delete``, which do not contain the result of ``add``."""
    if attachment.result is not None:
        attachment = replace(attachment, result=None)
    return AttachmentContext(pod, pod_name, namespace, attachment.interface, attachment)


def _lowest(limits: Sequence[TrafficLimit], interface: str) -> tuple[TrafficLimit, ...]:
    """The lowest limit of each direction for one interface."""
    found: dict[str, TrafficLimit] = {}
    for limit in limits:
        lowest = found.get(limit.direction)
        if limit.interface in ("", interface) and (lowest is None or limit.rate < lowest.rate):
            found[limit.direction] = replace(limit, interface=interface)
    return tuple(found.values())


def _listed(ports: Sequence[PortMapping]) -> str:
    return ", ".join(dict.fromkeys(f"{port.host_port}/{port.protocol}" for port in ports))


def _same_address(wanted: str, given: str) -> bool:
    from ipaddress import ip_interface

    have, want = ip_interface(given), ip_interface(wanted)
    return have == want if "/" in wanted else have.ip == want.ip


class _naming:
    """Names the network in the error of a plugin that fails in a way of its own."""

    def __init__(self, attachment: Attachment) -> None:
        self._network = attachment.network

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, PluginError | HostError) and "call" in error.data:
            error.prefix(f'network "{self._network}"')
            error.data["network"] = self._network
