"""The built-in bridge network ``default``: chooses its bridge and private subnets and records them.

The choice is made once per state directory, at the network's first use, and recorded in ``networks/default.json``.
So running pods keep valid addresses, and two state directories on one host use different bridges and subnets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kurma_core.errors import FormatVersionError, HostError
from kurma_core.json_text import loads
from kurma_core.linux.files import lock_file, replace_file
from kurma_core.schema import SchemaError, fit

Json = Any

#: Built-in names: ``host`` shares the host's network namespace, ``none`` is only loopback.
DEFAULT, HOST, NONE, LO = "default", "host", "none", "lo"
#: The plugins that serve the built-in networks. An entry of ``container_networks`` with the network's name
#: replaces the network, plugin and all.
DRIVERS: Mapping[str, str] = {LO: "lo", DEFAULT: "bridge"}
#: The bridge of the usual state directory; others get one with a hash of their path.
BRIDGE = "kurma0"
STATE_DIR = "/var/lib/kurma"
VERSION = 2
#: Schema of the record.
_RECORD = {"bridge": str, "subnet": str, "subnet6": (str, None)}


class DefaultNetwork:
    """The built-in network of one state directory.

    :param state_dir: absolute.
    :param routes: the host's IPv4 routes, as networks in CIDR form; tests pass this and the following.
    :param routes6: the IPv6 routes. :param ipv6: whether the host has IPv6; None: ask the kernel.
    """

    def __init__(
        self,
        state_dir: str,
        routes: Iterable[str] | None = None,
        routes6: Iterable[str] | None = None,
        ipv6: bool | None = None,
    ) -> None:
        self._state_dir = os.path.realpath(state_dir)
        self._directory = os.path.join(state_dir, "networks")
        self._record = os.path.join(self._directory, "default.json")
        self._routes = routes
        self._routes6 = routes6
        self._ipv6 = ipv6

    def served(self, *, choose: bool = True) -> tuple[str, dict[str, Json]]:
        """The plugin that serves it, and its configuration for that plugin.

        :param choose: choose and record it at the first use; False: the configuration of an unused one is empty.
        :raises NetworkError: no subnet is free.
        :raises HostError: the record cannot be read or written.
        :raises FormatVersionError: a newer Kurma wrote the record.
        """
        record = self._read() or (self._choose() if choose else None)
        if record is None:
            return DRIVERS[DEFAULT], {}
        subnets = [record["subnet"]]
        if record["subnet6"] is not None and self._has_ipv6():
            subnets.append(record["subnet6"])
        return DRIVERS[DEFAULT], {"name": DEFAULT, "bridge": record["bridge"], "subnets": subnets}

    def chosen(self) -> bool:
        """Whether it was ever used. A record that cannot be read counts as one."""
        return os.path.lexists(self._record)

    def forget(self) -> None:
        """Removes the record, so that the next use chooses again; succeeds if there is none."""
        with self._locked():
            with suppress(FileNotFoundError):
                os.unlink(self._record)

    def _read(self) -> dict[str, Json] | None:
        try:
            with open(self._record, encoding="utf-8") as file:
                record = loads(file.read(), own=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise HostError(
                f"cannot read {self._record}: {error}",
                hint="without that file, the next pod on the network chooses bridge and subnet anew",
                path=self._record,
            ) from error
        version = record.get("version") if isinstance(record, dict) else None
        if version != VERSION:
            raise FormatVersionError(f"{self._record} has version {version}, this Kurma knows {VERSION}")
        try:
            fit(record, _RECORD, "the record")
        except SchemaError as error:
            raise HostError(
                f"cannot read {self._record}: {error}",
                hint="without that file, the next pod on the network chooses bridge and subnet anew",
                path=self._record,
            ) from None
        return dict(record)

    def _choose(self) -> dict[str, Json]:
        with self._locked():
            record = self._read()  # another process may have chosen meanwhile
            if record is None:
                record = self._write(
                    {"bridge": self._bridge(), "subnet": self._subnet(), "subnet6": self._subnet6()}
                )
        return record

    def _write(self, chosen: dict[str, Json]) -> dict[str, Json]:
        record = {"version": VERSION, **chosen}
        replace_file(self._record, (json.dumps(record, indent=2) + "\n").encode(), 0o600)
        return record

    def _hash(self) -> str:
        import hashlib

        return hashlib.sha256(os.fsencode(self._state_dir)).hexdigest()

    def _bridge(self) -> str:
        return BRIDGE if self._state_dir == STATE_DIR else f"kurma-{self._hash()[:8]}"

    def _subnet(self) -> str:
        from kurma_core.networking.subnets import free_subnet, host_networks

        taken = host_networks() if self._routes is None else self._routes
        first = 0 if self._state_dir == STATE_DIR else int(self._hash()[8:16], 16)
        return free_subnet(taken, first)

    def _subnet6(self) -> str | None:
        from kurma_core.networking.subnets import free_subnet6, host_networks6

        return free_subnet6(host_networks6() if self._routes6 is None else self._routes6, self._hash()[16:])

    def _has_ipv6(self) -> bool:
        if self._ipv6 is None:
            from kurma_core.networking.subnets import has_ipv6

            self._ipv6 = has_ipv6()
        return self._ipv6

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Holds the record's lock exclusively."""
        path = os.path.join(self._directory, "lock")
        try:
            lock = lock_file(path)
        except OSError as error:
            raise HostError(f"cannot write {path}: {error.strerror}", path=path, errno=error.errno) from error
        try:
            yield
        except OSError as error:
            raise HostError(
                f"cannot write {self._record}: {error.strerror}", path=self._record, errno=error.errno
            ) from error
        finally:
            os.close(lock)
