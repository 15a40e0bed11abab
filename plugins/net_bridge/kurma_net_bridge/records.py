"""Records of bridge networks on disk: identity, subnets, and the published ports of pods."""

from __future__ import annotations

import binascii
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kurma_core.errors import FormatVersionError, NetworkError
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file
from kurma_core.models.network import PortMapping
from kurma_core.schema import COUNT, fit
from kurma_core.value import frozen, replace
from kurma_net_bridge.addresses import Addresses

if TYPE_CHECKING:
    from kurma_net_bridge.packet_filter.network_rules import NetworkRules
    from kurma_net_bridge.settings import Settings

Json = Any
VERSION = 1
_RECORD = {
    "id": str,
    "network": str,
    "bridge": str,
    "subnets": [str],
    "masquerade": bool,
    "isolated": bool,
    "reaches": [str],
    "former": [str],
}
_TEMPORARY = ".tmp"
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
#: Schema of the record.
_VERSIONED = {"version": COUNT}


@frozen
class Record:
    """A network's configuration when it was used last.

    :param id: eight hex digits, which are part of the names of its rules.
    :param reaches: other programs' bridges that its pods may reach.
    :param former: subnets of an earlier configuration whose gateway addresses its bridge still has.
    """

    id: str
    network: str
    bridge: str
    subnets: tuple[str, ...]
    masquerade: bool
    isolated: bool
    reaches: tuple[str, ...] = ()
    former: tuple[str, ...] = ()


class NetworkRecords:
    """The records of one network, in its own directory under the driver's.

    ``network.json`` has its identity, ``addresses/`` the pods' addresses, ``ports/`` the published ports of pods.
    They are written before the kernel is changed.
    """

    def __init__(self, state_dir: str, network: str) -> None:
        self.network = network
        self.directory = os.path.join(state_dir, "networks", quoted(network))
        self.addresses = Addresses(os.path.join(self.directory, "addresses"), network)
        self._state_dir = state_dir
        self._record = os.path.join(self.directory, "network.json")
        self._ports = os.path.join(self.directory, "ports")

    # -- identity --

    def id(self) -> str:
        """The id in the names of its rules and interfaces; stable, also without a record."""
        record = self.read()
        if record is not None:
            return record.id
        text = os.path.realpath(self._state_dir) + "\0" + self.network
        return f"{binascii.crc32(os.fsencode(text)):08x}"

    def keep(self, settings: Settings) -> Record:
        """Returns the record, and writes it if it is missing or differs.

        :raises NetworkError: it cannot be written. :raises FormatVersionError: a newer version wrote it.
        """
        record = self.wanted(settings)
        if self.read() != record:
            self._keep(record)
        return record

    def wanted(self, settings: Settings) -> Record:
        """The record that these settings should have."""
        subnets = tuple([str(one) for one in settings.subnets])
        held = self.read()
        earlier = (*held.former, *held.subnets) if held is not None else ()
        return Record(
            self.id(),
            settings.name,
            settings.bridge,
            subnets,
            settings.masquerade,
            settings.isolated,
            settings.reaches,
            tuple([each for each in dict.fromkeys(earlier) if each not in subnets]),
        )

    def retire(self, record: Record, gone: Collection[str]) -> Record:
        """Drops former subnets whose gateways were removed. :returns: the new record."""
        record = replace(record, former=tuple([each for each in record.former if each not in gone]))
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        with self.lock(alone=True, name="record"):
            self._write(self._record, {"version": VERSION, **_to_json(record)})

    def read(self) -> Record | None:
        """Reads the record; None: the network was never used, or the record is damaged, which must not prevent a
        pod's end.

        :raises FormatVersionError: a newer version of this plugin wrote it.
        """
        value = _read(self._record, _RECORD)
        if not value:
            return None
        return Record(
            value["id"],
            value["network"],
            value["bridge"],
            tuple(value["subnets"]),
            value["masquerade"],
            value["isolated"],
            tuple(value["reaches"]),
            tuple(value["former"]),
        )

    def forget(self) -> None:
        """Removes all our files, and the directory if it has no foreign files."""
        for path, names in (
            (os.path.join(self.directory, "addresses"), ("lock", "last.4", "last.6", "last.4.new", "last.6.new")),
            (self._ports, ()),
            (self.directory, ("network.json", "network.json.tmp", "record.lock", "use.lock")),
        ):
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(path, name))
            with suppress(OSError):
                os.rmdir(path)

    # -- published ports --

    def publish(self, owner: str, addresses: Sequence[str], ports: Sequence[PortMapping]) -> None:
        """Records published ports. :raises NetworkError: the record cannot be written."""
        value = {
            "version": VERSION,
            "addresses": list(addresses),
            "ports": [port.to_json() for port in ports],
        }
        self._write(os.path.join(self._ports, owner), value)

    @contextmanager
    def publishing(self, owner: str) -> Iterator[None]:
        """Holds a lock while programs publish the owner's recorded ports. The programs inherit it, so that a
        withdrawal waits for a program that lives on after this process was killed.
        """
        fd = self._locked_ports(owner)
        try:
            if fd is not None:
                os.set_inheritable(fd, True)
            yield
        finally:
            if fd is not None:
                os.close(fd)

    def settle(self, owner: str) -> None:
        """Waits for programs that still publish the owner's ports."""
        fd = self._locked_ports(owner)
        if fd is not None:
            os.close(fd)

    def _locked_ports(self, owner: str) -> int | None:
        """Locks the record of the owner's ports; None: there is none, so no program publishes."""
        try:
            fd = os.open(os.path.join(self._ports, owner), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def published(self, owner: str) -> tuple[tuple[str, ...], tuple[PortMapping, ...]] | None:
        """The addresses and published ports of a pod's interface. None: it has none."""
        value = _read(os.path.join(self._ports, owner), {"addresses": [str], "ports": [PortMapping]})
        if not value:
            return None
        return tuple(value["addresses"]), tuple([PortMapping.from_json(each) for each in value["ports"]])

    def publishers(self) -> tuple[str, ...]:
        """Owners of published ports, those of torn records included."""
        try:
            names = os.listdir(self._ports)
        except FileNotFoundError:
            return ()
        return tuple(sorted({name.removesuffix(_TEMPORARY) for name in names}))

    def has_published(self, owner: str) -> bool:
        """Whether the owner has a record of published ports, even a torn one."""
        path = os.path.join(self._ports, owner)
        return os.path.lexists(path) or os.path.lexists(path + _TEMPORARY)

    def withdraw(self, owner: str) -> None:
        """Removes the record of the owner's ports; succeeds if there is none."""
        for name in (owner, owner + _TEMPORARY):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._ports, name))

    # -- files --

    @contextmanager
    def lock(self, *, alone: bool = False, name: str = "use") -> Iterator[None]:
        """Holds a lock: shared to join pods, exclusive (``alone``) to remove the network's shared resources."""
        path = os.path.join(self.directory, f"{name}.lock")
        try:
            fd = lock_file(path, alone=alone)
        except OSError as error:
            raise self._error(path, error) from error
        try:
            yield
        finally:
            os.close(fd)

    def _write(self, path: str, value: Json) -> None:
        """Writes by a temporary file of a fixed name, so that the next writer replaces what a killed process left.
        There is one writer at a time: the holder of the lock, or the process that joins the pod.
        """
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(path + _TEMPORARY, flags, 0o600), "wb") as file:
                file.write(json.dumps(value).encode())
            os.rename(path + _TEMPORARY, path)
        except OSError as error:
            raise self._error(path, error) from error

    def _error(self, path: str, error: OSError) -> NetworkError:
        return NetworkError(
            f'network "{self.network}": cannot write {path}: {error.strerror}',
            network=self.network,
            path=path,
            errno=error.errno,
        )


