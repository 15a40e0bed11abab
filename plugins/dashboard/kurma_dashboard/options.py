"""The options of the service in ``kurma.yml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from kurma_core.errors import ConfigError
from kurma_core.hookspecs.driver import Option
from kurma_core.value import frozen

Json = Any
LISTEN = "127.0.0.1:8910"
OPTIONS = (
    Option("listen", str, LISTEN, "address and port of the page; port 0: any free one"),
    Option(
        "allow_remote",
        bool,
        False,
        "allow `listen` to be an address that other hosts reach; the connection is not encrypted",
    ),
    Option("hosts", list, [], "further names by which browsers reach the page, such as a reverse proxy's"),
    Option("read_only", bool, False, "refuse all changes, whatever the token"),
)


@frozen
class Options:
    """:param address: IP address. :param port: 0: any free one.
    :param remote: other hosts may reach the address.
    :param hosts: names in requests that are accepted besides those of the loopback interface, in lower case.
    """

    address: str
    port: int
    remote: bool
    hosts: frozenset[str]
    read_only: bool

    @classmethod
    def read(cls, config: Mapping[str, Json]) -> Options:
        """:raises ConfigError: a value is wrong."""
        listen = config["listen"]
        host, _, port = listen.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
        try:
            address = ip_address(host)
        except ValueError:
            raise ConfigError(
                f"dashboard: listen is {listen!r}: it must be an IP address and a port", hint=f"as in {LISTEN}"
            ) from None
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise ConfigError(f"dashboard: listen is {listen!r}: the port must be from 0 to 65535")
        if not address.is_loopback and not config["allow_remote"]:
            raise ConfigError(
                f"dashboard: listen is {listen!r}, which other hosts may reach",
                hint=f"use {LISTEN} and an SSH tunnel, or set allow_remote: true",
            )
        for name in config["hosts"]:
            if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9.-]+", name):
                raise ConfigError(f"dashboard: {name!r} in hosts is not a host name", hint="without a port")
        names = frozenset(name.lower() for name in config["hosts"])
        return cls(str(address), int(port), not address.is_loopback, names, config["read_only"])
