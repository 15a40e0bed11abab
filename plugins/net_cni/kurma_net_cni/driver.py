"""The network driver ``cni``: joins pods to networks and takes them out by running the plugins of a CNI chain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from kurma_cni.attachment import Attachment
from kurma_cni.chain import Chain, parse_chain
from kurma_cni.errors import CniError
from kurma_cni.plugins import Plugins

from kurma_core.appc.cni_result import parse_result
from kurma_core.errors import NetworkError
from kurma_core.hookspecs import hookimpl
from kurma_core.hookspecs.network import AttachmentContext, Leak, NetworkHooks
from kurma_core.json_text import loads
from kurma_core.linux import programs
from kurma_core.models.network import NetworkResult
from kurma_core.value import replace
from kurma_net_cni.discover import CONF_DIR, CONF_FILE, discover, first_network, has_files
from kurma_net_cni.links import has_interface, intact, is_namespace
from kurma_net_cni.records import Record, Records, network_of

if TYPE_CHECKING:
    from kurma_core.models.isolator import TrafficLimit
    from kurma_net_cni.repair import Repair

Json = Any
#: CNI's key of each part of resolv.conf, in the capability ``dns``.
_DNS = {"servers": "nameservers", "searches": "search", "options": "options"}
# The burst as a part of a second's bytes, and its limits in bytes: CNI's bucket queues packets for at most 25 ms,
# and a burst is a 32-bit number of bits.
_BURST, _BURST_LEAST, _BURST_MOST = 1 / 10, 1 << 16, (1 << 29) - 1


#: Name of the network that :meth:`CniNetwork.discover` adds: the first one of CNI's own directory.
NODE = "cni"


def _conf_dir(config: Mapping[str, Json]) -> str:
    """The directory of an entry with ``conf_dir``. :raises NetworkError: the entry is wrong."""
    name, directory = config.get("name"), config[CONF_DIR]
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise NetworkError(f'network "{name}": {CONF_DIR}: {directory!r} is not an absolute path', network=name)
    for key in ("type", "plugins"):
        if key in config:
            raise NetworkError(
                f'network "{name}": {CONF_DIR} and {key} exclude each other: the configuration comes from the '
                "files of the directory",
                network=name,
            )
    return directory


@contextmanager
def network_errors(network: str | None = None) -> Iterator[None]:
    """Raises a :class:`CniError` as a :class:`NetworkError`."""
    try:
        yield
    except CniError as error:
        hint = error.hint
        if error.missing:
            hint = f"{hint}; other directories are named by bin_dirs in the section of the plugin cni"
        raise NetworkError(
            error.message, hint=hint, network=network, plugin=error.plugin or None, code=error.code
        ) from error


class CniNetwork(NetworkHooks):
    """The driver of all networks with a CNI configuration.

    :param bin_dirs: directories of plugins. :param timeout: seconds that a plugin may take.
    :param records: of attachments.
    :param config_dirs: directories of CNI's own configuration files.
    :param neighbours: the directory that lists the host's state directories with networks that support GC.
    """

    def __init__(
        self,
        bin_dirs: Sequence[str],
        timeout: float,
        records: Records,
        config_dirs: tuple[str, ...],
        note: Callable[[str], None],
        neighbours: str = "/run/kurma/cni",
    ) -> None:
        self._plugins = Plugins(programs, bin_dirs, timeout, loads, self._around)
        self._records = records
        self._config_dirs = config_dirs
        self._note = note
        self._neighbours = neighbours
        #: The latest faults of each directory's files.
        self._faults: dict[str, list[str]] = {}

    def _around(self, verb: str, kind: str) -> AbstractContextManager[None]:
        from kurma_net_cni.quirks import MAKE_CHAINS
        from kurma_net_cni.records import alone

        return alone(self._neighbours) if verb == "ADD" and kind in MAKE_CHAINS else nullcontext()

    # -- configuration --

    @hookimpl
    def setup(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: the configuration is wrong, names a program that is not installed, or a plugin
        says that it is not ready (STATUS, CNI 1.1.0).
        """
        with network_errors(config.get("name")):
            chain = self._chain(config)
            self._plugins.find_all(chain)
            self._ask_status(chain)

    @hookimpl
    def check_config(self, config: Mapping[str, Json]) -> None:
        """Checks the configuration, but not whether its programs are installed. :raises NetworkError: it is
        wrong."""
        if CONF_DIR in config:
            _conf_dir(config)
            return
        with network_errors(config.get("name")):
            parse_chain(config)

    @hookimpl
    def complete(self, config: Mapping[str, Json], choose: bool) -> Mapping[str, Json]:
        """The configuration of the first valid file, for an entry with ``conf_dir``.

        :raises NetworkError: no file is valid.
        """
        if CONF_DIR not in config:
            return config
        directory = _conf_dir(config)
        faults: list[str] = []
        try:
            return first_network(directory, faults.append)
        except NetworkError as error:
            faults.clear()  # the error says them
            error.data["network"] = config.get("name")
            raise
        finally:
            self._report(directory, faults)

    def _report(self, directory: str, faults: list[str]) -> None:
        """Notes the faults of a directory's files that are new: kurmad reads it for each pod."""
        known = self._faults.get(directory, [])
        self._faults[directory] = faults
        for fault in faults:
            if fault not in known:
                self._note(fault)

    @hookimpl
    def status(self, config: Mapping[str, Json]) -> None:
        """:raises NetworkError: as :meth:`setup`, or a plugin does not speak the configuration's version."""
        with network_errors(config.get("name")):
            chain = self._chain(config)
            self._plugins.find_all(chain)
            for kind in chain.types:
                spoken = self._plugins.versions(kind, chain.name)
                if chain.version not in spoken:
                    raise CniError(
                        f'network "{chain.name}" is of CNI {chain.version}, and its plugin {kind} speaks '
                        f"{', '.join(spoken) or 'no version at all'}",
                        hint="cniVersion is to be a version that all of its plugins speak",
                        plugin=kind,
                    )
            self._ask_status(chain)

    def _ask_status(self, chain: Chain) -> None:
        if chain.has_gc:
            for plugin in chain.plugins:
                self._plugins.execute("STATUS", plugin["type"], chain.document(plugin))

    def _chain(self, config: Mapping[str, Json], version: str = "") -> Chain:
        """The network's chain, in the CNI version of its ADD, or the highest version that all its plugins
        support."""
        chain = parse_chain(config)
        if version in chain.versions:
            chain.version = version
        else:
            self._plugins.choose_version(chain)
        return chain

    @hookimpl
    def discover(self) -> Mapping[str, Mapping[str, Json]]:
        """The networks of ``config_dirs``, by name, and as :data:`NODE` the first one of the first directory that
        has files."""
        faults: list[str] = []
        found = discover(self._config_dirs, faults.append)
        self._report("", faults)
        directory = next(filter(has_files, self._config_dirs), None)
        return found if directory is None else {**found, NODE: {CONF_DIR: directory}}

    @hookimpl
    def interface(self, config: Mapping[str, Json]) -> str | None:
        """CNI's plugin ``loopback`` serves the kernel's interface alone."""
        if CONF_DIR in config:
            return None
        with network_errors(config.get("name")):
            return "lo" if parse_chain(config).types == ("loopback",) else None

    @hookimpl
    def publishes(self, config: Mapping[str, Json]) -> bool | str:
        """Whether the network can publish ports of pods, or why it cannot."""
        if CONF_FILE in config:
            return True  # some networks of Kubernetes publish ports themselves, without the capability
        with network_errors(config.get("name")):
            publishes = parse_chain(config).declares("portMappings")
        return publishes or "no plugin of it has the capability portMappings"

    @hookimpl
    def limits(self, config: Mapping[str, Json]) -> bool:
        """Whether the network enforces a pod's traffic limits itself, by the capability ``bandwidth``."""
        from kurma_net_cni.quirks import has_rates

        with network_errors(config.get("name")):
            chain = parse_chain(config)
        return chain.declares("bandwidth") and not any(has_rates(plugin) for plugin in chain.plugins)

    # -- joining and leaving --

    @hookimpl
    def add(self, context: AttachmentContext) -> NetworkResult:
        """Runs ADD of each plugin, in order.

        :raises NetworkError: a plugin failed; ``delete`` undoes the work of the earlier ones.
        """
        with network_errors(context.attachment.network):
            return self._add(context, self._chain(context.attachment.config))

    def _add(self, context: AttachmentContext, chain: Chain) -> NetworkResult:
        if context.attachment.ports and not chain.declares("portMappings"):
            why = f'network "{chain.name}" cannot publish ports: no plugin of it has the capability portMappings'
            if CONF_FILE not in context.attachment.config:
                raise CniError(why)
            self._note(f"{why}; pod {context.pod_name} is joined without")
        request = context.attachment.request
        for text in (*request.ips, *([request.mac] if request.mac else ())):
            if not _is_address(text):
                raise CniError(f'network "{chain.name}" cannot give the address {text[:50]!r}: not an address')
        record = _record(context, chain.version)
        attachment = _attachment(chain, context, record)
        parsed: list[NetworkResult] = []

        def check(result: Json) -> None:
            parsed.append(parse_result(result, chain.name))

        def save(joined: bool = False) -> None:
            refused = attachment.refused or None
            self._records.write(replace(record, result=attachment.result, refused=refused, joined=joined))

        if chain.has_gc:
            from kurma_net_cni.records import enrol

            enrol(self._records.state_dir, self._neighbours)
        with self._records.lock():
            self._records.write(record)
            try:
                attachment.add(self._plugins, context.namespace, check, save)
            except CniError:
                save(joined=True)
                raise
            save(joined=True)
        return parsed[-1]

    @hookimpl
    def delete(self, context: AttachmentContext) -> None:
        """Runs DEL of each plugin in reverse order, and goes on after a failure.

        :raises NetworkError: plugins failed; names each.
        """
        with self._records.lock(), network_errors(context.attachment.network):
            begun = self._records.exists(context)
            known = self._records.read(context)
            try:
                chain = parse_chain(context.attachment.config)
                if not begun and not self._installed(chain):
                    return  # its programs are not installed, and have never run for this pod
                chain = self._chain(context.attachment.config, known.version if known else "")
            except CniError:
                if begun:
                    raise
                return  # the configuration was refused before any program ran
            failures = self._delete(context, chain, known)
            if failures and begun:  # without a record, no ADD has run, and DEL was only a precaution
                raise NetworkError("; ".join([error.message for error in failures]), network=chain.name)
            self._records.remove(context)

    def _delete(self, context: AttachmentContext, chain: Chain, known: Record | None) -> list[CniError]:
        record = replace(known or _record(context, chain.version), leaving=True)
        attachment = _attachment(chain, context, record)

        def save() -> None:
            self._records.write(replace(record, left=attachment.left))

        if known is not None and (known.leaving or not known.joined):
            from kurma_cni import orphans

            orphans.end(context.pod)
        namespace = context.namespace if is_namespace(context.namespace) else ""
        # The plugins' DEL is thorough only the first time, and while the interface is as they made it.
        thorough = known is not None and not known.leaving and intact(context, known.result)
        save()
        failures = attachment.delete(self._plugins, namespace, save)
        if failures or not thorough:
            from kurma_net_cni.quirks import sweep

            sweep(chain.name, context.pod, record.result)
        if failures:  # a plugin may fail because of unexpected rules: try again when these are removed
            failures = attachment.delete(self._plugins, namespace, save)
        if failures:
            failures = self._delete_baseless(attachment, namespace, failures)
        return failures

    def _installed(self, chain: Chain) -> bool:
        try:
            self._plugins.find_all(chain)
        except CniError:
            return False
        return True

    def _delete_baseless(self, attachment: Attachment, namespace: str, failures: list[CniError]) -> list[CniError]:
        """Frees the pod's addresses if its interface was removed with its parent on the host: then some plugins
        fail before they have called the IPAM plugin, so this calls it.
        """
        from kurma_net_cni.quirks import LINK_ALONE

        plugin = attachment.chain.plugins[0]
        if (
            0 in attachment.left
            or plugin["type"] not in LINK_ALONE
            or has_interface(namespace, attachment.interface)
        ):
            return failures
        kind = (plugin.get("ipam") or {}).get("type")
        try:
            if kind:
                attachment.execute(self._plugins, "DEL", plugin, namespace, attachment.del_result, kind)
        except CniError as error:
            return [*failures, error]
        return failures[:-1]  # DEL runs in reverse: the last failure is that of the chain's first plugin

    @hookimpl
    def check(self, context: AttachmentContext) -> None:
        """Runs CHECK of each plugin, if the configuration's version has it (from 0.4.0 on) and does not disable
        it.

        :raises NetworkError: the pod is not joined, or the attachment has changed.
        """
        name = context.attachment.network
        record = self._records.read(context)
        if record is None or record.leaving or record.result is None:
            raise NetworkError(f'pod {context.pod} is not joined to network "{name}"', network=name)
        with network_errors(name):
            chain = self._chain(context.attachment.config, record.version)
            if chain.has_check and not chain.disable_check:
                attachment = _attachment(chain, context, record)
                for plugin in chain.plugins:
                    self._check_plugin(attachment, plugin, context)

    def _check_plugin(
        self, attachment: Attachment, plugin: Mapping[str, Json], context: AttachmentContext
    ) -> None:
        from kurma_net_cni.quirks import cannot_check, ports_stand

        chain = attachment.chain
        if cannot_check(plugin["type"], chain.document(plugin, attachment.runtime)):
            return
        try:
            attachment.execute(self._plugins, "CHECK", plugin, context.namespace, attachment.result)
        except CniError:
            ports = context.attachment.ports
            if plugin["type"] != "portmap" or not ports_stand(chain.name, context.pod, ports, attachment.result):
                raise

    # -- the network itself --

    @hookimpl
    def remove(self, config: Mapping[str, Json]) -> None:
        """Removes the bridge of the network, its empty address reservations, and empty base chains of the plugins.

        :raises NetworkError: pods are joined to it, or something foreign is attached to its bridge.
        """
        if CONF_DIR in config:
            return  # no file is valid, so that it shares nothing
        with network_errors(config.get("name")):
            chain = parse_chain(config)
        with self._records.lock(alone=True), network_errors(chain.name):
            pods = self._records.pods(chain.name)
            if pods:
                raise NetworkError(
                    f'network "{chain.name}" is in use by {", ".join(pods)}',
                    hint="stop and remove these pods first",
                    network=chain.name,
                )
            from kurma_net_cni.shared import remove_shared

            remove_shared(chain)

    # -- leaks --

    @hookimpl
    def leaks(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Attachments of pods that are gone, and addresses and chains of our pods in networks that they left."""
        with network_errors():
            return self._repair().leaks(configs, pods)

    @hookimpl
    def repair(self, configs: Sequence[Mapping[str, Json]], pods: Collection[str]) -> Sequence[Leak]:
        """Repairs leaks by DEL, by freeing resources, and by GC of plugins of CNI 1.1.0. :returns: those left."""
        with network_errors():
            left = self._repair().repair(configs, pods)
            return [*left, *(leak for config in configs for leak in self._clean(config, pods))]

    def _repair(self) -> Repair:
        from kurma_net_cni.repair import Repair

        return Repair(self._records, self.delete, self._note)

    def _clean(self, config: Mapping[str, Json], pods: Collection[str]) -> list[Leak]:
        """Runs GC of one network. :returns: the failures.

        It skips networks of CNI's own directory: other runtimes join them, too, and their attachments are unknown
        here.
        """
        if CONF_FILE in config:
            return []
        if dict(config) in [{**found, "name": name} for name, found in self.discover().items()]:
            return []
        try:
            chain = self._chain(config)
        except CniError as error:
            self._note(error.message)
            return []
        if not chain.has_gc or chain.disable_gc:
            return []
        from kurma_net_cni.records import everybody

        failures = []
        with everybody(self._records.state_dir, self._neighbours) as all_records:
            valid = [
                (pod, interface)
                for records in all_records
                for network, pod, interface in records.attachments()
                if network == chain.name and (pod in pods or records is not all_records[0])
            ]
            for plugin in chain.plugins:
                try:
                    self._plugins.execute("GC", plugin["type"], chain.garbage_document(plugin, valid))
                except CniError as error:
                    self._note(error.message)
                    failures.append(Leak("network", f'network "{chain.name}"', error.message, chain.name))
        return failures


def _record(context: AttachmentContext, version: str) -> Record:
    """The record of an ADD that has not begun."""
    attachment = replace(context.attachment, result=None).to_json()
    return Record(
        network=network_of(context),
        pod=context.pod,
        interface=context.interface,
        version=version,
        pod_name=context.pod_name,
        namespace=context.namespace,
        attachment=attachment,
    )


def _attachment(chain: Chain, context: AttachmentContext, record: Record) -> Attachment:
    return Attachment(
        chain,
        context.pod,
        context.interface,
        _arguments(chain, context),
        _runtime(context),
        result=record.result,
        left=record.left,
        refused=record.refused or "",
    )


def _arguments(chain: Chain, context: AttachmentContext) -> str:
    """``CNI_ARGS``: the arguments of the request; and the older way to request an address and a MAC, for chains
    without the capability."""
    request = context.attachment.request
    words = []
    ips = [ip for ip in request.ips if _is_address(ip)]  # add refuses others, and delete must not fail
    if ips and not chain.declares("ips"):
        words.append("IP=" + ",".join(ips))
    if request.mac and _is_address(request.mac) and not chain.declares("mac"):
        words.append(f"MAC={request.mac}")
    words += [f"{name}={value}" for name, value in request.args.items()]
    return ";".join(words)


def _is_address(text: str) -> bool:
    """Whether it may be an IP or MAC address: the plugins decide, but ``CNI_ARGS`` must not get other keys."""
    return text.isascii() and text.isprintable() and not set(text) & set(";,= ")


def _runtime(context: AttachmentContext) -> dict[str, Json]:
    """Capability arguments by name (CNI conventions)."""
    attachment = context.attachment
    arguments: dict[str, Json] = {}
    if attachment.limits:
        arguments["bandwidth"] = _bandwidth(attachment.limits)
    if attachment.dns:
        arguments["dns"] = {key: list(attachment.dns.get(part, ())) for key, part in _DNS.items()}
    if attachment.ports:
        arguments["portMappings"] = [
            {
                "hostPort": port.host_port,
                "containerPort": port.pod_port,
                "protocol": port.protocol,
                "hostIP": port.host_ip,
            }
            for port in attachment.ports
        ]
    if attachment.request.ips:
        arguments["ips"] = list(attachment.request.ips)
    if attachment.request.mac:
        arguments["mac"] = attachment.request.mac
    return arguments


def _bandwidth(limits: Iterable[TrafficLimit]) -> dict[str, int]:
    """The capability ``bandwidth``: bits per second, and bits of a burst."""
    found = {}
    for limit in limits:
        way = "ingress" if limit.direction == "in" else "egress"
        found[f"{way}Rate"] = limit.rate * 8
        found[f"{way}Burst"] = min(max(int(limit.rate * _BURST), _BURST_LEAST), _BURST_MOST) * 8
    return found