def network_rules(record: Record) -> NetworkRules:
    """The packet filter rules of a network as recorded."""
    from kurma_net_bridge.packet_filter.network_rules import NetworkRules

    return NetworkRules(
        id=record.id,
        network=record.network,
        bridge=record.bridge,
        subnets=(*record.subnets, *record.former),
        masquerade=record.masquerade,
        isolated=record.isolated,
        reaches=record.reaches,
    )


def known_networks(state_dir: str) -> tuple[str, ...]:
    """Names of the networks that have records on disk.

    :raises NetworkError: the directory cannot be read.
    """
    directory = os.path.join(state_dir, "networks")
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NetworkError(f"cannot read {directory}: {error.strerror}", path=directory) from error
    return tuple(sorted(_unquoted(name) for name in names))


def _to_json(record: Record) -> dict[str, Json]:
    return {
        "id": record.id,
        "network": record.network,
        "bridge": record.bridge,
        "subnets": list(record.subnets),
        "masquerade": record.masquerade,
        "isolated": record.isolated,
        "reaches": list(record.reaches),
        "former": list(record.former),
    }


def _read(path: str, shape: Json) -> Mapping[str, Json]:
    """Reads a record; {}: it is missing or damaged. :raises FormatVersionError: a newer version of this plugin
    wrote it."""
    try:
        with open(path, encoding="utf-8") as file:
            value: Mapping[str, Json] = loads(file.read(), own=True)
        fit(value, _VERSIONED, "the record")
        if value["version"] > VERSION:
            raise FormatVersionError(f"{path} has version {value['version']}, this plugin knows {VERSION}")
        fit(value, shape, "the record")
    except (OSError, ValueError):
        return {}
    return value


def quoted(name: str) -> str:
    """The name as a file's name: other characters are percent-encoded, so that names stay distinct."""
    return "".join([c if c in _PLAIN else "".join([f"%{byte:02x}" for byte in c.encode()]) for c in name])


def _unquoted(name: str) -> str:
    from urllib.parse import unquote

    return unquote(name)
